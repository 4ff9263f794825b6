"""The units of one band: which is bound to which name, and which can be handed out.

Units are indices on the band's own grid. ``_owner_of[unit]`` carries the unit's state as well as
its name: a positive value is the virtual id bound to it, the others say that it is not bound.

A free unbinds a unit and returns its name at once. The unit itself *pends* while a forward in
flight may still touch it: under the newest step that was launched, not under the last step of its
own request, because another request's step may share the page. It comes back as a hole when that
step was processed, or earlier when a take settles its batch, which is a wait on the device. A unit
that a transfer may still touch then stays *vacated*: nobody's, and no hole either.

Invariants:
    step.pending_keyed: a unit pends only under a step in flight;
    band.take_unbound: units and ids that are bound were free before;
    band.free_of_bound_page: ids that are unbound were bound before, to units that name them.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvd.alloc.arena_order import ArenaOrder
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.clearance import Consumer
from kvd.alloc.holes import HoleSet
from kvd.alloc.ids import FreeIds
from kvd.alloc.pending import PendingPages
from kvd.alloc.signals import Signal, step_signal
from kvd.alloc.unit_sets import union
from kvd.alloc.usage import PageUsage
from kvd.alloc.uses import UseKind
from kvd.errors import OperationError
from kvd.price.geometry import BandGeometry, BandKind
from kvd_proto.errors import ErrorCode

Units: TypeAlias = NDArray[np.int64]

OUTSIDE = 0
HOLE = -1
PENDING = -2
VACATED = -3
RESERVED = -4
"""Taken for a load that names it later; it counts as live."""
HOLE_BYTES = np.int64(HOLE).tobytes()
SINK = -(1 << 62)
"""State of unit 0: a value that no other state has and that, as a virtual id, is out of range.

A small negative number would do for the first only: as an id it counts from the end of the map,
where an unbound entry leads to unit 0, which would then seem to name that id back.
"""

IOTA: Units = np.arange(4096, dtype=np.int64)
"""Shared counter, sliced where a fresh one would cost more than the work."""
IOTA.setflags(write=False)


class BandUnits:
    """Names, states and hand-out of a band's units; ``id_count`` is the size of its virtual space.

    How far the band's span reaches is `Band`'s.
    """

    def __init__(
        self,
        geometry: BandGeometry,
        *,
        id_count: int,
        mints: bool,
        monitor: CheckMonitor,
        order: ArenaOrder | None = None,
    ) -> None:
        self.geometry = geometry
        self.live_units: int = 0
        self.hole_units: int = 0
        self.promised_units: int = 0
        self.absorbed_units_total: int = 0
        self.taken_units_total: int = 0
        self.moved_units_total: int = 0
        self.move_batches_total: int = 0
        self.free_ids = FreeIds(id_count) if mints else None
        self.epoch_count: int = 0
        """Moves with every capacity fact of the band."""
        self._monitor = monitor
        self._order = ArenaOrder(monitor) if order is None else order
        self._steps = self._order.steps
        self._order.on_retire.append(self._retire_through)
        self._pending = PendingPages()
        self.usage = PageUsage(geometry.name, monitor)
        """Who uses units of this band until when, its own requests apart."""
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
    def vacated_units(self) -> int:
        """Return how many units are nobody's and no holes, because something may touch them."""
        if self.usage.is_clear:
            return 0
        facts = self.usage.facts
        return facts.vacated_forward.size + facts.vacated_network.size + facts.astray.size

    def acquire(
        self, count: int, *, consumer: Consumer = Consumer.ZEROING, own: Signal | None = None
    ) -> Units:
        """Return ``count`` holes for their next writer; the one place where units are handed out.

        Holes that the writer can have at once come first, lowest place first. ``own`` is the copy
        or transfer that the units are for.
        """
        assert count <= self.hole_units
        units = self._choose(count, consumer, own)
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

    def resolve(self, virtual: Units) -> Units:
        """Return where bound ids lie; raises OperationError for what `release` refuses."""
        try:
            physical = self._physical_of[virtual]
        except IndexError:
            self._refuse_ids(virtual)
            raise
        named_back = self._owner_of[physical].tobytes() == virtual.tobytes()
        if not named_back or np.unique(virtual).size != virtual.size:
            self._refuse_ids(virtual)
        return physical

    def reserve(self, count: int, signal: Signal) -> Units:
        """Take holes for a load that names them later, fixed where they lie until it has."""
        units = self.acquire(count, consumer=Consumer.HOST_LOAD, own=signal)
        self._owner_of[units] = RESERVED
        self.usage.open(UseKind.LOAD_RESERVATION, signal, units)
        return units

    def name_reserved(self, virtual: Units, physical: Units) -> None:
        """Give reserved units their names."""
        if np.count_nonzero(self._owner_of[physical] != RESERVED) or np.count_nonzero(
            self._physical_of[virtual]
        ):
            self._monitor.fail(
                "band.take_unbound", f"band {self.geometry.name} named a unit that is not reserved"
            )
        self._physical_of[virtual] = physical
        self._owner_of[physical] = virtual

    def give_up(self, units: Units) -> None:
        """Take back reserved units that have no names, as if they had been freed."""
        assert not np.count_nonzero(self._owner_of[units] != RESERVED)
        self.epoch_count += 1
        self.live_units -= units.size
        self._disown(units)

    def physical_map(self) -> Units:
        """Return a copy of the physical units of all virtual ids, id 0 included; for checks."""
        return self._physical_of.copy()

    def unit_states(self) -> Units:
        """Return a copy of what every unit is, unit 0 included; for checks."""
        return self._owner_of.copy()

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
        self._disown(physical)

    def release_pending_through(self, step: int) -> None:
        """Let units that pend under steps up to this one become holes: they were processed."""
        if self._pending.oldest_key <= step:
            for units in self._pending.release_through(step):
                self._let_go(units)
            self.epoch_count += 1

    def settle_pending(self, units_min: int) -> int:
        """Let the oldest whole batches become holes, until so many units did.

        Returns the newest step among them, which the next writer of these units has to wait for.
        """
        key, settled = self._pending.settle(units_min)
        for units in settled:
            self._let_go(units)
        self.epoch_count += 1
        return key

    def open_writes(self, step: int, virtual: Units | None) -> None:
        """Record that a step that was launched writes the units of these ids; None: any unit."""
        if virtual is None:
            self.usage.open(UseKind.FORWARD_WRITE, step_signal(step), None)
            return
        physical = self._physical_of[virtual]
        self.usage.open(UseKind.FORWARD_WRITE, step_signal(step), physical[physical > 0])

    def release_signal(self, signal: Signal) -> None:
        """Take in that a copy or a transfer is over."""
        self._add_holes(self.usage.release(signal))

    def transferring_units(self) -> Units:
        """Return what nobody owns any more and a transfer has to end for, ascending."""
        facts = self.usage.facts
        return union((facts.vacated_network, self._pending_among(facts.touched)))

    def _pending_among(self, units: Units) -> Units:
        """Return those of some units that pend."""
        return units[self._owner_of[units] == PENDING] if self._pending.unit_count else units[:0]

    def merge_freed(self) -> None:
        """Move freed units from the inbox into the ordered holes."""
        if not self._inbox:
            return
        units = self._inbox[0] if len(self._inbox) == 1 else np.concatenate(self._inbox)
        self._inbox.clear()
        self._holes.add(self._mirrored(units) if self._down else units)

    def bound_ids(self) -> Units:
        """Return all bound virtual ids, ascending; for checks."""
        return self._physical_of.nonzero()[0]

    def _choose(self, count: int, consumer: Consumer, own: Signal | None = None) -> Units:
        """Take ``count`` holes for a writer and have what it has to wait for waited for."""
        if count > len(self._holes):
            self.merge_freed()
        usage, fences = self.usage, self._order.fences
        self.hole_units -= count
        if usage.is_clear and fences.is_empty:
            places = self._holes.take(count)
            return self._mirrored(places) if self._down else places
        # No more holes than are used or fenced can be worse than the ones behind them.
        self.merge_freed()
        unit_bytes = self.geometry.unit_bytes
        worse_count = usage.unit_count + fences.units_max(unit_bytes)
        places = self._holes.take(min(len(self._holes), count + worse_count))
        units = self._mirrored(places) if self._down else places
        openness = usage.openness(units, consumer, self._order.clearance) | fences.openness(
            units * unit_bytes, unit_bytes, consumer, self._order.clearance
        )
        choice = openness.argsort(kind="stable")
        self._holes.add(places[choice[count:]])
        units = units[choice[:count]]
        self._clear(units, consumer, own)
        return units

    def _clear(self, units: Units, consumer: Consumer, own: Signal | None) -> None:
        """Have everything waited for that chosen units must clear; read after the choice."""
        order = self._order
        unit_bytes = self.geometry.unit_bytes
        order.wait(
            self.usage.hazards(units, consumer, order.clearance, own=own, waited=order.waited)
        )
        order.wait(
            order.fences.signals(
                units * unit_bytes, unit_bytes, consumer, order.clearance, waited=order.waited
            )
        )

    def _disown(self, units: Units) -> None:
        """Let units that lost their owner pend under the newest step in flight, or be let go."""
        key = self._steps.pending_key
        if key:
            self._owner_of[units] = PENDING
            self._pending.add(key, units)
        else:
            self._let_go(units)

    def _let_go(self, units: Units) -> None:
        """Make holes of units that no step in flight touches, but for those a transfer may."""
        if self.usage.is_clear:
            self._add_holes(units)
            return
        self._owner_of[units] = VACATED
        self._add_holes(self.usage.vacate(units, step=None))

    def _retire_through(self, step: int) -> None:
        """Take in that the allocator's stream cannot meet steps up to this one any more."""
        if not self.usage.is_empty:
            self._add_holes(self.usage.retire_through(step))
        else:
            self.usage.retired_step = max(self.usage.retired_step, step)

    def _add_holes(self, units: Units) -> None:
        """Mark units as holes; they are merged into the ordered ones later."""
        if units.size == 0:
            return
        self._owner_of[units] = HOLE
        self.hole_units += units.size
        self._inbox.append(units)

    def _mirrored(self, units: Units) -> Units:
        """Return the places of a grow-down band's units, or its units of places."""
        count = units.size
        return (self._mirrors[:count] if count <= IOTA.size else self._mirror) - units

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
