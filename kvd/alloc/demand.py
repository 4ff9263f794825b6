"""What one request asks of every band, priced before it starts.

One function answers for every purpose, and the purpose's row of ``DEMAND_RULES`` says how: the
memory clip, admission, a load and a preallocation can therefore not disagree about a request.

Tokens of one request are summed first and rounded up to pages once per band. A resident prefix ends
on a page edge, so pages are counted, not estimated, and no band asks for a page of slack.

The window bound assumes that state checkpoints advance. One is skipped when best-effort tracking
finds no second slot, or when no slot is free to replace the one that a tree keeps: the request then
holds more window rows than it was priced for.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, overload

from kvd.alloc.purpose import DEMAND_RULES, Arena, DemandPurpose, FullTokens, WindowPages
from kvd.alloc.window import (
    Extent,
    WindowMode,
    WindowPace,
    pass_pages,
    peak_pages,
    steady_pages,
    tail_pages,
    window_pace,
)
from kvd.units import ceil_div
from kvd_proto.memory import Lifetime


class Tracking(StrEnum):
    """How a request keeps checkpoints of its state while it runs."""

    NONE = "none"
    """The state is kept at the sequence's end only."""
    STRICT = "strict"
    """Slots of its own, held from the start: one is written while the other is complete."""
    BEST_EFFORT = "best_effort"
    """One slot of its own; the second is sought at each boundary and not promised."""


class Pace(NamedTuple):
    """What one window mode makes of a shape; derived once, for all requests."""

    windows: tuple[WindowPace | None, ...]
    """Per band, chain order; None for other bands."""
    past_end_tokens: int
    """Tokens that the last steps take beyond a request's end, before it is seen."""
    slots: int
    """State slots that a request works in and tracks with."""
    replacement_slots: int


@dataclass(frozen=True, slots=True)
class DemandShape:
    """What demand depends on besides the request: the bands, low to high, and how steps go."""

    lifetimes: tuple[Lifetime, ...]
    window_tokens: tuple[int, ...]
    """Tokens a window band keeps behind the newest computed one; 0 for other bands."""
    page_tokens: int
    slots_per_request_slots: int
    """State slots that a request works in."""
    step_tokens: int = 1
    """The most tokens that one step of decoding takes; more than one with speculation."""
    overlap: bool = False
    """Whether a step is taken while the one before it still runs."""
    slide_tokens: int = 0
    """A decoding window slides once this many tokens left it; never finer than a page."""
    checkpoint_tokens: int = 0
    """Distance of state checkpoints; 0: states are not kept on the way."""
    tracking: Tracking = Tracking.NONE
    context_tokens: int = 0
    """No step takes tokens past this length; 0: there is no such length."""
    paces: dict[WindowMode, Pace] = field(init=False, repr=False, compare=False)
    """Derived, since admission prices hundreds of requests at a time."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "paces", {mode: _pace(self, mode) for mode in WindowMode})

    @property
    def mode(self) -> WindowMode:
        """Return when windows slide: when tokens are stated as computed, before the next take.

        Under overlap that statement comes when the step behind it was taken already.
        """
        return WindowMode.LAG if self.overlap else WindowMode.STEP

    def reach_tokens(self, chunk_tokens: int) -> int:
        """Return how far behind its computed tokens a row may take, at most so many at once."""
        if self.overlap:
            return chunk_tokens + max(chunk_tokens, 2 * self.step_tokens)
        return chunk_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """What demand depends on in the request. Resident and host tokens are whole pages."""

    prompt_tokens: int
    """Tokens it has before its first new one, with those generated before a retraction."""
    new_tokens: int = 0
    """Tokens that may still come."""
    resident_tokens: int = 0
    """Prefix that is resident and locked for it: bound already, costs nothing."""
    host_tokens: int = 0
    """Tokens behind the resident prefix that are loaded instead of computed."""
    host_window_tokens: tuple[int, ...] = ()
    """Rows to load per band, chain order; empty: none."""
    host_slots: int = 0
    held_units: tuple[int, ...] = ()
    """Units it owns already per band, chain order; empty: none."""
    reserve_tokens: int = 0
    """New tokens that must have room when a prompt arrives from elsewhere."""
    retractable_tokens: int = 0
    """Tokens that retracting others would give a prompt from elsewhere."""


class KVDemand(NamedTuple):
    """Units of every band, chain order, and what they are asked for."""

    purpose: DemandPurpose
    units: tuple[int, ...]


@overload
def request_demand(
    shape: DemandShape,
    request: RequestShape,
    *,
    purpose: DemandPurpose,
    mode: WindowMode,
    chunk_tokens: int,
) -> KVDemand: ...


@overload
def request_demand(
    shape: DemandShape, *, total_tokens: int, chunk_tokens: int
) -> tuple[int, ...]: ...


def request_demand(
    shape: DemandShape,
    request: RequestShape | None = None,
    *,
    purpose: DemandPurpose = DemandPurpose.ADMIT,
    mode: WindowMode = WindowMode.STEP,
    chunk_tokens: int,
    total_tokens: int = 0,
) -> KVDemand | tuple[int, ...]:
    """Return the units per band that a request asks for a purpose, beyond what it holds.

    ``chunk_tokens`` is the most prompt tokens that it takes before it states what was computed;
    behind the prompt it takes ``step_tokens`` at a time. In mode TREE every chunk but the last
    ends on the cut grid. The answer never falls when ``new_tokens`` or ``chunk_tokens`` grow.
    """
    if request is None:
        # The form of callers that do not tell a prompt from what follows it.
        return request_demand(
            shape,
            RequestShape(prompt_tokens=total_tokens),
            purpose=purpose,
            mode=mode,
            chunk_tokens=chunk_tokens,
        ).units
    assert chunk_tokens > 0
    rule, pace = DEMAND_RULES[purpose], shape.paces[mode]
    page_tokens, prompt_tokens = shape.page_tokens, request.prompt_tokens
    if rule.arena.value is Arena.EMPTY:
        resident_tokens = start_tokens = 0
    else:
        resident_tokens = request.resident_tokens
        start_tokens = resident_tokens + request.host_tokens
        assert resident_tokens % page_tokens == 0
        assert start_tokens % page_tokens == 0
        assert start_tokens <= prompt_tokens
    new_tokens = request.new_tokens
    if new_tokens and rule.past_end.value:
        new_tokens += _past_end_tokens(shape, request, pace)
    extend_tokens = prompt_tokens - start_tokens
    extent = Extent(extend_tokens, new_tokens, min(chunk_tokens, extend_tokens))
    units: list[int] = []
    for index, window in enumerate(pace.windows):
        if window is not None:
            units.append(_window(rule.window.value, window, index, request, extent))
        elif shape.lifetimes[index] is Lifetime.FULL:
            pages = ceil_div(_end_tokens(rule.full.value, request, extent), page_tokens)
            units.append(pages - resident_tokens // page_tokens)
        else:
            replacement, loaded = rule.slots.value
            slots = pace.slots + pace.replacement_slots * replacement
            units.append(slots + request.host_slots * loaded)
    if request.held_units and rule.arena.value is Arena.LIVE:
        units = [
            max(0, asked - held) for asked, held in zip(units, request.held_units, strict=True)
        ]
    return KVDemand(purpose, tuple(units))


def steady_demand(
    shape: DemandShape, request: RequestShape, *, mode: WindowMode, chunk_tokens: int
) -> KVDemand:
    """Return what an admitted request holds at most once its prompt is computed.

    Its promise may fall to this then: the chunk's share of the windows is given back. ``request``
    is what was admitted, and held nothing at that time.
    """
    assert not request.held_units
    admitted = request_demand(
        shape, request, purpose=DemandPurpose.ADMIT, mode=mode, chunk_tokens=chunk_tokens
    )
    pace = shape.paces[mode]
    new_tokens = request.new_tokens
    if new_tokens:
        new_tokens += _past_end_tokens(shape, request, pace)
    # Rows that were loaded count as its own here: it starts behind the resident prefix.
    extent = Extent(request.prompt_tokens - request.resident_tokens, new_tokens, 0)
    units = [
        asked if window is None else min(asked, steady_pages(window, extent))
        for asked, window in zip(admitted.units, pace.windows, strict=True)
    ]
    return KVDemand(DemandPurpose.ADMIT, tuple(units))


def tracking_slots(tracking: Tracking, *, overlap: bool) -> int:
    """Return the tracking slots that a request is promised."""
    if tracking is Tracking.NONE:
        return 0
    return 2 if tracking is Tracking.STRICT and overlap else 1


def cut_grid_tokens(shape: DemandShape, mode: WindowMode) -> int:
    """Return the grid on which every chunk of a prompt but its last ends.

    A chunk that ends off the checkpoint grid records none, and a tree then frees nothing.
    """
    return _grid_tokens(shape, mode) or shape.page_tokens


def _grid_tokens(shape: DemandShape, mode: WindowMode) -> int:
    """Return the grid of the checkpoints that hold window rows back, whole pages; 0: none do.

    Without sharing no match ever lands on a checkpoint, and without a state there is none.
    """
    if mode is not WindowMode.TREE or Lifetime.STATE not in shape.lifetimes:
        return 0
    if shape.checkpoint_tokens == 0:
        return 0
    return math.lcm(shape.page_tokens, shape.checkpoint_tokens)


def _pace(shape: DemandShape, mode: WindowMode) -> Pace:
    overlap = shape.overlap or mode is WindowMode.LAG
    windows = tuple(
        window_pace(
            mode,
            window_tokens=window_tokens,
            page_tokens=shape.page_tokens,
            step_tokens=shape.step_tokens,
            overlap=overlap,
            slide_tokens=shape.slide_tokens,
            grid_tokens=_grid_tokens(shape, mode),
        )
        if lifetime is Lifetime.WINDOW
        else None
        for lifetime, window_tokens in zip(shape.lifetimes, shape.window_tokens, strict=True)
    )
    return Pace(
        windows=windows,
        past_end_tokens=(2 * shape.step_tokens if overlap else shape.step_tokens) - 1,
        slots=shape.slots_per_request_slots + tracking_slots(shape.tracking, overlap=overlap),
        replacement_slots=1 if mode is WindowMode.TREE else 0,
    )


def _past_end_tokens(shape: DemandShape, request: RequestShape, pace: Pace) -> int:
    """Return the tokens past the request's end that its last steps take, within the context."""
    if pace.past_end_tokens == 0 or shape.context_tokens == 0:
        return pace.past_end_tokens
    room_tokens = shape.context_tokens - request.prompt_tokens - request.new_tokens
    return min(pace.past_end_tokens, max(0, room_tokens))


def _end_tokens(rule: FullTokens, request: RequestShape, extent: Extent) -> int:
    """Return where the charge on the full-attention band ends, counted from the first token."""
    end_tokens = request.prompt_tokens + extent.new_tokens
    if rule is FullTokens.WHOLE:
        return end_tokens
    if rule is FullTokens.PASS:
        return end_tokens - extent.extend_tokens + extent.chunk_tokens
    reserve_tokens = min(request.reserve_tokens, extent.new_tokens)
    return max(request.prompt_tokens + reserve_tokens, end_tokens - request.retractable_tokens)


def _window(
    rule: WindowPages, pace: WindowPace, index: int, request: RequestShape, extent: Extent
) -> int:
    """Return the pages of one window band."""
    if rule is WindowPages.TAIL:
        return tail_pages(
            pace,
            prompt_tokens=request.prompt_tokens,
            resident_tokens=request.resident_tokens,
            reserve_tokens=min(request.reserve_tokens, extent.new_tokens),
        )
    loaded_pages = 0
    # An empty arena has no hits: there the request computes its prompt from the first token.
    if request.host_window_tokens and request.prompt_tokens != extent.extend_tokens:
        loaded_pages = ceil_div(request.host_window_tokens[index], pace.page_tokens)
    if rule is WindowPages.PASS:
        return pass_pages(pace, extent, loaded_pages=loaded_pages)
    return peak_pages(pace, extent, loaded_pages=loaded_pages)
