"""Rules of ranks and engine: each of them left out is noticed, whatever order actions run in."""

import pytest

from tests.mutation.rank_rules import ORDERS, RULES, SCENARIOS, RankRule, Serve

CASES = [
    pytest.param(
        rule,
        order,
        id=f"{order}-{rule.name}",
        marks=pytest.mark.slow if order == "drawn" else pytest.mark.sweep,
    )
    for order in ORDERS
    for rule in RULES
]


@pytest.mark.slow
@pytest.mark.parametrize("serve", SCENARIOS, ids=[serve.__name__ for serve in SCENARIOS])
def test_with_all_rules_everything_is_served_without_a_race(serve: Serve) -> None:
    serve(ORDERS["drawn"]())


@pytest.mark.parametrize(("rule", "order"), CASES)
def test_no_rule_can_be_left_out_unseen(rule: RankRule, order: str) -> None:
    kill = rule.attack(order)

    assert kill is not None
    print(f"{rule.name}: {kill.check}")
