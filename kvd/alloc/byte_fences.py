"""Uses of bytes that left their band: whoever writes there next has to meet them.

A band whose frontier draws back, or which moves away, leaves bytes that steps, copies and peers may
still touch. Units are of no help then, because the next band cuts the same bytes into units of
another size; so what is open is kept here as byte ranges of the arena, one set for the whole chain.

A band that grows over a fenced range clears nothing. Its units are holes at first, and the fence is
met by whoever writes one of them, once for every such unit, until the fence's signal is over. What
A has waited for it need not wait for again, and the caller says what that is.
"""

from collections.abc import Container, Iterable
from typing import TypeAlias

import numpy as np

from kvd.alloc.checks import CheckMonitor
from kvd.alloc.clearance import CLEARANCE, CLOSED, Cell, Clearance, Consumer, Hazard
from kvd.alloc.signals import Signal, SignalKind, distinct_waits
from kvd.alloc.unit_sets import Mask, Units
from kvd.alloc.uses import Openness, openness_bit
from kvd.price.snapshot import Interval

Ranges: TypeAlias = tuple[Units, Units]
"""Starts and ends of byte ranges, ascending, disjoint, and not even adjacent."""

FENCES = {
    Hazard.VACATED_READ: SignalKind.STEP,
    Hazard.COPY_READ: SignalKind.COPY,
    Hazard.COPY_WRITE: SignalKind.COPY,
    Hazard.NETWORK_SEND: SignalKind.TRANSFER,
    Hazard.NETWORK_RECEIVE: SignalKind.TRANSFER,
}
"""What may be open on bytes outside every band, and what it is over with."""

_NETWORK = (Hazard.NETWORK_SEND, Hazard.NETWORK_RECEIVE)


class ByteFences:
    """The open uses of bytes that left their band, over the whole arena.

    Invariants:
        band.take_cleared: a writer of fenced bytes can wait for every fence it meets;
        ledger.records_exact: ranges are ascending and disjoint, and of work that is not over.
    """

    def __init__(self, monitor: CheckMonitor) -> None:
        self.epoch_count = 0
        """Moves with every change that a capacity answer may depend on."""
        self.retired_step = 0
        """Every step up to this one is over for A."""
        self._monitor = monitor
        self._fences: dict[tuple[Hazard, Signal], Ranges] = {}
        """In the order of adding."""
        self._astray: dict[Signal, None] = {}
        """Transfers that failed and may go on touching memory, in the order of failing."""

    @property
    def is_empty(self) -> bool:
        """Return whether no bytes are fenced."""
        return not self._fences

    def units_max(self, unit_bytes: int) -> int:
        """Return a bound on the units of this size that share bytes with a fence."""
        return sum(
            int((ends - starts).sum()) // unit_bytes + 2 * starts.size
            for starts, ends in self._fences.values()
        )

    def add(self, start_bytes: int, end_bytes: int, hazard: Hazard, signal: Signal) -> None:
        """Fence the bytes ``[start_bytes, end_bytes)`` until the signal is over."""
        assert 0 <= start_bytes < end_bytes
        self._add((np.array([start_bytes]), np.array([end_bytes])), hazard, signal)

    def add_units(self, units: Units, unit_bytes: int, hazard: Hazard, signal: Signal) -> None:
        """Fence the bytes of units, in any order, of a band with units of ``unit_bytes``."""
        assert units.size
        self._add(_unit_ranges(units, unit_bytes), hazard, signal)

    def signals(
        self,
        starts_bytes: Units,
        length_bytes: int,
        consumer: Consumer,
        table: Clearance = CLEARANCE,
        *,
        waited: Container[Signal] = (),
    ) -> tuple[Signal, ...]:
        """Return what A waits for before the consumer writes ``length_bytes`` at each start.

        ``waited`` holds the copies A waited for already. Raises InvariantError, naming
        band.take_cleared, for bytes that should not have been chosen.
        """
        found: list[Signal] = []
        for (hazard, signal), ranges in self._fences.items():
            cell = table[consumer, hazard].cell
            if cell is Cell.NOTHING or (cell not in CLOSED and signal in waited):
                continue
            met = _overlapping(starts_bytes, length_bytes, ranges)
            if not met.any():
                continue
            if cell in CLOSED:
                self._monitor.fail(
                    "band.take_cleared",
                    f"bytes from {starts_bytes[met][0]} were chosen for {consumer.name.lower()}, "
                    f"but {signal.kind} {signal.number} has them ({hazard.name.lower()})",
                )
            found.append(signal)
        return distinct_waits(found) if found else ()

    def openness(
        self,
        starts_bytes: Units,
        length_bytes: int,
        consumer: Consumer,
        table: Clearance = CLEARANCE,
    ) -> Openness:
        """Return for each start what the consumer would wait for; see `PageUsage.openness`.

        The two are combined bit by bit.
        """
        bits = np.zeros(starts_bytes.size, dtype=np.int8)
        for (hazard, signal), ranges in self._fences.items():
            bit = openness_bit(table[consumer, hazard].cell, signal)
            if bit:
                bits[_overlapping(starts_bytes, length_bytes, ranges)] |= bit
        return bits

    def retire_through(self, step: int) -> None:
        """End the fences of steps up to ``step``."""
        self.retired_step = max(self.retired_step, step)
        self._drop(
            key for key in self._fences if key[1].kind is SignalKind.STEP and key[1].number <= step
        )

    def release(self, signal: Signal) -> None:
        """End the fences of a copy or a transfer, if there are any."""
        assert signal.kind is not SignalKind.STEP
        self._astray.pop(signal, None)
        self._drop(key for key in self._fences if key[1] == signal)

    def quarantine(self, signal: Signal) -> None:
        """Take a transfer for lost: no wait clears its bytes until it is released."""
        assert signal.kind is SignalKind.TRANSFER
        if any((hazard, signal) in self._fences for hazard in _NETWORK):
            self._astray[signal] = None
            self.epoch_count += 1

    def blocked(self, vacated: Iterable[tuple[Units, int]] = ()) -> tuple[Interval, ...]:
        """Return all bytes that transfers touch and no live unit holds, sorted and disjoint.

        ``vacated`` adds units that bands keep back under transfers, each with its unit bytes.
        """
        parts = [ranges for (hazard, _), ranges in self._fences.items() if hazard in _NETWORK]
        parts += [_unit_ranges(units, unit_bytes) for units, unit_bytes in vacated if units.size]
        return _intervals(parts)

    def quarantined(self) -> tuple[Interval, ...]:
        """Return the blocked bytes whose transfer is not known to end, sorted and disjoint."""
        return _intervals(
            [ranges for (_, signal), ranges in self._fences.items() if signal in self._astray]
        )

    def awaited_transfers(self) -> list[Signal]:
        """Return the transfers that have bytes, those of unknown end aside."""
        return [
            signal
            for _, signal in self._fences
            if signal.kind is SignalKind.TRANSFER and signal not in self._astray
        ]

    def records(self) -> tuple[tuple[Hazard, Signal, int], ...]:
        """Return every hazard with its signal and its bytes, by hazard and signal."""
        return tuple(
            (*key, int((ends - starts).sum()))
            for key, (starts, ends) in sorted(self._fences.items())
        )

    def ranges(self) -> dict[tuple[Hazard, Signal], tuple[Interval, ...]]:
        """Return the byte ranges of every hazard and signal, ascending; for checks."""
        return {key: _intervals([ranges]) for key, ranges in self._fences.items()}

    def check(self) -> None:
        """Check every invariant of the fences.

        Invariants: ledger.records_exact.
        """
        for (hazard, signal), (starts, ends) in self._fences.items():
            over = signal.kind is SignalKind.STEP and signal.number <= self.retired_step
            apart = bool(np.all(starts < ends) and np.all(ends[:-1] < starts[1:]))
            if over or not apart or signal.kind is not FENCES[hazard] or not starts.size:
                self._monitor.fail(
                    "ledger.records_exact",
                    f"fences of {signal.kind} {signal.number} ({hazard.name.lower()})",
                )

    def _add(self, ranges: Ranges, hazard: Hazard, signal: Signal) -> None:
        assert signal.kind is FENCES[hazard]
        assert signal.kind is not SignalKind.STEP or signal.number > self.retired_step
        known = self._fences.get((hazard, signal))
        self._fences[hazard, signal] = _merged([ranges] if known is None else [known, ranges])
        self.epoch_count += 1

    def _drop(self, keys: Iterable[tuple[Hazard, Signal]]) -> None:
        for key in list(keys):
            del self._fences[key]
            self.epoch_count += 1


def _overlapping(starts: Units, length: int, ranges: Ranges) -> Mask:
    """Return which of the ranges ``[start, start + length)`` share bytes with a set of ranges."""
    assert length > 0
    range_starts, range_ends = ranges
    # The first range that ends behind a start is the only candidate: the ones after it start later.
    place = range_ends.searchsorted(starts, side="right")
    beyond = place == range_ends.size
    place[beyond] = 0
    mask: Mask = ~beyond & (range_starts[place] < starts + length)
    return mask


def _unit_ranges(units: Units, unit_bytes: int) -> Ranges:
    starts = units * unit_bytes
    return _merged([(starts, starts + unit_bytes)])


def _merged(parts: list[Ranges]) -> Ranges:
    """Return the union of ranges, in any order, those that overlap or touch made one."""
    starts = np.concatenate([part[0] for part in parts])
    ends = np.concatenate([part[1] for part in parts])
    order = starts.argsort(kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate((np.ones(1, dtype=np.bool_), starts[1:] > reach[:-1]))
    last = np.concatenate((first[1:], np.ones(1, dtype=np.bool_)))
    return starts[first], reach[last]


def _intervals(parts: list[Ranges]) -> tuple[Interval, ...]:
    if not parts:
        return ()
    starts, ends = _merged(parts)
    return tuple(zip(starts.tolist(), ends.tolist(), strict=True))
