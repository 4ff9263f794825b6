"""The ledger of a band, as those who ask it know it: what has to be waited, and what may be chosen.

Positions are on the host and every answer rests on what is retired and released alone, so all ranks
hear the same one. The tables of `kvd.alloc.clearance` decide what a record means to whom; they are
arguments, and A is the allocator stream there and here.
"""

from collections.abc import Callable, Container, Iterator
from typing import NoReturn

import numpy as np

from kvd.alloc.checks import CheckLevel
from kvd.alloc.clearance import (
    CLEARANCE,
    CLOSED,
    READ_CLEARANCE,
    WAITS,
    Cell,
    Clearance,
    Consumer,
    ReadClearance,
    Reader,
    Writer,
)
from kvd.alloc.signals import Signal, SignalKind, distinct_waits, step_signal
from kvd.alloc.unit_sets import Mask, Units, found_in, touches, union, unit_set
from kvd.alloc.use_records import UseRecords
from kvd.alloc.uses import (
    COPIES,
    HAZARD_OF,
    NETWORK,
    PINS,
    WRITER_OF,
    Openness,
    UseKind,
    openness_bit,
)
from kvd.price.search import Span


class PageUsage(UseRecords):
    """The ledger of one band.

    Invariants:
        band.take_cleared: a chosen unit carries no use that its consumer cannot wait for;
        band.move_cleared: a move reads no unit whose writer A cannot wait for, and none that is
        fixed.
    """

    @property
    def has_unknown_writes(self) -> bool:
        """Return whether a step that is not retired may write any live unit."""
        return any(units is None for units in self._writes.values())

    def hazards(
        self,
        units: Units,
        consumer: Consumer,
        table: Clearance = CLEARANCE,
        *,
        own: Signal | None = None,
        waited: Container[Signal] = (),
    ) -> tuple[Signal, ...]:
        """Return what A waits for before the consumer writes units that were chosen for it.

        ``own`` is the signal of the copy or transfer the units are chosen for: its own pin is no
        hazard. ``waited`` holds the copies A waited for already. Raises InvariantError, naming
        band.take_cleared, for a unit that should not have been chosen. Chosen units are not live,
        so write sets are looked at only when checks are strict, and unknown ones never.
        """
        if not self._uses and self._monitor.level is not CheckLevel.STRICT:
            return ()
        found: list[Signal] = []
        for kind, signal, members in self._hole_uses(strict=True):
            cell = table[consumer, HAZARD_OF[kind]].cell
            if cell is Cell.NOTHING or (signal == own and kind in PINS):
                continue
            if not touches(units, members):
                continue
            if cell in CLOSED:
                self._refuse("band.take_cleared", consumer, kind, signal, units, members)
            if signal not in waited:
                found.append(signal)
        return distinct_waits(found) if found else ()

    def openness(self, units: Units, consumer: Consumer, table: Clearance = CLEARANCE) -> Openness:
        """Return for each unit what the consumer would wait for, 0 for nothing.

        A stable sort of holes in hand-out order by this number is the order of choice; NOT_CHOSEN
        and above may not be chosen.
        """
        bits = np.zeros(units.size, dtype=np.int8)
        for kind, signal, members in self._hole_uses(strict=False):
            bit = openness_bit(table[consumer, HAZARD_OF[kind]].cell, signal)
            if bit:
                bits[found_in(units, members)] |= bit
        return bits

    def writers(
        self,
        units: Units,
        reader: Reader = Reader.MOVE_SOURCE,
        table: ReadClearance = READ_CLEARANCE,
        *,
        waited: Container[Signal] = (),
    ) -> tuple[Signal, ...]:
        """Return what A waits for before live units are read.

        Raises InvariantError, naming band.move_cleared, for units that are not to be read yet, and
        for units to be moved that are hard-fixed.
        """
        found: list[Signal] = []
        for writer, kind, signal, members in self._open_writers():
            cell = Cell.NOTHING if writer is None else table[reader, writer].cell
            is_fixed = reader is Reader.MOVE_SOURCE and kind in NETWORK and signal in self._astray
            if not is_fixed and cell not in WAITS and cell not in CLOSED:
                continue
            written = unit_set(units) if members is None else members
            if not touches(units, written):
                continue
            if is_fixed or cell in CLOSED:
                self._refuse("band.move_cleared", reader, kind, signal, units, written)
            if signal not in waited:
                found.append(signal)
        return distinct_waits(found)

    def may_move(self, units: Units) -> Mask:
        """Return which live units a move may take that must not wait for anything.

        It leaves what a step or a load writes, what a transfer touches, and what is pinned.
        """
        free = np.full(units.size, not self.has_unknown_writes, dtype=np.bool_)
        for written in self._writes.values():
            if written is not None:
                free &= ~found_in(units, written)
        for (kind, _), members in self._uses.items():
            if kind in WRITER_OF or kind is UseKind.NETWORK_SEND:
                free &= ~found_in(units, members)
        return free

    def transfers(self, units: Units) -> tuple[Signal, ...]:
        """Return the transfers that are not over and touch units: what a host would wait for."""
        return distinct_waits(
            signal
            for (kind, signal), members in self._uses.items()
            if kind in NETWORK and touches(units, members)
        )

    def barred(
        self, units: Units, reader: Reader, table: ReadClearance = READ_CLEARANCE
    ) -> tuple[UseKind, Signal] | None:
        """Return a use for which the reader may not have these units at all yet; None if none."""
        for writer, kind, signal, members in self._open_writers():
            if writer is None or table[reader, writer].cell not in CLOSED:
                continue
            if members is None or touches(units, members):
                return kind, signal
        return None

    def first_use(
        self, units: Units, kinds: Container[UseKind], *, lost: bool = True
    ) -> tuple[UseKind, Signal] | None:
        """Return the oldest use of these kinds that touches units; None if there is none.

        Without ``lost``, transfers of unknown end do not count.
        """
        for (kind, signal), members in self._uses.items():
            if kind in kinds and (lost or signal not in self._astray) and touches(units, members):
                return kind, signal
        return None

    def writing_step(self, units: Units) -> int:
        """Return the newest step that is not retired and known to write some of the units, or 0."""
        steps = [
            step
            for step, written in self._writes.items()
            if written is not None and touches(units, written)
        ]
        return max(steps, default=0)

    def awaited_transfers(self) -> list[Signal]:
        """Return the transfers that have units, those of unknown end aside."""
        return [
            signal
            for _, signal in self._uses
            if signal.kind is SignalKind.TRANSFER and signal not in self._astray
        ]

    @property
    def vacated_forward_units(self) -> int:
        """Return how many vacated units stream order alone makes holes of."""
        return self.facts.vacated_forward.size

    @property
    def vacated_network_units(self) -> int:
        """Return how many vacated units a transfer holds back, those of unknown end aside."""
        return self.facts.vacated_network.size

    @property
    def astray_units(self) -> int:
        """Return how many vacated units a transfer of unknown end may touch for ever."""
        return self.facts.astray.size

    def hard_extent(self) -> Span | None:
        """Return the extent of the units that never move; of none, None."""
        return self.facts.hard_fixed

    def soft_extent(self) -> Span | None:
        """Return the extent of the live units that move only once transfers ended, or published."""
        return self.facts.soft_fixed

    def fenced_units(self, is_hole: Callable[[Units], Mask]) -> int:
        """Return how many holes have a next writer that waits for a copy."""
        copied = union([members for (kind, _), members in self._uses.items() if kind in COPIES])
        return int(np.count_nonzero(is_hole(copied))) if copied.size else 0

    def _hole_uses(self, *, strict: bool) -> Iterator[tuple[UseKind, Signal, Units]]:
        """Yield what may be open on a hole and, if strict and asked to be, what never is."""
        for (kind, signal), members in self._uses.items():
            # Where a transfer holds a vacated unit back, its own record says more about it.
            if kind is not UseKind.VACATED_READ or signal.kind is SignalKind.STEP:
                yield kind, signal, members
        if strict and self._monitor.level is CheckLevel.STRICT:
            for step, written in self._writes.items():
                if written is not None:
                    yield UseKind.FORWARD_WRITE, step_signal(step), written

    def _open_writers(self) -> Iterator[tuple[Writer | None, UseKind, Signal, Units | None]]:
        """Yield every use with what it is to a reader, None for one that only reads."""
        for step, written in self._writes.items():
            writer = Writer.UNKNOWN_WRITE if written is None else Writer.FORWARD_WRITE
            yield writer, UseKind.FORWARD_WRITE, step_signal(step), written
        for (kind, signal), members in self._uses.items():
            yield WRITER_OF.get(kind), kind, signal, members

    def _refuse(
        self,
        name: str,
        chosen_for: Consumer | Reader,
        kind: UseKind,
        signal: Signal,
        units: Units,
        members: Units,
    ) -> NoReturn:
        unit = units[found_in(units, members)][0]
        self._monitor.fail(
            name,
            f"band {self._name}: unit {unit} was chosen for {chosen_for.name.lower()}, but "
            f"{signal.kind} {signal.number} has it ({kind})",
        )
        raise AssertionError  # a fatal check raises at every level
