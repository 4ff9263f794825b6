"""From stages and one byte budget to a sized plan: how many requests, tokens and slots.

What is fixed afterwards is the arena, its grids and its tables, so also the number of request
rows. The targets per band are labels for people and metrics: at run time any band may take any
free byte.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from kvd.errors import SizeError
from kvd.plan.stage import StagePlan
from kvd.plan.storage import PlannedBand
from kvd.price.geometry import ChainGeometry
from kvd.price.search import fits_empty
from kvd.size.arena import (
    ArenaShape,
    budget_floor_bytes,
    floor_units,
    largest_arena,
)
from kvd.size.inputs import SizingValues
from kvd.size.region import DRAFT_STATES, Region
from kvd.units import ceil_div, floor_div

RUNNING_GUESS_COUNT_MIN: Final = 2048
RUNNING_GUESS_COUNT_MAX: Final = 4096
"""Without a cap, rows for this many requests: schedulers hardly run more on one rank."""
RUNNING_PER_CONTEXT_COUNT: Final = 512
"""Requests are guessed to be 1/512 of the context long: 256 tokens where it is 131,072."""
TOKEN_PLACES_COUNT_MAX: Final = 1 << 31
"""Kernels read token places as 32-bit numbers."""
CHUNKS_IN_FLIGHT_COUNT: Final = 1
"""A step is processed before the next batch, so one chunk at a time is unretired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedPlan:
    """One stage with all its numbers."""

    stage_index: int
    layer_index_min: int
    layer_end_count: int
    bands: tuple[PlannedBand, ...]
    geometry: ChainGeometry
    region: Region
    running_requests_count: int
    """Requests that can hold memory at once; the same on all stages."""
    row_pages: int
    page_tokens: int
    context_tokens: int
    chunk_tokens: int
    draft_tokens: int
    checkpoint_tokens: int
    overlap: bool
    slots_per_request_slots: int
    tracking_slots: int
    virtual_page_count: int
    """Virtual pages are ``[1, virtual_page_count)``: the least of all stages."""
    virtual_slot_count: int
    """State slot ids are ``[1, virtual_slot_count)``; 0 without a state band."""
    target_units: tuple[int, ...]
    floor_units: tuple[int, ...]
    budget_bytes: int
    budget_floor_bytes: int
    """Smallest budget that this stage accepts."""

    @property
    def arena_bytes(self) -> int:
        """Return the bytes of the bands and the sink."""
        return self.geometry.arena_bytes

    @property
    def total_bytes(self) -> int:
        """Return the bytes of the allocation."""
        return self.arena_bytes + self.region.region_bytes

    @property
    def row_count(self) -> int:
        """Return the rows of the request table; row 0 is for padding."""
        return self.running_requests_count + 1

    @property
    def has_state(self) -> bool:
        """Return whether the first band holds states."""
        return self.bands[0].is_state

    @property
    def fixed_bytes(self) -> tuple[tuple[str, int], ...]:
        """Return what the budget pays beside the arena, by name."""
        return tuple((table.name, table.table_bytes) for table in self.region.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Targets:
    """What one stage could aim at with a given number of request rows."""

    shape: ArenaShape
    state_slots: int
    owner_pages: int


def size_stages(stages: tuple[StagePlan, ...], values: SizingValues) -> tuple[SizedPlan, ...]:
    """Return every stage sized for the same requests, tokens and slots.

    Raises SizeError when the budget is below a stage's floor (``short_bytes`` says by how much),
    when explicit state slots do not fit or serve no request, or when token places need more than
    31 bits.
    """
    floors = tuple(budget_floor_bytes(stage, values) for stage in stages)
    _check_floor(floors, values)
    _check_state_slots(stages, values)
    running_count = _largest_running_count(stages, values)
    chosen = tuple(_targets(stage, values, running_count=running_count) for stage in stages)
    sound = tuple(target for target in chosen if target is not None)
    assert len(sound) == len(stages)
    for target in sound:
        _check_places(target.shape, values)
    owner_pages = min(target.owner_pages for target in sound)
    state_slots = min(target.state_slots for target in sound)
    virtual_page_count = min(_owner_end(target.shape) for target in sound)
    virtual_slot_count = min(
        target.shape.geometry.bands[0].unit_index_end_count if stage.bands[0].is_state else 0
        for stage, target in zip(stages, sound, strict=True)
    )
    return tuple(
        SizedPlan(
            stage_index=stage.stage_index,
            layer_index_min=stage.layer_index_min,
            layer_end_count=stage.layer_end_count,
            bands=stage.bands,
            geometry=target.shape.geometry,
            region=target.shape.region,
            running_requests_count=running_count,
            row_pages=values.row_pages,
            page_tokens=values.page_tokens,
            context_tokens=values.context_tokens,
            chunk_tokens=values.chunk_tokens,
            draft_tokens=values.draft_tokens,
            checkpoint_tokens=values.checkpoint_tokens,
            overlap=values.overlap,
            slots_per_request_slots=values.slots_per_request_slots,
            tracking_slots=values.tracking_slots,
            virtual_page_count=virtual_page_count,
            virtual_slot_count=virtual_slot_count,
            target_units=_units(
                stage,
                values,
                running_count=running_count,
                state_slots=state_slots,
                owner_pages=owner_pages,
            ),
            floor_units=floor_units(stage, values),
            budget_bytes=values.budget_bytes,
            budget_floor_bytes=floor,
        )
        for stage, target, floor in zip(stages, sound, floors, strict=True)
    )


def _check_floor(floors: tuple[int, ...], values: SizingValues) -> None:
    floor = max(floors)
    if values.budget_bytes < floor:
        short_bytes = floor - values.budget_bytes
        where = f"stage {floors.index(floor)}" if len(floors) > 1 else "one request"
        raise SizeError(
            f"budget_bytes is {values.budget_bytes}, short by {short_bytes} bytes: {where} needs "
            f"at least budget_floor, {floor} bytes",
            short_bytes=short_bytes,
        )


def _check_state_slots(stages: tuple[StagePlan, ...], values: SizingValues) -> None:
    """Check an explicit number of state slots: it serves a request and fits with one row."""
    slots = values.state_slots
    if slots is None:
        return
    if slots < values.slots_per_request_slots:
        raise SizeError(
            f"state_slots is {slots}: no request could run, since one takes "
            f"{values.slots_per_request_slots}"
        )
    for stage in stages:
        if not stage.bands[0].is_state:
            continue
        shape = largest_arena(stage, values, budget_bytes=values.budget_bytes, running_count=1)
        assert shape is not None
        most = _most_state_slots(stage, values, shape)
        if slots > most:
            short_bytes = (slots - most) * stage.bands[0].entry_bytes
            raise SizeError(
                f"state_slots is {slots}: stage {stage.stage_index} can hold at most {most} of "
                f"{stage.bands[0].entry_bytes} bytes; {short_bytes} bytes are missing",
                short_bytes=short_bytes,
            )


def _check_places(shape: ArenaShape, values: SizingValues) -> None:
    for band in shape.geometry.bands:
        places = band.unit_index_end_count * values.page_tokens
        if places > TOKEN_PLACES_COUNT_MAX:
            raise SizeError(
                f"budget_bytes is {values.budget_bytes}: band {band.name} would have {places} "
                f"token places, more than the {TOKEN_PLACES_COUNT_MAX} that 32-bit ids name"
            )


def _largest_running_count(stages: tuple[StagePlan, ...], values: SizingValues) -> int:
    """Return the most rows that their own share of the budget leaves room to use.

    More rows mean larger tables and so fewer slots and tokens. The search ends on a number whose
    arena serves at least as many requests as it has rows.
    """
    low, high = 1, _running_cap(stages, values)
    while low < high:
        middle = (low + high + 1) // 2
        if _served_count(stages, values, running_count=middle) >= middle:
            low = middle
        else:
            high = middle - 1
    return low


def _running_cap(stages: tuple[StagePlan, ...], values: SizingValues) -> int:
    if values.running_count_max is not None:
        return values.running_count_max
    token_bytes = max(
        sum(band.entry_bytes for band in stage.bands if not band.is_state) for stage in stages
    )
    tokens = floor_div(values.budget_bytes, token_bytes)
    guess = floor_div(tokens * RUNNING_PER_CONTEXT_COUNT, values.context_tokens)
    return min(max(guess, RUNNING_GUESS_COUNT_MIN), RUNNING_GUESS_COUNT_MAX)


def _served_count(
    stages: tuple[StagePlan, ...], values: SizingValues, *, running_count: int
) -> int:
    """Return how many requests the arenas carry if there are ``running_count`` rows."""
    served = running_count
    for stage in stages:
        target = _targets(stage, values, running_count=running_count)
        if target is None:
            return 0
        if stage.bands[0].is_state:
            served = min(served, target.state_slots // values.slots_per_request_slots)
        # A request has a prompt and an output token; the floor promises that one fits anyway.
        served = min(served, max(1, target.owner_pages * values.page_tokens // 2))
    return served


def _targets(stage: StagePlan, values: SizingValues, *, running_count: int) -> _Targets | None:
    """Return the targets with this many rows, None if their tables leave too small an arena."""
    shape = largest_arena(
        stage, values, budget_bytes=values.budget_bytes, running_count=running_count
    )
    if shape is None or not fits_empty(shape.geometry, floor_units(stage, values)):
        return None
    state_slots = 0
    if stage.bands[0].is_state:
        most = _most_state_slots(stage, values, shape)
        state_slots = values.state_slots or _shared_state_slots(stage, values, shape)
        if values.state_slots is not None and state_slots > most:
            return None
        state_slots = min(state_slots, most)
    low, high = 1, _owner_end(shape)
    while low < high:
        middle = (low + high + 1) // 2
        units = _units(
            stage,
            values,
            running_count=running_count,
            state_slots=state_slots,
            owner_pages=middle,
        )
        if fits_empty(shape.geometry, units):
            low = middle
        else:
            high = middle - 1
    return _Targets(shape=shape, state_slots=state_slots, owner_pages=low)


def _shared_state_slots(stage: StagePlan, values: SizingValues, shape: ArenaShape) -> int:
    """Return the slots that the state share pays, at least those of one request.

    The states between the tokens of a verify step come out of the same share, as does the slot
    that the sink takes.
    """
    draft = shape.region.table(DRAFT_STATES)
    draft_bytes = draft.table_bytes if draft is not None else 0
    share = Fraction(values.state_share)
    chain_bytes = shape.geometry.arena_bytes + draft_bytes
    state_bytes = int(chain_bytes * share / (1 + share)) - draft_bytes
    return max(
        floor_div(state_bytes, stage.bands[0].entry_bytes) - 1, values.slots_per_request_slots
    )


def _most_state_slots(stage: StagePlan, values: SizingValues, shape: ArenaShape) -> int:
    """Return the most slots that leave room for one request's floor in the other bands."""
    others = floor_units(stage, values)[1:]
    low, high = values.slots_per_request_slots, shape.geometry.bands[0].unit_index_end_count
    while low < high:
        middle = (low + high + 1) // 2
        if fits_empty(shape.geometry, (middle, *others)):
            low = middle
        else:
            high = middle - 1
    return low


def _units(
    stage: StagePlan,
    values: SizingValues,
    *,
    running_count: int,
    state_slots: int,
    owner_pages: int,
) -> tuple[int, ...]:
    """Return the targets of all bands that go with so many slots and owner pages.

    A window aims at what all rows retain, one step of each and the chunks in flight, never at more
    pages than the owner has to bind to, and never at less than one request's floor.
    """
    chunk_tokens = min(values.chunk_tokens, values.context_tokens)
    units: list[int] = []
    for band, floor in zip(stage.bands, floor_units(stage, values), strict=True):
        if band.is_state:
            units.append(state_slots)
        elif band.window_tokens:
            retained = band.window_tokens + values.page_tokens + values.step_tokens
            chunks = CHUNKS_IN_FLIGHT_COUNT * chunk_tokens + values.page_tokens
            pages = ceil_div(running_count * retained + chunks, values.page_tokens)
            units.append(max(floor, min(pages, owner_pages)))
        else:
            units.append(owner_pages)
    return tuple(units)


def _owner_end(shape: ArenaShape) -> int:
    return shape.geometry.bands[-1].unit_index_end_count
