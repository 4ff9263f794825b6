"""The arena that a budget leaves once its tables are paid for, and what an empty one carries."""

from dataclasses import dataclass

from kvd.plan.stage import StagePlan
from kvd.plan.storage import PlannedBand
from kvd.price.geometry import BandKind, ChainGeometry, chain_geometry
from kvd.price.search import fits_empty
from kvd.size.inputs import SizingValues
from kvd.size.region import ALLOCATION_GRAIN_BYTES, Region, RegionShape, lay_out_region
from kvd.units import align_down, ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaShape:
    """An arena with its grids and the tables behind it."""

    geometry: ChainGeometry
    region: Region

    @property
    def total_bytes(self) -> int:
        """Return the bytes of the whole allocation."""
        return self.geometry.arena_bytes + self.region.region_bytes


def unit_bytes_of(band: PlannedBand, *, page_tokens: int) -> int:
    """Return the bytes of a page, or of a slot."""
    return band.entry_bytes * (1 if band.is_state else page_tokens)


def sink_bytes_of(bands: tuple[PlannedBand, ...], *, page_tokens: int) -> int:
    """Return the bytes at the low end that belong to no band: unit 0 of each of them.

    A token band needs its whole page 0 there. A state band needs one slot, never one per token.
    """
    return max(unit_bytes_of(band, page_tokens=page_tokens) for band in bands)


def arena_shape(
    stage: StagePlan, values: SizingValues, *, arena_bytes: int, running_count: int
) -> ArenaShape:
    """Return the grids of an arena and the region that goes with it."""
    kinds = [BandKind.FLOAT] * len(stage.bands)
    kinds[0] = BandKind.GROW_UP
    kinds[-1] = BandKind.GROW_DOWN
    page_tokens = values.page_tokens
    geometry = chain_geometry(
        arena_bytes=arena_bytes,
        sink_bytes=sink_bytes_of(stage.bands, page_tokens=page_tokens),
        bands=tuple(
            (band.name, kind, unit_bytes_of(band, page_tokens=page_tokens))
            for band, kind in zip(stage.bands, kinds, strict=True)
        ),
    )
    owner_units = geometry.bands[-1].unit_index_end_count
    state = stage.bands[0] if stage.bands[0].is_state else None
    region = lay_out_region(
        RegionShape(
            row_count=running_count + 1,
            row_pages=values.row_pages,
            state_row_slots=1 + values.tracking_slots if state is not None else 0,
            draft_tokens=values.draft_tokens,
            slot_bytes=state.entry_bytes if state is not None else 0,
        ),
        map_entries=tuple(
            (band.name, grid.unit_index_end_count if band.is_state else owner_units)
            for band, grid in zip(stage.bands, geometry.bands, strict=True)
        ),
    )
    return ArenaShape(geometry=geometry, region=region)


def largest_arena(
    stage: StagePlan, values: SizingValues, *, budget_bytes: int, running_count: int
) -> ArenaShape | None:
    """Return the largest arena that fits the budget together with its tables, None if none does.

    Maps grow with the arena, so arena and region together grow with it strictly and bisection is
    exact.
    """
    grain = ALLOCATION_GRAIN_BYTES
    least = ceil_div(sink_bytes_of(stage.bands, page_tokens=values.page_tokens), grain)
    low, high = least - 1, align_down(budget_bytes, grain) // grain
    while low < high:
        middle = (low + high + 1) // 2
        shape = arena_shape(stage, values, arena_bytes=middle * grain, running_count=running_count)
        if shape.total_bytes <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    if low < least:
        return None
    return arena_shape(stage, values, arena_bytes=low * grain, running_count=running_count)


def floor_units(stage: StagePlan, values: SizingValues) -> tuple[int, ...]:
    """Return what one request at batch size 1 needs of each band, in chain order.

    Its state slots, its window rows with one page of straddle, and one page of the owner. The rest
    of its full-attention tokens is no floor term: a request's length is clipped to what there is.
    """
    units: list[int] = []
    for band in stage.bands:
        if band.is_state:
            units.append(values.slots_per_request_slots)
        elif band.window_tokens:
            rows = min(values.context_tokens, band.window_tokens + values.page_tokens)
            units.append(ceil_div(rows, values.page_tokens))
        else:
            units.append(1)
    return tuple(units)


def budget_floor_bytes(stage: StagePlan, values: SizingValues) -> int:
    """Return the smallest budget whose empty chain serves one request at batch size 1.

    Bands meet on unlike grids, so the byte sum of the demand is too small; the layout search
    decides. Bisection is exact because more bytes never hurt: with every grid anchored at byte 0
    a larger arena only moves the owner's lowest page up and raises every index limit. The tables
    of one request's row come on top.
    """
    demand = floor_units(stage, values)
    grain = ALLOCATION_GRAIN_BYTES

    def shape_of(grains: int) -> ArenaShape:
        return arena_shape(stage, values, arena_bytes=grains * grain, running_count=1)

    least = ceil_div(sink_bytes_of(stage.bands, page_tokens=values.page_tokens), grain)
    low, high = least - 1, least
    while not fits_empty(shape_of(high).geometry, demand):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits_empty(shape_of(middle).geometry, demand):
            high = middle
        else:
            low = middle
    return shape_of(high).total_bytes
