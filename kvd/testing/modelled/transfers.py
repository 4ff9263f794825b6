"""Copies between memories, and transfers over a network that obeys no stream."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvd.errors import WorkloadError
from kvd.testing.modelled.device import ModelledEvent, ModelledWork
from kvd.testing.modelled.memory import ModelledMemory
from kvd.testing.modelled.queue import Run
from kvd.testing.modelled.shadow import Accesses
from kvd.testing.modelled.world import World

ByteArray: TypeAlias = npt.NDArray[np.uint8]
Starts: TypeAlias = Sequence[int] | npt.NDArray[np.int64]


def copy_work(
    label: str,
    *,
    source: ModelledMemory,
    source_starts: Starts,
    destination: ModelledMemory,
    destination_starts: Starts,
    length_bytes: int,
) -> ModelledWork:
    """Return work that copies ranges of one memory to another, for a stream such as ``load``.

    Range ``i`` goes to range ``i``; raises WorkloadError if the lists are not equally long.
    """
    if len(source_starts) != len(destination_starts):
        raise WorkloadError(
            f"{len(source_starts)} ranges cannot be copied to {len(destination_starts)}"
        )
    accesses = Accesses(
        reads=(source.extent(source_starts, length_bytes),),
        writes=(destination.extent(destination_starts, length_bytes),),
    )

    def run() -> Accesses:
        ranges = read_ranges(source, source_starts, length_bytes)
        write_ranges(destination, destination_starts, ranges)
        return accesses

    return ModelledWork(label, run)


def read_ranges(memory: ModelledMemory, starts: Starts, length_bytes: int) -> ByteArray:
    """Return ranges of a memory, one per line."""
    found = [memory.bytes[start : start + length_bytes] for start in _numbers(starts)]
    return np.stack(found) if found else np.zeros((0, length_bytes), dtype=np.uint8)


def write_ranges(memory: ModelledMemory, starts: Starts, ranges: ByteArray) -> None:
    """Store one line per range."""
    for start, line in zip(_numbers(starts), ranges, strict=True):
        memory.bytes[start : start + line.size] = line


class Transfer:
    """A transfer on its way: a range at a time, each whenever the world likes."""

    def __init__(self, *, held: bool) -> None:
        self._held = held
        self._event: ModelledEvent | None = None
        self._moved: list[ByteArray] = []

    @property
    def ended(self) -> bool:
        """Return whether all ranges were moved; the host then knows that the peer is done."""
        assert self._event is not None
        return self._event.reached

    @property
    def payload(self) -> ByteArray:
        """Return what was read or written so far, one range per line."""
        return np.stack(self._moved) if self._moved else np.zeros((0, 0), dtype=np.uint8)

    def let_go(self) -> None:
        """Let a held transfer begin."""
        self._held = False

    def wait(self, timeout_ms: int) -> None:
        """Run the world until the transfer ended; raises DeviceError as `Event.synchronize`."""
        assert self._event is not None
        self._event.synchronize(timeout_ms)

    def start(
        self,
        world: World,
        name: str,
        runs: Sequence[Callable[[], ByteArray]],
        accesses: Sequence[Accesses],
    ) -> None:
        """Enqueue the ranges; called once, by the network."""
        queue = world.passing_queue(name)
        for nth, (move, touched) in enumerate(zip(runs, accesses, strict=True)):
            world.enqueue(
                queue,
                f"range {nth} of {len(runs)}",
                self._run_of(move, touched),
                ready=lambda: not self._held,
            )
        self._event = ModelledEvent(world, queue.record())

    def _run_of(self, move: Callable[[], ByteArray], touched: Accesses) -> Run:
        def run() -> Accesses:
            self._moved.append(move())
            return touched

        return run


class Network:
    """A network card that knows addresses and nothing of streams.

    It may act from the moment a transfer is posted until the host has seen that it ended. What the
    host knows to be over when it posts is over before; everything else races.
    """

    def __init__(self, world: World, name: str = "network") -> None:
        """Transfers show up as streams whose names begin with ``name``."""
        self._world = world
        self._name = name
        self._count = 0

    def send(
        self, memory: ModelledMemory, starts: Starts, length_bytes: int, *, held: bool = False
    ) -> Transfer:
        """Post reads of ranges; the payload is what the peer receives."""

        def move_of(start: int) -> Callable[[], ByteArray]:
            return lambda: memory.bytes[start : start + length_bytes].copy()

        numbers = _numbers(starts)
        return self._post(
            "send",
            [move_of(start) for start in numbers],
            [Accesses(reads=(memory.extent([start], length_bytes),)) for start in numbers],
            held=held,
        )

    def receive(
        self, memory: ModelledMemory, starts: Starts, content: ByteArray, *, held: bool = False
    ) -> Transfer:
        """Post writes of ranges, by the peer; ``content`` has a line for each range."""

        def move_of(start: int, line: ByteArray) -> Callable[[], ByteArray]:
            def move() -> ByteArray:
                memory.bytes[start : start + line.size] = line
                return line

            return move

        numbers = _numbers(starts)
        return self._post(
            "receive",
            [move_of(start, line) for start, line in zip(numbers, content, strict=True)],
            [Accesses(writes=(memory.extent([start], content.shape[1]),)) for start in numbers],
            held=held,
        )

    def _post(
        self,
        kind: str,
        runs: Sequence[Callable[[], ByteArray]],
        accesses: Sequence[Accesses],
        *,
        held: bool,
    ) -> Transfer:
        self._count += 1
        transfer = Transfer(held=held)
        transfer.start(self._world, f"{self._name}/{kind} {self._count}", runs, accesses)
        return transfer


def _numbers(starts: Starts) -> list[int]:
    return [int(start) for start in starts]
