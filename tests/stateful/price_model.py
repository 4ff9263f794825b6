"""Random chains unit by unit and byte by byte, and slow, plain answers to check the search against.

A case knows where every unit lies and what it is; the snapshot made from it does not. The
exhaustive answers are those of `kvd.testing.stress.layouts`; ``realize`` carries a layout out on
bytes.
"""

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from kvd.price.geometry import BandKind, ChainGeometry, chain_geometry
from kvd.price.layout import Layout, Step, move_order, moved_units_max
from kvd.price.search import Span, Spans, Units
from kvd.price.snapshot import BandSnapshot, ChainSnapshot, Interval, Tier

LIVE, HOLE, PENDING, FORWARD, NETWORK = "live", "hole", "pending", "forward", "network"


@dataclass(frozen=True, slots=True)
class BandCase:
    """One band: the state of each unit of its span, and which live ones are fixed."""

    start_index: int
    states: tuple[str, ...]
    hard: tuple[int, ...]
    soft: tuple[int, ...]
    promised_units: int
    movable: bool
    id_room_count: int | None

    @property
    def end_index(self) -> int:
        """Return the end of the span."""
        return self.start_index + len(self.states)

    def places(self, *wanted: str) -> list[int]:
        """Return the units in any of these states."""
        return [self.start_index + at for at, state in enumerate(self.states) if state in wanted]


@dataclass(frozen=True, slots=True)
class Case:
    """A chain, and a demand of it."""

    geometry: ChainGeometry
    bands: tuple[BandCase, ...]
    blocked: tuple[Interval, ...]
    quarantined: tuple[Interval, ...]
    demand_units: Units

    def snapshot(self) -> ChainSnapshot:
        """Return the counts, as a chain would take them."""
        bands = tuple(
            BandSnapshot(
                geometry=geometry,
                start_index=band.start_index,
                end_index=band.end_index,
                live_units=band.states.count(LIVE),
                hole_units=band.states.count(HOLE),
                promised_units=band.promised_units,
                pending_units=band.states.count(PENDING),
                vacated_forward_units=band.states.count(FORWARD),
                vacated_network_units=band.states.count(NETWORK),
                hard_fixed=_extent(band.hard),
                soft_fixed=_extent(band.soft),
                movable=band.movable,
                id_room_count=band.id_room_count,
            )
            for geometry, band in zip(self.geometry.bands, self.bands, strict=True)
        )
        return ChainSnapshot(
            self.geometry.arena_bytes,
            self.geometry.sink_bytes,
            bands,
            self.blocked,
            self.quarantined,
            epoch_count=7,
        )


def _extent(units: tuple[int, ...]) -> Span | None:
    return (min(units), max(units) + 1) if units else None


def _merged(intervals: list[Interval]) -> tuple[Interval, ...]:
    covered = sorted({byte for low, high in intervals for byte in range(low, high)})
    if not covered:
        return ()
    cuts = [(below, above) for below, above in pairwise(covered) if above != below + 1]
    lows = [covered[0], *(above for _, above in cuts)]
    highs = [*(below + 1 for below, _ in cuts), covered[-1] + 1]
    return tuple(zip(lows, highs, strict=True))


def chain_of(
    *bands: tuple[int, int, int, int], arena_bytes: int, sink_bytes: int = 1
) -> ChainSnapshot:
    """Return a chain of bands given as (unit bytes, start, end, live units); the rest is holes."""
    kinds = [BandKind.FLOAT] * len(bands)
    kinds[0] = BandKind.GROW_UP
    kinds[-1] = BandKind.GROW_DOWN
    geometry = chain_geometry(
        arena_bytes=arena_bytes,
        sink_bytes=sink_bytes,
        bands=tuple((f"band_{index}", kinds[index], band[0]) for index, band in enumerate(bands)),
    )
    return ChainSnapshot(
        arena_bytes,
        sink_bytes,
        tuple(
            BandSnapshot(grid, start, end, live, end - start - live)
            for grid, (_, start, end, live) in zip(geometry.bands, bands, strict=True)
        ),
    )


def changed(snapshot: ChainSnapshot, index: int, **fields: Any) -> ChainSnapshot:
    """Return the chain with some fields of one band replaced."""
    band = snapshot.bands[index]._replace(**fields)
    bands = (*snapshot.bands[:index], band, *snapshot.bands[index + 1 :])
    return snapshot._replace(bands=bands)


# ---- drawing ------------------------------------------------------------------------------------


def draw_case(rng: random.Random, *, plain: bool = False) -> Case:
    """Return a random chain of one to six bands; a plain one has nothing fixed or blocked."""
    band_count = rng.choice((1, 2, 2, 3, 3, 3, 4, 4, 5, 6))
    kinds = [BandKind.FLOAT] * band_count
    kinds[0] = BandKind.GROW_UP
    kinds[-1] = BandKind.GROW_DOWN
    unit_bytes = [rng.choice((2, 3, 4, 5, 6, 7, 8, 11, 13)) for _ in kinds]
    sink_bytes = rng.randint(1, max(unit_bytes))
    geometry = chain_geometry(
        arena_bytes=sink_bytes + rng.randint(26, 50 + 14 * band_count),
        sink_bytes=sink_bytes,
        bands=tuple((f"band_{index}", kind, unit_bytes[index]) for index, kind in enumerate(kinds)),
    )
    bands = [
        _draw_band(rng, geometry, index, span, plain=plain)
        for index, span in enumerate(_draw_spans(rng, geometry))
    ]
    vacated = [
        (unit * grid.unit_bytes, (unit + 1) * grid.unit_bytes)
        for grid, band in zip(geometry.bands, bands, strict=True)
        for unit in band.places(NETWORK)
    ]
    outside = [] if plain else _draw_blocked(rng, geometry, bands)
    astray = [interval for interval in outside if rng.random() < 0.3]
    free_bytes = (
        geometry.arena_bytes
        - geometry.sink_bytes
        - sum(
            grid.unit_bytes * (len(band.places(LIVE)) + band.promised_units)
            for grid, band in zip(geometry.bands, bands, strict=True)
        )
    )
    share = rng.random() * 1.6 / band_count
    demand = tuple(
        0 if rng.random() < 0.3 else rng.randint(0, max(0, int(free_bytes * share / size)) + 1)
        for size in unit_bytes
    )
    return Case(geometry, tuple(bands), _merged(vacated + outside), _merged(astray), demand)


def _draw_spans(rng: random.Random, geometry: ChainGeometry) -> Spans:
    spans: list[Span] = []
    cursor_bytes = geometry.sink_bytes
    slack = rng.choice((2, 6, 12))
    reserved_bytes = geometry.arena_bytes - geometry.bands[-1].unit_index_end_count * (
        geometry.bands[-1].unit_bytes
    )
    for band in geometry.bands:
        lowest = max(band.unit_index_min, -(-cursor_bytes // band.unit_bytes))
        highest = min(
            band.unit_index_end_count, (geometry.arena_bytes - reserved_bytes) // band.unit_bytes
        )
        width = rng.randint(0, max(0, min(6, highest - lowest)))
        if band.kind is BandKind.GROW_DOWN:
            end = band.unit_index_end_count
            spans.append((end - min(width, max(0, end - lowest)), end))
            continue
        start = band.unit_index_min
        if band.kind is BandKind.FLOAT:
            start = min(lowest + rng.randint(0, slack), max(lowest, highest - width))
            if rng.random() < 0.25:
                width = 0
        spans.append((start, start + width))
        if width or band.kind is BandKind.GROW_UP:
            cursor_bytes = (start + width) * band.unit_bytes
    return tuple(spans)


def _draw_band(
    rng: random.Random, geometry: ChainGeometry, index: int, span: Span, *, plain: bool
) -> BandCase:
    live_share = rng.choice((0, 3, 6, 12))
    weights = (live_share, 3, 0, 0, 0) if plain else (live_share, 3, 1, 1, 1)
    states = tuple(
        rng.choices((LIVE, HOLE, PENDING, FORWARD, NETWORK), weights, k=span[1] - span[0])
    )
    live = [span[0] + at for at, state in enumerate(states) if state == LIVE]
    fixes = not plain and rng.random() < 0.4
    hard = tuple(unit for unit in live if fixes and rng.random() < 0.2)
    soft = tuple(unit for unit in live if fixes and rng.random() < 0.2)
    promised = rng.randint(0, states.count(HOLE)) if rng.random() < 0.3 else 0
    mints = index in (0, len(geometry.bands) - 1)
    return BandCase(
        span[0],
        states,
        hard,
        soft,
        promised,
        movable=plain or rng.random() > 0.08,
        id_room_count=promised + rng.randint(0, 40) if mints and rng.random() < 0.5 else None,
    )


def _draw_blocked(
    rng: random.Random, geometry: ChainGeometry, bands: list[BandCase]
) -> list[Interval]:
    taken: set[int] = set(range(geometry.sink_bytes))
    for grid, band in zip(geometry.bands, bands, strict=True):
        taken.update(range(band.start_index * grid.unit_bytes, band.end_index * grid.unit_bytes))
    free = [byte for byte in range(geometry.arena_bytes) if byte not in taken]
    intervals: list[Interval] = []
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        if free:
            low = rng.choice(free)
            high = low + 1
            while high - low < rng.randint(1, 8) and high in free:
                high += 1
            intervals.append((low, high))
    return intervals


# ---- carrying out -------------------------------------------------------------------------------


Content: TypeAlias = tuple[int, int, int] | None
"""What a byte holds: band, unit it belongs to by its first place, offset; or nothing."""


class ByteArena:
    """The bytes of a case while a layout is carried out; every write is checked."""

    def __init__(self, case: Case, layout: Layout) -> None:
        self.case = case
        self.layout = layout
        blocked = case.blocked if layout.tier is Tier.STREAM else case.quarantined
        self.read = {byte for low, high in blocked for byte in range(low, high)}
        self.content: list[Content] = [None] * case.geometry.arena_bytes
        self.spans: list[Span] = [(band.start_index, band.end_index) for band in case.bands]
        self.place_of = [{unit: unit for unit in band.places(LIVE)} for band in case.bands]
        self.dead = [
            set(band.places(NETWORK)) if layout.tier is Tier.STREAM else set[int]()
            for band in case.bands
        ]
        for index, places in enumerate(self.place_of):
            for unit in places:
                self._write(index, unit, self._filled(index, unit))

    def realize(self) -> int:
        """Rearrange, grow, take the promises and the demand; return how many units were copied."""
        layout = self.layout
        copied = [0] * len(layout.spans)
        for index in (*layout.flushed, *move_order(self.case.snapshot(), layout)):
            copied[index] = self._rearrange(index)
        for index, span in enumerate(layout.spans):
            start, end = self.spans[index]
            assert start == end or (span[0] <= start and end <= span[1])
            self._enter(index, span)
        for index, band in enumerate(self.case.bands):
            wanted = band.promised_units + self.case.demand_units[index]
            free = self._free(index)
            assert len(free) >= wanted
            for unit in free[:wanted]:
                self._write(index, unit, self._filled(index, -1 - unit))
        for index in range(len(layout.spans)):
            self._check_units(index)
        for moved, bound in zip(copied, moved_units_max(self.case.snapshot(), layout), strict=True):
            assert moved <= bound
        return sum(copied)

    def _check_units(self, index: int) -> None:
        """Check that all live units kept their bytes, and that those that moved were free to."""
        band, layout = self.case.bands[index], self.layout
        for name, unit in self.place_of[index].items():
            assert self._read(index, unit) == self._filled(index, name)
            if unit != name:
                assert band.movable
                assert name not in band.hard
                assert layout.tier is Tier.TRANSFERS or name not in band.soft
                assert layout.step is not Step.NO_MOVE
                is_float = self.case.geometry.bands[index].kind is BandKind.FLOAT
                assert not is_float or layout.step is Step.RELAYOUT

    def _rearrange(self, index: int) -> int:
        old, (start, end) = self.spans[index], self.layout.spans[index]
        assert start > old[0] or end < old[1]
        self._enter(index, (start, end))
        places = self.place_of[index]
        moving = [name for name, unit in places.items() if not start <= unit < end]
        free = self._free(index)
        assert len(free) >= len(moving)
        for name, target in zip(moving, free, strict=False):
            self._write(index, target, self._read(index, places[name]))
        for name, target in zip(moving, free, strict=False):
            self._clear(index, places[name])
            places[name] = target
        return len(moving)

    def _enter(self, index: int, span: Span) -> None:
        """Give a band its span, which no other band holds at this moment."""
        size = self.case.geometry.bands[index].unit_bytes
        low_bytes, high_bytes = span[0] * size, span[1] * size
        for other, grid in enumerate(self.case.geometry.bands):
            start, end = self.spans[other]
            if other != index and start < end and low_bytes < high_bytes:
                assert high_bytes <= start * grid.unit_bytes or end * grid.unit_bytes <= low_bytes
        self.spans[index] = span

    def _free(self, index: int) -> list[int]:
        held = set(self.place_of[index].values()) | self.dead[index]
        return [unit for unit in range(*self.spans[index]) if unit not in held]

    def _bytes(self, index: int, unit: int) -> range:
        size = self.case.geometry.bands[index].unit_bytes
        return range(unit * size, (unit + 1) * size)

    def _filled(self, index: int, name: int) -> list[Content]:
        size = self.case.geometry.bands[index].unit_bytes
        return [(index, name, offset) for offset in range(size)]

    def _read(self, index: int, unit: int) -> list[Content]:
        return [self.content[byte] for byte in self._bytes(index, unit)]

    def _write(self, index: int, unit: int, content: list[Content]) -> None:
        for byte, value in zip(self._bytes(index, unit), content, strict=True):
            assert byte >= self.case.geometry.sink_bytes
            assert byte not in self.read
            assert self.content[byte] is None
            self.content[byte] = value

    def _clear(self, index: int, unit: int) -> None:
        for byte in self._bytes(index, unit):
            self.content[byte] = None
