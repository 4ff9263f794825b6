"""Faults that can be planted: each fits the code, makes a difference, and is taken back."""

import re
from typing import TYPE_CHECKING

import pytest

from kvd.alloc.clearance import CLEARANCE, READ_CLEARANCE, Cell, Consumer, Hazard
from kvd.alloc.ids import FreeIds
from kvd.errors import WorkloadError
from kvd.testing.mutants.cells import CELL_FAULTS
from kvd.testing.mutants.fault import (
    Edit,
    Fault,
    Uncleared,
    Unread,
    by_name,
    edited,
    function_of,
    planted,
)
from kvd.testing.mutants.registry import FAULTS

if TYPE_CHECKING:
    from collections.abc import Callable

GIVE = "kvd.alloc.ids:FreeIds.give"
LOSE_ONE = edited("lost", "names come back", (GIVE, "self._count += ids.size", "self._count += 0"))


def codes_of(fault: Fault) -> list[object]:
    """Return what a fault changes, as it is now."""
    found: list[object] = []
    for change in fault.changes:
        if isinstance(change, Edit):
            found.append(function_of(change.function).__code__)
        elif isinstance(change, Uncleared):
            found.append(CLEARANCE[change.consumer, change.hazard])
        else:
            assert isinstance(change, Unread)
            found.append(READ_CLEARANCE[change.reader, change.writer])
    return found


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_changes_the_code_and_is_taken_back(fault: Fault) -> None:
    before = codes_of(fault)

    with planted(fault):
        meanwhile = codes_of(fault)

    assert all(now != then for now, then in zip(meanwhile, before, strict=True))
    assert codes_of(fault) == before


def test_whoever_has_the_function_runs_the_edited_one() -> None:
    ids = FreeIds(8)
    give: Callable[..., None] = ids.give
    taken = ids.take(3)

    with planted(LOSE_ONE):
        give(taken)
        assert len(ids) == 4
    give(taken)
    assert len(ids) == 7


def test_a_fault_is_taken_back_when_something_is_raised() -> None:
    with pytest.raises(ZeroDivisionError), planted(LOSE_ONE, CELL_FAULTS[0]):
        raise ZeroDivisionError

    assert len(FreeIds(8).take(2)) == 2
    assert CLEARANCE[Consumer.ZEROING, Hazard.VACATED_READ].cell is Cell.WAIT


def test_several_edits_of_one_function_are_planted_together() -> None:
    other = edited("other", "at the tail", (GIVE, "tail -= size", "tail -= size - 0"))

    with planted(LOSE_ONE, other):
        ids = FreeIds(4)
        ids.give(ids.take(1))
        assert len(ids) == 2


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (("kvd.alloc.ids:FreeIds.lend", "a", "b"), "there is no kvd.alloc.ids:FreeIds.lend"),
        (("kvd.alloc.ids:Ids", "a", "b"), "is no function"),
        ((GIVE, "self._count -= ids.size", "pass"), "occurs 0 times"),
        ((GIVE, "size", "pass"), "occurs 11 times"),
        ((GIVE, "self._count += ids.size", "self._count += ids.size"), "as it is"),
        (("kvd.alloc.band:Band.__init__", "anchor = ", "anchor = 1 + "), "calls super()"),
    ],
)
def test_an_edit_that_does_not_fit_is_an_error(edit: tuple[str, str, str], complaint: str) -> None:
    with pytest.raises(WorkloadError, match=re.escape(complaint)), planted(edited("a", "b", edit)):
        pass


def test_two_faults_of_one_name_are_an_error() -> None:
    with pytest.raises(WorkloadError, match="two faults are named lost"):
        by_name([LOSE_ONE, LOSE_ONE])
