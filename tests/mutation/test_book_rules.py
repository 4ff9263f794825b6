"""Rules of the books: each of them left out is a race."""

import pytest

from tests.mutation.book_rules import RULES, BookRule

EACH = pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])


@EACH
def test_with_its_rule_nothing_races_and_one_wait_is_asked(rule: BookRule) -> None:
    assert tuple(rule.play().waited) == rule.waits


@EACH
def test_without_its_rule_two_actions_race(rule: BookRule) -> None:
    kill = rule.attack()

    assert kill is not None
    print(f"{rule.name}: {kill.check}")
