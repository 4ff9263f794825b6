"""Every cell of the clearance tables: what it asks for, and what happens without it."""

import re

import pytest

from kvd.alloc.checks import CheckLevel
from kvd.alloc.clearance import CLEARANCE, Cell, Consumer, Hazard
from kvd.alloc.signals import Signal
from kvd.errors import InvariantError
from tests.mutation.cells import CASES, UNASKED, CellCase, asking_cells

EACH = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
COMPANIONED = [case for case in CASES if case.companion is not None]


def outcome_of(
    case: CellCase, *, cell: bool, companion: bool, level: CheckLevel = CheckLevel.STRICT
) -> tuple[list[Signal], str, bool]:
    """Play; returns what was waited for, which check refused, and whether the answer was no."""
    bench = case.bench(cell=cell, companion=companion, level=level)
    refused = ""
    try:
        case.play(bench)
    except InvariantError as error:
        refused = error.message
    return bench.waited, refused, bench.is_refused


def test_every_cell_that_asks_for_something_has_a_scenario() -> None:
    covered = {(case.consumer, case.hazard) for case in CASES}
    assert len({case.name for case in CASES}) == len(CASES)
    assert covered | UNASKED == asking_cells()


def test_slots_are_handed_out_by_a_row_that_asks_for_no_less() -> None:
    """The books ask the row of ZEROING for state slots too, which a forward clears, or writes."""
    for consumer in (Consumer.FORWARD_WRITE, Consumer.STATE_WRITE):
        for hazard in Hazard:
            own, asked = CLEARANCE[consumer, hazard].cell, CLEARANCE[Consumer.ZEROING, hazard].cell
            assert own in (asked, Cell.NOTHING)


@EACH
@pytest.mark.parametrize("level", [CheckLevel.STRICT, CheckLevel.OFF])
def test_with_its_cell_nothing_races_and_one_wait_is_asked(
    case: CellCase, level: CheckLevel
) -> None:
    waited, refused, turned_down = outcome_of(case, cell=True, companion=True, level=level)

    assert tuple(waited) == case.waits
    assert turned_down == case.is_turned_down
    assert (case.refusal if not case.is_turned_down else "") in refused
    assert bool(refused) == bool(case.refusal and not case.is_turned_down)


@pytest.mark.parametrize("case", COMPANIONED, ids=[case.name for case in COMPANIONED])
def test_either_of_two_companions_is_enough(case: CellCase) -> None:
    _, refused, _ = outcome_of(case, cell=True, companion=False)
    assert case.refusal in refused
    assert bool(refused) == bool(case.refusal)

    waited, refused, _ = outcome_of(case, cell=False, companion=True)
    assert not refused
    assert not waited


@EACH
def test_without_its_cell_two_actions_race(case: CellCase) -> None:
    kill = case.attack()

    assert kill is not None
    consumer, hazard = case.streams
    assert re.search(rf"of stream '[a-z ]*{consumer}.*, and .*of stream '{hazard}", kill.check)
    print(f"{case.name}: {kill.check}")
