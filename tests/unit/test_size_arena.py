"""The arena that a budget leaves, and the floor below which one request does not fit."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.plan.stage import StagePlan
from kvd.plan.storage import PlannedBand, band_name
from kvd.price.geometry import BandKind
from kvd.price.search import fits_empty
from kvd.size.arena import (
    arena_shape,
    budget_floor_bytes,
    floor_units,
    largest_arena,
    sink_bytes_of,
)
from kvd.size.inputs import SizingValues, resolve_sizing
from kvd.size.region import ALLOCATION_GRAIN_BYTES
from kvd_proto.memory import Lifetime, SizingInputs


def band(lifetime: Lifetime, entry_bytes: int, window_tokens: int = 0) -> PlannedBand:
    return PlannedBand(
        name=band_name(lifetime, window_tokens),
        lifetime=lifetime,
        window_tokens=window_tokens,
        entry_bytes=entry_bytes,
        tensors=(),
    )


def stage(*bands: PlannedBand) -> StagePlan:
    return StagePlan(stage_index=0, layer_index_min=0, layer_end_count=1, bands=bands)


def values(**inputs: int) -> SizingValues:
    return resolve_sizing(
        msgspec.convert({"page_tokens": 4, "context_tokens": 64, **inputs}, SizingInputs),
        settings=SizingInputs(),
        model_context_tokens=0,
        has_state=True,
    )


STATE = band(Lifetime.STATE, 10_240)
WINDOW = band(Lifetime.WINDOW, 1504, window_tokens=8)
FULL = band(Lifetime.FULL, 1056)
ALL = stage(STATE, WINDOW, FULL)


def serves(chosen: StagePlan, sizing: SizingValues, budget_bytes: int) -> bool:
    shape = largest_arena(chosen, sizing, budget_bytes=budget_bytes, running_count=1)
    return shape is not None and fits_empty(shape.geometry, floor_units(chosen, sizing))


def test_the_sink_holds_a_page_of_a_token_band_and_one_slot_of_a_state_band() -> None:
    assert sink_bytes_of((STATE, FULL), page_tokens=4) == 10_240
    assert sink_bytes_of((STATE, FULL), page_tokens=16) == 16 * 1056


def test_ends_grow_toward_each_other_and_the_rest_float() -> None:
    shape = arena_shape(ALL, values(), arena_bytes=1 << 20, running_count=1)
    assert [grid.kind for grid in shape.geometry.bands] == [
        BandKind.GROW_UP,
        BandKind.FLOAT,
        BandKind.GROW_DOWN,
    ]


def test_a_single_band_grows_down() -> None:
    shape = arena_shape(stage(FULL), values(), arena_bytes=1 << 20, running_count=1)
    assert [grid.kind for grid in shape.geometry.bands] == [BandKind.GROW_DOWN]


def test_windows_map_the_owners_pages_and_states_their_own_slots() -> None:
    shape = arena_shape(ALL, values(), arena_bytes=1 << 20, running_count=1)
    counts = {table.name: table.column_count for table in shape.region.tables}
    state_grid, _, full_grid = shape.geometry.bands
    assert counts["map_window_8"] == counts["map_full"] == full_grid.unit_index_end_count
    assert counts["map_state"] == state_grid.unit_index_end_count


@pytest.mark.parametrize("budget_bytes", [2_000_000, 12_345_678, 40 << 30])
def test_the_largest_arena_leaves_no_grain_unused(budget_bytes: int) -> None:
    shape = largest_arena(ALL, values(), budget_bytes=budget_bytes, running_count=5)
    assert shape is not None
    larger = arena_shape(
        ALL,
        values(),
        arena_bytes=shape.geometry.arena_bytes + ALLOCATION_GRAIN_BYTES,
        running_count=5,
    )
    assert shape.total_bytes <= budget_bytes < larger.total_bytes


def test_a_budget_below_the_tables_has_no_arena() -> None:
    assert largest_arena(ALL, values(), budget_bytes=1 << 20, running_count=1) is None


def test_the_floor_is_one_requests_slots_windows_and_a_page() -> None:
    assert floor_units(ALL, values()) == (3, 3, 1)


def test_a_short_context_needs_no_whole_window() -> None:
    assert floor_units(ALL, values(context_tokens=5)) == (3, 2, 1)


def test_tracking_slots_raise_the_floor() -> None:
    assert floor_units(ALL, values(tracking_slots=2)) == (5, 3, 1)


def test_the_floor_is_more_than_the_byte_sum_where_grids_do_not_align() -> None:
    chosen, sizing = ALL, values()
    floor = budget_floor_bytes(chosen, sizing)
    shape = largest_arena(chosen, sizing, budget_bytes=floor, running_count=1)
    assert shape is not None
    byte_sum = shape.geometry.sink_bytes + sum(
        units * grid.unit_bytes
        for units, grid in zip(floor_units(chosen, sizing), shape.geometry.bands, strict=True)
    )
    assert shape.geometry.arena_bytes > byte_sum + ALLOCATION_GRAIN_BYTES


@st.composite
def stages(draw: st.DrawFn) -> StagePlan:
    """Draw a chain: perhaps a state band, up to three windows, full attention."""
    chain: list[PlannedBand] = []
    if draw(st.booleans()):
        chain.append(band(Lifetime.STATE, draw(st.integers(1, 300)) * 256))
    windows = draw(st.dictionaries(st.integers(1, 40), st.integers(1, 200), max_size=3))
    for tokens in sorted(windows, reverse=True):
        chain.append(band(Lifetime.WINDOW, windows[tokens] * 32, window_tokens=tokens))
    chain.append(band(Lifetime.FULL, draw(st.integers(1, 200)) * 32))
    return stage(*chain)


@settings(print_blob=True, deadline=None)
@given(stages(), st.sampled_from([1, 3, 4, 7, 16]), st.integers(1, 64))
def test_the_floor_is_the_least_budget_that_serves(
    chosen: StagePlan, page_tokens: int, context_tokens: int
) -> None:
    sizing = values(page_tokens=page_tokens, context_tokens=context_tokens)
    floor = budget_floor_bytes(chosen, sizing)
    assert serves(chosen, sizing, floor)
    assert not serves(chosen, sizing, floor - 1)


@settings(print_blob=True, deadline=None)
@given(stages(), st.sampled_from([1, 3, 4, 7, 16]), st.integers(-40, 40))
def test_more_budget_never_hurts(chosen: StagePlan, page_tokens: int, grains: int) -> None:
    sizing = values(page_tokens=page_tokens)
    floor = budget_floor_bytes(chosen, sizing)
    budget_bytes = floor + grains * ALLOCATION_GRAIN_BYTES
    assert serves(chosen, sizing, budget_bytes) == (grains >= 0)
