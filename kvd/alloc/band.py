"""One band: its span, its holes, and which unit is bound to which name.

Units are indices on the band's own grid. ``_owner_of[unit]`` carries the unit's state as well as
its name: a positive value is the virtual id bound to it, the others say that it is not bound.

A free unbinds a unit and returns its name at once. The unit itself *pends* while a forward in
flight may still touch it: under the newest step that was launched, not under the last step of its
own request, because another request's step may share the page. It comes back as a hole when that
step was processed, or earlier when a take settles its batch, which is a wait on the device.

Invariants:
    band.conservation: span = live + holes + pending, each unit in one class only;
    step.pending_keyed: a unit pends only under a step in flight;
    band.maps_inverse: a bound unit and its virtual id name each other;
    band.ids_partition: every id of a band that mints is either free or bound;
    band.holes_ordered: the hole container and the inbox hold exactly the units marked HOLE;
    band.take_unbound: units and ids that are bound were free before;
    band.free_of_bound_page: ids that are unbound were bound before, to units that name them.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvd.alloc.band_statistics import BandStatistics
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.forward_steps import ForwardSteps
from kvd.alloc.holes import HoleSet
from kvd.alloc.ids import FreeIds
from kvd.alloc.pending import PendingPages
from kvd.errors import OperationError
from kvd.price.geometry import BandGeometry, BandKind
from kvd.price.search import Span
from kvd.price.snapshot import BandSnapshot
from kvd_proto.errors import ErrorCode

Units: TypeAlias = NDArray[np.int64]

OUTSIDE = 0
HOLE = -1
PENDING = -2
HOLE_BYTES = np.int64(HOLE).tobytes()
SINK = -(1 << 62)
"""State of unit 0: a value that no other state has and that, as a virtual id, is out of range.

A small negative number would do for the first only: as an id it counts from the end of the map,
where an unbound entry leads to unit 0, which would then seem to name that id back.
"""

IOTA: Units = np.arange(4096, dtype=np.int64)
"""Shared counter, sliced where a fresh one would cost more than the work."""
IOTA.setflags(write=False)

_ABSORB_SCAN_UNITS = 256
"""First stretch looked at when a frontier draws back; doubled while all of it is holes."""


class Moves(NamedTuple):
    """Live units that moved: their names, where they lay, and where they lie now."""

    virtual: Units
    sources: Units
    destinations: Units


class Band:
    """One band of a chain; ``id_count`` is the size of the virtual space it is indexed by."""

    def __init__(
        self,
        geometry: BandGeometry,
        *,
        id_count: int,
        mints: bool,
        monitor: CheckMonitor,
        steps: ForwardSteps | None = None,
    ) -> None:
        self.geometry = geometry
        self.live_units: int = 0
        self.hole_units: int = 0
        self.promised_units = 0
        self.absorbed_units_total = 0
        self.taken_units_total = 0
        self.moved_units_total = 0
        self.move_batches_total = 0
        self.free_ids = FreeIds(id_count) if mints else None
        self.epoch_count = 0
        """Moves with every capacity fact of the band."""
        self.hard_fixed: Span | None = None
        """Extent of units that never move; nothing sets it before loads and quarantine exist."""
        self.soft_fixed: Span | None = None
        """Extent of units that move only after transfers let go; nothing sets it yet."""
        self._monitor = monitor
        self._steps = ForwardSteps() if steps is None else steps
        self._pending = PendingPages()
        self._down = geometry.kind is BandKind.GROW_DOWN
        self._mirror = geometry.unit_index_end_count - 1
        self._mirrors = np.full(IOTA.size if self._down else 0, self._mirror, dtype=np.int64)
        anchor = geometry.unit_index_end_count if self._down else geometry.unit_index_min
        self.start_index = self.end_index = anchor
        self._physical_of = np.zeros(id_count, dtype=np.int64)
        self._owner_of = np.zeros(max(1, geometry.unit_index_end_count), dtype=np.int64)
        self._physical_of[:] = 0
        self._owner_of[:] = OUTSIDE
        self._owner_of[0] = SINK
        self._holes = HoleSet(geometry.unit_index_end_count)
        self._inbox: list[Units] = []

    @property
    def pending_units(self) -> int:
        """Return how many freed units a step in flight may still touch."""
        return self._pending.unit_count

    @property
    def span(self) -> Span:
        """Return the span as unit indices."""
        return self.start_index, self.end_index

    def promise(self, units: int) -> None:
        """Hold units back for somebody, or, with a negative number, stop holding them back."""
        self.promised_units += units
        self.epoch_count += 1

    def fix(self, *, hard: Span | None, soft: Span | None) -> None:
        """Name the extents of units that never move, and that move only after transfers ended."""
        self.hard_fixed, self.soft_fixed = hard, soft
        self.epoch_count += 1

    def snapshot(self) -> BandSnapshot:
        """Return the band's counts and frontiers, enough to price a layout."""
        return BandSnapshot(
            self.geometry,
            self.start_index,
            self.end_index,
            self.live_units,
            self.hole_units,
            pending_units=self._pending.unit_count,
            hard_fixed=self.hard_fixed,
            soft_fixed=self.soft_fixed,
            id_room_count=None if self.free_ids is None else len(self.free_ids),
        )

    def acquire(self, count: int) -> Units:
        """Return ``count`` holes, lowest place first; the one place where units are handed out."""
        assert count <= self.hole_units
        if count > len(self._holes):
            self.merge_freed()
        places = self._holes.take(count)
        units = self._mirrored(places) if self._down else places
        self.hole_units -= count
        self.live_units += count
        self.epoch_count += 1
        self.taken_units_total += count
        return units

    def bind(self, virtual: Units, physical: Units) -> None:
        """Give acquired units their names."""
        if self._monitor.level >= CheckLevel.WARN:
            states = self._owner_of[physical]
            if states.tobytes() != HOLE_BYTES * physical.size:
                self._monitor.fail(
                    "band.take_unbound", f"band {self.geometry.name} handed out a used unit"
                )
            if np.count_nonzero(self._physical_of[virtual]):
                self._monitor.fail(
                    "band.take_unbound", f"band {self.geometry.name} bound a virtual id twice"
                )
        self._physical_of[virtual] = physical
        self._owner_of[physical] = virtual

    def physical(self, virtual: Units) -> Units:
        """Return the physical units of virtual ids; an unbound id reads as the sink, 0."""
        return self._physical_of[virtual]

    def release(self, virtual: Units) -> None:
        """Unbind ids at once; their units pend under the newest step in flight, or become holes.

        ``virtual`` is contiguous. Raises OperationError, before anything is changed, for the sink,
        an id out of range, an unbound id and an id that is named twice.
        """
        if virtual.size == 0:
            return
        try:
            physical = self._physical_of[virtual]
        except IndexError:
            self._refuse_ids(virtual)
            raise
        # A negative or unbound id meets a unit that does not name it back, the sink included.
        before = self._owner_of[physical]
        if before.tobytes() != virtual.tobytes():
            self._refuse_ids(virtual)
        # Writing a counter through the units and reading it back finds an id that is named twice.
        order = IOTA[: virtual.size] if virtual.size <= IOTA.size else np.arange(virtual.size)
        self._owner_of[physical] = order
        if self._owner_of[physical].tobytes() != order.tobytes():
            self._owner_of[physical] = before
            self._refuse_ids(virtual)
        self._physical_of[virtual] = 0
        self.epoch_count += 1
        self.live_units -= virtual.size
        if self.free_ids is not None:
            self.free_ids.give(virtual)
        key = self._steps.pending_key
        if key:
            self._owner_of[physical] = PENDING
            self._pending.add(key, physical)
        else:
            self._add_holes(physical)

    def release_pending_through(self, step: int) -> None:
        """Let units that pend under steps up to this one become holes: they were processed."""
        if self._pending.oldest_key <= step:
            for units in self._pending.release_through(step):
                self._add_holes(units)
            self.epoch_count += 1

    def settle_pending(self, units_min: int) -> int:
        """Let the oldest whole batches become holes, until so many units did.

        Returns the newest step among them, which the next writer of these units has to wait for.
        """
        key, settled = self._pending.settle(units_min)
        for units in settled:
            self._add_holes(units)
        self.epoch_count += 1
        return key

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

    def rearrange(self, span: Span) -> Moves | None:
        """Make ``span`` the band's span: live units outside it move to its lowest free places.

        The span has room for every live unit. Sources and destinations are disjoint, so the copies
        may run in any order. Returns what has to be copied, or None if nothing has.
        """
        assert self.pending_units == 0, "pending units would be left outside the span"
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
            self._owner_of[low:high] = OUTSIDE
        places = self._holes.take(moving.size)
        destinations = self._mirrored(places) if self._down else places
        self._physical_of[virtual] = destinations
        self._owner_of[destinations] = virtual
        self.hole_units = end - start - self.live_units
        self.epoch_count += 1
        if moving.size == 0:
            return None
        self.moved_units_total += moving.size
        self.move_batches_total += 1
        return Moves(virtual, moving, destinations)

    def compact(self, units_max: int) -> Moves | None:
        """Draw an end's frontier back by moving up to ``units_max`` live units into holes.

        Fixed units stay, and so does what lies between them and the anchor. Floats are only moved
        by a layout. Linear in the units between the packed and the present frontier.
        """
        if self.geometry.kind is BandKind.FLOAT or self.hole_units == 0 or units_max == 0:
            return None
        self.merge_freed()
        fixed = [extent for extent in (self.hard_fixed, self.soft_fixed) if extent is not None]
        if self._down:
            packed = min([self.end_index - self.live_units, *(low for low, _ in fixed)])
            beyond = (self._owner_of[self.start_index : packed] > 0).nonzero()[0]
            target = packed
            if beyond.size > units_max:
                target = self.start_index + int(beyond[units_max - 1]) + 1
            return self.rearrange((target, self.end_index))
        packed = max([self.start_index + self.live_units, *(high for _, high in fixed)])
        beyond = (self._owner_of[packed : self.end_index] > 0).nonzero()[0]
        target = packed
        if beyond.size > units_max:
            target = packed + int(beyond[-units_max])
        return self.rearrange((self.start_index, target))

    def merge_freed(self) -> None:
        """Move freed units from the inbox into the ordered holes."""
        if not self._inbox:
            return
        units = self._inbox[0] if len(self._inbox) == 1 else np.concatenate(self._inbox)
        self._inbox.clear()
        self._holes.add(self._mirrored(units) if self._down else units)

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

    def statistics(self) -> BandStatistics:
        """Return the band's counts."""
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
                high - low for low, high in filter(None, (self.hard_fixed, self.soft_fixed))
            ),
            virtual_free_count=0 if self.free_ids is None else len(self.free_ids),
            absorbed_units_total=self.absorbed_units_total,
            taken_units_total=self.taken_units_total,
            moved_units_total=self.moved_units_total,
            move_batches_total=self.move_batches_total,
        )

    def bound_ids(self) -> Units:
        """Return all bound virtual ids, ascending; for checks."""
        return self._physical_of.nonzero()[0]

    def check(self) -> None:
        """Check every invariant of the band from its maps.

        Invariants: band.conservation, band.maps_inverse, band.ids_partition, band.holes_ordered.
        """
        name = self.geometry.name
        inside = self._owner_of[self.start_index : self.end_index]
        live, holes = int(np.count_nonzero(inside > 0)), int(np.count_nonzero(inside == HOLE))
        pending = int(np.count_nonzero(inside == PENDING))
        total = np.count_nonzero(self._owner_of[1:]) if self._owner_of.size > 1 else 0
        span_units = self.end_index - self.start_index
        counted, books = (
            (live, holes, pending),
            (self.live_units, self.hole_units, self.pending_units),
        )
        if counted != books or sum(counted) != span_units:
            self._monitor.fail(
                "band.conservation",
                f"band {name}: span of {span_units} units holds {live} live, {holes} holes and "
                f"{pending} pending; the books say {books[0]}, {books[1]} and {books[2]}",
            )
        self._pending.check(self._monitor, name, self._owner_of == PENDING, self._steps)
        if total != sum(counted) or self._owner_of[0] != SINK:
            self._monitor.fail("band.conservation", f"band {name} has units outside its span")
        ids = self.bound_ids()
        if ids.size != live or not np.array_equal(self._owner_of[self._physical_of[ids]], ids):
            self._monitor.fail(
                "band.maps_inverse", f"band {name} binds {ids.size} ids to {live} units"
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

    def _add_holes(self, units: Units) -> None:
        """Mark units as holes; they are merged into the ordered ones later."""
        self._owner_of[units] = HOLE
        self.hole_units += units.size
        self._inbox.append(units)

    def _mirrored(self, units: Units) -> Units:
        """Return the places of a grow-down band's units, or its units of places."""
        count = units.size
        return (self._mirrors[:count] if count <= IOTA.size else self._mirror) - units

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

    def _drop(self, low: int, high: int) -> None:
        """Let the holes ``[low, high)`` leave the band."""
        self._owner_of[low:high] = OUTSIDE
        self._holes.remove_range(*self._places(low, high))
        self.hole_units -= high - low

    def _refuse_ids(self, virtual: Units) -> None:
        """Raise for the first id that cannot be freed, naming it."""
        seen: set[int] = set()
        for page in virtual.tolist():
            if page == 0:
                problem = "is the sink, which is never freed"
            elif not 0 < page < self._physical_of.size:
                problem = f"is outside [1, {self._physical_of.size})"
            elif page in seen:
                problem = "is named twice"
            elif self._physical_of[page] == 0:
                problem = "is not bound: it was never taken, or is freed already"
            else:
                seen.add(page)
                continue
            raise OperationError(
                f"virtual page {page} of band {self.geometry.name} {problem}",
                code=ErrorCode.BAD_PAGE,
            )
        self._monitor.fail("band.free_of_bound_page", f"band {self.geometry.name}: maps disagree")
