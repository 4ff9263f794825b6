"""The modelled device: the port of `kvd_client.device`, played by a world."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvd.testing.modelled.memory import ModelledCommands, ModelledMemory, grains_of
from kvd.testing.modelled.queue import Event as QueueEvent
from kvd.testing.modelled.queue import Queue, Run
from kvd.testing.modelled.shadow import NO_ACCESSES, Accesses, Grain
from kvd.testing.modelled.world import World
from kvd_client.device.descriptors import create_memory
from kvd_client.device.fences import Lane, LaneNumber
from kvd_client.device.port import Commands, Event, Memory
from kvd_client.errors import DeviceError
from kvd_proto.memory import StoragePlan


@dataclass(frozen=True, slots=True)
class ModelledWork:
    """Host-side work that says what it touches; to be submitted to a modelled stream."""

    label: str
    run: Run
    ready: Callable[[], bool] | None = None
    """Asked before it may run, for work that something outside the streams holds back."""

    def __call__(self) -> None:
        """Do the work at once, as a stream of another device would."""
        self.run()


class ModelledEvent:
    """A point in the order of a modelled stream."""

    __slots__ = ("_world", "inner")

    def __init__(self, world: World, inner: QueueEvent) -> None:
        self._world = world
        self.inner = inner

    @property
    def reached(self) -> bool:
        """Return whether the stream got there without a failure; the host then knows it did."""
        if not self.inner.fired or self.inner.failure is not None:
            return False
        self._world.host_knows(self.inner)
        return True

    def synchronize(self, timeout_ms: int) -> None:
        """Run the world until the stream got there; no time passes in it.

        Raises DeviceError: of a failure, or with code TIMED_OUT if the event cannot be reached.
        """
        self._world.run_until(self.inner)
        failure = self.inner.failure
        if failure is not None:
            raise DeviceError(
                f"work before an event failed: {type(failure).__name__}: {failure}"
            ) from failure


class ModelledStream:
    """A stream of the modelled device."""

    def __init__(self, world: World, name: str, lane: Lane | None, *, declares_only: bool) -> None:
        self._world = world
        self._queue = world.new_queue(name)
        self._lane = lane
        self._closed = False
        self._declares_only = declares_only

    @property
    def name(self) -> str:
        """Return the name that errors use."""
        return self._queue.name

    @property
    def queue(self) -> Queue:
        """Return what waits in this stream."""
        return self._queue

    def enqueue(self, commands: Commands) -> None:
        """Enqueue collected commands of the modelled device, each as an action of its own."""
        if not isinstance(commands, ModelledCommands):
            raise DeviceError(
                f"modelled stream {self.name!r} cannot run a {type(commands).__name__}"
            )
        elements = commands.seal()
        self._submit([(one.label, one.run) for one in elements] or [("no commands", _nothing)])

    def submit(self, work: Callable[[], None]) -> None:
        """Enqueue host-side work, which touches what a `ModelledWork` says and else nothing.

        Raises DeviceError for other work if the device takes declared work only.
        """
        if isinstance(work, ModelledWork):
            self._submit([(work.label, work.run)], ready=work.ready)
            return
        if self._declares_only:
            raise DeviceError(
                f"work on stream {self.name!r} does not say what it touches: pass a ModelledWork"
            )

        def run() -> Accesses:
            work()
            return NO_ACCESSES

        self._submit([("host-side work", run)])

    def record(self) -> ModelledEvent:
        """Enqueue an event and return it."""
        self._check_usable()
        return ModelledEvent(self._world, self._queue.record())

    def wait(self, event: Event) -> None:
        """Make later work of this stream wait for an event of a modelled stream."""
        self._check_usable()
        if not isinstance(event, ModelledEvent):
            raise DeviceError(
                f"modelled stream {self.name!r} cannot wait for a {type(event).__name__}"
            )
        self._queue.wait(event.inner)

    def synchronize(self, timeout_ms: int) -> None:
        """Run the world until everything enqueued is over.

        Raises DeviceError, with code TIMED_OUT if that cannot be.
        """
        if self._queue.busy:
            raise DeviceError(f"work on stream {self.name!r} cannot wait for its own stream")
        self._check_usable()
        self._world.run_until(self._queue.record())
        self._check_usable()

    def close(self, timeout_ms: int) -> None:
        """Run what is enqueued and take nothing more; raises DeviceError with code TIMED_OUT."""
        self._closed = True
        self._world.run_until(self._queue.record())
        if self._lane is not None:
            # Failed work and what came behind it were never done, and never will be.
            self._lane.complete()

    def _submit(
        self, pieces: Sequence[tuple[str, Run]], ready: Callable[[], bool] | None = None
    ) -> None:
        """Enqueue actions as one submission of the lane."""
        self._check_usable()
        lane = self._lane
        number = LaneNumber(0) if lane is None else lane.begin()
        for nth, (label, run) in enumerate(pieces, 1):
            after = None
            if lane is not None and nth == len(pieces):
                after = _done(lane, number)
            self._world.enqueue(self._queue, label, run, after=after, ready=ready)
        if lane is not None:
            lane.mark_submitted(number)

    def _check_usable(self) -> None:
        if self._closed:
            raise DeviceError(f"stream {self.name!r} is closed")
        failure = self._queue.failure
        if failure is not None:
            raise DeviceError(
                f"work on stream {self.name!r} failed: {type(failure).__name__}: {failure}"
            ) from failure


class ModelledDevice:
    """Maps memory and starts streams of one rank in a world."""

    def __init__(
        self,
        world: World,
        *,
        rank: str = "",
        plan: StoragePlan | None = None,
        declares_only: bool = False,
    ) -> None:
        """Take part in a world; ``rank`` heads the names of streams.

        With a plan, memory is watched in cells as large as the plan's parts allow; without one,
        byte by byte. With ``declares_only`` host-side work has to say what it touches.
        """
        self.world = world
        self._prefix = f"{rank}/" if rank else ""
        self._grains: tuple[Grain, ...] = () if plan is None else grains_of(plan)
        self._declares_only = declares_only
        self.queues: list[Queue] = []
        """What waits in each stream that was started here."""

    @property
    def name(self) -> str:
        """Return ``modelled``."""
        return "modelled"

    @property
    def takes_recipes(self) -> bool:
        """Return False: each effect is an action of its own."""
        return False

    @property
    def gpu_uuid(self) -> str:
        """Return an empty UUID: memory is the host's."""
        return ""

    def map(self, descriptor: int, size_bytes: int, *, writable: bool = True) -> ModelledMemory:
        """Map a descriptor, which stays the caller's to close; raises DeviceError."""
        return ModelledMemory(
            self.world, descriptor, size_bytes, writable=writable, grains=self._grains
        )

    def allocate(self, size_bytes: int) -> ModelledMemory:
        """Return fresh memory that only its mappings keep."""
        descriptor = create_memory("modelled", size_bytes)
        try:
            return self.map(descriptor, size_bytes)
        finally:
            os.close(descriptor)

    def stream(self, name: str, lane: Lane | None = None) -> ModelledStream:
        """Start a stream; with a lane, each submission is counted there for other processes."""
        stream = ModelledStream(
            self.world, self._prefix + name, lane, declares_only=self._declares_only
        )
        self.queues.append(stream.queue)
        return stream

    def kill(self) -> None:
        """Let the process of these streams die where they are; see `World.kill`.

        Lanes stay as they are: whoever buries the process completes them.
        """
        self.world.kill(self.queues, DeviceError("the process of this stream died"))

    def commands(self, memory: Memory) -> ModelledCommands:
        """Return an empty list of commands on a memory that this device mapped."""
        if not isinstance(memory, ModelledMemory):
            raise DeviceError(f"the modelled device cannot work on a {type(memory).__name__}")
        return ModelledCommands(memory)


def _nothing() -> Accesses:
    return NO_ACCESSES


def _done(lane: Lane, number: LaneNumber) -> Callable[[], None]:
    return lambda: lane.mark_done(number)
