"""Small chains and request tables for tests, random ones too, and pictures of their whole state."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
from hypothesis import strategies as st

from kvd.alloc.admission import Admission, AdmissionPass
from kvd.alloc.band import Band
from kvd.alloc.chain import ChainAllocator
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.clearance import Hazard
from kvd.alloc.demand import DemandShape
from kvd.alloc.requests import RequestTable
from kvd.alloc.signals import copy_signal, transfer_signal
from kvd.alloc.transfers import Transfers
from kvd.alloc.uses import UseKind
from kvd.price.geometry import BandKind, ChainGeometry, chain_geometry
from kvd.price.search import Span, Spans
from kvd.price.snapshot import Interval
from kvd_proto.memory import Lifetime

Picture: TypeAlias = Any
"""Nested tuples that are equal exactly when all state is."""

REMEMBERED = ("_snapshot", "_facts", "_storage")
"""What is kept of other state to save work; chain.snapshot_fresh compares it with that state."""

ATOMS = (int, type(None), str, float, bytes, Enum, type)
"""What is its own picture."""

PRIMES = (2, 3, 5, 7, 11, 13)


@dataclass(frozen=True, slots=True)
class World:
    """What a request table is built from; the last band is the owner."""

    arena_bytes: int
    unit_bytes: tuple[int, ...]
    lifetimes: tuple[Lifetime, ...]
    window_tokens: tuple[int, ...]
    page_tokens: int = 4
    row_count: int = 6
    context_tokens: int = 64
    chunk_tokens: int = 8
    virtual_page_count: int = 0
    """0: one more than the last page of the owner's grid."""
    virtual_slot_count: int = 0

    @property
    def geometry(self) -> ChainGeometry:
        """Return the grids, with a sink that holds every band's unit 0."""
        kinds = [BandKind.FLOAT] * len(self.unit_bytes)
        kinds[0] = BandKind.GROW_UP
        kinds[-1] = BandKind.GROW_DOWN
        return chain_geometry(
            arena_bytes=self.arena_bytes,
            sink_bytes=max(self.unit_bytes),
            bands=tuple(
                (f"{lifetime.value}_{index}", kind, unit_bytes)
                for index, (lifetime, kind, unit_bytes) in enumerate(
                    zip(self.lifetimes, kinds, self.unit_bytes, strict=True)
                )
            ),
        )

    def chain(self, level: CheckLevel = CheckLevel.STRICT) -> ChainAllocator:
        """Return an empty chain."""
        geometry = self.geometry
        slots = geometry.bands[0].unit_index_end_count
        return ChainAllocator(
            geometry,
            lifetimes=self.lifetimes,
            virtual_page_count=self.virtual_page_count or geometry.bands[-1].unit_index_end_count,
            virtual_slot_count=self.virtual_slot_count or slots,
            monitor=CheckMonitor(level),
        )

    def table(self, level: CheckLevel = CheckLevel.STRICT) -> RequestTable:
        """Return a request table over an empty chain."""
        return RequestTable(
            self.chain(level),
            row_count=self.row_count,
            row_pages=-(-(self.context_tokens + 4) // self.page_tokens),
            context_tokens=self.context_tokens,
            shape=DemandShape(
                lifetimes=self.lifetimes,
                window_tokens=self.window_tokens,
                page_tokens=self.page_tokens,
                slots_per_request_slots=1,
                context_tokens=self.context_tokens,
            ),
            chunk_tokens=self.chunk_tokens,
        )


def admit(
    table: RequestTable,
    request: int,
    *,
    prompt: int = 8,
    new: int = 8,
    chunk: int = 0,
    growth_permille: int = 0,
) -> Admission:
    """Ask for one request in a pass of its own, as an admit of one id does."""
    table.names.check_new(request)
    return AdmissionPass(table, growth_permille=growth_permille).admit(
        request, prompt_tokens=prompt, new_tokens_max=new, chunk_tokens=chunk
    )


THREE = World(
    arena_bytes=400,
    unit_bytes=(10, 6, 5),
    lifetimes=(Lifetime.STATE, Lifetime.WINDOW, Lifetime.FULL),
    window_tokens=(0, 8, 0),
)
"""A state end, one float and the owner."""

PAIR = World(
    arena_bytes=14,
    unit_bytes=(2, 2),
    lifetimes=(Lifetime.WINDOW, Lifetime.FULL),
    window_tokens=(8, 0),
)
"""Six units of room: a window from the low end against the owner."""

ONE = World(
    arena_bytes=400, unit_bytes=(10,), lifetimes=(Lifetime.FULL,), window_tokens=(0,), row_count=6
)
"""Full attention only."""


@st.composite
def worlds(draw: st.DrawFn, *, floats_max: int = 3) -> World:
    """Draw chains of one to five bands with coprime units and little room."""
    has_state = draw(st.booleans())
    window_count = draw(st.integers(0, floats_max + (0 if has_state else 1)))
    lifetimes = (
        *((Lifetime.STATE,) if has_state else ()),
        *(Lifetime.WINDOW,) * window_count,
        Lifetime.FULL,
    )
    unit_bytes = tuple(draw(st.sampled_from(PRIMES)) for _ in lifetimes)
    page_tokens = draw(st.sampled_from((1, 2, 3, 4)))
    context_tokens = draw(st.integers(4, 40))
    return World(
        arena_bytes=max(unit_bytes) + draw(st.integers(20, 260)),
        unit_bytes=unit_bytes,
        lifetimes=lifetimes,
        window_tokens=tuple(
            draw(st.integers(1, 12)) if lifetime is Lifetime.WINDOW else 0 for lifetime in lifetimes
        ),
        page_tokens=page_tokens,
        row_count=draw(st.integers(2, 7)),
        context_tokens=context_tokens,
        chunk_tokens=draw(st.integers(1, 10)),
    )


@st.composite
def geometries(draw: st.DrawFn, *, arena_bytes_max: int = 120) -> ChainGeometry:
    """Draw grids of one to four bands, with a sink that may be smaller than a unit."""
    band_count = draw(st.integers(1, 4))
    kinds = [BandKind.FLOAT] * band_count
    kinds[0] = BandKind.GROW_UP
    kinds[-1] = BandKind.GROW_DOWN
    unit_bytes = [draw(st.integers(2, 13)) for _ in kinds]
    sink_bytes = draw(st.integers(1, 14))
    return chain_geometry(
        # The anchors of the ends never cross: sizing leaves room for a unit of each.
        arena_bytes=sink_bytes + draw(st.integers(26, arena_bytes_max)),
        sink_bytes=sink_bytes,
        bands=tuple((f"band_{index}", kind, unit_bytes[index]) for index, kind in enumerate(kinds)),
    )


@st.composite
def occupied(draw: st.DrawFn, geometry: ChainGeometry) -> Spans:
    """Draw spans that a chain could have: in order, on their grids, floats parked or not."""
    spans: list[tuple[int, int]] = []
    cursor_bytes = geometry.sink_bytes
    *lower, last = geometry.bands
    for band in lower:
        lowest = max(band.unit_index_min, -(-cursor_bytes // band.unit_bytes))
        room = max(0, band.unit_index_end_count - lowest)
        start = band.unit_index_min
        if band.kind is BandKind.FLOAT:
            start = lowest + draw(st.integers(0, min(room, 4)))
        width = draw(st.integers(0, max(0, min(5, band.unit_index_end_count - start))))
        spans.append((start, start + width))
        if width or band.kind is BandKind.GROW_UP:
            cursor_bytes = (start + width) * band.unit_bytes
    end = last.unit_index_end_count
    lowest = min(end, max(last.unit_index_min, -(-cursor_bytes // last.unit_bytes)))
    spans.append((end - draw(st.integers(0, min(5, end - lowest))), end))
    return tuple(spans)


def picture(value: Any) -> Picture:
    """Return everything an object holds, for comparison bit by bit."""
    return _picture(value, {})


def _picture(value: Any, seen: dict[int, tuple[Any, Picture]]) -> Picture:
    """Draw each object once: a stage reaches its chain in a score of ways.

    ``seen`` keeps what it has drawn alive, so that no other object gets its id meanwhile.
    """
    if isinstance(value, ATOMS):
        return value
    known = seen.get(id(value))
    if known is None:
        known = seen[id(value)] = value, _contents(value, seen)
    return known[1]


def _contents(value: Any, seen: dict[int, tuple[Any, Picture]]) -> Picture:
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, np.dtype[Any]]", value)
        return (str(array.dtype), array.shape, array.tobytes())
    if isinstance(value, msgspec.Struct):
        return value  # messages and shapes are frozen values
    if isinstance(value, dict):
        table = cast("dict[Any, Any]", value)
        return tuple((_picture(key, seen), _picture(item, seen)) for key, item in table.items())
    if isinstance(value, list | tuple | deque):
        return tuple(_picture(item, seen) for item in cast("list[Any]", value))
    if callable(value):
        return None
    if is_dataclass(value):
        return tuple(_picture(getattr(value, field.name), seen) for field in fields(value))
    attributes = cast("dict[str, Any]", vars(value))
    return tuple(
        (name, _picture(attributes[name], seen))
        for name in sorted(attributes)
        if name not in REMEMBERED
    )


def fix(band: Band, *, hard: Span | None, soft: Span | None) -> None:
    """Have a load hold the live units of one extent and a transfer those of another, or nobody.

    Where no unit is live, the ends of the extent are held all the same.
    """
    for kind, signal, extent in (
        (UseKind.LOAD_RESERVATION, copy_signal(9001), hard),
        (UseKind.NETWORK_SEND, transfer_signal(9001), soft),
    ):
        band.usage.release(signal)
        if extent is not None:
            live = band.physical(band.bound_ids())
            held = live[(live >= extent[0]) & (live < extent[1])]
            ends = np.array([extent[0], extent[1] - 1], dtype=np.int64)
            band.usage.open(kind, signal, held if held.size else ends)


def block(chain: ChainAllocator, intervals: Sequence[Interval]) -> None:
    """Have a transfer touch bytes that no live unit holds, and no others."""
    fences, signal = chain.order.fences, transfer_signal(9002)
    fences.release(signal)
    for start_bytes, end_bytes in intervals:
        fences.add(start_bytes, end_bytes, Hazard.NETWORK_SEND, signal)


def post_nothing(transfers: Transfers) -> None:
    """Open the transfers that `fix` and `block` speak of."""
    nothing = [np.zeros(0, dtype=np.int64) for _ in transfers.chain.bands]
    for number in (9001, 9002):
        transfers.post(number, nothing)
