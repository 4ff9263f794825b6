"""Drivers for measuring: one that is timed, and one that does nothing, on any machine."""

import ctypes
import mmap
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final, cast

from kvd_client.device.cuda.driver import Driver
from kvd_client.device.cuda.submission import HEADER_WORDS

TIMED: Final = frozenset(
    {"is_reached", "record", "upload", "wait_event", "wait_word", "write_word"}
)
"""Calls on the way of a submission, beside its launches."""
LAUNCH: Final = "launch"
DONE_ADDRESS_WORD: Final = 7
"""Word of a submission's header that says where the lane is to be written, before its number."""
CAPTURE_CHECK: Final = "capture_check"


class TimedDriver:
    """A driver that counts what its calls take; each costs two readings of the clock more."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self.spent_ns: dict[str, int] = {}
        """Nanoseconds in calls by name, for whoever clears it."""
        self.calls_count: dict[str, int] = {}
        for name in TIMED:
            setattr(self, name, self._timed(name, getattr(inner, name)))

    @property
    def driver(self) -> Driver:
        """Return this driver as devices take it."""
        return cast("Driver", self)

    def launcher(self, stream: Any, **shape: Any) -> Callable[[int], None]:
        """Return the inner driver's launcher, timed."""
        return self._timed(LAUNCH, self._inner.launcher(stream, **shape))

    def capture_check(self, stream: Any) -> Callable[[], bool]:
        """Return the inner driver's check, timed."""
        return self._timed(CAPTURE_CHECK, self._inner.capture_check(stream))

    def clear(self) -> None:
        """Forget what was counted."""
        self.spent_ns.clear()
        self.calls_count.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        spent_ns, calls_count = self.spent_ns, self.calls_count

        def timed(*arguments: Any) -> Any:
            started_ns = perf_counter_ns()
            try:
                return call(*arguments)
            finally:
                spent_ns[name] = spent_ns.get(name, 0) + perf_counter_ns() - started_ns
                calls_count[name] = calls_count.get(name, 0) + 1

        return timed


class IdleDriver:
    """A driver that does nothing: what is left is the time of everything above it."""

    gpu_uuid = ""
    multiprocessor_count = 132
    granularity_bytes = mmap.PAGESIZE

    def __init__(self) -> None:
        self._kept: list[object] = []

    @property
    def driver(self) -> Driver:
        """Return this driver as devices take it."""
        return cast("Driver", self)

    def enter(self) -> None:
        """Do nothing, as fast as a real one does in a thread that it knows."""

    def import_memory(self, descriptor: int, size_bytes: int, *, writable: bool) -> int:
        """Map shareable memory of the host."""
        mapping = mmap.mmap(descriptor, size_bytes)
        return self._keep(ctypes.c_char.from_buffer(mapping))

    def allocate(self, size_bytes: int) -> int:
        """Return the address of memory of the host."""
        return self._keep((ctypes.c_uint8 * size_bytes)())

    def allocate_host(self, size_bytes: int) -> int:
        """Return the address of memory of the host."""
        return self.allocate(size_bytes)

    def register(self, host_address: int, _size_bytes: int) -> int:
        """Return the address that it is at anyway."""
        return host_address

    def launcher(
        self, _stream: Any, *, moves: bool, inline: bool, arguments_address: int
    ) -> Callable[[int], None]:
        """Return what launches nothing.

        Of submissions in staging memory it writes the lane, for whoever wants to use it again.
        """
        if moves or inline:
            return _launch_nothing
        pointer = ctypes.c_uint64.from_address(
            ctypes.c_uint64.from_address(arguments_address).value
        )

        def write_lane(_block_count: int) -> None:
            words = (ctypes.c_int64 * HEADER_WORDS).from_address(pointer.value)
            if words[DONE_ADDRESS_WORD]:
                ctypes.c_int64.from_address(words[DONE_ADDRESS_WORD]).value = words[
                    DONE_ADDRESS_WORD + 1
                ]

        return write_lane

    def upload(self, _stream: Any, address: int, host_address: int, size_bytes: int) -> None:
        """Copy at once."""
        ctypes.memmove(address, host_address, size_bytes)

    def capture_check(self, _stream: Any) -> Callable[[], bool]:
        """Return what says that no stream is captured."""
        return _captures_nothing

    def is_reached(self, _event: Any) -> bool:
        """Return True: there is nothing to be done before."""
        return True

    def record(self, _event: Any, _stream: Any) -> None:
        """Do nothing."""

    def wait_event(self, _stream: Any, _event: Any) -> None:
        """Do nothing."""

    def __getattr__(self, _name: str) -> Callable[..., int]:
        return _do_nothing

    def _keep(self, area: Any) -> int:
        self._kept.append(area)
        return ctypes.addressof(area)


def _captures_nothing() -> bool:
    return False


def _launch_nothing(_block_count: int) -> None:
    pass


def _do_nothing(*_arguments: Any, **_named: Any) -> int:
    return 0
