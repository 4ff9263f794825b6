"""One band: its span, the frontiers that move it, and the units that move when they do.

Bytes that leave the band take along whatever is still open on them: a step that may read what was
moved away from there, a copy, a transfer. Those become fences, which their next writer meets.

Invariants:
    band.conservation: span = live + holes + pending + vacated, each unit in one class only;
    band.maps_inverse: a bound unit and its virtual id name each other;
    band.ids_partition: every id of a band that mints is either free or bound;
    band.holes_ordered: the hole container and the inbox hold exactly the units marked HOLE.
"""

from typing import NamedTuple

import numpy as np

from kvd.alloc.arena_order import ArenaOrder
from kvd.alloc.band_statistics import OPEN_USES_SHOWN_MAX, BandStatistics
from kvd.alloc.band_units import (
    HOLE,
    IOTA,
    OUTSIDE,
    PENDING,
    RESERVED,
    SINK,
    VACATED,
    BandUnits,
    Units,
)
from kvd.alloc.checks import CheckMonitor
from kvd.alloc.clearance import Consumer, Hazard
from kvd.alloc.signals import step_signal
from kvd.alloc.uses import HAZARD_OF
from kvd.price.geometry import BandGeometry, BandKind
from kvd.price.search import Span
from kvd.price.snapshot import BandSnapshot

__all__ = ["IOTA", "Band", "Freed", "Moves", "Units"]

_ABSORB_SCAN_UNITS = 256
"""First stretch looked at when a frontier draws back; doubled while all of it is holes."""


class Moves(NamedTuple):
    """Live units that moved: their names, where they lay, and where they lie now."""

    virtual: Units
    sources: Units
    destinations: Units


class Freed(NamedTuple):
    """Virtual ids that a band of a chain got back."""

    band_index: int
    virtual: Units


class Band(BandUnits):
    """One band of a chain."""

    def __init__(
        self,
        geometry: BandGeometry,
        *,
        id_count: int,
        mints: bool,
        monitor: CheckMonitor,
        order: ArenaOrder | None = None,
    ) -> None:
        super().__init__(geometry, id_count=id_count, mints=mints, monitor=monitor, order=order)
        anchor = geometry.unit_index_end_count if self._down else geometry.unit_index_min
        self.start_index = self.end_index = anchor

    @property
    def span(self) -> Span:
        """Return the span as unit indices."""
        return self.start_index, self.end_index

    def promise(self, units: int) -> None:
        """Hold units back for somebody, or, with a negative number, stop holding them back."""
        self.promised_units += units
        self.epoch_count += 1

    def snapshot(self) -> BandSnapshot:
        """Return the band's counts and frontiers, enough to price a layout."""
        snapshot = BandSnapshot(
            self.geometry,
            self.start_index,
            self.end_index,
            self.live_units,
            self.hole_units,
            pending_units=self._pending.unit_count,
            id_room_count=None if self.free_ids is None else len(self.free_ids),
        )
        if self.usage.is_clear:
            return snapshot
        facts = self.usage.facts
        # What pends and is touched by a transfer too comes back only when that is over.
        lost_count = self._pending_among(facts.lost).size
        transferring_count = self.transferring_units().size
        return snapshot._replace(
            live_units=self.live_units + facts.astray.size + lost_count,
            pending_units=self._pending.unit_count
            - lost_count
            - (transferring_count - facts.vacated_network.size),
            vacated_forward_units=facts.vacated_forward.size,
            vacated_network_units=transferring_count,
            fenced_units=self.usage.fenced_units(lambda units: self._owner_of[units] == HOLE),
            hard_fixed=facts.hard_fixed,
            soft_fixed=facts.soft_fixed,
        )

    def grow(self, span: Span) -> None:
        """Extend the span; the new units are holes."""
        start, end = span
        if self.start_index == self.end_index and not self._anchored():
            self.start_index = self.end_index = start  # a parked float: place it
        assert start <= self.start_index
        assert end >= self.end_index
        for low, high in ((start, self.start_index), (self.end_index, end)):
            if low < high:
                self._owner_of[low:high] = HOLE
                self._holes.add_range(*self._places(low, high))
                self.hole_units += high - low
        self.start_index, self.end_index = start, end
        self.epoch_count += 1

    def adopt(self, virtual: Units, physical: Units) -> None:
        """Begin with units that are bound already, in the least span that holds them.

        Everything else in the span is a hole. The band is empty and was never used.
        """
        assert self.start_index == self.end_index
        if not virtual.size:
            return
        start, end = int(physical.min()), int(physical.max()) + 1
        if self.geometry.kind is BandKind.GROW_UP:
            start = self.start_index
        elif self.geometry.kind is BandKind.GROW_DOWN:
            end = self.end_index
        self.grow((start, end))
        for unit in physical.tolist():
            self._holes.remove_range(*self._places(unit, unit + 1))
        self._owner_of[physical] = virtual
        self._physical_of[virtual] = physical
        self.hole_units -= virtual.size
        self.live_units += virtual.size
        if self.free_ids is not None:
            self.free_ids.remove(virtual)
        self.epoch_count += 1

    def rearrange(self, span: Span) -> Moves | None:
        """Make ``span`` the band's span: live units outside it move to its lowest free places.

        The span has room for every live unit. Sources and destinations are disjoint, so the copies
        may run in any order. Returns what has to be copied, or None if nothing has.

        Whoever may be writing a source is waited for; who may only read it goes on reading the old
        bytes, which are fenced for whoever writes them next. Nothing pends outside the new span.
        """
        self.merge_freed()
        start, end = span
        outside = (
            (self.start_index, min(self.end_index, start)),
            (max(self.start_index, end), self.end_index),
        )
        leaving = [(low, high) for low, high in outside if low < high]
        sources: list[Units] = [
            (self._owner_of[low:high] > 0).nonzero()[0] + low for low, high in leaving
        ]
        # A float that moves past its old span has nothing left inside: one of the two is all of it.
        kept_start = min(max(self.start_index, start), end)
        kept_end = max(min(self.end_index, end), kept_start)
        for low, high in leaving:
            self._holes.remove_range(*self._places(low, high))
        for low, high in ((start, kept_start), (kept_end, end)):
            if low < high:
                self._owner_of[low:high] = HOLE
                self._holes.add_range(*self._places(low, high))
        self.start_index, self.end_index = start, end
        moving = np.concatenate(sources) if sources else IOTA[:0]
        virtual = self._owner_of[moving]
        for low, high in leaving:
            assert not np.count_nonzero(self._owner_of[low:high] == PENDING)
            self._owner_of[low:high] = OUTSIDE
        self.hole_units = len(self._holes)
        destinations = moving
        if moving.size:
            order = self._order
            order.wait(self.usage.writers(moving, table=order.read_clearance, waited=order.waited))
            destinations = self._choose(moving.size, Consumer.MOVE_DESTINATION)
            self._physical_of[virtual] = destinations
            self._owner_of[destinations] = virtual
        self._fence(leaving, moving, destinations)
        self.epoch_count += 1
        if moving.size == 0:
            return None
        self.moved_units_total += moving.size
        self.move_batches_total += 1
        return Moves(virtual, moving, destinations)

    def compact(self, units_max: int) -> Moves | None:
        """Draw an end's frontier back by moving up to ``units_max`` live units into holes.

        Nobody asked for it, so it waits for nothing and stops, seen from the frontier, at the first
        unit that would have to be waited for or is fixed. Floats are only moved by a layout. Linear
        in the units between the packed and the present frontier.
        """
        usage = self.usage
        if self.geometry.kind is BandKind.FLOAT or self.hole_units == 0 or units_max == 0:
            return None
        if usage.has_unknown_writes or not self._order.fences.is_empty:
            return None
        self.merge_freed()
        if not usage.is_clear and self._some_hole_is_used():
            return None
        # What pends, or a transfer holds back, keeps its place: only holes take units in.
        packed_units = self.end_index - self.start_index - self.hole_units
        if self._down:
            packed = self.end_index - packed_units
            stretch = self._owner_of[self.start_index : packed]
            stay = self._staying(stretch, self.start_index)
            first_stay = int(stay[0]) if stay.size else stretch.size
            beyond = (stretch[:first_stay] > 0).nonzero()[0]
            target = self.start_index + first_stay
            if beyond.size > units_max:
                target = self.start_index + int(beyond[units_max - 1]) + 1
            return self.rearrange((target, self.end_index))
        packed = self.start_index + packed_units
        stretch = self._owner_of[packed : self.end_index]
        stay = self._staying(stretch, packed)
        last_stay = int(stay[-1]) + 1 if stay.size else 0
        beyond = (stretch[last_stay:] > 0).nonzero()[0] + last_stay
        target = packed + last_stay
        if beyond.size > units_max:
            target = packed + int(beyond[-units_max])
        return self.rearrange((self.start_index, target))

    def absorb(self) -> int:
        """Draw frontiers back over holes; return how many units left.

        Freed units must be merged before. A float that keeps nothing parks, which makes it
        transparent.
        """
        assert not self._inbox
        absorbed = 0
        if self.geometry.kind is not BandKind.GROW_DOWN:
            absorbed += self._absorb_high()
        if self.geometry.kind is not BandKind.GROW_UP:
            absorbed += self._absorb_low()
        if absorbed:
            self.absorbed_units_total += absorbed
            self.epoch_count += 1
        return absorbed

    def states(self) -> Units:
        """Return what every unit of the span is: the id bound to it, or why there is none."""
        return self._owner_of[self.start_index : self.end_index]

    def statistics(self) -> BandStatistics:
        """Return the band's counts and its oldest uses."""
        records = self.usage.records()
        return BandStatistics(
            name=self.geometry.name,
            chain_kind=self.geometry.kind.value,
            unit_bytes=self.geometry.unit_bytes,
            unit_index_min=self.geometry.unit_index_min,
            unit_index_end_count=self.geometry.unit_index_end_count,
            span_start_index=self.start_index,
            span_end_index=self.end_index,
            live_units=self.live_units,
            hole_units=self.hole_units,
            pending_units=self.pending_units,
            promised_units=self.promised_units,
            fixed_units=sum(
                high - low
                for low, high in filter(None, (self.usage.hard_extent(), self.usage.soft_extent()))
            ),
            virtual_free_count=0 if self.free_ids is None else len(self.free_ids),
            absorbed_units_total=self.absorbed_units_total,
            taken_units_total=self.taken_units_total,
            moved_units_total=self.moved_units_total,
            move_batches_total=self.move_batches_total,
            open_use_count=len(records),
            open_uses=records[:OPEN_USES_SHOWN_MAX],
        )

    def check(self) -> None:
        """Check every invariant of the band from its maps.

        Invariants: band.conservation, band.maps_inverse, band.ids_partition, band.holes_ordered.
        """
        name = self.geometry.name
        inside = self._owner_of[self.start_index : self.end_index]
        named, reserved, holes, pending, vacated = [
            int(np.count_nonzero(is_so))
            for is_so in (inside > 0, *[inside == it for it in (RESERVED, HOLE, PENDING, VACATED)])
        ]
        total = np.count_nonzero(self._owner_of[1:]) if self._owner_of.size > 1 else 0
        span_units = self.end_index - self.start_index
        counted = (named + reserved, holes, pending, vacated)
        books = (self.live_units, self.hole_units, self.pending_units, self.vacated_units)
        if counted != books or sum(counted) != span_units:
            self._monitor.fail(
                "band.conservation",
                f"band {name}: span of {span_units} units holds {counted[0]} live, {holes} holes, "
                f"{pending} pending and {vacated} vacated; the books say {books}",
            )
        self._pending.check(self._monitor, name, self._owner_of == PENDING, self._steps)
        self.usage.check(self.span)
        if total != sum(counted) or self._owner_of[0] != SINK:
            self._monitor.fail("band.conservation", f"band {name} has units outside its span")
        ids = self.bound_ids()
        if ids.size != named or not np.array_equal(self._owner_of[self._physical_of[ids]], ids):
            self._monitor.fail(
                "band.maps_inverse", f"band {name} binds {ids.size} ids to {named} units"
            )
        if self.free_ids is not None:
            everything = np.sort(np.concatenate((self.free_ids.ids(), ids)))
            if not np.array_equal(everything, np.arange(1, self._physical_of.size)):
                self._monitor.fail("band.ids_partition", f"band {name} lost or doubled an id")
        places = self._holes.places()
        merged = np.concatenate((self._mirror - places if self._down else places, *self._inbox))
        expected = (inside == HOLE).nonzero()[0] + self.start_index
        if not np.array_equal(np.sort(merged), expected) or not self._holes.front_is_exact():
            self._monitor.fail("band.holes_ordered", f"band {name} disagrees with its unit map")

    def _anchored(self) -> bool:
        return self.geometry.kind is not BandKind.FLOAT

    def _places(self, low: int, high: int) -> Span:
        """Return the half-open range of places of the units ``[low, high)``."""
        return (self._mirror + 1 - high, self._mirror + 1 - low) if self._down else (low, high)

    def _absorb_high(self) -> int:
        """Draw the high frontier back; return the units that left."""
        absorbed = 0
        scan = _ABSORB_SCAN_UNITS
        while self.hole_units > 0 and self._owner_of[self.end_index - 1] == HOLE:
            scan = min(scan, self.hole_units)
            stretch = self._owner_of[self.end_index - scan : self.end_index]
            used = (stretch != HOLE).nonzero()[0]
            count = scan if used.size == 0 else scan - 1 - int(used[-1])
            self._drop(self.end_index - count, self.end_index)
            self.end_index -= count
            absorbed += count
            scan *= 2
        return absorbed

    def _absorb_low(self) -> int:
        """Draw the low frontier back; return the units that left."""
        absorbed = 0
        scan = _ABSORB_SCAN_UNITS
        while self.hole_units > 0 and self._owner_of[self.start_index] == HOLE:
            scan = min(scan, self.hole_units)
            stretch = self._owner_of[self.start_index : self.start_index + scan]
            used = (stretch != HOLE).nonzero()[0]
            count = scan if used.size == 0 else int(used[0])
            self._drop(self.start_index, self.start_index + count)
            self.start_index += count
            absorbed += count
            scan *= 2
        return absorbed

    def _some_hole_is_used(self) -> bool:
        """Return whether a move into some hole would have to wait for a copy or a transfer."""
        places = self._holes.places()
        holes = self._mirrored(places) if self._down else places
        openness = self.usage.openness(holes, Consumer.MOVE_DESTINATION, self._order.clearance)
        return bool(np.count_nonzero(openness))

    def _staying(self, states: Units, first_index: int) -> Units:
        """Return the places among some units that an unasked move leaves where they are."""
        stays = (states == PENDING) | (states == VACATED) | (states == RESERVED)
        if not self.usage.is_empty:
            live = (states > 0).nonzero()[0]
            stays[live[~self.usage.may_move(live + first_index)]] = True
        staying: Units = stays.nonzero()[0]
        return staying

    def _fence(self, leaving: list[Span], sources: Units, destinations: Units) -> None:
        """Fence bytes that leave the band with everything that is still open on them."""
        fences, unit_bytes = self._order.fences, self.geometry.unit_bytes
        if sources.size and self._steps.unretired:
            newest = step_signal(self._steps.launched_count)
            fences.add_units(sources, unit_bytes, Hazard.VACATED_READ, newest)
        if self.usage.is_clear:
            return
        if sources.size:
            self.usage.carry_holds(sources, destinations)
        for low, high in leaving:
            for left in self.usage.leave(low, high):
                fences.add_units(left.units, unit_bytes, HAZARD_OF[left.kind], left.signal)

    def _drop(self, low: int, high: int) -> None:
        """Let the holes ``[low, high)`` leave the band."""
        self._fence([(low, high)], IOTA[:0], IOTA[:0])
        self._owner_of[low:high] = OUTSIDE
        self._holes.remove_range(*self._places(low, high))
        self.hole_units -= high - low
