"""The rules by which purposes price a request; what they charge is tested with the demand."""

from dataclasses import fields

import pytest

from kvd.alloc.purpose import DEMAND_RULES, Cell, DemandPurpose, DemandRule


def test_every_purpose_has_its_rule() -> None:
    assert list(DEMAND_RULES) == list(DemandPurpose)


@pytest.mark.parametrize("purpose", DemandPurpose)
def test_every_cell_of_a_rule_has_its_reason(purpose: DemandPurpose) -> None:
    rule = DEMAND_RULES[purpose]
    cells = [getattr(rule, field.name) for field in fields(DemandRule)]
    reasons = [cell.reason for cell in cells if isinstance(cell, Cell)]
    assert len(reasons) == len(cells) - 1
    assert all(len(reason.split()) > 3 for reason in reasons)
    assert rule.asked_by
