"""What a take and a free cost as an arena grows, and what the capacity question costs there.

Every round ends some pages and takes as many, in a chain that stays three quarters full: the four
or 256 oldest, as requests do that end in the order they came, or 256 random ones, which leaves
holes everywhere. All sizes are measured in turns, so that what else the machine does meets them
alike.
"""

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Final

import numpy as np

from kvd.alloc.band import Units
from kvd.alloc.chain import ChainAllocator, Shortage
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.price.geometry import BandKind, ChainGeometry, chain_geometry
from kvd.price.plans import feasible
from kvd.price.snapshot import chain_snapshot
from kvd.testing.bench_figures import REPEAT_COUNT, Figure, Times, best_us, percentile_us
from kvd_proto.memory import Lifetime

PAGES_PER_BAND: Final = (1_000, 10_000, 100_000, 1_000_000)
GROWTH_MAX: Final = 1.3
FEASIBLE_US_MAX: Final = {3: 15.0, 6: 40.0}
TURNS_COUNT: Final = 4 * REPEAT_COUNT
ROUNDS_COUNT: Final = 100
WARM_UP_COUNT: Final = 300
SEED: Final = 1
UNIT_BYTES: Final = tuple((7 + 4 * place) << 12 for place in range(6))
"""Unit sizes without a common grid, as different layer counts give them."""
PARTS: Final[tuple[str, ...]] = ("take", "free", "settle")


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which pages a round ends before it takes as many."""

    name: str
    pages: int
    by_age: bool


PATTERNS: Final = (
    Pattern("4_by_age", 4, True),
    Pattern("256_by_age", 256, True),
    Pattern("256_random", 256, False),
)


def measure_scale(sizes: tuple[int, ...] = PAGES_PER_BAND) -> list[Figure]:
    """Return costs at every number of pages per band, and their growth over all of it."""
    figures: list[Figure] = []
    for pattern in PATTERNS:
        costs = _costs_us(sizes, pattern)
        for part in PARTS:
            name = f"{part}_{pattern.name}"
            figures += [
                Figure(f"{name}_{pages}_pages", cost[part], "us") for pages, cost in costs.items()
            ]
            # Over the cheapest size, not the smallest: where a batch is a large part of the arena,
            # frontiers move more, which would hide growth behind it.
            growth = costs[sizes[-1]][part] / min(cost[part] for cost in costs.values())
            # A free and the merging behind it are no part of the reply that a take waits for.
            target = GROWTH_MAX if part == "take" else None
            figures.append(Figure(f"{name}_growth", growth, "x", target))
    for bands_count, target in FEASIBLE_US_MAX.items():
        for pages in sizes:
            cost_us = best_us(_question(bands_count, pages))
            name = f"feasible_{bands_count}_bands_{pages}_pages"
            figures.append(Figure(name, cost_us, "us", target))
    return figures


def _costs_us(sizes: tuple[int, ...], pattern: Pattern) -> dict[int, dict[str, float]]:
    """Return, by pages per band, the smallest of the repeats' medians of each part."""
    rounds = {pages: _Rounds(pages, pattern) for pages in sizes}
    for one in rounds.values():
        one.warm_up()
    gc.collect()
    gc.freeze()
    costs: dict[int, dict[str, float]] = {pages: dict.fromkeys(PARTS, math.inf) for pages in sizes}
    for _ in range(TURNS_COUNT):
        for pages, one in rounds.items():
            times = one.times()
            for nth, part in enumerate(PARTS):
                costs[pages][part] = min(costs[pages][part], percentile_us(times[:, nth], 50))
    gc.unfreeze()
    return costs


class _Rounds:
    """A chain of three bands under one pattern; ``pages`` units of every band fit at once."""

    def __init__(self, pages: int, pattern: Pattern) -> None:
        self._pattern = pattern
        self._random = np.random.default_rng(SEED)
        self._chain = ChainAllocator(
            _geometry(3, pages),
            lifetimes=(Lifetime.STATE, Lifetime.WINDOW, Lifetime.FULL),
            virtual_page_count=pages + 1,
            virtual_slot_count=pages + 1,
            monitor=CheckMonitor(CheckLevel.WARN),
        )
        live_pages = pages * 3 // 4
        self._make_room(live_pages)
        self._live, _ = self._chain.take_pages(live_pages)
        """Virtual pages; `_oldest` is the place of the one that was taken first."""
        self._oldest = 0

    def warm_up(self) -> None:
        """Run rounds until holes lie as the pattern leaves them."""
        for _ in range(WARM_UP_COUNT):
            self._round()

    def times(self) -> Times:
        """Return the nanoseconds of some rounds, a column for each part."""
        return np.array([self._round() for _ in range(ROUNDS_COUNT)], dtype=np.int64)

    def _round(self) -> tuple[int, int, int]:
        """End some pages, settle, and take as many; return the nanoseconds, as PARTS has them."""
        chain = self._chain
        places = self._places()
        leaving = self._live[places]
        started_ns = perf_counter_ns()
        for index in chain.token_indices:
            chain.bands[index].release(leaving)
        freed_ns = perf_counter_ns()
        chain.settle_freed()
        settled_ns = perf_counter_ns()
        self._make_room(self._pattern.pages)
        virtual, _ = chain.take_pages(self._pattern.pages)
        taken_ns = perf_counter_ns()
        self._live[places] = virtual
        return taken_ns - settled_ns, freed_ns - started_ns, settled_ns - freed_ns

    def _places(self) -> Units:
        """Return the places in ``_live`` whose pages end now."""
        count, total = self._pattern.pages, self._live.size
        if not self._pattern.by_age:
            return self._random.choice(total, count, replace=False)
        places = (np.arange(count, dtype=np.int64) + self._oldest) % total
        self._oldest = (self._oldest + count) % total
        return places

    def _make_room(self, pages: int) -> None:
        room = self._chain.make_room((0, pages, pages))
        assert not isinstance(room, Shortage), room


def _question(bands_count: int, pages: int) -> Callable[[], object]:
    """Return a question whose answer is yes, so that every band is placed before it is known."""
    geometry = _geometry(bands_count, pages)
    snapshot = chain_snapshot(geometry, (pages // 2,) * bands_count)
    demand_units = (pages // 4,) * bands_count
    assert feasible(snapshot, demand_units)
    return lambda: feasible(snapshot, demand_units)


def _geometry(bands_count: int, pages: int) -> ChainGeometry:
    kinds = [BandKind.FLOAT] * bands_count
    kinds[0], kinds[-1] = BandKind.GROW_UP, BandKind.GROW_DOWN
    unit_bytes = UNIT_BYTES[:bands_count]
    sink_bytes = max(unit_bytes)
    return chain_geometry(
        # What grids of different sizes lose between two bands is less than a unit of each.
        arena_bytes=sink_bytes + sum(unit_bytes) * (pages + 1),
        sink_bytes=sink_bytes,
        bands=tuple(
            (f"band_{place}", kind, size)
            for place, (kind, size) in enumerate(zip(kinds, unit_bytes, strict=True))
        ),
    )
