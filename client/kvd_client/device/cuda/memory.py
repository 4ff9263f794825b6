"""CUDA memory: a mapping of shareable device memory in this process, and what keeps it mapped."""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvd_client.device.cuda.driver import Driver
from kvd_client.errors import DeviceError, ForkedError
from kvd_client.process import PROCESS

if TYPE_CHECKING:
    from kvd_client.device.cuda.submission import RowPlace


class Mapping:
    """Mapped bytes that stay mapped as long as anything refers to this object.

    It speaks ``__cuda_array_interface__``, so a tensor made from it refers to it. Interpreters that
    end leave the unmapping to the driver, for nobody may use it any more by then.
    """

    def __init__(self, address: int, size_bytes: int, unmap: Callable[[], None]) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self._end = weakref.finalize(self, _in_process(PROCESS.pid, unmap))
        self._end.atexit = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Describe the bytes as one flat array of uint8.

        They are said to be writable even where they are not: torch takes nothing else. Whether they
        are is up to the GPU's page tables, which end a process that writes to what it may only
        read.
        """
        return {
            "shape": (self.size_bytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }


def _in_process(pid: int, unmap: Callable[[], None]) -> Callable[[], None]:
    """Return what unmaps in the process that mapped, and does nothing in a fork of it."""
    return lambda: unmap() if PROCESS.pid == pid else None


class CudaMemory:
    """One mapping of an arena. It belongs to the process that made it, not to a fork of it."""

    def __init__(
        self, driver: Driver, mapping: Mapping, size_bytes: int, *, writable: bool
    ) -> None:
        """Take over a mapping that holds at least ``size_bytes``."""
        self._driver = driver
        self._mapping: Mapping | None = mapping
        self._size_bytes = size_bytes
        self._writable = writable
        self._address = mapping.address
        self._pid = PROCESS.pid
        self.row_place: RowPlace | None = None
        """Where the request table of the last command lies: a memory has one."""
        self.unconfirmed_moves = False
        """Whether moves were collected behind the last words that say how far work is.

        Work of a later segment must not share a launch with them: see `CudaCommands.write_words`.
        """

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the mapping."""
        return self._size_bytes

    @property
    def writable(self) -> bool:
        """Return whether this process may write to it."""
        return self._writable

    @property
    def address(self) -> int:
        """Return where byte 0 lies on the device; raises DeviceError after close or in a fork."""
        self.mapping()
        return self._address

    @property
    def buffer(self) -> memoryview:
        """Raise DeviceError: the host does not see the bytes."""
        raise DeviceError("the host cannot see CUDA memory; use read_bytes, or a tensor over it")

    @property
    def device_array(self) -> Mapping:
        """Return what tensors are made from, without copies."""
        return self.mapping()

    def read_bytes(self, start_bytes: int, end_bytes: int) -> bytes:
        """Return a copy of bytes ``[start, end)``; waits for the copy, not for any stream."""
        mapping = self.mapping()
        if not 0 <= start_bytes <= end_bytes <= self._size_bytes:
            raise DeviceError(
                f"bytes [{start_bytes}, {end_bytes}) are not within the {self._size_bytes} mapped"
            )
        self._driver.enter()
        return self._driver.read(mapping.address + start_bytes, end_bytes - start_bytes)

    def mapping(self) -> Mapping:
        """Return the mapping; raises DeviceError after close, ForkedError in a fork."""
        if self._pid != PROCESS.pid:
            raise ForkedError(
                f"memory was mapped by process {self._pid} and is used by its fork {PROCESS.pid}"
            )
        if self._mapping is None:
            raise DeviceError("memory is used after it was closed")
        return self._mapping

    def close(self) -> None:
        """Give the mapping up; tensors made from it stay valid and keep it until they die."""
        self._mapping = None
