"""Growth without moving floats: which side, how far, and what stands in the way."""

import pytest

from kvd.price.in_place import in_place
from kvd.price.need import needs_of
from kvd.price.search import Spans, Units
from kvd.price.snapshot import ChainSnapshot, Interval, Tier
from tests.stateful.price_model import chain_of, changed

CHAIN = chain_of((8, 1, 5, 3), (6, 9, 13, 3), (4, 24, 30, 5), arena_bytes=120, sink_bytes=8)
"""State bytes [8, 40), window [54, 78), full [96, 120); one hole each."""


def _grow(
    snapshot: ChainSnapshot,
    demand: Units,
    *,
    flush_low: bool = False,
    flush_high: bool = False,
    tier: Tier = Tier.STREAM,
) -> Spans | None:
    return in_place(
        needs_of(snapshot, demand, tier),
        snapshot.sink_bytes,
        snapshot.arena_bytes,
        flush_low=flush_low,
        flush_high=flush_high,
    )


def _with_blocked(*blocked: Interval) -> ChainSnapshot:
    return CHAIN._replace(blocked=blocked)


def test_holes_are_used_before_a_span_grows() -> None:
    assert _grow(CHAIN, (1, 1, 1)) == ((1, 5), (9, 13), (24, 30))
    assert _grow(CHAIN, (2, 2, 2)) == ((1, 6), (9, 14), (23, 30))


def test_promised_holes_are_not_used() -> None:
    assert _grow(changed(CHAIN, 0, promised_units=1), (1, 0, 0)) == ((1, 6), (9, 13), (24, 30))


@pytest.mark.parametrize("kind", ["pending_units", "vacated_forward_units"])
def test_what_stream_order_frees_counts_as_holes(kind: str) -> None:
    snapshot = changed(CHAIN, 2, hole_units=0, **{kind: 1})
    assert _grow(snapshot, (0, 0, 1)) == ((1, 5), (9, 13), (24, 30))


def test_what_a_transfer_reads_counts_only_once_it_ended() -> None:
    snapshot = changed(CHAIN, 2, hole_units=0, vacated_network_units=1)
    assert _grow(snapshot, (0, 0, 1)) == ((1, 5), (9, 13), (23, 30))
    assert _grow(snapshot, (0, 0, 1), tier=Tier.TRANSFERS) == ((1, 5), (9, 13), (24, 30))


def test_a_float_grows_into_its_larger_gap() -> None:
    assert _grow(CHAIN, (0, 2, 0)) == ((1, 5), (9, 14), (24, 30))  # 18 bytes above, 14 below
    assert _grow(CHAIN, (0, 2, 3)) == ((1, 5), (8, 13), (22, 30))  # 10 bytes are left above


def test_a_float_takes_its_smaller_gap_where_another_float_needs_the_larger() -> None:
    snapshot = chain_of((2, 1, 2, 1), (2, 7, 8, 1), (2, 15, 20, 5), (2, 21, 30, 9), arena_bytes=60)
    assert _grow(snapshot, (0, 5, 1, 0)) == ((1, 2), (7, 13), (14, 20), (21, 30))
    assert _grow(snapshot, (0, 5, 3, 0)) == ((1, 2), (2, 8), (12, 20), (21, 30))


def test_a_float_grows_on_one_side_only() -> None:
    snapshot = chain_of((8, 1, 5, 4), (6, 9, 13, 4), (4, 24, 30, 6), arena_bytes=120)
    assert _grow(snapshot, (0, 3, 0)) == ((1, 5), (9, 16), (24, 30))
    assert _grow(snapshot, (0, 4, 0)) is None  # two units below and three above


def test_a_parked_float_lets_its_neighbours_through_and_is_placed_in_the_middle() -> None:
    parked = changed(CHAIN, 1, end_index=9, live_units=0, hole_units=0)
    assert _grow(parked, (6, 0, 1)) == ((1, 10), (9, 9), (24, 30))
    assert _grow(parked, (1, 3, 1)) == ((1, 5), (10, 13), (24, 30))


def test_a_float_that_still_has_pending_units_is_no_way_through() -> None:
    emptied = changed(CHAIN, 1, live_units=0, hole_units=0, pending_units=4)
    assert _grow(emptied, (3, 0, 0)) is None


def test_two_parked_floats_share_what_is_between_their_neighbours() -> None:
    snapshot = chain_of((2, 1, 2, 1), (3, 5, 5, 0), (5, 5, 5, 0), (7, 9, 10, 1), arena_bytes=70)
    spans = _grow(snapshot, (0, 9, 4, 0))  # 27 and 20 of the bytes [4, 63)
    assert spans is not None
    (low, low_end), (high, high_end) = spans[1:3]
    assert (low_end - low, high_end - high) == (9, 4)
    assert 4 < low * 3 < low_end * 3 <= high * 5 < high_end * 5 <= 63
    assert _grow(snapshot, (0, 9, 5, 0)) == ((1, 2), (2, 11), (7, 12), (9, 10))
    assert _grow(snapshot, (0, 10, 5, 0)) is None


@pytest.mark.parametrize(
    ("blocked", "demand", "spans"),
    [
        pytest.param(((40, 41),), (2, 0, 0), None, id="the low end grows one way"),
        pytest.param(((95, 96),), (0, 0, 2), None, id="the high end grows one way"),
        pytest.param(((80, 81),), (0, 2, 0), ((1, 5), (8, 13), (24, 30)), id="the other side"),
        pytest.param(((50, 51), (80, 81)), (0, 2, 0), None, id="both sides of a float"),
        pytest.param(((48, 49),), (1, 1, 1), ((1, 5), (9, 13), (24, 30)), id="nothing grows"),
    ],
)
def test_nobody_grows_over_blocked_bytes(
    blocked: tuple[Interval, ...], demand: Units, spans: Spans | None
) -> None:
    assert _grow(_with_blocked(*blocked), demand) == spans


def test_a_parked_float_is_placed_beside_blocked_bytes() -> None:
    parked = changed(_with_blocked((65, 66)), 1, end_index=9, live_units=0, hole_units=0)
    assert _grow(parked, (0, 3, 0)) == ((1, 5), (11, 14), (24, 30))


def test_blocked_bytes_count_until_their_transfer_ended() -> None:
    snapshot = _with_blocked((40, 41))
    assert _grow(snapshot, (2, 0, 0), tier=Tier.TRANSFERS) == ((1, 6), (9, 13), (24, 30))
    astray = snapshot._replace(quarantined=((40, 41),))
    assert _grow(astray, (2, 0, 0), tier=Tier.TRANSFERS) is None


def test_a_flushed_end_spans_no_more_than_it_needs() -> None:
    assert _grow(CHAIN, (0, 0, 0), flush_low=True) == ((1, 4), (9, 13), (24, 30))
    assert _grow(CHAIN, (0, 0, 0), flush_high=True) == ((1, 5), (9, 13), (25, 30))


def test_a_flush_stops_at_fixed_units() -> None:
    fixed = changed(CHAIN, 0, soft_fixed=(4, 5))
    assert _grow(fixed, (0, 0, 0), flush_low=True) == ((1, 5), (9, 13), (24, 30))
    later = _grow(fixed, (0, 0, 0), flush_low=True, tier=Tier.TRANSFERS)
    assert later == ((1, 4), (9, 13), (24, 30))


def test_a_single_band_ends_at_the_sink() -> None:
    lone = chain_of((4, 24, 30, 5), arena_bytes=120, sink_bytes=8)
    assert _grow(lone, (23,)) == ((2, 30),)
    assert _grow(lone, (24,)) is None
