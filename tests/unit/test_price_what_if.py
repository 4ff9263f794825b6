"""What-if steps: the answer of the take's own search, and what it would copy."""

import pytest

from kvd.price.layout import Step
from kvd.price.plans import feasible, first_plan
from kvd.price.search import Units
from kvd.price.what_if import STEP_NAMES, never_steps, what_if_steps, with_promises
from tests.stateful.price_model import chain_of

CHAIN = chain_of((8, 1, 5, 3), (6, 9, 13, 3), (4, 24, 30, 5), arena_bytes=120, sink_bytes=8)
"""State [8, 40) with one hole, window [54, 78) with one, full [96, 120) with one."""
NOTHING = (0, 0, 0)


def fits(demand: Units, promised: Units = NOTHING) -> list[bool]:
    return [step.fits for step in what_if_steps(CHAIN, demand, promised_units=promised)]


def test_the_steps_come_in_the_order_in_which_they_help() -> None:
    steps = what_if_steps(CHAIN, (1, 1, 1), promised_units=NOTHING)
    assert tuple(step.name for step in steps) == STEP_NAMES


def test_a_demand_that_its_holes_hold_fits_now_and_moves_nothing() -> None:
    for step in what_if_steps(CHAIN, (1, 1, 1), promised_units=NOTHING):
        assert (step.fits, step.layout, step.moved_bytes) == (True, Step.NO_MOVE.value, 0)
        assert step.moved_units == NOTHING


def test_a_demand_that_needs_room_made_fits_after_relief_with_what_that_moves() -> None:
    demand = (0, 0, 10)
    steps = what_if_steps(CHAIN, demand, promised_units=NOTHING)
    assert [step.fits for step in steps] == [False, False, True, True]
    layout = first_plan(CHAIN, demand)
    assert layout is not None
    assert steps[2].layout == layout.step.value != Step.NO_MOVE.value
    assert steps[2].moved_bytes == sum(
        units * unit_bytes
        for units, unit_bytes in zip(steps[2].moved_units, (8, 6, 4), strict=True)
    )
    assert steps[2].moved_bytes > 0


def test_a_demand_that_pending_units_cover_fits_once_those_are_settled() -> None:
    state, window, full = CHAIN.bands
    chain = CHAIN._replace(bands=(state._replace(hole_units=0, pending_units=1), window, full))
    answers = [
        [step.fits for step in what_if_steps(chain, (count, 0, 0), promised_units=NOTHING)]
        for count in range(1, 6)
    ]
    # One unit more than the state band has room for as long as its pending one is in use.
    assert answers == [
        [True] * 4,
        [False, True, True, True],
        [False, False, True, True],
        [False, False, True, True],
        [False, False, True, True],
    ]


@pytest.mark.parametrize("demand", [(0, 0, 30), (20, 0, 0), (9, 9, 9)])
def test_a_demand_that_no_layout_holds_fits_after_nothing(demand: Units) -> None:
    assert not feasible(CHAIN, demand)
    assert fits(demand) == [False] * 4


def test_what_is_promised_to_others_is_taken_by_nobody_else() -> None:
    demand = (1, 1, 1)
    promised = (2, 2, 5)
    assert fits(demand) == [True] * 4
    assert not feasible(CHAIN, with_promises(demand, promised))
    assert fits(demand, promised) == [False] * 4


def test_a_promise_that_has_room_besides_moves_nothing() -> None:
    promised = (1, 0, 2)
    assert feasible(CHAIN, with_promises((1, 1, 1), promised))
    for step in what_if_steps(CHAIN, (1, 1, 1), promised_units=promised):
        assert (step.layout, step.moved_bytes) == (Step.NO_MOVE.value, 0)


def test_what_never_fits_names_every_step() -> None:
    assert [(step.name, step.fits) for step in never_steps()] == [
        (name, False) for name in STEP_NAMES
    ]
