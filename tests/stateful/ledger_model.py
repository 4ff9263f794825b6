"""The ledger in the slowest and plainest form: sets of single units and single bytes."""

from collections.abc import Iterable

from kvd.alloc.clearance import (
    CLEARANCE,
    CLOSED,
    READ_CLEARANCE,
    WAITS,
    Consumer,
    Hazard,
    Reader,
    Writer,
)
from kvd.alloc.signals import Signal, SignalKind, step_signal
from kvd.alloc.uses import COPIES, HAZARD_OF, NETWORK, PINS, WRITER_OF, UseKind

UNIT_BYTES = 3


class Closed(Exception):  # noqa: N818
    """A unit was asked about that must not be chosen."""


class LedgerModel:
    """One band, each of whose units is live, a hole, vacated or outside; and the bytes it left."""

    def __init__(self, end: int) -> None:
        self.state = dict.fromkeys(range(1, end), "live")
        self.writes: dict[int, set[int] | None] = {}
        self.reads: set[tuple[int, int]] = set()
        """Step and vacated unit."""
        self.uses: set[tuple[UseKind, Signal, int]] = set()
        """All but the two kinds above."""
        self.fences: set[tuple[Hazard, Signal, int]] = set()
        """Hazard, signal and byte."""
        self.astray: set[Signal] = set()
        self.retired = 0
        self.launched = 0

    def units(self, *states: str) -> list[int]:
        return [unit for unit in sorted(self.state) if self.state[unit] in states]

    def under(self, *kinds: UseKind) -> set[int]:
        return {unit for kind, _, unit in self.uses if kind in kinds}

    def lost_units(self) -> set[int]:
        return {u for kind, signal, u in self.uses if kind in NETWORK and signal in self.astray}

    # ---- changes --------------------------------------------------------------------------------

    def ready(self) -> list[int]:
        """Turn vacated units that nobody touches any more into holes; return them."""
        kept = {unit for _, unit in self.reads} | self.under(*NETWORK)
        freed = [unit for unit in self.units("vacated") if unit not in kept]
        self.state.update(dict.fromkeys(freed, "hole"))
        return freed

    def vacate(self, units: Iterable[int], step: int | None) -> list[int]:
        for unit in units:
            self.state[unit] = "vacated"
            if step is not None:
                self.reads.add((step, unit))
        return self.ready()

    def retire_through(self, step: int) -> list[int]:
        self.retired = max(self.retired, step)
        self.writes = {number: units for number, units in self.writes.items() if number > step}
        self.reads = {(number, unit) for number, unit in self.reads if number > step}
        self.fences = {
            fence
            for fence in self.fences
            if fence[1].kind is not SignalKind.STEP or fence[1].number > step
        }
        return self.ready()

    def release(self, signal: Signal) -> list[int]:
        self.uses = {use for use in self.uses if use[1] != signal}
        self.fences = {fence for fence in self.fences if fence[1] != signal}
        self.astray.discard(signal)
        return self.ready()

    def leave(self, low: int, high: int) -> set[tuple[UseKind, Signal, int]]:
        left = {use for use in self.uses if low <= use[2] < high}
        left |= {
            (UseKind.VACATED_READ, step_signal(step), unit)
            for step, unit in self.reads
            if low <= unit < high
        }
        self.uses -= left
        self.reads = {(step, unit) for step, unit in self.reads if not low <= unit < high}
        self.fences |= {
            (HAZARD_OF[kind], signal, unit * UNIT_BYTES + offset)
            for kind, signal, unit in left
            for offset in range(UNIT_BYTES)
        }
        for unit in range(low, high):
            del self.state[unit]
        return left

    # ---- answers --------------------------------------------------------------------------------

    def waits(self, signals: Iterable[Signal]) -> tuple[Signal, ...]:
        steps = [signal.number for signal in signals if signal.kind is SignalKind.STEP]
        others = {signal for signal in signals if signal.kind is not SignalKind.STEP}
        return tuple(sorted(others | ({step_signal(max(steps))} if steps else set())))

    def open_on(self, unit: int) -> set[tuple[Hazard, Signal]]:
        """Return what is open on a unit that is not live."""
        met = {(HAZARD_OF[kind], signal) for kind, signal, other in self.uses if other == unit}
        reads = {(Hazard.VACATED_READ, step_signal(step)) for step, u in self.reads if u == unit}
        return met | reads

    def open_on_bytes(self, start: int, length: int) -> set[tuple[Hazard, Signal]]:
        span = range(start, start + length)
        return {(hazard, signal) for hazard, signal, byte in self.fences if byte in span}

    def cleared(self, met: set[tuple[Hazard, Signal]], consumer: Consumer) -> set[Signal]:
        cells = {(CLEARANCE[consumer, hazard].cell, signal) for hazard, signal in met}
        if any(cell in CLOSED for cell, _ in cells):
            raise Closed
        return {signal for cell, signal in cells if cell in WAITS}

    def openness(self, met: set[tuple[Hazard, Signal]], consumer: Consumer) -> int:
        cells = {(CLEARANCE[consumer, hazard].cell, signal.kind) for hazard, signal in met}
        closed = any(cell in CLOSED for cell, _ in cells)
        waits = {kind is SignalKind.STEP for cell, kind in cells if cell in WAITS}
        return 4 * closed + 2 * (True in waits) + (False in waits)

    def writers(self, units: list[int], reader: Reader) -> tuple[Signal, ...]:
        cells = [
            (READ_CLEARANCE[reader, Writer.UNKNOWN_WRITE].cell, step_signal(step))
            for step, written in self.writes.items()
            if written is None and units
        ]
        cells += [
            (READ_CLEARANCE[reader, Writer.FORWARD_WRITE].cell, step_signal(step))
            for step, written in self.writes.items()
            if written is not None and written & set(units)
        ]
        cells += [
            (READ_CLEARANCE[reader, WRITER_OF[kind]].cell, signal)
            for kind, signal, unit in self.uses
            if unit in units and kind in WRITER_OF
        ]
        fixed = reader is Reader.MOVE_SOURCE and self.lost_units() & set(units)
        if fixed or any(cell in CLOSED for cell, _ in cells):
            raise Closed
        return self.waits([signal for cell, signal in cells if cell in WAITS])

    def may_move(self, unit: int) -> bool:
        touched = self.under(*NETWORK, *PINS, UseKind.COPY_WRITE)
        for written in self.writes.values():
            if written is None:
                return False
            touched |= written
        return unit not in touched

    def facts(self) -> list[object]:
        lost, vacated = self.lost_units(), set(self.units("vacated"))
        astray = vacated & lost
        network = (vacated & self.under(*NETWORK)) - astray
        hard = self.under(UseKind.LOAD_RESERVATION) | lost
        calm = {u for kind, signal, u in self.uses if kind in NETWORK and signal not in self.astray}
        soft = (calm - vacated) | self.under(UseKind.RECEIVE_HOLD)
        return [
            (min(hard), max(hard) + 1) if hard else None,
            (min(soft), max(soft) + 1) if soft else None,
            sorted(vacated - network - astray),
            sorted(network),
            sorted(astray),
            sorted(calm - lost),
            sorted(lost),
        ]

    def fenced_units(self) -> int:
        return len(self.under(*COPIES) & set(self.units("hole")))

    def records(self) -> list[tuple[UseKind, Signal, int | None]]:
        """Return the records there have to be, those of vacated units under transfers aside."""
        sets: dict[tuple[UseKind, Signal], int] = {}
        reads = [(UseKind.VACATED_READ, step_signal(step), unit) for step, unit in self.reads]
        for kind, signal, _ in [*self.uses, *reads]:
            sets[kind, signal] = sets.get((kind, signal), 0) + 1
        forwards = [
            (UseKind.FORWARD_WRITE, step_signal(step), None if units is None else len(units))
            for step, units in sorted(self.writes.items(), key=lambda item: item[0])
            if units is None or units
        ]
        return [*forwards, *((*key, sets[key]) for key in sorted(sets))]

    def blocked(self, *, lost: bool) -> list[int]:
        return sorted(
            {
                byte
                for hazard, signal, byte in self.fences
                if hazard in (Hazard.NETWORK_SEND, Hazard.NETWORK_RECEIVE)
                and (not lost or signal in self.astray)
            }
        )
