"""The layout search against a search that tries everything."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.price.geometry import BandKind, ChainGeometry, chain_geometry
from kvd.price.search import (
    Span,
    Spans,
    Units,
    empty_spans,
    feasible,
    fits_empty,
    plan_in_place,
    region,
)
from tests.stateful.chains import geometries, occupied


def _anywhere(geometry: ChainGeometry, widths: Units) -> bool:
    """Try every place of every float; ends stand at their anchors even when they are empty."""

    def place(index: int, cursor_bytes: int) -> bool:
        if index == len(geometry.bands):
            return True
        band, width = geometry.bands[index], widths[index]
        if width > band.room_units:
            return False
        starts = range(band.unit_index_min, band.unit_index_end_count - width + 1)
        if band.kind is BandKind.GROW_UP:
            starts = range(band.unit_index_min, band.unit_index_min + 1)
        if band.kind is BandKind.GROW_DOWN:
            starts = range(band.unit_index_end_count - width, band.unit_index_end_count - width + 1)
        if band.kind is BandKind.FLOAT and width == 0:
            return place(index + 1, cursor_bytes)
        return any(
            place(index + 1, (start + width) * band.unit_bytes)
            for start in starts
            if start * band.unit_bytes >= cursor_bytes
        )

    return place(0, geometry.sink_bytes)


def _in_place(geometry: ChainGeometry, spans: Spans, extensions: Units) -> bool:
    """Try every extension: either side of a float, every place of an empty one."""

    def choices(index: int) -> list[Span]:
        band = geometry.bands[index]
        (start, end), more = spans[index], extensions[index]
        if more == 0:
            return [(start, end)]
        if band.kind is BandKind.GROW_UP:
            return [(start, end + more)]
        if band.kind is BandKind.GROW_DOWN:
            return [(start - more, end)]
        if start == end:
            return [(at, at + more) for at in range(band.unit_index_end_count - more + 1)]
        return [(start - more, end), (start, end + more)]

    def place(index: int, cursor_bytes: int) -> bool:
        if index == len(geometry.bands):
            return True
        band = geometry.bands[index]
        for start, end in choices(index):
            if band.kind is BandKind.FLOAT and start == end:
                if place(index + 1, cursor_bytes):
                    return True
            elif (
                start >= band.unit_index_min
                and end <= band.unit_index_end_count
                and start * band.unit_bytes >= cursor_bytes
                and place(index + 1, end * band.unit_bytes)
            ):
                return True
        return False

    return place(0, geometry.sink_bytes)


def _is_sound(geometry: ChainGeometry, before: Spans, after: Spans, extensions: Units) -> bool:
    cursor_bytes = geometry.sink_bytes
    for band, old, new, more in zip(geometry.bands, before, after, extensions, strict=True):
        if new[1] - new[0] != old[1] - old[0] + more:
            return False
        if band.kind is BandKind.FLOAT and new[0] == new[1]:
            continue
        if old[0] < old[1] and not new[0] <= old[0] <= old[1] <= new[1]:
            return False
        if new[0] * band.unit_bytes < cursor_bytes or new[1] > band.unit_index_end_count:
            return False
        cursor_bytes = new[1] * band.unit_bytes
    return cursor_bytes <= geometry.arena_bytes


@st.composite
def _priced(draw: st.DrawFn) -> tuple[ChainGeometry, Units, Units]:
    geometry = draw(geometries())
    count = len(geometry.bands)
    counts = st.tuples(*[st.integers(0, 6)] * count)
    return geometry, draw(counts), draw(counts)


@st.composite
def _asked(draw: st.DrawFn) -> tuple[ChainGeometry, Spans, Units, Units]:
    geometry = draw(geometries())
    spans = draw(occupied(geometry))
    free = tuple(draw(st.integers(0, end - start)) for start, end in spans)
    return geometry, spans, free, draw(st.tuples(*[st.integers(0, 6)] * len(spans)))


@settings(max_examples=150, deadline=None)
@given(_priced())
def test_feasible_agrees_with_trying_every_layout(case: tuple[ChainGeometry, Units, Units]) -> None:
    geometry, live, demand = case
    widths = tuple(have + more for have, more in zip(live, demand, strict=True))
    assert feasible(geometry, live_units=live, demand_units=demand) == _anywhere(geometry, widths)


@settings(max_examples=150, deadline=None)
@given(_asked())
def test_a_plan_in_place_is_found_exactly_when_one_exists(
    case: tuple[ChainGeometry, Spans, Units, Units],
) -> None:
    geometry, spans, free, demand = case
    more = tuple(max(0, want - have) for want, have in zip(demand, free, strict=True))
    plan = plan_in_place(geometry, spans=spans, free_units=free, demand_units=demand)
    assert (plan is not None) == _in_place(geometry, spans, more)
    if plan is not None:
        assert _is_sound(geometry, spans, plan, more)


@settings(max_examples=100, deadline=None)
@given(_asked())
def test_a_plan_in_place_means_that_the_demand_is_feasible(
    case: tuple[ChainGeometry, Spans, Units, Units],
) -> None:
    geometry, spans, free, demand = case
    live = tuple(end - start - some for (start, end), some in zip(spans, free, strict=True))
    if plan_in_place(geometry, spans=spans, free_units=free, demand_units=demand) is not None:
        assert feasible(geometry, live_units=live, demand_units=demand)


@settings(max_examples=150, deadline=None)
@given(_priced())
def test_on_an_empty_arena_the_take_finds_what_the_search_promises(
    case: tuple[ChainGeometry, Units, Units],
) -> None:
    geometry, nothing, demand = case[0], (0,) * len(case[1]), case[2]
    plan = plan_in_place(
        geometry, spans=empty_spans(geometry), free_units=nothing, demand_units=demand
    )
    assert (plan is not None) == fits_empty(geometry, demand)


EXAMPLE = chain_geometry(
    arena_bytes=120,
    sink_bytes=8,
    bands=(
        ("state", BandKind.GROW_UP, 8),
        ("window", BandKind.FLOAT, 6),
        ("full", BandKind.GROW_DOWN, 4),
    ),
)
EXAMPLE_SPANS = ((1, 5), (9, 13), (24, 30))


@pytest.mark.parametrize(
    ("demand", "layout", "exists"),
    [
        pytest.param((1, 0, 2), ((1, 5), (9, 13), (23, 30)), True, id="holes and one extension"),
        pytest.param((0, 4, 3), None, True, id="the low end would have to be flushed"),
        pytest.param((0, 0, 6), None, True, id="the window would have to move down"),
        pytest.param((3, 1, 0), None, True, id="the window would have to move up"),
        pytest.param((0, 4, 6), None, False, id="padding between grids eats the last bytes"),
    ],
)
def test_the_worked_example(demand: Units, layout: Spans | None, exists: bool) -> None:
    found = plan_in_place(EXAMPLE, spans=EXAMPLE_SPANS, free_units=(1, 1, 1), demand_units=demand)
    assert found == layout
    assert feasible(EXAMPLE, live_units=(3, 3, 5), demand_units=demand) is exists


def test_bytes_that_add_up_are_no_layout() -> None:
    geometry = chain_geometry(
        arena_bytes=60,
        sink_bytes=12,
        bands=(
            ("state", BandKind.GROW_UP, 5),
            ("window", BandKind.FLOAT, 12),
            ("full", BandKind.GROW_DOWN, 7),
        ),
    )
    assert geometry.arena_bytes - geometry.sink_bytes >= 2 * 12 + 3 * 7
    assert not fits_empty(geometry, (0, 2, 3))


@pytest.mark.parametrize(
    ("demand", "layout"),
    [
        ((4, 0), ((1, 5), (5, 6))),
        ((0, 3), ((1, 3), (3, 6))),
        ((4, 3), None),
        ((3, 2), ((1, 4), (4, 6))),
    ],
)
def test_each_band_alone_may_fit_where_the_pair_does_not(
    demand: Units, layout: Spans | None
) -> None:
    geometry = chain_geometry(
        arena_bytes=12,
        sink_bytes=2,
        bands=(("window", BandKind.GROW_UP, 2), ("full", BandKind.GROW_DOWN, 2)),
    )
    spans = ((1, 3), (5, 6))  # two free units between them
    found = plan_in_place(geometry, spans=spans, free_units=(2, 1), demand_units=demand)
    assert found == layout


def test_an_empty_float_is_placed_in_the_middle_of_its_region() -> None:
    spans = ((1, 5), (13, 13), (24, 30))  # bytes [40, 96) are free
    found = plan_in_place(EXAMPLE, spans=spans, free_units=(0, 0, 0), demand_units=(0, 3, 0))
    assert found == ((1, 5), (10, 13), (24, 30))


def test_a_float_grows_into_its_larger_gap() -> None:
    low = plan_in_place(
        EXAMPLE, spans=((1, 2), (9, 13), (20, 30)), free_units=(0, 0, 0), demand_units=(0, 1, 0)
    )
    high = plan_in_place(
        EXAMPLE, spans=((1, 5), (9, 13), (28, 30)), free_units=(0, 0, 0), demand_units=(0, 1, 0)
    )
    assert low is not None
    assert high is not None
    assert (low[1], high[1]) == ((8, 13), (9, 14))


def test_a_float_takes_its_smaller_gap_where_the_larger_one_is_needed_above() -> None:
    spans = ((1, 5), (9, 13), (26, 30))  # gaps of 14 and 26 bytes
    found = plan_in_place(EXAMPLE, spans=spans, free_units=(0, 0, 0), demand_units=(0, 2, 6))
    assert found == ((1, 5), (7, 13), (20, 30))


def test_a_parked_float_is_transparent_to_both_neighbours() -> None:
    spans = ((1, 5), (9, 9), (24, 30))
    assert region(EXAMPLE, 0, spans) == (1, 12)
    assert region(EXAMPLE, 2, spans) == (10, 30)
    assert region(EXAMPLE, 1, spans) == (7, 16)


def test_an_empty_end_keeps_its_anchor_from_the_floats() -> None:
    geometry = chain_geometry(
        arena_bytes=100,
        sink_bytes=10,
        bands=(
            ("state", BandKind.GROW_UP, 8),
            ("window", BandKind.FLOAT, 5),
            ("full", BandKind.GROW_DOWN, 10),
        ),
    )
    assert fits_empty(geometry, (0, 16, 0))
    assert not fits_empty(geometry, (0, 17, 0))  # it would need the bytes [15, 16)


@given(geometries())
def test_an_empty_chain_has_empty_spans_at_its_anchors(geometry: ChainGeometry) -> None:
    for band, (start, end) in zip(geometry.bands, empty_spans(geometry), strict=True):
        down = band.kind is BandKind.GROW_DOWN
        assert start == end == (band.unit_index_end_count if down else band.unit_index_min)
