"""A fault anywhere while effects are applied poisons the applier for good."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvd.testing.small_rank import (
    FULL,
    PLAN,
    SmallRank,
    outcome,
)
from kvd_client.device.apply import Applier
from kvd_client.device.host.device import HostDevice
from kvd_client.device.host.stream import HostEvent, HostStream
from kvd_client.device.places import RowTable
from kvd_client.device.port import Commands, Event, IntArray, Memory, NumberLists
from kvd_client.device.recipes import Recipe
from kvd_client.errors import DeviceError, PoisonedError
from kvd_proto.outcomes import (
    ClearSlots,
    Column,
    Move,
    ResetRows,
    Wait,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
)


@pytest.fixture
def rank() -> Iterator[SmallRank]:
    rank = SmallRank()
    yield rank
    rank.close()


@pytest.fixture
def running(rank: SmallRank) -> Iterator[HostEvent]:
    """Stand for the end of a step that runs until the test is over, so that it is waited for."""
    end = HostEvent()
    yield end
    end.fire(None)


class PlantedError(Exception):
    """Raised by the faulty device in place of a call."""


class Fault:
    """Counts the calls that reach a device and raises at one of them."""

    def __init__(self, at_call: int | None) -> None:
        self.calls = 0
        self._at_call = at_call

    def pass_through(self) -> None:
        self.calls += 1
        if self.calls - 1 == self._at_call:
            raise PlantedError(f"call {self._at_call}")


class FaultyCommands:
    def __init__(self, inner: Commands, fault: Fault) -> None:
        self.inner = inner
        self._fault = fault

    def zero_bytes(self, *, start_bytes: int, end_bytes: int) -> None:
        self._fault.pass_through()
        self.inner.zero_bytes(start_bytes=start_bytes, end_bytes=end_bytes)

    def zero_units(self, *, base_bytes: int, unit_bytes: int, units: IntArray) -> None:
        self._fault.pass_through()
        self.inner.zero_units(base_bytes=base_bytes, unit_bytes=unit_bytes, units=units)

    def move_units(
        self, *, base_bytes: int, unit_bytes: int, sources: IntArray, destinations: IntArray
    ) -> None:
        self._fault.pass_through()
        self.inner.move_units(
            base_bytes=base_bytes, unit_bytes=unit_bytes, sources=sources, destinations=destinations
        )

    def write_int32(
        self, *, offset_bytes: int, entry_count: int, indices: IntArray, values: IntArray
    ) -> None:
        self._fault.pass_through()
        self.inner.write_int32(
            offset_bytes=offset_bytes, entry_count=entry_count, indices=indices, values=values
        )

    def write_rows(
        self, *, table: RowTable, rows: IntArray, places: IntArray, pages: IntArray
    ) -> None:
        self._fault.pass_through()
        self.inner.write_rows(table=table, rows=rows, places=places, pages=pages)

    def write_words(self, *, offset_bytes: int, values: tuple[int, int]) -> None:
        self._fault.pass_through()
        self.inner.write_words(offset_bytes=offset_bytes, values=values)

    def add_recipe(self, recipe: Recipe, lists: NumberLists, first_list: int) -> bool:
        return False


class FaultyStream:
    def __init__(self, inner: HostStream, fault: Fault) -> None:
        self._inner = inner
        self._fault = fault
        self.name = inner.name

    def enqueue(self, commands: Commands) -> None:
        self._fault.pass_through()
        assert isinstance(commands, FaultyCommands)
        self._inner.enqueue(commands.inner)

    def submit(self, work: Callable[[], None]) -> None:
        self._fault.pass_through()
        self._inner.submit(work)

    def record(self) -> Event:
        self._fault.pass_through()
        return self._inner.record()

    def wait(self, event: Event) -> None:
        self._fault.pass_through()
        self._inner.wait(event)

    def synchronize(self, timeout_ms: int) -> None:
        self._inner.synchronize(timeout_ms)

    def close(self, timeout_ms: int) -> None:
        self._inner.close(timeout_ms)


class FaultyDevice(HostDevice):
    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def commands(self, memory: Memory) -> FaultyCommands:  # type: ignore[override]
        self._fault.pass_through()
        return FaultyCommands(super().commands(memory), self._fault)


EVERYTHING = outcome(
    [
        Zero(FULL, Column(0)),
        WriteMap(FULL, Column(1), Column(0)),
        Wait(1),
        WriteMap(FULL, Column(1)),
        WriteRows(Column(2), Column(3), Column(1)),
    ],
    [
        WriteSlots(Column(2), Column(2)),
        Move(FULL, Column(0), Column(4)),
        ClearSlots(Column(4)),
        ResetRows(Column(2)),
    ],
    columns=[[20], [5], [1], [0], [30]],
)
DEVICE_CALLS = 13
"""Two lists of commands, eight commands, two submissions and a wait for EVERYTHING.

The progress of the first segment is not written: the second may be redone together with it."""


def apply_everything(rank: SmallRank, fault: Fault, running: HostEvent) -> Applier:
    applier = Applier(
        device=FaultyDevice(fault),
        memory=rank.memory,
        plan=PLAN,
        stream=FaultyStream(rank.stream, fault),
    )
    applier.note_step(1, running)
    applier.apply(1, EVERYTHING)
    return applier


def test_the_number_of_device_calls_is_the_one_that_faults_are_planted_at(
    rank: SmallRank, running: HostEvent
) -> None:
    fault = Fault(at_call=None)

    applier = apply_everything(rank, fault, running)

    assert fault.calls == DEVICE_CALLS
    assert applier.applied == 1
    assert applier.poisoned is None


@pytest.mark.parametrize("at_call", range(DEVICE_CALLS))
def test_an_exception_at_any_device_call_poisons_for_good(
    rank: SmallRank, running: HostEvent, at_call: int
) -> None:
    fault = Fault(at_call)
    applier = Applier(
        device=FaultyDevice(fault),
        memory=rank.memory,
        plan=PLAN,
        stream=FaultyStream(rank.stream, fault),
    )
    applier.note_step(1, running)

    with pytest.raises(PlantedError):
        applier.apply(1, EVERYTHING)

    assert applier.applied == 0
    assert applier.poisoned == (
        f"entries from position 1 cannot be applied: PlantedError: call {at_call}"
    )
    calls: list[Callable[[], object]] = [
        lambda: applier.apply(1, EVERYTHING),
        lambda: applier.apply_reply(1, []),
        applier.clear,
        applier.take_launch_work,
        lambda: applier.enqueue_launch_work(rank.stream),
    ]
    for call in calls:
        with pytest.raises(PoisonedError, match=f"call {at_call}"):
            call()
    assert fault.calls == at_call + 1


def test_a_failure_of_earlier_work_on_the_stream_poisons_the_next_reply(rank: SmallRank) -> None:
    rank.stream.submit(lambda: np.zeros(1)[5])
    with pytest.raises(DeviceError):
        rank.settle()

    with pytest.raises(DeviceError, match="IndexError"):
        rank.applier.apply(1, outcome())

    assert rank.applier.poisoned is not None


def test_an_interrupt_of_the_user_poisons_too(
    rank: SmallRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: HostStream, commands: Commands) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(HostStream, "enqueue", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rank.applier.apply(1, outcome())

    with pytest.raises(PoisonedError):
        rank.applier.apply(1, outcome())


def test_the_first_cause_of_poison_stays(rank: SmallRank) -> None:
    rank.applier.poison("first")
    rank.applier.poison("second")

    assert rank.applier.poisoned == "first"
    with pytest.raises(PoisonedError, match="first"):
        rank.applier.check_usable()
