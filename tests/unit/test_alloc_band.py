"""One band: growing, handing out, freeing, drawing back, and the checks over it."""

# pyright: reportPrivateUsage=false

from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvd.alloc.band import Band
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.errors import InvariantError, OperationError
from kvd.price.geometry import BandGeometry, BandKind
from kvd_proto.errors import ErrorCode
from tests.stateful.chains import picture

Ids: TypeAlias = NDArray[np.int64]

UNITS = 40
SPANS = {BandKind.GROW_UP: (2, 12), BandKind.FLOAT: (10, 20), BandKind.GROW_DOWN: (30, 40)}
"""Ten units for each kind of band, from its anchor."""
KINDS = pytest.mark.parametrize("kind", list(BandKind))


def _band(
    kind: BandKind,
    *,
    mints: bool = True,
    level: CheckLevel = CheckLevel.STRICT,
    units: int = UNITS,
) -> Band:
    geometry = BandGeometry("full", kind, 10, 2, units)
    return Band(geometry, id_count=units, mints=mints, monitor=CheckMonitor(level))


def _grown(kind: BandKind, *, mints: bool = True) -> Band:
    band = _band(kind, mints=mints)
    band.grow(SPANS[kind])
    return band


def _take(band: Band, count: int) -> Ids:
    assert band.free_ids is not None
    virtual = band.free_ids.take(count)
    band.bind(virtual, band.acquire(count))
    return virtual


def _ids(*values: int) -> Ids:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        (BandKind.GROW_UP, [2, 3, 4]),
        (BandKind.FLOAT, [10, 11, 12]),
        (BandKind.GROW_DOWN, [39, 38, 37]),
    ],
)
def test_units_are_handed_out_from_the_anchor_on(kind: BandKind, first: list[int]) -> None:
    band = _grown(kind)
    assert band.acquire(3).tolist() == first
    assert (band.live_units, band.hole_units) == (3, 7)


@KINDS
def test_an_unbound_id_reads_as_the_sink(kind: BandKind) -> None:
    band = _grown(kind)
    virtual = _take(band, 2)
    assert (band.physical(virtual) > 0).all()
    band.release(virtual)
    assert band.physical(virtual).tolist() == [0, 0]
    assert band.physical(_ids(0)).tolist() == [0]


@KINDS
@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        pytest.param(_ids(0), "virtual page 0 .* sink", id="sink"),
        pytest.param(_ids(1, 0), "virtual page 0 .* sink", id="sink behind a good one"),
        pytest.param(_ids(-1), "-1 .* outside", id="minus one, the state of a hole"),
        pytest.param(_ids(-9), "-9 .* outside", id="minus nine"),
        pytest.param(_ids(-UNITS), f"-{UNITS} .* outside", id="the map's start from its end"),
        pytest.param(_ids(-(1 << 62)), "outside", id="the sink's own state"),
        pytest.param(_ids(-(1 << 63)), "outside", id="the most negative"),
        pytest.param(_ids(1, UNITS), f"{UNITS} .* outside", id="one past the end"),
        pytest.param(_ids((1 << 63) - 1), "outside", id="the most positive"),
        pytest.param(_ids(1, 7), "7 .* not bound", id="never taken"),
        pytest.param(_ids(4), "4 .* not bound", id="freed already"),
        pytest.param(_ids(1, 2, 1), "1 .* twice", id="named twice"),
        pytest.param(_ids(2, 2), "2 .* twice", id="named twice in a row"),
    ],
)
def test_a_wrong_free_names_the_id_and_changes_nothing(
    kind: BandKind, wrong: Ids, problem: str
) -> None:
    band = _grown(kind)
    assert _take(band, 4).tolist() == [1, 2, 3, 4]
    band.release(_ids(4))
    before = picture(band)
    with pytest.raises(OperationError, match=problem) as caught:
        band.release(wrong)
    assert caught.value.code is ErrorCode.BAD_PAGE
    assert picture(band) == before
    band.check()


@KINDS
@pytest.mark.parametrize("level", list(CheckLevel))
def test_a_double_free_is_refused_at_every_level(kind: BandKind, level: CheckLevel) -> None:
    band = _band(kind, level=level)
    band.grow(SPANS[kind])
    virtual = _take(band, 3)
    band.release(virtual)
    with pytest.raises(OperationError, match="freed already"):
        band.release(virtual)


def test_every_negative_id_is_refused_whatever_is_bound() -> None:
    band = _grown(BandKind.GROW_DOWN)
    _take(band, 5)
    accepted: list[int] = []
    for page in range(-2 * UNITS, 0):
        try:
            band.release(_ids(page))
        except OperationError:
            continue
        accepted.append(page)
    assert not accepted


def test_freeing_nothing_is_allowed() -> None:
    band = _grown(BandKind.FLOAT)
    before = picture(band)
    band.release(_ids())
    assert picture(band) == before


def test_more_ids_than_the_shared_counter_can_be_freed_at_once() -> None:
    band = _band(BandKind.GROW_UP, units=10_000)
    band.grow((2, 9_002))
    band.release(_take(band, 9_000)[::-1].copy())
    band.check()
    assert band.hole_units == 9_000


@KINDS
def test_a_freed_unit_is_reused_only_when_the_older_holes_are_gone(kind: BandKind) -> None:
    band = _grown(kind)
    first = band.physical(_take(band, 1)).tolist()
    band.release(_ids(1))
    second = band.acquire(1).tolist()
    assert second != first


@KINDS
def test_freed_units_are_merged_when_the_ordered_holes_do_not_suffice(kind: BandKind) -> None:
    band = _grown(kind)
    virtual = _take(band, 10)
    units = band.physical(virtual[3:5]).tolist()
    band.release(virtual[3:5].copy())
    assert sorted(band.acquire(2).tolist()) == sorted(units)


@KINDS
def test_merged_units_are_handed_out_from_the_anchor_on(kind: BandKind) -> None:
    band = _grown(kind)
    virtual = _take(band, 6)
    units = band.physical(virtual[:2]).tolist()
    band.release(virtual[:2][::-1].copy())
    band.merge_freed()
    assert band.acquire(2).tolist() == units


@KINDS
def test_absorbing_draws_the_frontier_back_to_the_last_live_unit(kind: BandKind) -> None:
    band = _grown(kind)
    _take(band, 3)
    assert band.absorb() == 7
    expected = {
        BandKind.GROW_UP: (2, 5),
        BandKind.FLOAT: (10, 13),
        BandKind.GROW_DOWN: (37, 40),
    }
    assert band.span == expected[kind]
    band.check()


@KINDS
def test_absorbing_leaves_no_hole_for_a_promise_which_is_a_count_and_no_place(
    kind: BandKind,
) -> None:
    band = _grown(kind)
    _take(band, 3)
    band.promise(4)
    assert band.absorb() == 7
    assert (band.hole_units, band.promised_units) == (0, 4)
    band.check()


@KINDS
def test_an_empty_band_returns_to_its_anchor_or_parks(kind: BandKind) -> None:
    band = _grown(kind)
    band.release(_take(band, 10))
    band.merge_freed()
    assert band.absorb() == 10
    start, end = band.span
    assert start == end
    if kind is not BandKind.FLOAT:
        assert start == (2 if kind is BandKind.GROW_UP else UNITS)
    assert band.absorb() == 0
    band.check()


def test_a_float_draws_both_frontiers_back() -> None:
    band = _grown(BandKind.FLOAT)
    virtual = _take(band, 10)
    band.release(np.concatenate((virtual[:2], virtual[7:])))
    band.merge_freed()
    assert band.absorb() == 5
    assert band.span == (12, 17)
    band.check()


def test_a_hole_between_live_units_stays() -> None:
    band = _grown(BandKind.GROW_UP)
    _take(band, 10)
    band.release(_ids(5))
    band.merge_freed()
    assert band.absorb() == 0
    assert band.hole_units == 1


@pytest.mark.parametrize("live", [0, 1, 255, 256, 257, 700])
@KINDS
def test_long_stretches_are_absorbed_whole(kind: BandKind, live: int) -> None:
    band = _band(kind, units=3_002)
    band.grow((2, 3_002))
    _take(band, live)
    assert band.absorb() == 3_000 - live
    band.check()


def test_a_parked_float_may_be_placed_anywhere() -> None:
    band = _grown(BandKind.FLOAT)
    band.absorb()
    band.grow((25, 28))
    assert band.span == (25, 28)
    band.check()
    assert band.acquire(3).tolist() == [25, 26, 27]


@KINDS
def test_a_span_only_grows(kind: BandKind) -> None:
    band = _grown(kind)
    start, end = band.span
    with pytest.raises(AssertionError):
        band.grow((start + 1, end))


def test_a_band_that_does_not_mint_binds_the_ids_it_is_given() -> None:
    band = _grown(BandKind.FLOAT, mints=False)
    band.bind(_ids(17, 4), band.acquire(2))
    assert band.bound_ids().tolist() == [4, 17]
    band.release(_ids(17))
    assert band.bound_ids().tolist() == [4]
    band.check()


def test_the_counts_add_up() -> None:
    band = _grown(BandKind.GROW_DOWN)
    band.release(_take(band, 4)[:1].copy())
    counts = band.statistics()
    assert (counts.live_units, counts.hole_units, counts.taken_units_total) == (3, 7, 4)
    assert (counts.span_start_index, counts.span_end_index) == SPANS[BandKind.GROW_DOWN]
    assert counts.virtual_free_count == UNITS - 1 - 3


STEPS = st.lists(
    st.tuples(st.sampled_from(("grow", "take", "free", "merge", "absorb")), st.integers(0, 30)),
    max_size=40,
)


def _play(band: Band, steps: list[tuple[str, int]]) -> list[list[int]]:
    """Run steps that make sense for any band; return the units of every take and the spans."""
    seen: list[list[int]] = []
    for verb, number in steps:
        start, end = band.span
        if verb == "grow" and band.geometry.kind is BandKind.GROW_DOWN:
            band.grow((max(2, start - number), end))
        elif verb == "grow":
            band.grow((start, min(UNITS, end + number)))
        elif verb == "take":
            virtual = _take(band, min(number, band.hole_units))
            seen.append(band.physical(virtual).tolist())
        elif verb == "free":
            bound = band.bound_ids()
            band.release(bound[number % 3 :: 2].copy())
        elif verb == "merge":
            band.merge_freed()
        else:
            band.merge_freed()
            band.absorb()
        band.check()
        seen.append(list(band.span))
    return seen


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_a_band_growing_down_is_the_mirror_of_one_growing_up(steps: list[tuple[str, int]]) -> None:
    up = _play(_band(BandKind.GROW_UP), steps)
    down = _play(_band(BandKind.GROW_DOWN), steps)
    assert len(up) == len(down)
    place, mirror = 0, UNITS + 2 - 1
    for verb, _ in steps:
        if verb == "take":
            assert [mirror - unit for unit in down[place]] == up[place]
            place += 1
        assert [mirror + 1 - edge for edge in reversed(down[place])] == up[place]
        place += 1


def _busy(level: CheckLevel = CheckLevel.STRICT) -> Band:
    band = _band(BandKind.GROW_UP, level=level)
    band.grow((2, 12))
    _take(band, 5)
    band.release(_ids(2))
    band.check()
    return band


def _breaks(band: Band, name: str) -> None:
    with pytest.raises(InvariantError) as caught:
        band.check()
    assert caught.value.name == name


def test_a_lost_unit_breaks_band_conservation() -> None:
    band = _busy()
    band.live_units += 1
    _breaks(band, "band.conservation")


def test_a_unit_outside_the_span_breaks_band_conservation() -> None:
    band = _busy()
    band._owner_of[30] = 9
    _breaks(band, "band.conservation")


def test_an_overwritten_sink_breaks_band_conservation() -> None:
    band = _busy()
    band._owner_of[0] = 0
    _breaks(band, "band.conservation")


def test_a_page_that_names_another_unit_breaks_band_maps_inverse() -> None:
    band = _busy()
    band._physical_of[[1, 3]] = band._physical_of[[3, 1]]
    _breaks(band, "band.maps_inverse")


def test_a_name_lost_on_the_way_breaks_band_ids_partition() -> None:
    band = _busy()
    assert band.free_ids is not None
    band.free_ids.take(1)
    _breaks(band, "band.ids_partition")


def test_a_hole_that_the_container_forgot_breaks_band_holes_ordered() -> None:
    band = _busy()
    band._inbox.clear()
    _breaks(band, "band.holes_ordered")


def test_a_front_out_of_order_breaks_band_holes_ordered() -> None:
    band = _busy()
    band.merge_freed()
    band._holes._front = band._holes._front[::-1]
    band._holes._front_end = UNITS
    _breaks(band, "band.holes_ordered")


def test_binding_a_used_unit_breaks_band_take_unbound() -> None:
    band = _busy(CheckLevel.WARN)
    with pytest.raises(InvariantError, match="used unit") as caught:
        band.bind(_ids(9), band.physical(_ids(1)))
    assert caught.value.name == "band.take_unbound"


def test_binding_an_id_twice_breaks_band_take_unbound() -> None:
    band = _busy(CheckLevel.WARN)
    with pytest.raises(InvariantError, match="twice") as caught:
        band.bind(_ids(1), band.acquire(1))
    assert caught.value.name == "band.take_unbound"


def test_freeing_over_maps_that_disagree_breaks_band_free_of_bound_page() -> None:
    band = _busy(CheckLevel.WARN)
    band._owner_of[band.physical(_ids(1))] = 3
    with pytest.raises(InvariantError) as caught:
        band.release(_ids(1))
    assert caught.value.name == "band.free_of_bound_page"
