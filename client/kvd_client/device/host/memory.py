"""Host memory: a mapping of a memfd, as numpy sees it."""

import builtins
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from kvd_client.device.descriptors import descriptor_size
from kvd_client.errors import DeviceError, ForkedError
from kvd_client.process import PROCESS

ByteArray = npt.NDArray[np.uint8]
_INT32 = np.dtype(np.int32)


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
        # As many as the plan has tables and bands: cutting them anew for every command costs more
        # than the command.
        self._tables: dict[tuple[int, int], npt.NDArray[np.int32]] = {}
        self._grids: dict[tuple[int, int], npt.NDArray[Any]] = {}
        self._pid = PROCESS.pid
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
    def device_array(self) -> None:
        """Return None: the host sees the bytes through `buffer`."""
        return None

    def read_bytes(self, start_bytes: int, end_bytes: int) -> builtins.bytes:
        """Return a copy of bytes ``[start, end)`` as they are now."""
        if not 0 <= start_bytes <= end_bytes <= self._size_bytes:
            raise DeviceError(
                f"bytes [{start_bytes}, {end_bytes}) are not within the {self._size_bytes} mapped"
            )
        return self.bytes[start_bytes:end_bytes].tobytes()

    @property
    def bytes(self) -> ByteArray:
        """Return the bytes as a flat array; raises DeviceError after close or in a fork."""
        if self._pid != PROCESS.pid:
            raise ForkedError(
                f"memory was mapped by process {self._pid} and is used by its fork {PROCESS.pid}"
            )
        if self._bytes is None:
            raise DeviceError("memory is used after it was closed")
        return self._bytes

    def table(self, offset_bytes: int, entry_count: int) -> npt.NDArray[np.int32]:
        """Return a table of int32 in the mapping; raises DeviceError if it does not lie there."""
        table = self._tables.get((offset_bytes, entry_count))
        if table is None:
            end_bytes = offset_bytes + entry_count * _INT32.itemsize
            if offset_bytes % _INT32.itemsize or not 0 <= offset_bytes <= end_bytes <= len(
                self.bytes
            ):
                raise DeviceError(
                    f"no table of {entry_count} int32 can lie at byte {offset_bytes} "
                    f"of {self._size_bytes}"
                )
            table = self.bytes[offset_bytes:end_bytes].view(_INT32)
            self._tables[offset_bytes, entry_count] = table
        return table

    def grid(self, base_bytes: int, unit_bytes: int) -> npt.NDArray[Any]:
        """Return the whole units behind ``base_bytes``, as rows of the widest words they hold.

        Raises DeviceError if no such unit can lie in the mapping.
        """
        grid = self._grids.get((base_bytes, unit_bytes))
        if grid is None:
            if unit_bytes <= 0 or not 0 <= base_bytes <= self._size_bytes:
                raise DeviceError(
                    f"no units of {unit_bytes} bytes can start at byte {base_bytes} "
                    f"of {self._size_bytes}"
                )
            word: np.dtype[Any] = np.dtype(np.uint8)
            if not (base_bytes | unit_bytes) % 8:
                word = np.dtype(np.uint64)
            elif not (base_bytes | unit_bytes) % 4:
                word = np.dtype(np.uint32)
            unit_count = (self._size_bytes - base_bytes) // unit_bytes
            area = self.bytes[base_bytes : base_bytes + unit_count * unit_bytes]
            grid = area.view(word).reshape(unit_count, unit_bytes // word.itemsize)
            self._grids[base_bytes, unit_bytes] = grid
        return grid

    def close(self) -> None:
        """Give the mapping up; arrays made from it stay valid and keep it until they die."""
        self._bytes = None
        self._tables.clear()
        self._grids.clear()
        try:
            self._mapping.close()
        except BufferError:
            # Views are alive somewhere. Unmapping under them would crash the process, so the
            # mapping goes with the last of them.
            return
