"""Host memory: a mapping of a memfd, as numpy sees it."""

import mmap
import os

import numpy as np
import numpy.typing as npt

from kvd_client.device.descriptors import descriptor_size
from kvd_client.errors import DeviceError, ForkedError

ByteArray = npt.NDArray[np.uint8]


class HostMemory:
    """One shared mapping. It belongs to the process that made it, not to a fork of it."""

    def __init__(self, descriptor: int, size_bytes: int, *, writable: bool) -> None:
        """Map a descriptor, which stays the caller's to close; raises DeviceError."""
        held_bytes = descriptor_size(descriptor)
        if not 0 < size_bytes <= held_bytes:
            raise DeviceError(
                f"cannot map {size_bytes} bytes of descriptor {descriptor}, "
                f"which holds {held_bytes} bytes"
            )
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        try:
            self._mapping = mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED, prot=access)
        except OSError as error:
            raise DeviceError(
                f"cannot map {size_bytes} bytes of descriptor {descriptor}: {error}"
            ) from error
        self._bytes: ByteArray | None = np.frombuffer(self._mapping, dtype=np.uint8)
        self._pid = os.getpid()
        self._size_bytes = size_bytes
        self._writable = writable

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
        """Return the address of byte 0 in this process."""
        return int(self.bytes.ctypes.data)

    @property
    def buffer(self) -> memoryview:
        """Return the bytes of the mapping; read-only if it is mapped so."""
        return self.bytes.data

    @property
    def bytes(self) -> ByteArray:
        """Return the bytes as a flat array; raises DeviceError after close or in a fork."""
        if self._pid != os.getpid():
            raise ForkedError(
                f"memory was mapped by process {self._pid} and is used by its fork {os.getpid()}"
            )
        if self._bytes is None:
            raise DeviceError("memory is used after it was closed")
        return self._bytes

    def close(self) -> None:
        """Give the mapping up; arrays made from it stay valid and keep it until they die."""
        self._bytes = None
        try:
            self._mapping.close()
        except BufferError:
            # Views are alive somewhere. Unmapping under them would crash the process, so the
            # mapping goes with the last of them.
            return
