"""The ledger of a band and the fences of what left it, against sets of units and of bytes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvd.alloc.byte_fences import ByteFences
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.clearance import Consumer, Reader
from kvd.alloc.signals import Signal, SignalKind, SignalNumber, step_signal, transfer_signal
from kvd.alloc.unit_sets import Mask, Units
from kvd.alloc.usage import PageUsage
from kvd.alloc.uses import HAZARD_OF, NETWORK, OVER_WITH, PINS, UseKind
from kvd.errors import InvariantError
from kvd.price.snapshot import Interval
from tests.stateful.ledger_model import UNIT_BYTES, Closed, LedgerModel

UNITS = 20
NEXT_BAND_BYTES = 5
PICKS = st.lists(st.integers(0, UNITS), min_size=1, max_size=5)
NUMBERS = st.integers(1, 3)
OPENED = (
    UseKind.COPY_READ,
    UseKind.COPY_WRITE,
    UseKind.LOAD_RESERVATION,
    UseKind.NETWORK_SEND,
    UseKind.NETWORK_RECEIVE,
    UseKind.RECEIVE_HOLD,
)


def _array(units: list[int]) -> Units:
    return np.array(units, dtype=np.int64)


def _bytes_of(intervals: tuple[Interval, ...]) -> list[int]:
    return [byte for low, high in intervals for byte in range(low, high)]


class LedgerMachine(RuleBasedStateMachine):
    """What a band and its chain do to a ledger, in any order that they may do it."""

    @initialize(end=st.integers(4, UNITS))
    def start(self, end: int) -> None:
        monitor = CheckMonitor(CheckLevel.STRICT)
        self.usage = PageUsage("band", monitor)
        self.fences = ByteFences(monitor)
        self.end = end
        self.model = LedgerModel(end)
        self.launch([0], known=True)
        self.launch([1], known=True)

    # ---- rules ----------------------------------------------------------------------------------

    @rule(picks=PICKS, known=st.sampled_from((True, True, True, False)))
    def launch(self, picks: list[int], known: bool) -> None:
        self.model.launched += 1
        step = self.model.launched
        units = self._pick("live", picks)
        self.model.writes[step] = set(units) if known else None
        self.usage.open(UseKind.FORWARD_WRITE, step_signal(step), _array(units) if known else None)

    @rule(kind=st.sampled_from(OPENED), number=NUMBERS, picks=PICKS)
    def use(self, kind: UseKind, number: int, picks: list[int]) -> None:
        signal = Signal(OVER_WITH[kind], SignalNumber(number))
        units = self._pick("live", picks)
        if units and signal not in self.model.astray:
            self.usage.open(kind, signal, _array(units))
            self.model.uses |= {(kind, signal, unit) for unit in units}

    @rule(picks=PICKS, reading=st.sampled_from((True, True, False)))
    def lose_owner(self, picks: list[int], reading: bool) -> None:
        """Free or move units, behind the steps that write them."""
        fixed = self.model.under(*PINS) | self.model.lost_units()
        self._vacate([u for u in self._pick("live", picks) if u not in fixed], reading=reading)

    @precondition(lambda self: self.model.under(UseKind.RECEIVE_HOLD))
    @rule(picks=PICKS, places=PICKS, reading=st.booleans())
    def move_held(self, picks: list[int], places: list[int], reading: bool) -> None:
        held = self.model.under(UseKind.RECEIVE_HOLD)
        fixed = self.model.under(UseKind.LOAD_RESERVATION) | self.model.lost_units()
        sources = [unit for unit in self._pick("live", picks) if unit in held and unit not in fixed]
        destinations = self._pick("hole", places)
        count = min(len(sources), len(destinations))
        sources, destinations = sources[:count], destinations[:count]
        self._take(destinations, Consumer.MOVE_DESTINATION)
        self.usage.carry_holds(_array(sources), _array(destinations))
        renamed = dict(zip(sources, destinations, strict=True))
        self.model.uses = {
            (kind, signal, renamed.get(unit, unit) if kind is UseKind.RECEIVE_HOLD else unit)
            for kind, signal, unit in self.model.uses
        }
        self._vacate(sources, reading=reading)

    @rule(picks=PICKS, consumer=st.sampled_from(list(Consumer)))
    def take(self, picks: list[int], consumer: Consumer) -> None:
        self._take(self._pick("hole", picks), consumer)

    @precondition(lambda self: self.model.launched > self.model.retired)
    @rule(ahead=st.integers(1, 3))
    def retire(self, ahead: int) -> None:
        self._retire_through(min(self.model.retired + ahead, self.model.launched))

    @rule(number=NUMBERS, kind=st.sampled_from((SignalKind.COPY, SignalKind.TRANSFER)))
    def release(self, number: int, kind: SignalKind) -> None:
        signal = Signal(kind, SignalNumber(number))
        self.fences.release(signal)
        assert self.usage.release(signal).tolist() == self.model.release(signal)

    @rule(number=NUMBERS, kind=st.sampled_from(PINS))
    def unpin(self, number: int, kind: UseKind) -> None:
        signal = Signal(OVER_WITH[kind], SignalNumber(number))
        pinned = {use for use in self.model.uses if use[:2] == (kind, signal)}
        if pinned:
            self.model.uses -= pinned
            assert self.usage.close(kind, signal).tolist() == sorted(unit for *_, unit in pinned)

    @rule(number=NUMBERS)
    def lose_transfer(self, number: int) -> None:
        signal = transfer_signal(number)
        self.usage.quarantine(signal)
        self.fences.quarantine(signal)
        if any(kind in NETWORK and s == signal for kind, s, _ in self.model.uses) or any(
            s == signal for _, s, _ in self.model.fences
        ):
            self.model.astray.add(signal)

    @rule(units=st.integers(1, UNITS))
    def retreat(self, units: int) -> None:
        low = max(1, self.end - units)
        staying = set(self.model.units("live")) | self.model.lost_units()
        low = max([low, *(unit + 1 for unit in staying)])
        expected = self.model.leave(low, self.end)
        left = self.usage.leave(low, self.end)
        assert {(use.kind, use.signal, int(u)) for use in left for u in use.units} == expected
        for use in left:
            self.fences.add_units(use.units, UNIT_BYTES, HAZARD_OF[use.kind], use.signal)
        self.end = low

    @rule(units=st.integers(1, 6))
    def grow(self, units: int) -> None:
        blocked = self.model.blocked(lost=False)
        for unit in range(self.end, min(UNITS, self.end + units)):
            if any(byte // UNIT_BYTES == unit for byte in blocked):
                return
            self.model.state[unit] = "hole"
            self.end = unit + 1

    @rule(picks=PICKS, reader=st.sampled_from(list(Reader)))
    def read(self, picks: list[int], reader: Reader) -> None:
        units = self._pick("live", picks)
        try:
            expected = self.model.writers(units, reader)
        except Closed:
            with pytest.raises(InvariantError, match=r"band.move_cleared"):
                self.usage.writers(_array(units), reader)
        else:
            assert self.usage.writers(_array(units), reader) == expected

    @precondition(lambda self: self.model.fences)
    @rule(start=st.integers(0, UNITS * UNIT_BYTES), consumer=st.sampled_from(list(Consumer)))
    def write_from_the_next_band(self, start: int, consumer: Consumer) -> None:
        starts = [start, start + 3 * NEXT_BAND_BYTES]
        met = [self.model.open_on_bytes(at, NEXT_BAND_BYTES) for at in starts]
        found = self.fences.openness(_array(starts), NEXT_BAND_BYTES, consumer)
        assert found.tolist() == [self.model.openness(each, consumer) for each in met]
        try:
            expected = self.model.cleared(met[0] | met[1], consumer)
        except Closed:
            with pytest.raises(InvariantError, match=r"band.take_cleared"):
                self.fences.signals(_array(starts), NEXT_BAND_BYTES, consumer)
        else:
            waits = self.fences.signals(_array(starts), NEXT_BAND_BYTES, consumer)
            assert waits == self.model.waits(expected)

    # ---- what holds after each ------------------------------------------------------------------

    @invariant()
    def records_and_facts_are_those_of_the_model(self) -> None:
        self.usage.check((1, max(2, self.end)))
        self.fences.check()
        facts = [f.tolist() if isinstance(f, np.ndarray) else f for f in self.usage.facts]
        assert facts == self.model.facts()
        assert self.usage.fenced_units(self._are_holes) == self.model.fenced_units()
        told = [
            (kind, signal, count)
            for kind, signal, count in self.usage.records()
            if kind is not UseKind.VACATED_READ or signal.kind is SignalKind.STEP
        ]
        assert sorted(told, key=str) == sorted(self.model.records(), key=str)
        assert _bytes_of(self.fences.blocked()) == self.model.blocked(lost=False)
        assert _bytes_of(self.fences.quarantined()) == self.model.blocked(lost=True)

    @invariant()
    def choices_are_those_of_the_model(self) -> None:
        spare, live = self.model.units("hole", "vacated"), self.model.units("live")
        moving = [self.model.may_move(unit) for unit in live]
        assert self.usage.may_move(_array(live)).tolist() == moving
        for consumer in Consumer:
            expected = [self.model.openness(self.model.open_on(unit), consumer) for unit in spare]
            assert self.usage.openness(_array(spare), consumer).tolist() == expected

    # ---- helpers --------------------------------------------------------------------------------

    def _pick(self, state: str, picks: list[int]) -> list[int]:
        units = self.model.units(state)
        return list(dict.fromkeys(units[pick % len(units)] for pick in picks)) if units else []

    def _are_holes(self, units: Units) -> Mask:
        return np.array([self.model.state[int(unit)] == "hole" for unit in units], dtype=np.bool_)

    def _retire_through(self, step: int) -> None:
        self.fences.retire_through(step)
        assert self.usage.retire_through(step).tolist() == self.model.retire_through(step)

    def _vacate(self, units: list[int], *, reading: bool) -> None:
        written = [
            step
            for step, known in self.model.writes.items()
            if units and (known is None or known & set(units))
        ]
        if written:
            self._retire_through(max(written))
        reads = reading and self.model.launched > self.model.retired
        step = self.model.launched if reads else None
        freed = self.usage.vacate(_array(units), step=step)
        assert sorted(freed.tolist()) == self.model.vacate(units, step)

    def _take(self, units: list[int], consumer: Consumer) -> None:
        """Hand holes out. Nothing that closes a unit is ever open on one: no Closed comes out."""
        met = [self.model.open_on(unit) for unit in units]
        signals = {signal for each in met for signal in self.model.cleared(each, consumer)}
        assert self.usage.hazards(_array(units), consumer) == self.model.waits(signals)
        starts = [unit * UNIT_BYTES for unit in units]
        under = [self.model.open_on_bytes(start, UNIT_BYTES) for start in starts]
        signals = {signal for each in under for signal in self.model.cleared(each, consumer)}
        waits = self.fences.signals(_array(starts), UNIT_BYTES, consumer)
        assert waits == self.model.waits(signals)
        self.model.state.update(dict.fromkeys(units, "live"))


def _settings(max_examples: int, step_count: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=step_count,
        deadline=None,
        print_blob=True,
        # No hill climbing: it was seen to go on for minutes where a score has no bound.
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TestLedger = LedgerMachine.TestCase
TestLedger.settings = _settings(40, 40)


@pytest.mark.sweep
class TestLedgerForLong(LedgerMachine.TestCase):
    settings = _settings(400, 80)
