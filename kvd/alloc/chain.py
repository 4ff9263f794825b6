"""All bands of one arena as one allocator: promises, growth, and takes that cannot fail half way.

A promise is kept physically: when a demand is promised, every band it touches extends its span
until its holes cover all that was promised. A promised take then drains holes only, so it always
succeeds, whatever was taken in between. No unit ever moves here: a demand that fits only after a
rearrangement is refused and says so.

Invariants:
    chain.spans_ordered: sink <= spans in chain order <= arena end, in bytes;
    chain.promises_covered: holes >= promised in every band, free ids too where it mints them;
    chain.windows_on_owner: a window binds only virtual pages that the owner has bound.
"""

from dataclasses import dataclass

import numpy as np

from kvd.alloc.band import Band, BandStatistics, Units
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.price.geometry import ChainGeometry
from kvd.price.search import Spans, feasible, fits_empty, plan_in_place
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a demand has no place now: the reason, and what the band it names lacks."""

    reason: Reason
    band: str
    units_short_units: int
    bytes_short_bytes: int
    obstacle: str
    remover: str
    waiting_helps: bool


class ChainAllocator:
    """The bands of an arena, low to high, sharing its bytes."""

    def __init__(
        self,
        geometry: ChainGeometry,
        *,
        lifetimes: tuple[Lifetime, ...],
        virtual_page_count: int,
        virtual_slot_count: int,
        monitor: CheckMonitor,
    ) -> None:
        assert lifetimes.count(Lifetime.FULL) == 1
        assert len(lifetimes) == len(geometry.bands)
        self.geometry = geometry
        self.lifetimes = lifetimes
        self.monitor = monitor
        self.bands = tuple(
            Band(
                band,
                id_count=virtual_slot_count if lifetime is Lifetime.STATE else virtual_page_count,
                mints=lifetime is not Lifetime.WINDOW,
                monitor=monitor,
            )
            for band, lifetime in zip(geometry.bands, lifetimes, strict=True)
        )
        self.owner_index = lifetimes.index(Lifetime.FULL)
        self.owner = self.bands[self.owner_index]
        self.window_indices = tuple(
            index for index, lifetime in enumerate(lifetimes) if lifetime is Lifetime.WINDOW
        )
        self.token_indices = tuple(
            index for index, lifetime in enumerate(lifetimes) if lifetime is not Lifetime.STATE
        )
        self.state_index = lifetimes.index(Lifetime.STATE) if Lifetime.STATE in lifetimes else None

    @property
    def spans(self) -> Spans:
        """Return the bands' spans, low to high."""
        return tuple(band.span for band in self.bands)

    def fits_empty(self, demand_units: tuple[int, ...]) -> bool:
        """Return whether the demand fits an arena that holds nothing else, ids included."""
        return fits_empty(self.geometry, demand_units) and all(
            self._id_count_max(band) >= demand
            for band, demand in zip(self.bands, demand_units, strict=True)
        )

    def make_room(self, demand_units: tuple[int, ...]) -> Shortage | None:
        """Have every band hold holes for the demand beyond all promises, or change nothing.

        Freed units are settled first, whatever the answer will be.
        """
        self.settle_freed()
        for band, demand in zip(self.bands, demand_units, strict=True):
            if band.free_ids is not None:
                free_count = len(band.free_ids) - band.promised_units
                if demand > free_count:
                    return self._id_shortage(band, demand - free_count)
        layout = plan_in_place(
            self.geometry,
            spans=self.spans,
            free_units=tuple(band.unpromised_units for band in self.bands),
            demand_units=demand_units,
        )
        if layout is None:
            return self._byte_shortage(demand_units)
        for band, span in zip(self.bands, layout, strict=True):
            if span != band.span:
                band.grow(span)
        return None

    def take_pages(self, count: int) -> tuple[Units, list[Units]]:
        """Mint ``count`` virtual pages and bind a unit of every token band to each.

        Returns the virtual pages, and the physical pages per token band in chain order. The bands
        hold enough holes: promised ones, or those that ``make_room`` made.
        """
        assert self.owner.free_ids is not None
        virtual = self.owner.free_ids.take(count)
        physical: list[Units] = []
        for index in self.token_indices:
            band = self.bands[index]
            units = band.acquire(count)
            band.bind(virtual, units)
            physical.append(units)
        return virtual, physical

    def take_slots(self, count: int) -> tuple[Units, Units]:
        """Mint ``count`` state slots; return their ids and their units."""
        assert self.state_index is not None
        band = self.bands[self.state_index]
        assert band.free_ids is not None
        virtual = band.free_ids.take(count)
        units = band.acquire(count)
        band.bind(virtual, units)
        return virtual, units

    def settle_freed(self) -> None:
        """Merge freed units into the ordered holes and draw frontiers back over spare ones."""
        for band in self.bands:
            band.merge_freed()
            if band.hole_units > band.promised_units:
                band.absorb()

    def statistics(self) -> tuple[BandStatistics, ...]:
        """Return every band's counts, low to high."""
        return tuple(band.statistics() for band in self.bands)

    def check(self) -> None:
        """Check the chain, and in strict mode every band from its maps.

        Invariants: chain.spans_ordered, chain.promises_covered, chain.windows_on_owner.
        """
        level = self.monitor.level
        if level >= CheckLevel.WARN:
            self._check_spans()
            for band in self.bands:
                ids_free = band.hole_units if band.free_ids is None else len(band.free_ids)
                if not 0 <= band.promised_units <= min(band.hole_units, ids_free):
                    self.monitor.fail(
                        "chain.promises_covered",
                        f"band {band.geometry.name} promised {band.promised_units} units, "
                        f"holds {band.hole_units} holes and {ids_free} free ids",
                    )
        if level >= CheckLevel.STRICT:
            for band in self.bands:
                band.check()
            for index in self.window_indices:
                ids = self.bands[index].bound_ids()
                if np.count_nonzero(self.owner.physical(ids)) != ids.size:
                    self.monitor.fail(
                        "chain.windows_on_owner",
                        f"band {self.bands[index].geometry.name} binds a page without owner",
                    )

    def _check_spans(self) -> None:
        cursor_bytes = self.geometry.sink_bytes
        for band in self.bands:
            start, end = band.span
            if start == end:
                continue
            unit_bytes = band.geometry.unit_bytes
            if start * unit_bytes < cursor_bytes or end * unit_bytes > self.geometry.arena_bytes:
                self.monitor.fail(
                    "chain.spans_ordered",
                    f"band {band.geometry.name} spans bytes [{start * unit_bytes}, "
                    f"{end * unit_bytes}) below {cursor_bytes} or past the arena",
                )
            cursor_bytes = end * unit_bytes

    def _id_count_max(self, band: Band) -> int:
        if band.free_ids is None:
            return band.geometry.room_units
        return len(band.free_ids) + band.live_units

    def _id_shortage(self, band: Band, short: int) -> Shortage:
        return Shortage(
            reason=Reason.NO_IDS,
            band=band.geometry.name,
            units_short_units=short,
            bytes_short_bytes=0,
            obstacle=f"{band.live_units} ids in use, {band.promised_units} promised",
            remover="a request that ends",
            waiting_helps=True,
        )

    def _byte_shortage(self, demand_units: tuple[int, ...]) -> Shortage:
        """Explain why no layout in place serves the demand."""
        kept = tuple(band.live_units + band.promised_units for band in self.bands)
        shortages = tuple(
            max(0, demand - band.unpromised_units)
            for band, demand in zip(self.bands, demand_units, strict=True)
        )
        # The band that lacks most bytes is the one worth naming: the others wait behind it.
        index = max(
            range(len(self.bands)),
            key=lambda place: shortages[place] * self.bands[place].geometry.unit_bytes,
        )
        band = self.bands[index].geometry
        rearranged = feasible(self.geometry, live_units=kept, demand_units=demand_units)
        return Shortage(
            reason=Reason.NEEDS_REARRANGEMENT if rearranged else Reason.NO_BYTES,
            band=band.name,
            units_short_units=shortages[index],
            bytes_short_bytes=shortages[index] * band.unit_bytes,
            obstacle=(
                "live pages would have to move"
                if rearranged
                else "live and promised units fill the arena"
            ),
            remover="a request that ends",
            waiting_helps=True,
        )
