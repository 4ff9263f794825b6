"""Commands on host memory, carried out with numpy by the thread that plays the stream.

Tables and grids are checked where commands are collected, in the thread that can still do
something about a wrong one. Execution is written for few, long numpy calls: each short one gives up
and wants back the interpreter lock, which a busy scheduler thread may keep for milliseconds.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kvd_client.device.host.memory import ByteArray, HostMemory
from kvd_client.device.port import IntArray
from kvd_client.errors import DeviceError

RUNS_MAX: Final = 8
"""Up to so many runs of adjacent units are filled one by one; more go through one indexed store."""
STAGING_BYTES: Final = 8 << 20
"""A copy gathers its sources in pieces of about this size: in reach of the caches, no more."""

_Step: TypeAlias = Callable[[], None]

_WORDS: Final = struct.Struct("=QQ")
_INT32: Final = np.dtype(np.int32)


class HostCommands:
    """Commands on one host memory, in the order in which they were added."""

    def __init__(self, memory: HostMemory) -> None:
        if not memory.writable:
            raise DeviceError("commands need a writable mapping, and this one is read-only")
        self._bytes = memory.bytes
        self._size_bytes = memory.size_bytes
        self._steps: list[_Step] = []

    def zero_bytes(self, *, start_bytes: int, end_bytes: int) -> None:
        """Fill ``[start_bytes, end_bytes)`` with zero."""
        if not 0 <= start_bytes <= end_bytes <= self._size_bytes:
            raise DeviceError(
                f"bytes [{start_bytes}, {end_bytes}) are not within the {self._size_bytes} mapped"
            )
        self._steps.append(partial(_zero_bytes, self._bytes[start_bytes:end_bytes]))

    def zero_units(self, *, base_bytes: int, unit_bytes: int, units: IntArray) -> None:
        """Fill units with zero; adjacent ones are filled together."""
        self._check_grid(base_bytes, unit_bytes)
        if len(units):
            self._steps.append(partial(_zero_units, self._bytes, base_bytes, unit_bytes, units))

    def move_units(
        self, *, base_bytes: int, unit_bytes: int, sources: IntArray, destinations: IntArray
    ) -> None:
        """Copy units to others; the two lists are disjoint and equally long."""
        self._check_grid(base_bytes, unit_bytes)
        if len(sources) != len(destinations):
            raise DeviceError(f"{len(sources)} units cannot move to {len(destinations)} places")
        if len(sources):
            self._steps.append(
                partial(_move_units, self._bytes, base_bytes, unit_bytes, sources, destinations)
            )

    def write_int32(
        self, *, offset_bytes: int, entry_count: int, indices: IntArray, values: IntArray
    ) -> None:
        """Write entries of a table of int32; an index that occurs twice gets the last value."""
        end_bytes = offset_bytes + entry_count * _INT32.itemsize
        if offset_bytes % _INT32.itemsize or not 0 <= offset_bytes <= end_bytes <= self._size_bytes:
            raise DeviceError(
                f"no table of {entry_count} int32 can lie at byte {offset_bytes} "
                f"of {self._size_bytes}"
            )
        if len(indices) != len(values):
            raise DeviceError(f"{len(indices)} table entries cannot hold {len(values)} values")
        if len(indices):
            self._steps.append(
                partial(_write_int32, self._bytes, offset_bytes, end_bytes, indices, values)
            )

    def write_words(self, *, offset_bytes: int, values: tuple[int, int]) -> None:
        """Write two uint64 words in one store of 16 bytes."""
        end_bytes = offset_bytes + _WORDS.size
        if offset_bytes % _WORDS.size or not 0 <= offset_bytes < end_bytes <= self._size_bytes:
            raise DeviceError(f"no pair of words can lie at byte {offset_bytes}")
        target = self._bytes[offset_bytes:end_bytes].data
        self._steps.append(partial(_write_words, target, _WORDS.pack(*values)))

    def run(self) -> None:
        """Carry the commands out, in order; called by the thread that plays the stream."""
        for step in self._steps:
            step()

    def _check_grid(self, base_bytes: int, unit_bytes: int) -> None:
        if unit_bytes <= 0 or not 0 <= base_bytes <= self._size_bytes:
            raise DeviceError(
                f"no units of {unit_bytes} bytes can start at byte {base_bytes} "
                f"of {self._size_bytes}"
            )


def unit_rows(memory_bytes: ByteArray, base_bytes: int, unit_bytes: int) -> npt.NDArray[Any]:
    """Return the whole units behind ``base_bytes`` as rows of the widest words that divide them."""
    word: np.dtype[Any] = np.dtype(np.uint8)
    if not (base_bytes | unit_bytes) % 8:
        word = np.dtype(np.uint64)
    elif not (base_bytes | unit_bytes) % 4:
        word = np.dtype(np.uint32)
    unit_count = (len(memory_bytes) - base_bytes) // unit_bytes
    area = memory_bytes[base_bytes : base_bytes + unit_count * unit_bytes]
    return area.view(word).reshape(unit_count, unit_bytes // word.itemsize)


def _zero_bytes(area: ByteArray) -> None:
    area[:] = 0


def _zero_units(memory_bytes: ByteArray, base_bytes: int, unit_bytes: int, units: IntArray) -> None:
    ordered = np.sort(units)
    run_ends = (ordered[1:] - ordered[:-1] != 1).nonzero()[0] + 1
    if len(run_ends) >= RUNS_MAX:
        unit_rows(memory_bytes, base_bytes, unit_bytes)[ordered] = 0
        return
    start = 0
    for end in [*run_ends.tolist(), len(ordered)]:
        start_bytes = base_bytes + int(ordered[start]) * unit_bytes
        end_bytes = base_bytes + (int(ordered[end - 1]) + 1) * unit_bytes
        memory_bytes[start_bytes:end_bytes] = 0
        start = end


def _move_units(
    memory_bytes: ByteArray,
    base_bytes: int,
    unit_bytes: int,
    sources: IntArray,
    destinations: IntArray,
) -> None:
    rows = unit_rows(memory_bytes, base_bytes, unit_bytes)
    piece = max(1, STAGING_BYTES // unit_bytes)
    for start in range(0, len(sources), piece):
        end = start + piece
        rows[destinations[start:end]] = rows[sources[start:end]]


def _write_int32(
    memory_bytes: ByteArray,
    offset_bytes: int,
    end_bytes: int,
    indices: IntArray,
    values: IntArray,
) -> None:
    memory_bytes[offset_bytes:end_bytes].view(_INT32)[indices] = values


def _write_words(target: memoryview, words: bytes) -> None:
    target[:] = words
