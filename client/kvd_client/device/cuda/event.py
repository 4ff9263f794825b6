"""CUDA events of one process, reused: they are recorded every step and cost a call to make."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import Final

from kvd_client.device.cuda.driver import Driver, Handle
from kvd_client.errors import DeviceError, ForkedError
from kvd_client.process import PROCESS
from kvd_proto.errors import ErrorCode

SPIN_S: Final = 100e-6
"""How long a wait of the host polls without a pause: most of what is waited for is nearly over."""
PAUSE_S: Final = 50e-6
"""Between two looks afterwards: about what a sleep takes at least."""


def poll(reached: Callable[[], bool], timeout_ms: int) -> bool:
    """Block until something is reached; False when the time-out came first."""
    start = monotonic()
    while not reached():
        waited = monotonic() - start
        if waited * 1000 > timeout_ms:
            return False
        if waited > SPIN_S:
            sleep(PAUSE_S)
    return True


class EventPool:
    """Events that nobody uses at present.

    A handle may be recorded again while a stream still waits for its last record: the wait means
    what was recorded when it was enqueued.
    """

    def __init__(self, driver: Driver, *, ready_count: int) -> None:
        """Make some, so that recording the first ones makes none."""
        self.driver = driver
        self._free = [driver.new_event() for _ in range(ready_count)]

    def take(self) -> Handle:
        """Return an event that is the caller's until it is given back."""
        try:
            return self._free.pop()
        except IndexError:
            return self.driver.new_event()

    def give(self, handle: Handle) -> None:
        """Take an event back."""
        self._free.append(handle)


class CudaEvent:
    """A point in the order of a CUDA stream of this process."""

    __slots__ = ("_pid", "_pool", "handle")

    def __init__(self, pool: EventPool) -> None:
        self.handle = pool.take()
        self._pool = pool
        self._pid = PROCESS.pid

    def __del__(self) -> None:
        # Without a pool there was no event to be had.
        if hasattr(self, "_pool"):
            self._pool.give(self.handle)

    @property
    def reached(self) -> bool:
        """Return whether the stream got there without a failure."""
        self._check_owner()
        self._pool.driver.enter()
        try:
            return self._pool.driver.is_reached(self.handle)
        except DeviceError:
            return False

    def synchronize(self, timeout_ms: int) -> None:
        """Block until the stream got there; raises DeviceError with code TIMED_OUT, or of a fault.

        A fault of any kernel of the process counts: the context is lost with it.
        """
        self._check_owner()
        self._pool.driver.enter()
        if not poll(lambda: self._pool.driver.is_reached(self.handle), timeout_ms):
            raise DeviceError(
                f"an event was not reached within {timeout_ms} ms", code=ErrorCode.TIMED_OUT
            )

    def _check_owner(self) -> None:
        if self._pid != PROCESS.pid:
            raise ForkedError(f"an event of process {self._pid} is used by its fork {PROCESS.pid}")
