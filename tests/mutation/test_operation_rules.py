"""Cells and waits as operations meet them: each of them left out is a race."""

from functools import partial

import pytest

from kvd.alloc.signals import copy_signal
from kvd_proto.operations import Evict
from tests.mutation.applier_bench import ApplierBench
from tests.mutation.operation_rules import RULES, OperationRule
from tests.mutation.operation_scenes import admit
from tests.mutation.operations_bench import OperationsBench
from tests.stateful.ranks import PAGE_TOKENS, int64s
from tests.stateful.values import FULL, backup, pages

EACH = pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
COMPANIONED = [rule for rule in RULES if rule.companion is not None]


@EACH
def test_with_its_rule_nothing_races_and_one_wait_is_asked(rule: OperationRule) -> None:
    bench, turned_down, race = rule.play(rule=True, companion=True)

    assert race is None
    if not isinstance(bench, ApplierBench):
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


@EACH
@pytest.mark.parametrize("as_replies", [False, True])
def test_an_applier_carries_the_operations_out_without_a_race(
    rule: OperationRule, as_replies: bool
) -> None:
    _, turned_down, race = rule.play(
        rule=True, companion=True, new_bench=partial(ApplierBench, as_replies=as_replies)
    )

    assert race is None
    assert rule.turned_down in turned_down


def test_a_copy_is_waited_for_once_by_all_that_follow_it() -> None:
    bench = OperationsBench()
    bench.decide(backup(1, FULL, pages(bench.engine, FULL)), Evict(int64s([1])))

    bench.decide(admit(3, 2 * PAGE_TOKENS))
    bench.decide(admit(4, 2 * PAGE_TOKENS))
    bench.run()

    assert bench.waited == [copy_signal(1)]
