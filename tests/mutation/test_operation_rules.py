"""Cells and waits as operations meet them: each of them left out is a race."""

import pytest

from tests.mutation.operation_rules import RULES, OperationRule

EACH = pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
COMPANIONED = [rule for rule in RULES if rule.companion is not None]


@EACH
def test_with_its_rule_nothing_races_and_one_wait_is_asked(rule: OperationRule) -> None:
    bench, turned_down, race = rule.play(rule=True, companion=True)

    assert race is None
    assert tuple(bench.waited) == rule.waits
    assert rule.turned_down in turned_down
    assert bool(rule.turned_down) == bool(turned_down)


@pytest.mark.parametrize("rule", COMPANIONED, ids=[rule.name for rule in COMPANIONED])
def test_either_of_two_companions_is_enough(rule: OperationRule) -> None:
    _, turned_down, race = rule.play(rule=True, companion=False)
    assert race is None
    assert rule.refusal in turned_down
    assert bool(rule.refusal) == bool(turned_down)

    _, _, race = rule.play(rule=False, companion=True)
    assert race is None


@EACH
def test_without_its_rule_two_actions_race(rule: OperationRule) -> None:
    kill = rule.attack()

    assert kill is not None
    print(f"{rule.name}: {kill.check}")
