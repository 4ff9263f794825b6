"""The records of a band's ledger: which units are in use, by what, until when.

One record per use and signal, each with a set of units. What the records mean to whoever comes next
is `kvd.alloc.usage`, which stands on this.

A unit that was moved away from or freed while a step or a transfer may touch it is vacated: nobody
owns it and nobody may take it. Copies vacate nothing; what they touch becomes a hole whose next
writer makes A wait. A freed page that pends under a step is its batch's business and not recorded.
"""

from collections.abc import Iterable

import numpy as np

from kvd.alloc.checks import CheckMonitor
from kvd.alloc.signals import Signal, SignalKind, step_signal
from kvd.alloc.unit_sets import NONE, Units, found_in, union, unit_set, within, without
from kvd.alloc.uses import (
    COPIES,
    NETWORK,
    OVER_WITH,
    PINS,
    LeftUse,
    UsageFacts,
    UseKind,
    UseRecord,
    facts_of,
)
from kvd.price.search import Span


class UseRecords:
    """The uses of one band's units that are not over.

    Invariants:
        ledger.release_once: what is closed was open;
        ledger.no_orphan: records name units of the span, and units leave it with theirs;
        ledger.records_exact: records are sets of units, of work that is not over, and the facts
        told about them are theirs.
    """

    def __init__(self, name: str, monitor: CheckMonitor) -> None:
        self.epoch_count = 0
        """Moves with every change that a capacity answer may depend on."""
        self.retired_step = 0
        """Every step up to this one is over for A."""
        self._name = name
        self._monitor = monitor
        self._writes: dict[int, Units | None] = {}
        """Write sets of steps that are not retired; None is UNKNOWN."""
        self._uses: dict[tuple[UseKind, Signal], Units] = {}
        """Every other use, in the order of opening."""
        self._astray: dict[Signal, None] = {}
        """Transfers that failed and may go on touching memory, in the order of failing."""
        self._facts: UsageFacts | None = UsageFacts()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is open."""
        return not self._uses and not self._writes

    @property
    def is_clear(self) -> bool:
        """Return whether no hole can carry a hazard: nothing is open but writes to live units."""
        return not self._uses

    @property
    def unit_count(self) -> int:
        """Return how many units the records name in all, write sets aside."""
        return sum([units.size for units in self._uses.values()])

    @property
    def facts(self) -> UsageFacts:
        """Return what capacity answers depend on; the arrays are read only."""
        if self._facts is None:
            self._facts = facts_of(self._uses, self._astray)
        return self._facts

    def units_of(self, kind: UseKind, signal: Signal) -> Units:
        """Return the units of one record, none if it is not open; for checks."""
        return self._uses.get((kind, signal), NONE)

    def open(self, kind: UseKind, signal: Signal, units: Units | None) -> None:
        """Begin a use of units, in any order, or widen one; None: all that are or come live.

        Only a forward's write set may be None. Units of other uses are not empty.
        """
        assert signal.kind is OVER_WITH[kind]
        if kind is UseKind.FORWARD_WRITE:
            self._open_write(signal.number, units)
            return
        assert units is not None
        assert units.size
        if kind is UseKind.VACATED_READ:
            self.vacate(units, step=signal.number)
        else:
            self._add(kind, signal, unit_set(units))

    def close(self, kind: UseKind, signal: Signal) -> Units:
        """End one pin or copy on its own and return its units, ascending."""
        assert kind in PINS or kind in COPIES  # nothing is vacated under these
        units = self._uses.pop((kind, signal), None)
        if units is None:
            self._monitor.fail(
                "ledger.release_once", f"band {self._name}: no {kind} of {_named(signal)} is open"
            )
            return NONE
        self._changed()
        return units

    def vacate(self, units: Units, *, step: int | None) -> Units:
        """Record that units lost their owner; return those that are holes now.

        ``step`` is the newest step that may still read them, None if none may. What a step or a
        transfer may touch is kept back and comes out of `retire_through` or `release` later.
        """
        if step is None and not self._uses:
            return units
        left = unit_set(units)
        if left.size == 0:
            return NONE
        for (kind, signal), members in list(self._uses.items()):
            if kind in NETWORK and (held := left[found_in(left, members)]).size:
                self._add(UseKind.VACATED_READ, signal, held)
        if step is None:
            return without(units, self._vacated())
        assert step > self.retired_step
        self._add(UseKind.VACATED_READ, step_signal(step), left)
        return NONE

    def retire_through(self, step: int) -> Units:
        """End what steps up to ``step`` do; return the vacated units that are holes now."""
        self.retired_step = max(self.retired_step, step)
        if self._writes:
            for number in [number for number in self._writes if number <= step]:
                del self._writes[number]
        if not self._uses:
            return NONE
        return self._end(
            (kind, signal)
            for kind, signal in self._uses
            if signal.kind is SignalKind.STEP and signal.number <= step
        )

    def release(self, signal: Signal) -> Units:
        """End all of a copy or transfer, pins included; return the units that are holes now.

        A band that knows nothing of the signal is left as it is.
        """
        assert signal.kind is not SignalKind.STEP
        if not self._uses:
            return NONE
        self._astray.pop(signal, None)
        return self._end(key for key in self._uses if key[1] == signal)

    def quarantine(self, signal: Signal) -> None:
        """Take a transfer for lost: until it is released, what it touches never moves."""
        assert signal.kind is SignalKind.TRANSFER
        if any((kind, signal) in self._uses for kind in NETWORK):
            self._astray[signal] = None
            self._changed()

    def carry_holds(self, sources: Units, destinations: Units) -> None:
        """Let receive holds follow units that move; before the sources are vacated."""
        for (kind, signal), members in list(self._uses.items()):
            if kind is UseKind.RECEIVE_HOLD and (moved := found_in(sources, members)).any():
                kept = without(members, unit_set(sources[moved]))
                self._uses[kind, signal] = union((kept, unit_set(destinations[moved])))
                self._changed()

    def leave(self, low: int, high: int) -> list[LeftUse]:
        """Take the units ``[low, high)``, which leave the band, out of every record.

        Returns what is still open on their bytes. None of them is live or pending, so none is
        pinned, hard-fixed or known to be written by a step.
        """
        left: list[LeftUse] = []
        for step, written in self._writes.items():
            if written is not None and written[within(written, low, high)].size:
                self._orphaned(UseKind.FORWARD_WRITE, step_signal(step), low, high)
        for (kind, signal), members in list(self._uses.items()):
            place = within(members, low, high)
            if place.start == place.stop:
                continue
            if kind in PINS or signal in self._astray:
                self._orphaned(kind, signal, low, high)
            if kind is not UseKind.VACATED_READ or signal.kind is SignalKind.STEP:
                left.append(LeftUse(members[place].copy(), kind, signal))
            kept = np.concatenate((members[: place.start], members[place.stop :]))
            if kept.size:
                self._uses[kind, signal] = kept
            else:
                del self._uses[kind, signal]
            self._changed()
        return left

    def records(self) -> tuple[UseRecord, ...]:
        """Return every record: forwards by step, then the others, oldest first."""
        forwards = [
            UseRecord(
                UseKind.FORWARD_WRITE, step_signal(step), None if units is None else units.size
            )
            for step, units in sorted(self._writes.items(), key=_step_of)
        ]
        return (
            *forwards,
            *(UseRecord(*key, units.size) for key, units in self._uses.items()),
        )

    def open_units(self) -> dict[tuple[UseKind, Signal], Units | None]:
        """Return the units of every record, ascending; None: any that is live. For checks."""
        uses: dict[tuple[UseKind, Signal], Units | None] = {
            (UseKind.FORWARD_WRITE, step_signal(step)): units
            for step, units in self._writes.items()
        }
        uses.update(self._uses)
        return uses

    def check(self, span: Span) -> None:
        """Check every invariant of the records.

        Invariants: ledger.no_orphan, ledger.records_exact.
        """
        if self._writes and min(self._writes) <= self.retired_step:
            self._fail_records(f"step {min(self._writes)} is retired and still writes")
        for step, written in self._writes.items():
            if written is not None:
                self._check_record(UseKind.FORWARD_WRITE, step_signal(step), written, span)
        for (kind, signal), members in self._uses.items():
            self._check_record(kind, signal, members, span)
        for signal in self._astray:
            if not any((kind, signal) in self._uses for kind in NETWORK):
                self._fail_records(f"{_named(signal)} is astray and touches nothing")
        if _listed(self.facts) != _listed(facts_of(self._uses, self._astray)):
            self._fail_records("facts are stale")

    def _check_record(self, kind: UseKind, signal: Signal, units: Units, span: Span) -> None:
        if not units.size or not (units[1:] > units[:-1]).all():
            self._fail_records(f"{kind} of {_named(signal)} is no set of units")
        if not span[0] <= int(units[0]) <= int(units[-1]) < span[1]:
            self._orphaned(kind, signal, *span)
        if kind is not UseKind.VACATED_READ:
            return
        if signal.kind is SignalKind.STEP and signal.number <= self.retired_step:
            self._fail_records(f"{_named(signal)} is retired and still reads")
        held = union([self._uses.get((network, signal), NONE) for network in NETWORK])
        if signal.kind is SignalKind.TRANSFER and without(units, held).size:
            self._fail_records(f"{_named(signal)} holds back units that it does not touch")

    def _open_write(self, step: int, units: Units | None) -> None:
        assert step > self.retired_step
        if units is None:
            self._writes[step] = None
        elif step not in self._writes:
            if units.size:
                self._writes[step] = unit_set(units)
        elif (known := self._writes[step]) is not None:
            self._writes[step] = union((known, unit_set(units)))

    def _add(self, kind: UseKind, signal: Signal, units: Units) -> None:
        known = self._uses.get((kind, signal))
        self._uses[kind, signal] = units if known is None else union((known, units))
        self._changed()

    def _end(self, keys: Iterable[tuple[UseKind, Signal]]) -> Units:
        """Drop records; return the units of theirs that were vacated and are so no longer."""
        ended = list(keys)
        if not ended:
            return NONE
        over = [(kind, self._uses.pop((kind, signal))) for kind, signal in ended]
        self._changed()
        vacated = union([units for kind, units in over if kind is UseKind.VACATED_READ])
        return without(vacated, self._vacated())

    def _vacated(self) -> Units:
        return union(
            [units for (kind, _), units in self._uses.items() if kind is UseKind.VACATED_READ]
        )

    def _changed(self) -> None:
        self._facts = None
        self.epoch_count += 1

    def _fail_records(self, problem: str) -> None:
        self._monitor.fail("ledger.records_exact", f"band {self._name}: {problem}")

    def _orphaned(self, kind: UseKind, signal: Signal, low: int, high: int) -> None:
        self._monitor.fail(
            "ledger.no_orphan",
            f"band {self._name}: {kind} of {_named(signal)} does not go with [{low}, {high})",
        )


def _step_of(item: tuple[int, Units | None]) -> int:
    return item[0]


def _named(signal: Signal) -> str:
    return f"{signal.kind} {signal.number}"


def _listed(facts: UsageFacts) -> list[object]:
    """Return facts in a form that compares."""
    return [fact.tolist() if isinstance(fact, np.ndarray) else fact for fact in facts]
