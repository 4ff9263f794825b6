"""Rearrangement: what moves, how far, and that nothing moves without need."""

import pytest

from kvd.price.need import needs_of
from kvd.price.relayout import packs, relayout
from kvd.price.search import Spans, Units
from kvd.price.snapshot import ChainSnapshot, Tier
from tests.stateful.price_model import chain_of, changed

CHAIN = chain_of((8, 1, 5, 3), (6, 9, 13, 3), (4, 24, 30, 5), arena_bytes=120, sink_bytes=8)


def _rearrange(snapshot: ChainSnapshot, demand: Units, tier: Tier = Tier.STREAM) -> Spans | None:
    needs = needs_of(snapshot, demand, tier)
    spans = relayout(needs, snapshot.sink_bytes, snapshot.arena_bytes)
    assert (spans is not None) == packs(needs, snapshot.sink_bytes, snapshot.arena_bytes)
    return spans


def test_nothing_moves_without_need() -> None:
    assert _rearrange(CHAIN, (0, 0, 0)) == ((1, 5), (9, 13), (24, 30))


@pytest.mark.parametrize(
    ("demand", "spans"),
    [
        pytest.param((3, 0, 0), ((1, 7), (10, 13), (24, 30)), id="up, just above the low end"),
        pytest.param((0, 0, 6), ((1, 5), (9, 12), (19, 30)), id="down, into its own hole"),
        pytest.param((3, 1, 0), ((1, 7), (10, 14), (24, 30)), id="up, keeping its width"),
    ],
)
def test_a_float_moves_no_further_than_it_must(demand: Units, spans: Spans) -> None:
    assert _rearrange(CHAIN, demand) == spans


@pytest.mark.parametrize(
    ("demand", "spans"),
    [
        pytest.param((0, 6, 0), ((1, 5), (7, 16), (24, 30)), id="none"),
        pytest.param((0, 7, 0), ((1, 4), (6, 16), (24, 30)), id="the low one"),
        pytest.param((0, 0, 11), ((1, 4), (6, 9), (14, 30)), id="the low one for the high one"),
        pytest.param((5, 0, 0), ((1, 9), (12, 15), (24, 30)), id="none, its own holes are used"),
    ],
)
def test_ends_are_flushed_only_where_their_bytes_are_needed(demand: Units, spans: Spans) -> None:
    assert _rearrange(CHAIN, demand) == spans


def test_both_ends_are_flushed_where_one_is_not_enough() -> None:
    snapshot = chain_of((8, 1, 5, 3), (6, 9, 13, 4), (4, 24, 30, 5), arena_bytes=120, sink_bytes=8)
    assert _rearrange(snapshot, (0, 6, 0)) == ((1, 4), (6, 16), (24, 30))  # bytes [32, 96)
    tight = chain_of((8, 1, 5, 3), (6, 9, 13, 4), (4, 23, 30, 5), arena_bytes=120, sink_bytes=8)
    assert _rearrange(tight, (0, 6, 0)) == ((1, 4), (6, 16), (25, 30))


def test_an_empty_float_parks_and_lets_the_others_through() -> None:
    snapshot = changed(CHAIN, 1, live_units=0, hole_units=0, pending_units=4)
    assert _rearrange(snapshot, (8, 0, 0)) == ((1, 12), (9, 9), (24, 30))


def test_a_float_keeps_its_fixed_units() -> None:
    fixed = changed(CHAIN, 1, soft_fixed=(9, 10))
    assert _rearrange(fixed, (3, 0, 0)) is None
    assert _rearrange(fixed, (3, 0, 0), Tier.TRANSFERS) == ((1, 7), (10, 13), (24, 30))
    assert _rearrange(fixed, (0, 0, 6)) == ((1, 5), (9, 12), (19, 30))


def test_a_float_whose_units_may_not_move_keeps_its_span() -> None:
    still = changed(CHAIN, 1, movable=False)
    assert _rearrange(still, (0, 0, 6), Tier.TRANSFERS) is None
    assert _rearrange(still, (1, 0, 4), Tier.TRANSFERS) == ((1, 5), (9, 13), (21, 30))


def test_a_float_goes_around_blocked_bytes_but_not_around_its_own() -> None:
    assert _rearrange(CHAIN._replace(blocked=((79, 80),)), (3, 1, 0)) is None
    own = changed(CHAIN, 1, hole_units=0, vacated_network_units=1)._replace(blocked=((60, 66),))
    assert _rearrange(own, (2, 0, 0)) == ((1, 6), (9, 13), (24, 30))
    assert _rearrange(own, (0, 0, 5)) == ((1, 5), (9, 13), (20, 30))
    # The vacated unit takes room as well: four units lie below byte 76, not three.
    assert _rearrange(own, (0, 0, 6)) == ((1, 5), (8, 12), (19, 30))


def test_nobody_gets_bytes_left_behind_that_a_transfer_still_reads() -> None:
    left = changed(CHAIN, 1, hole_units=0, vacated_network_units=1)._replace(blocked=((72, 78),))
    assert _rearrange(left, (0, 0, 6)) is None  # it needs the bytes from 76 on
    assert _rearrange(left, (0, 0, 6), Tier.TRANSFERS) == ((1, 5), (9, 12), (19, 30))


def test_several_floats_move_apart_no_further_than_they_must() -> None:
    snapshot = chain_of(
        (2, 1, 4, 3), (3, 3, 6, 3), (5, 5, 8, 3), (7, 9, 10, 1), arena_bytes=70, sink_bytes=2
    )
    # The low end takes bytes [2, 14): the lower float goes to 15, the upper one may stay at 25.
    assert _rearrange(snapshot, (3, 0, 0, 0)) == ((1, 7), (5, 8), (5, 8), (9, 10))
    # With 16 bytes for the low end the lower float takes [18, 30), and the upper one makes room.
    assert _rearrange(snapshot, (4, 1, 0, 0)) == ((1, 8), (6, 10), (6, 9), (9, 10))


def test_a_single_band_needs_no_rearrangement() -> None:
    lone = chain_of((4, 24, 30, 5), arena_bytes=120, sink_bytes=8)
    assert _rearrange(lone, (23,)) == ((2, 30),)
    assert _rearrange(lone, (24,)) is None


@pytest.mark.parametrize("parked_at", [2, 9, 15])
def test_where_a_float_was_parked_does_not_matter(parked_at: int) -> None:
    parked = changed(
        CHAIN, 1, start_index=parked_at, end_index=parked_at, live_units=0, hole_units=0
    )
    assert _rearrange(parked, (0, 3, 0)) == ((1, 5), (10, 13), (24, 30))
