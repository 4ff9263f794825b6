"""Every cell of the clearance tables: what it asks for, and what happens without it."""

import pytest

from kvd.alloc.signals import Signal
from kvd.errors import InvariantError
from tests.mutation.cells import CASES, UNREACHED, CellCase, asking_cells

EACH = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
COMPANIONED = [case for case in CASES if case.companion is not None]


def outcome_of(case: CellCase, *, cell: bool, companion: bool) -> tuple[list[Signal], str, bool]:
    """Play; returns what was waited for, which check refused, and whether the answer was no."""
    bench = case.bench(cell=cell, companion=companion)
    refused = ""
    try:
        case.play(bench)
    except InvariantError as error:
        refused = error.message
    return bench.waited, refused, bench.is_refused


def test_every_cell_that_asks_for_something_has_a_scenario() -> None:
    covered = {(case.consumer, case.hazard) for case in CASES}
    assert len({case.name for case in CASES}) == len(CASES)
    assert covered | set(UNREACHED) == asking_cells()


@EACH
def test_with_its_cell_nothing_races_and_one_wait_is_asked(case: CellCase) -> None:
    waited, refused, turned_down = outcome_of(case, cell=True, companion=True)

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
    print(f"{case.name}: {kill.check}")
