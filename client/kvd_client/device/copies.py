"""Loads and backups of one rank: copies beside the allocator's stream, on streams of their own.

A copy starts behind everything that the allocator's stream was given before it, and behind all
forwards that were launched; whoever comes later waits for its event where the log says so. Its end
is found by looking, when a batch is sent, and told the daemon: nothing here decides by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvd_client.device.fences import BACKUP_LANE, LOAD_LANE, FencePage
from kvd_client.device.host_pool import HostPool
from kvd_client.device.port import CopyCommands, Device, Event, IntArray, Memory, Stream
from kvd_client.errors import ReplyError, UsageError
from kvd_proto.memory import StoragePlan
from kvd_proto.outcomes import CopyStream

_LANES: Final = {CopyStream.LOAD: LOAD_LANE, CopyStream.BACKUP: BACKUP_LANE}


@dataclass(frozen=True, slots=True)
class CopyWork:
    """Between two pieces of commands: a band's part of a copy starts."""

    copy: int
    stream: CopyStream
    band_index: int
    units: IntArray
    host_units: IntArray


@dataclass(frozen=True, slots=True)
class WaitForCopy:
    """Between two pieces of commands: the stream waits for a copy."""

    copy: int


class HostCopies:
    """The host pools of a rank, its copies in flight, and the streams that play them."""

    def __init__(
        self, device: Device, memory: Memory, plan: StoragePlan, fences: FencePage | None = None
    ) -> None:
        """Start without pools; streams begin with their first copy, each with a lane of its own."""
        self._device = device
        self._memory = memory
        self._plan = plan
        self._fences = fences
        self._pools: dict[int, HostPool] = {}
        self._streams: dict[CopyStream, Stream] = {}
        self._ends: dict[int, Event] = {}
        """Events behind copies that were not seen to be over, in the order of starting."""
        self._newest_copy = 0

    def add_pool(self, band: str, units_count: int) -> HostPool:
        """Return the new host pool of a band.

        Raises UsageError for no such band, a band that has one, and a device that cannot copy.
        """
        names = [item.name for item in self._plan.bands]
        if band not in names:
            raise UsageError(f"there is no band {band!r}; the plan has {names}")
        index = names.index(band)
        if index in self._pools:
            raise UsageError(f"band {band} has a host pool already")
        self._commands()
        pool = HostPool(unit_bytes=self._plan.bands[index].unit_bytes, units_count=units_count)
        self._pools[index] = pool
        return pool

    def check_places(self, band: str, places: IntArray, what: str) -> None:
        """Raise UsageError unless a band has a host pool with these places.

        A batch asks it, which costs nobody anything; behind an answer it would cost the rank.
        """
        index = [item.name for item in self._plan.bands].index(band)
        pool = self._pools.get(index)
        if pool is None:
            raise UsageError(
                f"{what}: band {band} has no host pool on this rank; host_pool() makes one"
            )
        wrong = _outside(pool, places)
        if len(wrong):
            raise UsageError(
                f"{what}: place {int(wrong[0])} is outside [0, {pool.units_count}) of band "
                f"{band}'s host pool"
            )

    def check(self, work: CopyWork) -> None:
        """Raise ReplyError for a copy that cannot be carried out, before anything is enqueued."""
        band = self._plan.bands[work.band_index].name
        pool = self._pools.get(work.band_index)
        if pool is None:
            raise ReplyError(f"copy {work.copy} needs a host pool of band {band}, which has none")
        if len(work.units) != len(work.host_units):
            raise ReplyError(
                f"copy {work.copy} has {len(work.units)} units for {len(work.host_units)} places"
            )
        wrong = _outside(pool, work.host_units)
        if len(wrong):
            raise ReplyError(
                f"copy {work.copy} names place {int(wrong[0])} of band {band}'s host pool, which "
                f"has {pool.units_count}"
            )

    def start(self, work: CopyWork, behind: Sequence[Event]) -> None:
        """Enqueue a copy behind events on the stream of its kind."""
        stream = self._streams.get(work.stream)
        if stream is None:
            lane = None if self._fences is None else self._fences.lane(_LANES[work.stream])
            stream = self._streams[work.stream] = self._device.stream(work.stream.value, lane)
        for event in behind:
            stream.wait(event)
        pool, commands = self._pools[work.band_index], self._commands()
        collect = commands.copy_in if work.stream is CopyStream.LOAD else commands.copy_out
        collect(
            base_bytes=0,
            unit_bytes=pool.unit_bytes,
            units=work.units,
            pool=pool,
            host_units=work.host_units,
        )
        stream.enqueue(commands)
        # The parts of a copy share a stream, so the event behind the last is behind all of them.
        self._ends[work.copy] = stream.record()
        self._newest_copy = max(self._newest_copy, work.copy)

    def end_of(self, copy: int) -> Event | None:
        """Return the event behind a copy; None if it was seen to be over.

        Raises ReplyError for a copy that was never started here.
        """
        if not self.has_started(copy):
            raise ReplyError(
                f"an effect waits for copy {copy}; the newest that this rank started is "
                f"{self._newest_copy}"
            )
        return self._ends.get(copy)

    def has_started(self, copy: int) -> bool:
        """Return whether a copy was started here; it may be over since."""
        return 0 < copy <= self._newest_copy

    def take_ended(self) -> list[int]:
        """Return the copies that are over and were not returned before, oldest first."""
        ended = [copy for copy, end in self._ends.items() if end.reached]
        for copy in ended:
            del self._ends[copy]
        return ended

    def close(self, timeout_ms: int) -> None:
        """Let copies in flight end, then end their streams."""
        for stream in self._streams.values():
            stream.close(timeout_ms)

    def _commands(self) -> CopyCommands:
        commands = self._device.commands(self._memory)
        if not isinstance(commands, CopyCommands):
            raise UsageError(f"the device {self._device.name} has no copies to host pools here")
        return commands


def _outside(pool: HostPool, places: IntArray) -> IntArray:
    """Return the places that a host pool does not have."""
    outside: IntArray = places[(places < 0) | (places >= pool.units_count)]
    return outside
