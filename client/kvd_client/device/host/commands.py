"""Commands on host memory, carried out with numpy by the thread that plays the stream.

Tables and grids are checked where commands are collected, in the thread that can still do
something about a wrong one. Execution is written for few, long numpy calls: each short one gives up
and wants back the interpreter lock, which a busy scheduler thread may keep for milliseconds.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kvd_client.device.host.memory import ByteArray, HostMemory
from kvd_client.device.host_pool import HostPool
from kvd_client.device.places import RowTable
from kvd_client.device.port import IntArray, NumberLists
from kvd_client.device.recipes import Recipe
from kvd_client.errors import DeviceError

SMALL_BYTES: Final = 1 << 16
"""Up to so many bytes are zeroed by one indexed store, however the units lie."""
RUNS_MAX: Final = 8
"""Up to so many runs of adjacent units are filled one by one; more go through one indexed store."""
STAGING_BYTES: Final = 8 << 20
"""A copy gathers its sources in pieces of about this size: in reach of the caches, no more."""

_Step: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]
"""A function below and its arguments."""

_WORDS: Final = struct.Struct("=QQ")


class HostCommands:
    """Commands on one host memory, in the order in which they were added."""

    def __init__(self, memory: HostMemory) -> None:
        if not memory.writable:
            raise DeviceError("commands need a writable mapping, and this one is read-only")
        self._memory = memory
        self._bytes = memory.bytes
        self._size_bytes = memory.size_bytes
        self._steps: list[_Step] = []

    def zero_bytes(self, *, start_bytes: int, end_bytes: int) -> None:
        """Fill ``[start_bytes, end_bytes)`` with zero."""
        if not 0 <= start_bytes <= end_bytes <= self._size_bytes:
            raise DeviceError(
                f"bytes [{start_bytes}, {end_bytes}) are not within the {self._size_bytes} mapped"
            )
        self._steps.append((_zero_bytes, (self._bytes[start_bytes:end_bytes],)))

    def zero_units(self, *, base_bytes: int, unit_bytes: int, units: IntArray) -> None:
        """Fill units with zero; adjacent ones are filled together."""
        grid = self._memory.grid(base_bytes, unit_bytes)
        if len(units):
            self._steps.append((_zero_units, (grid, units)))

    def move_units(
        self, *, base_bytes: int, unit_bytes: int, sources: IntArray, destinations: IntArray
    ) -> None:
        """Copy units to others, or onto themselves; the two lists are equally long."""
        grid = self._memory.grid(base_bytes, unit_bytes)
        if len(sources) != len(destinations):
            raise DeviceError(f"{len(sources)} units cannot move to {len(destinations)} places")
        if len(sources):
            self._steps.append((_move_units, (grid, sources, destinations)))

    def copy_in(
        self,
        *,
        base_bytes: int,
        unit_bytes: int,
        units: IntArray,
        pool: HostPool,
        host_units: IntArray,
    ) -> None:
        """Copy places of a host pool into units, pair by pair."""
        grid = self._pooled(base_bytes, unit_bytes, units, pool, host_units)
        self._steps.append((_copy_units, (grid, units, pool.units, host_units)))

    def copy_out(
        self,
        *,
        base_bytes: int,
        unit_bytes: int,
        units: IntArray,
        pool: HostPool,
        host_units: IntArray,
    ) -> None:
        """Copy units into places of a host pool, pair by pair."""
        grid = self._pooled(base_bytes, unit_bytes, units, pool, host_units)
        self._steps.append((_copy_units, (pool.units, host_units, grid, units)))

    def write_int32(
        self, *, offset_bytes: int, entry_count: int, indices: IntArray, values: IntArray
    ) -> None:
        """Write entries of a table of int32; an index that occurs twice gets the last value."""
        table = self._memory.table(offset_bytes, entry_count)
        if len(indices) != len(values):
            raise DeviceError(f"{len(indices)} table entries cannot hold {len(values)} values")
        if len(indices):
            self._steps.append((_write_int32, (table, indices, values)))

    def write_rows(
        self, *, table: RowTable, rows: IntArray, places: IntArray, pages: IntArray
    ) -> None:
        """Write pages into rows of a request table, and how many tokens each row now reaches."""
        cells = self._memory.table(table.pages_offset_bytes, table.row_count * table.row_pages)
        lengths = self._memory.table(table.lengths_offset_bytes, table.row_count)
        if not len(rows) == len(places) == len(pages):
            raise DeviceError(
                f"{len(rows)} rows and {len(places)} places cannot hold {len(pages)} pages"
            )
        if len(rows):
            self._steps.append((_write_rows, (cells, lengths, table, rows, places, pages)))

    def write_words(self, *, offset_bytes: int, values: tuple[int, int]) -> None:
        """Write two uint64 words in one store of 16 bytes."""
        end_bytes = offset_bytes + _WORDS.size
        if offset_bytes % _WORDS.size or not 0 <= offset_bytes < end_bytes <= self._size_bytes:
            raise DeviceError(f"no pair of words can lie at byte {offset_bytes}")
        target = self._bytes[offset_bytes:end_bytes].data
        self._steps.append((_write_words, (target, _WORDS.pack(*values))))

    def add_recipe(self, recipe: Recipe, lists: NumberLists, first_list: int) -> bool:
        """Return False: numpy wants each list by itself anyway."""
        return False

    def _pooled(
        self,
        base_bytes: int,
        unit_bytes: int,
        units: IntArray,
        pool: HostPool,
        host_units: IntArray,
    ) -> npt.NDArray[Any]:
        """Return the grid of units that a copy with a host pool works on."""
        if pool.unit_bytes != unit_bytes or len(units) != len(host_units):
            raise DeviceError(
                f"{len(units)} units of {unit_bytes} bytes cannot pair up with {len(host_units)} "
                f"places of {pool.unit_bytes} bytes"
            )
        grid = self._memory.grid(base_bytes, unit_bytes)
        # As bytes: a grid may be made of wider words, places in a pool never are.
        return grid.view(np.uint8).reshape(len(grid), -1)[:, :unit_bytes]

    def run(self) -> None:
        """Carry the commands out, in order; called by the thread that plays the stream."""
        for function, arguments in self._steps:
            function(*arguments)


def _zero_bytes(area: ByteArray) -> None:
    area[:] = 0


def _zero_units(grid: npt.NDArray[Any], units: IntArray) -> None:
    if len(units) * grid.strides[0] <= SMALL_BYTES:
        grid[units] = 0
        return
    ordered = np.sort(units)
    run_ends = (ordered[1:] - ordered[:-1] != 1).nonzero()[0] + 1
    if len(run_ends) >= RUNS_MAX:
        grid[ordered] = 0
        return
    start = 0
    for end in [*run_ends.tolist(), len(ordered)]:
        grid[int(ordered[start]) : int(ordered[end - 1]) + 1] = 0
        start = end


def _move_units(grid: npt.NDArray[Any], sources: IntArray, destinations: IntArray) -> None:
    piece = max(1, STAGING_BYTES // grid.strides[0])
    for start in range(0, len(sources), piece):
        end = start + piece
        grid[destinations[start:end]] = grid[sources[start:end]]


def _copy_units(
    targets: npt.NDArray[np.uint8],
    target_units: IntArray,
    sources: npt.NDArray[np.uint8],
    source_units: IntArray,
) -> None:
    piece = max(1, STAGING_BYTES // sources.strides[0])
    for start in range(0, len(source_units), piece):
        end = start + piece
        targets[target_units[start:end]] = sources[source_units[start:end]]


def _write_int32(table: npt.NDArray[np.int32], indices: IntArray, values: IntArray) -> None:
    table[indices] = values


def _write_rows(
    cells: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int32],
    table: RowTable,
    rows: IntArray,
    places: IntArray,
    pages: IntArray,
) -> None:
    cells[rows * table.row_pages + places] = pages
    lengths[rows] = (places + 1) * table.page_tokens


def _write_words(target: memoryview, words: bytes) -> None:
    target[:] = words
