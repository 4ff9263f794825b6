"""Layouts: what moves, in which order, and how much of it."""

import pytest

from kvd.price.layout import Layout, Step, layout_of, move_order, moved_units_max
from kvd.price.search import Spans
from kvd.price.snapshot import ChainSnapshot, Tier
from tests.stateful.price_model import chain_of

TWO_FLOATS = chain_of((2, 1, 3, 2), (2, 6, 9, 3), (2, 9, 12, 3), (2, 18, 20, 2), arena_bytes=40)


def _layout(snapshot: ChainSnapshot, spans: Spans) -> Layout:
    return layout_of(snapshot, Step.RELAYOUT, Tier.STREAM, spans)


def test_ends_that_shrink_are_flushed_and_floats_that_give_up_units_relocated() -> None:
    layout = _layout(TWO_FLOATS, ((1, 2), (5, 9), (10, 13), (19, 20)))
    assert layout.flushed == (0, 3)
    assert layout.relocated == (2,)


def test_bands_that_only_grow_do_not_move() -> None:
    layout = _layout(TWO_FLOATS, ((1, 4), (5, 9), (9, 13), (17, 20)))
    assert (layout.flushed, layout.relocated) == ((), ())


def test_a_parked_float_that_is_placed_does_not_move() -> None:
    snapshot = chain_of((2, 1, 3, 2), (2, 9, 9, 0), (2, 18, 20, 2), arena_bytes=40)
    assert _layout(snapshot, ((1, 3), (4, 6), (18, 20))).relocated == ()


def test_a_float_without_units_parks() -> None:
    snapshot = chain_of((2, 1, 3, 2), (2, 9, 12, 0), (2, 18, 20, 2), arena_bytes=40)
    layout = _layout(snapshot, ((1, 3), (9, 9), (18, 20)))
    assert layout.relocated == move_order(snapshot, layout) == (1,)


@pytest.mark.parametrize(
    ("low", "high", "order"),
    [
        pytest.param((8, 11), (11, 14), (2, 1), id="upwards from the top"),
        pytest.param((4, 7), (7, 10), (1, 2), id="downwards from the bottom"),
        pytest.param((4, 7), (11, 14), (1, 2), id="apart in chain order"),
        pytest.param((10, 10), (7, 10), (1, 2), id="what parks makes room first"),
    ],
)
def test_no_float_moves_onto_bytes_another_still_holds(
    low: tuple[int, int], high: tuple[int, int], order: tuple[int, ...]
) -> None:
    assert move_order(TWO_FLOATS, _layout(TWO_FLOATS, ((1, 3), low, high, (18, 20)))) == order


def test_what_parks_waits_for_nobody() -> None:
    snapshot = chain_of((2, 1, 3, 2), (2, 6, 9, 3), (2, 9, 12, 0), (2, 18, 20, 2), arena_bytes=40)
    layout = _layout(snapshot, ((1, 3), (8, 11), (9, 9), (18, 20)))
    assert move_order(snapshot, layout) == (2, 1)


def test_floats_of_different_grids_wait_by_bytes() -> None:
    snapshot = chain_of((2, 1, 2, 1), (3, 4, 6, 2), (5, 4, 6, 2), (7, 9, 10, 1), arena_bytes=70)
    near = _layout(snapshot, ((1, 2), (5, 7), (5, 7), (9, 10)))  # bytes [15, 21) meet [20, 30)
    assert move_order(snapshot, near) == (2, 1)


def test_at_most_the_live_units_outside_the_new_span_are_copied() -> None:
    layout = _layout(TWO_FLOATS, ((1, 2), (6, 9), (10, 13), (18, 20)))
    assert moved_units_max(TWO_FLOATS, layout) == (1, 0, 1, 0)


def test_a_float_that_leaves_its_span_copies_no_more_than_it_has() -> None:
    snapshot = chain_of((2, 1, 3, 2), (2, 6, 12, 2), (2, 18, 20, 2), arena_bytes=40)
    layout = _layout(snapshot, ((1, 3), (13, 15), (18, 20)))
    assert moved_units_max(snapshot, layout) == (0, 2, 0)
