"""Host streams: a worker thread plays the stream, in order, apart from the thread that fills it.

The worker holds the queue and the lane but not the stream object, so a stream that nobody refers to
any more ends its thread. Threads are daemons: a process that exits does not wait for a stream that
waits for an event.
"""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, NamedTuple, TypeAlias

from kvd_client.device.fences import Lane, LaneNumber
from kvd_client.device.host.commands import HostCommands
from kvd_client.device.port import Commands, Event
from kvd_client.errors import DeviceError, ForkedError
from kvd_client.process import PROCESS
from kvd_proto.errors import ErrorCode

QUEUE_ITEMS_MAX: Final = 65_536
"""Most submissions and events that wait in one stream: minutes of a scheduler that runs ahead."""

_NO_NUMBER: Final = LaneNumber(0)


class HostEvent:
    """A point in the order of a host stream; fires once, as reached or as failed."""

    __slots__ = ("_fired", "failure")

    def __init__(self) -> None:
        self._fired = threading.Event()
        self.failure: BaseException | None = None

    @property
    def reached(self) -> bool:
        """Return whether the stream got there without a failure."""
        return self._fired.is_set() and self.failure is None

    def fire(self, failure: BaseException | None) -> None:
        """Release whoever waits; called by the worker of the stream that recorded the event."""
        self.failure = failure
        self._fired.set()

    def block(self, timeout_ms: int | None) -> bool:
        """Block this thread until the event fires; False when the time-out came first."""
        return self._fired.wait(None if timeout_ms is None else timeout_ms / 1000)

    def synchronize(self, timeout_ms: int) -> None:
        """Block until the event fires; raises DeviceError with code TIMED_OUT, or of a failure."""
        if not self.block(timeout_ms):
            raise DeviceError(
                f"an event was not reached within {timeout_ms} ms", code=ErrorCode.TIMED_OUT
            )
        failure = self.failure
        if failure is not None:
            raise DeviceError(
                f"work before an event failed: {type(failure).__name__}: {failure}"
            ) from failure


class _Work(NamedTuple):
    number: LaneNumber
    run: Callable[[], None]


class _EventWait(NamedTuple):
    event: HostEvent


_Item: TypeAlias = _Work | HostEvent | _EventWait | None
"""None ends the worker."""


class _Playing:
    """What the worker thread and the stream object share."""

    def __init__(self, lane: Lane | None) -> None:
        self.lane = lane
        self.queue: SimpleQueue[_Item] = SimpleQueue()
        self.failure: BaseException | None = None


class HostStream:
    """A stream of the host device."""

    def __init__(self, name: str, lane: Lane | None = None) -> None:
        self._name = name
        self._lane = lane
        self._pid = PROCESS.pid
        self._playing = _Playing(lane)
        self._queue = self._playing.queue
        self._order = threading.Lock()
        self._closed = False
        self._worker = threading.Thread(
            target=_play, args=(self._playing,), name=f"kvd-stream-{name}", daemon=True
        )
        self._worker.start()
        self._end = weakref.finalize(self, self._queue.put, None)

    @property
    def name(self) -> str:
        """Return the name that errors use."""
        return self._name

    def enqueue(self, commands: Commands) -> None:
        """Enqueue collected commands of the host device."""
        if not isinstance(commands, HostCommands):
            raise DeviceError(f"host stream {self._name!r} cannot run a {type(commands).__name__}")
        self.submit(commands.run)

    def submit(self, work: Callable[[], None]) -> None:
        """Enqueue host-side work; raises DeviceError if the stream failed or its queue is full."""
        self._check_usable()
        # The lock keeps lane numbers in the order of the queue when several threads submit.
        with self._order:
            if self._lane is None:
                self._queue.put(_Work(_NO_NUMBER, work))
                return
            number = self._lane.begin()
            self._queue.put(_Work(number, work))
            self._lane.mark_submitted(number)

    def record(self) -> HostEvent:
        """Enqueue an event and return it."""
        self._check_usable()
        event = HostEvent()
        self._queue.put(event)
        return event

    def wait(self, event: Event) -> None:
        """Make later work of this stream wait for an event of a host stream."""
        self._check_usable()
        if not isinstance(event, HostEvent):
            raise DeviceError(
                f"host stream {self._name!r} cannot wait for a {type(event).__name__}"
            )
        self._queue.put(_EventWait(event))

    def synchronize(self, timeout_ms: int) -> None:
        """Block until everything enqueued is over; raises DeviceError with code TIMED_OUT."""
        if threading.current_thread() is self._worker:
            raise DeviceError(f"work on stream {self._name!r} cannot wait for its own stream")
        event = self.record()
        if not event.block(timeout_ms):
            raise self._timed_out("did not come to its end", timeout_ms)
        self._check_usable()

    def close(self, timeout_ms: int) -> None:
        """Run what is enqueued, then end the worker; raises DeviceError with code TIMED_OUT."""
        self._check_owner()
        self._closed = True
        self._end()
        self._worker.join(timeout_ms / 1000)
        if self._worker.is_alive():
            raise self._timed_out("did not end", timeout_ms)
        if self._lane is not None:
            # Failed work and what came behind it were never done, and never will be.
            self._lane.complete()

    def _check_owner(self) -> None:
        if self._pid != PROCESS.pid:
            raise ForkedError(
                f"stream {self._name!r} belongs to process {self._pid} "
                f"and is used by its fork {PROCESS.pid}"
            )

    def _check_usable(self) -> None:
        self._check_owner()
        if self._closed:
            raise DeviceError(f"stream {self._name!r} is closed")
        failure = self._playing.failure
        if failure is not None:
            raise DeviceError(
                f"work on stream {self._name!r} failed: {type(failure).__name__}: {failure}"
            ) from failure
        if self._queue.qsize() >= QUEUE_ITEMS_MAX:
            raise DeviceError(
                f"stream {self._name!r} is full: QUEUE_ITEMS_MAX = {QUEUE_ITEMS_MAX} items wait"
            )

    def _timed_out(self, what: str, timeout_ms: int) -> DeviceError:
        return DeviceError(
            f"stream {self._name!r} {what} within {timeout_ms} ms", code=ErrorCode.TIMED_OUT
        )


def _play(playing: _Playing) -> None:
    """Run the items of a stream in order until it ends."""
    while (item := playing.queue.get()) is not None:
        if isinstance(item, HostEvent):
            item.fire(playing.failure)
        elif playing.failure is not None:
            pass
        elif isinstance(item, _EventWait):
            item.event.block(None)
            playing.failure = item.event.failure
        else:
            _run(playing, item)
        # What was run may hold the last views of a mapping; an idle stream must not keep them.
        item = None


def _run(playing: _Playing, work: _Work) -> None:
    try:
        work.run()
    except BaseException as error:  # rim: the stream keeps it, and its next call raises it
        playing.failure = error
        return
    if playing.lane is not None:
        playing.lane.mark_done(work.number)
