"""Waits of a rank's copy streams: each of them left out is a race."""

import pytest

from tests.mutation.copy_rules import RULES, CopyRule

EACH = pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])


@EACH
def test_with_its_wait_nothing_races(rule: CopyRule) -> None:
    rule.play()


@EACH
def test_without_its_wait_two_actions_race(rule: CopyRule) -> None:
    kill = rule.attack()

    assert kill is not None
    print(f"{rule.name}: {kill.check}")
