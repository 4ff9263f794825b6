"""Commands on host memory, carried out with numpy by the thread that plays the stream.

Arguments are checked where commands are collected, in the thread that can still do something about
a wrong one. Execution is written for few, long numpy calls: each short one gives up and wants back
the interpreter lock, which a busy scheduler thread may keep for milliseconds.
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
        if not len(units):
            return
        rows = self._unit_rows(base_bytes, unit_bytes)
        _check_places("unit", units, end_count=len(rows))
        self._steps.append(partial(_zero_units, rows, units))

    def move_units(
        self, *, base_bytes: int, unit_bytes: int, sources: IntArray, destinations: IntArray
    ) -> None:
        """Copy units to others; the two lists are disjoint and equally long."""
        if len(sources) != len(destinations):
            raise DeviceError(f"{len(sources)} units cannot move to {len(destinations)} places")
        if not len(sources):
            return
        rows = self._unit_rows(base_bytes, unit_bytes)
        _check_places("source unit", sources, end_count=len(rows))
        _check_places("destination unit", destinations, end_count=len(rows))
        self._steps.append(partial(_move_units, rows, sources, destinations))

    def write_int32(self, *, offset_bytes: int, indices: IntArray, values: IntArray) -> None:
        """Write a table's entries; a repeated one gets the last value."""
        if len(indices) != len(values):
            raise DeviceError(f"{len(indices)} table entries cannot hold {len(values)} values")
        if not len(indices):
            return
        if offset_bytes % _INT32.itemsize or not 0 <= offset_bytes <= self._size_bytes:
            raise DeviceError(f"no int32 table can lie at byte {offset_bytes}")
        table_bytes = self._bytes[offset_bytes:]
        count = len(table_bytes) // _INT32.itemsize
        table = table_bytes[: count * _INT32.itemsize].view(_INT32)
        _check_places("table entry", indices, end_count=count)
        self._steps.append(partial(_write_int32, table, indices, values))

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

    def _unit_rows(self, base_bytes: int, unit_bytes: int) -> npt.NDArray[Any]:
        """Return the units as rows of the widest words that divide them."""
        if unit_bytes <= 0 or not 0 <= base_bytes <= self._size_bytes:
            raise DeviceError(f"no units of {unit_bytes} bytes can start at byte {base_bytes}")
        word: np.dtype[Any] = np.dtype(np.uint8)
        if not (base_bytes | unit_bytes) % 8:
            word = np.dtype(np.uint64)
        elif not (base_bytes | unit_bytes) % 4:
            word = np.dtype(np.uint32)
        unit_count = (self._size_bytes - base_bytes) // unit_bytes
        area = self._bytes[base_bytes : base_bytes + unit_count * unit_bytes]
        return area.view(word).reshape(unit_count, unit_bytes // word.itemsize)


def _check_places(what: str, places: IntArray, *, end_count: int) -> None:
    # Read as unsigned, a negative place is a huge one: a single pass finds both.
    if int(places.view(np.uint64).max()) >= end_count:
        wrong = next(int(place) for place in places if not 0 <= place < end_count)
        raise DeviceError(f"{what} {wrong} is not within [0, {end_count})")


def _zero_bytes(area: ByteArray) -> None:
    area[:] = 0


def _zero_units(rows: npt.NDArray[Any], units: IntArray) -> None:
    ordered = np.sort(units)
    run_ends = (ordered[1:] - ordered[:-1] != 1).nonzero()[0] + 1
    if len(run_ends) >= RUNS_MAX:
        rows[ordered] = 0
        return
    start = 0
    for end in [*run_ends.tolist(), len(ordered)]:
        rows[ordered[start] : ordered[end - 1] + 1] = 0
        start = end


def _move_units(rows: npt.NDArray[Any], sources: IntArray, destinations: IntArray) -> None:
    unit_bytes = rows.shape[1] * rows.itemsize
    piece = max(1, STAGING_BYTES // unit_bytes)
    for start in range(0, len(sources), piece):
        end = start + piece
        rows[destinations[start:end]] = rows[sources[start:end]]


def _write_int32(table: npt.NDArray[np.int32], indices: IntArray, values: IntArray) -> None:
    table[indices] = values


def _write_words(target: memoryview, words: bytes) -> None:
    target[:] = words
