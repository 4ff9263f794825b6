"""Interprocess events: the second way to order processes, for places where fence pages fail.

An exporter records an event of a fixed pool on its stream and hands out which slot it is, and the
how manieth use of it. An importer opens a slot's event once and asks for it on the host, with a
deadline: a stream that waited for the event of a killed process would wait for ever. Whoever
relays them passes two small structs: `SharedEvent` one way, `Acknowledged` the other.

A slot is used again only when its last use was acknowledged, so an event is never recorded anew,
nor destroyed, while somebody may still ask for it.
"""

from typing import NamedTuple, NewType

from kvd_client.device.cuda.driver import Driver, Handle
from kvd_client.device.cuda.event import poll
from kvd_client.device.cuda.stream import CudaStream
from kvd_client.errors import DeviceError, ForkedError, UsageError
from kvd_client.process import PROCESS
from kvd_proto.errors import ErrorCode

Generation = NewType("Generation", int)
"""Counts the uses of a slot, from 1."""

SLOTS_COUNT = 16
"""Events of one exporter: more than the processes of a rank ask for at a time."""


class SharedEvent(NamedTuple):
    """One use of a slot, as it travels."""

    slot_index: int
    generation: Generation
    gpu_uuid: str
    shared: bytes
    """What the driver opens the slot's event with; the same for every use of the slot."""


class Acknowledged(NamedTuple):
    """An importer needs a use of a slot no more."""

    slot_index: int
    generation: Generation


class EventExporter:
    """A pool of events that other processes may ask for."""

    def __init__(self, driver: Driver, *, slots_count: int = SLOTS_COUNT) -> None:
        driver.enter()
        self._driver = driver
        self._pid = PROCESS.pid
        self._events: list[tuple[Handle, bytes]] = [
            driver.new_shared_event() for _ in range(slots_count)
        ]
        self._generations = [Generation(0)] * slots_count
        self._free = list(range(slots_count))

    def export(self, stream: CudaStream) -> SharedEvent:
        """Record a free event behind everything on a stream; raises DeviceError if none is free."""
        self._check_owner()
        if not self._free:
            raise DeviceError(
                f"all {len(self._events)} interprocess events wait to be acknowledged",
                code=ErrorCode.BUSY,
            )
        slot = self._free.pop(0)
        event, shared = self._events[slot]
        stream.record_in(event)
        self._generations[slot] = Generation(self._generations[slot] + 1)
        return SharedEvent(slot, self._generations[slot], self._driver.gpu_uuid, shared)

    def acknowledge(self, done: Acknowledged) -> None:
        """Take a slot back; raises UsageError for a use that is not the current one."""
        self._check_owner()
        slot = done.slot_index
        if not 0 <= slot < len(self._events):
            raise UsageError(f"there are slots 0 to {len(self._events) - 1}, not {slot}")
        if slot in self._free or self._generations[slot] != done.generation:
            raise UsageError(
                f"use {done.generation} of slot {slot} is not in use; the last was "
                f"{self._generations[slot]}"
            )
        self._free.append(slot)

    def close(self) -> None:
        """Destroy the events; raises UsageError while one is not acknowledged."""
        self._check_owner()
        if len(self._free) < len(self._events):
            raise UsageError(
                f"{len(self._events) - len(self._free)} interprocess events are not acknowledged"
            )
        self._driver.enter()
        while self._events:
            self._driver.end_event(self._events.pop()[0])
        self._free.clear()

    def _check_owner(self) -> None:
        _check_process(self._pid, "interprocess events")


class EventImporter:
    """Another process's events, opened once per slot."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pid = PROCESS.pid
        self._events: dict[int, Handle] = {}

    def wait(self, one: SharedEvent, timeout_ms: int) -> Acknowledged:
        """Block until the exporter's stream got there; returns what the exporter has to be told.

        Raises DeviceError with code TIMED_OUT, also of an exporter that died.
        """
        event = self._open(one)
        if not poll(lambda: self._driver.is_reached(event), timeout_ms):
            raise DeviceError(
                f"use {one.generation} of another process's event {one.slot_index} was not "
                f"reached within {timeout_ms} ms",
                code=ErrorCode.TIMED_OUT,
            )
        return Acknowledged(one.slot_index, one.generation)

    def reached(self, one: SharedEvent) -> bool:
        """Return whether the exporter's stream got there."""
        return self._driver.is_reached(self._open(one))

    def close(self) -> None:
        """Destroy what was opened."""
        _check_process(self._pid, "opened interprocess events")
        self._driver.enter()
        while self._events:
            self._driver.end_event(self._events.popitem()[1])

    def _open(self, one: SharedEvent) -> Handle:
        _check_process(self._pid, "opened interprocess events")
        self._driver.enter()
        if one.gpu_uuid != self._driver.gpu_uuid:
            raise UsageError(f"the event is of {one.gpu_uuid}, this process on another GPU")
        # By slot and not by the bytes, of which the driver leaves some as it found them.
        event = self._events.get(one.slot_index)
        if event is None:
            event = self._events[one.slot_index] = self._driver.open_shared_event(one.shared)
        return event


def _check_process(pid: int, what: str) -> None:
    if pid != PROCESS.pid:
        raise ForkedError(f"{what} of process {pid} are used by its fork {PROCESS.pid}")
