"""Copies between arena and host pools: loads into values, and backups.

A load is reserved, named, submitted and over, in this order, or cancelled before it is submitted.
What it takes is fixed until it has names, because whoever queues it notes places until then. A
backup is submitted and over. Where units lie is looked up at submission: a move before it costs
nothing, and one after it leaves a fence behind.

Invariants:
    copy.records_match: the units that are reserved in a band are those that open loads have not
        named, each once and pinned; what a load named belongs to its value; numbers were used
"""

import numpy as np

from kvd.alloc.band import Freed, Units
from kvd.alloc.chain import BandMoves, ChainAllocator, Shortage, UnitCounts
from kvd.alloc.clearance import Reader
from kvd.alloc.numbers import Numbers
from kvd.alloc.signals import copy_signal
from kvd.alloc.uses import UseKind
from kvd.alloc.values import Value, ValueTable
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode
from kvd_proto.memory import Lifetime

_NONE: Units = np.zeros(0, dtype=np.int64)


class Load:
    """A load that is not over."""

    def __init__(self, value_id: int, reserved: dict[int, Units]) -> None:
        self.value_id = value_id
        self.reserved = reserved
        """Per window band that takes part: its units, in the order of taking."""
        self.named: dict[int, Units] = {}
        """Per such band: the pages that its first units were bound to, in order."""
        self.submitted = False

    def nameless(self, index: int) -> Units:
        """Return the units of a band that have no name yet."""
        return self.reserved.get(index, _NONE)[self.named.get(index, _NONE).size :]


class Copies:
    """The loads and backups of one chain that are not over."""

    def __init__(self, chain: ChainAllocator, values: ValueTable) -> None:
        self.chain = chain
        self.values = values
        self.numbers = Numbers("copy")
        self.loads: dict[int, Load] = {}
        self.backups: dict[int, list[Units]] = {}
        """Per backup: the virtual ids that it was given per band."""

    # ---- loads ----------------------------------------------------------------------------------

    def reserve(self, number: int, value: int, units: UnitCounts) -> list[BandMoves] | Shortage:
        """Take a load's units, all or nothing; what had to move for it comes back, or why not.

        Raises OperationError, with nothing changed, for a number that was used, a value that is
        not there, a band that is no window, and more units than the value lacks pages.
        """
        self.numbers.check_new(number)
        holder = self.values.get(value)
        self._check_units(number, value, holder, units)
        if not self.chain.fits(units):
            return self.chain.explain(units)
        moves = self.chain.make_room(units)
        if isinstance(moves, Shortage):
            return self.chain.excused(moves)
        self.numbers.use(number)
        signal = copy_signal(number)
        self.loads[number] = Load(
            value,
            {
                index: band.reserve(count, signal)
                for index, (band, count) in enumerate(zip(self.chain.bands, units, strict=True))
                if count
            },
        )
        return moves

    def name(self, number: int, index: int, virtual: Units) -> Units:
        """Bind a load's next units of a band to pages of its value; return the units.

        Raises OperationError, with nothing changed, for a load that is not open, more pages than
        units, and a page that is not the value's, is named twice or has a unit there.
        """
        load = self._unsubmitted(number)
        units = load.nameless(index)
        if not 0 < virtual.size <= units.size:
            raise OperationError(
                f"load {number} is to name {virtual.size} units of band {self._name(index)}; it "
                f"has {units.size} without a name there"
            )
        value = self.values.get(load.value_id)
        missing = value.missing(index)
        wrong = virtual[np.isin(virtual, missing, invert=True)]
        if wrong.size or np.unique(virtual).size != virtual.size:
            page = int(wrong[0]) if wrong.size else _repeated(virtual)
            why = (
                "named twice" if not wrong.size else f"no page of value {load.value_id} without one"
            )
            raise OperationError(
                f"load {number} cannot give page {page} a unit of band {self._name(index)}: it is "
                f"{why}",
                code=ErrorCode.BAD_PAGE,
            )
        band = self.chain.bands[index]
        named = units[: virtual.size]
        band.name_reserved(virtual, named)
        load.named[index] = np.concatenate((load.named.get(index, _NONE), virtual))
        kept = np.concatenate((value.bound[index], virtual))
        value.bound[index] = value.pages[np.isin(value.pages, kept)]
        if named.size == units.size:
            band.usage.close(UseKind.LOAD_RESERVATION, copy_signal(number))
        return named

    def check_named(self, number: int) -> dict[int, Units]:
        """Return the pages of a load per band; raises OperationError if it is not ready."""
        load = self._unsubmitted(number)
        for index in load.reserved:
            nameless = load.nameless(index).size
            if nameless:
                raise OperationError(
                    f"load {number} cannot be submitted: {nameless} of its units of band "
                    f"{self._name(index)} have no name"
                )
        return load.named

    def submit(self, number: int) -> dict[int, Units]:
        """Let a load that is ready write its units, wherever they lie now; return them per band."""
        load = self.loads[number]
        load.submitted = True
        signal = copy_signal(number)
        written: dict[int, Units] = {}
        for index, virtual in load.named.items():
            band = self.chain.bands[index]
            units = band.physical(virtual)
            band.usage.open(UseKind.COPY_WRITE, signal, units)
            written[index] = units
        return written

    def cancel(self, number: int) -> list[Freed]:
        """Give up a load that is not submitted; return the pages that lost their units.

        Raises OperationError, with nothing changed, for a load that is not open or is submitted.
        """
        load = self._unsubmitted(number)
        del self.loads[number]
        value = self.values.get(load.value_id)
        freed: list[Freed] = []
        for index in load.reserved:
            band, nameless = self.chain.bands[index], load.nameless(index)
            if nameless.size:
                band.usage.close(UseKind.LOAD_RESERVATION, copy_signal(number))
                band.give_up(nameless)
            virtual = load.named.get(index, _NONE)
            if virtual.size:
                kept = np.isin(value.bound[index], virtual, invert=True)
                value.bound[index] = value.bound[index][kept]
                freed.append(Freed(index, virtual))
        self.chain.release(freed)
        return freed

    # ---- backups --------------------------------------------------------------------------------

    def back_up(self, number: int, virtual: list[Units]) -> list[Units]:
        """Let a backup read units where they lie now; return them per band.

        What the allocator's stream has to be behind for it is noted. Raises OperationError, with
        nothing changed, for a number that was used, ids that are not bound, and units that hold
        nothing worth keeping yet: a peer is to write them, or a load that is not submitted.
        """
        self.numbers.check_new(number)
        units = self.readable(virtual, Reader.BACKUP, what=f"backup {number}")
        self.numbers.use(number)
        self.backups[number] = virtual
        order, signal = self.chain.order, copy_signal(number)
        for band, places in zip(self.chain.bands, units, strict=True):
            if places.size:
                order.wait(
                    band.usage.writers(
                        places, Reader.BACKUP, order.read_clearance, waited=order.waited
                    )
                )
                band.usage.open(UseKind.COPY_READ, signal, places)
        return units

    # ---- both -----------------------------------------------------------------------------------

    def is_running(self, number: int) -> bool:
        """Return whether a copy is submitted and not over."""
        load = self.loads.get(number)
        return number in self.backups or (load is not None and load.submitted)

    def was_over(self, number: int) -> bool:
        """Return whether nothing is open under a number that was passed, so that it is over."""
        is_open = number in self.loads or number in self.backups
        return 0 < number <= self.numbers.highest and not is_open

    def end(self, number: int, *, failed: bool) -> None:
        """Take in that a copy that runs is over on every rank."""
        load = self.loads.pop(number, None)
        self.backups.pop(number, None)
        signal = copy_signal(number)
        for band in self.chain.bands:
            band.release_signal(signal)
        self.chain.order.fences.release(signal)
        self.chain.order.release_copy(number)
        if load is not None and failed and load.value_id in self.values.of_number:
            self.values.get(load.value_id).spoiled = True

    def readable(self, virtual: list[Units], reader: Reader, *, what: str) -> list[Units]:
        """Return where ids lie that a copy or a peer is to read.

        Raises OperationError for ids that are not bound, for units that it may not read yet, and
        for state slots that are still to be cleared.
        """
        units = [band.resolve(ids) for band, ids in zip(self.chain.bands, virtual, strict=True)]
        table = self.chain.order.read_clearance
        for index, (band, ids, places) in enumerate(
            zip(self.chain.bands, virtual, units, strict=True)
        ):
            if not ids.size:
                continue
            self.check_loaded(index, ids, what=what)
            use = band.usage.barred(places, reader, table)
            if use is not None:
                kind, signal = use
                raise OperationError(
                    f"{what} cannot read units of band {self._name(index)} that {signal.kind} "
                    f"{signal.number} still has ({kind}); its end comes first",
                    code=ErrorCode.IN_USE,
                )
            if index == self.chain.state_index:
                self._check_cleared(ids, reader, what=what)
        return units

    def check_loaded(self, index: int, virtual: Units, *, what: str) -> None:
        """Raise OperationError if a load that is not submitted is to fill any of these pages."""
        for number, load in self.loads.items():
            if not load.submitted and np.isin(virtual, load.named.get(index, _NONE)).any():
                raise OperationError(
                    f"{what} names units of band {self._name(index)} that load {number} is to "
                    f"fill; it is not submitted",
                    code=ErrorCode.IN_USE,
                )

    def open_load(self, value: int) -> int:
        """Return the load into a value that is not submitted, 0 if there is none."""
        for number, load in self.loads.items():
            if load.value_id == value and not load.submitted:
                return number
        return 0

    def touches(self, value: int) -> bool:
        """Return whether a copy of a value's units, or into them, is not over."""
        if any(load.value_id == value for load in self.loads.values()):
            return True
        holder = self.values.get(value)
        return any(
            np.isin(ids, self.values.ids_of(holder, index)).any()
            for virtual in self.backups.values()
            for index, ids in enumerate(virtual)
            if ids.size
        )

    def check(self) -> None:
        """Check loads against their bands and values: copy.records_match."""
        for number in (*self.loads, *self.backups):
            if not 0 < number <= self.numbers.highest:
                self._fail(f"copy {number} is open, the highest so far is {self.numbers.highest}")
        for index, band in enumerate(self.chain.bands):
            nameless = [load.nameless(index) for load in self.loads.values()]
            held = np.sort(np.concatenate(nameless)) if nameless else _NONE
            if not np.array_equal(held, band.reserved_places()):
                self._fail(f"{held.size} units of band {self._name(index)} wait for their names")
            for number, load in self.loads.items():
                pinned = band.usage.units_of(UseKind.LOAD_RESERVATION, copy_signal(number))
                expected = load.reserved.get(index, _NONE) if load.nameless(index).size else _NONE
                if not np.array_equal(pinned, np.sort(expected)):
                    self._fail(f"load {number} pins {pinned.size} units of {self._name(index)}")
                if not load.submitted:
                    self._check_named(number, load, index)

    def _check_named(self, number: int, load: Load, index: int) -> None:
        value = self.values.of_number.get(load.value_id)
        named = load.named.get(index, _NONE)
        if value is None or (named.size and not np.isin(named, value.bound[index]).all()):
            self._fail(f"load {number} is into value {load.value_id}, which lacks what it named")

    def _check_cleared(self, slots: Units, reader: Reader, *, what: str) -> None:
        """Raise OperationError for a slot that is cleared later than the reader reads it.

        A backup runs behind the allocator's stream, and that behind every launch that it knows of.
        """
        steps = self.chain.steps
        for slot in slots.tolist():
            step = steps.clearings.step_of(slot)
            if steps.clearings.is_due(slot):
                why = "it was just handed out, and the next launch clears it"
            elif reader is Reader.NETWORK_SEND and step > steps.retired_count:
                why = f"step {step}, which is in flight, clears it"
            else:
                continue
            raise OperationError(
                f"{what} cannot read state slot {slot}: {why}; that comes first",
                code=ErrorCode.IN_USE,
            )

    def _fail(self, problem: str) -> None:
        self.chain.monitor.fail("copy.records_match", problem)

    def _unsubmitted(self, number: int) -> Load:
        load = self.loads.get(number)
        if load is None:
            raise self.numbers.unknown(number, "is no load that is open")
        if load.submitted:
            raise self.numbers.unknown(number, "is a load that is submitted already")
        return load

    def _check_units(self, number: int, name: int, value: Value, units: UnitCounts) -> None:
        for index, count in enumerate(units):
            if not count:
                continue
            if self.chain.lifetimes[index] is not Lifetime.WINDOW:
                raise OperationError(
                    f"load {number} asks {count} units of band {self._name(index)}; only windows "
                    f"are loaded into a value, other bands come with a request's pages"
                )
            waiting = sum(
                load.nameless(index).size for load in self.loads.values() if load.value_id == name
            )
            room = value.missing(index).size - waiting
            if count > room:
                raise OperationError(
                    f"load {number} asks {count} units of band {self._name(index)}; value {name} "
                    f"has {room} pages there to load"
                )
        if not any(units):
            raise OperationError(f"load {number} asks no unit at all")

    def _name(self, index: int) -> str:
        return self.chain.geometry.bands[index].name


def _repeated(virtual: Units) -> int:
    values, counts = np.unique(virtual, return_counts=True)
    return int(values[counts > 1][0])
