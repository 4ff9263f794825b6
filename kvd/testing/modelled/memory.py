"""Memory of the modelled device, and commands on it that say which bytes they touch."""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvd.testing.modelled.queue import Run
from kvd.testing.modelled.shadow import Accesses, Extent, Grain, Shadow
from kvd.testing.modelled.world import World
from kvd_client.device.host.commands import HostCommands
from kvd_client.device.host.memory import HostMemory
from kvd_client.device.host_pool import HostPool
from kvd_client.device.places import RowTable
from kvd_client.device.port import IntArray, NumberLists
from kvd_client.device.recipes import Recipe
from kvd_client.errors import DeviceError
from kvd_proto.memory import StoragePlan

_INT32_BYTES = 4
_WORDS_BYTES = 16


class ModelledMemory(HostMemory):
    """A mapping whose readers and writers are known; all mappings of one memory share them."""

    def __init__(
        self,
        world: World,
        descriptor: int,
        size_bytes: int,
        *,
        writable: bool,
        grains: Sequence[Grain],
    ) -> None:
        """Map a descriptor, which stays the caller's to close; raises DeviceError."""
        super().__init__(descriptor, size_bytes, writable=writable)
        status = os.fstat(descriptor)
        self.world = world
        self.shadow: Shadow = world.shadow((status.st_dev, status.st_ino), status.st_size, grains)

    def extent(self, starts: npt.ArrayLike, length_bytes: int) -> Extent:
        """Return ranges ``[start, start + length_bytes)`` of this memory."""
        return self.shadow.extent(starts, length_bytes)

    def host_read(self, start_bytes: int, end_bytes: int) -> npt.NDArray[np.uint8]:
        """Return a copy of bytes, read by the host now; raises RaceError."""
        part = self.bytes[start_bytes:end_bytes]
        read = Accesses(reads=(self.extent([start_bytes], end_bytes - start_bytes),))
        return self.world.host_access("a read by the host", part.copy, read)

    def host_write(self, start_bytes: int, content: npt.NDArray[np.uint8]) -> None:
        """Store bytes, written by the host now; raises RaceError."""
        end_bytes = start_bytes + len(content)

        def store() -> None:
            self.bytes[start_bytes:end_bytes] = content

        written = Accesses(writes=(self.extent([start_bytes], len(content)),))
        self.world.host_access("a write by the host", store, written)


def grains_of(plan: StoragePlan) -> tuple[Grain, ...]:
    """Return cells that everything a rank touches fills: parts of units, entries of tables."""
    parts = [plan.arena_bytes, plan.sink_bytes]
    parts += [size for band in plan.bands for size in (band.unit_bytes, band.entry_bytes)]
    return (Grain(plan.arena_bytes, math.gcd(*parts)), Grain(plan.total_bytes, _INT32_BYTES))


class Element(NamedTuple):
    """One command: what it is called, and how it is carried out."""

    label: str
    run: Run


class ModelledCommands:
    """Commands on one modelled memory; each of them becomes an action of its own.

    The bytes are changed by the host device's commands. What is added here: which bytes that are,
    and whether the caller kept to the port, which forbids to change an array that was passed or to
    add to commands that were enqueued.
    """

    def __init__(self, memory: ModelledMemory) -> None:
        if not memory.writable:
            raise DeviceError("commands need a writable mapping, and this one is read-only")
        self._memory = memory
        self._elements: list[Element] = []
        self._sealed = False

    def zero_bytes(self, *, start_bytes: int, end_bytes: int) -> None:
        """Fill ``[start_bytes, end_bytes)`` with zero."""
        piece = self._piece()
        piece.zero_bytes(start_bytes=start_bytes, end_bytes=end_bytes)
        writes = (self._memory.extent([start_bytes], end_bytes - start_bytes),)
        self._add(f"zero bytes [{start_bytes}, {end_bytes})", piece, writes=writes)

    def zero_units(self, *, base_bytes: int, unit_bytes: int, units: IntArray) -> None:
        """Fill units with zero."""
        piece = self._piece()
        piece.zero_units(base_bytes=base_bytes, unit_bytes=unit_bytes, units=units)
        writes = (self._memory.extent(base_bytes + units * unit_bytes, unit_bytes),)
        label = f"zero {len(units)} units of {unit_bytes} bytes"
        self._add(label, piece, writes=writes, arrays=(units,))

    def move_units(
        self, *, base_bytes: int, unit_bytes: int, sources: IntArray, destinations: IntArray
    ) -> None:
        """Copy units to others."""
        piece = self._piece()
        piece.move_units(
            base_bytes=base_bytes,
            unit_bytes=unit_bytes,
            sources=sources,
            destinations=destinations,
        )
        self._add(
            f"move {len(sources)} units of {unit_bytes} bytes",
            piece,
            reads=(self._memory.extent(base_bytes + sources * unit_bytes, unit_bytes),),
            writes=(self._memory.extent(base_bytes + destinations * unit_bytes, unit_bytes),),
            arrays=(sources, destinations),
        )

    def copy_in(
        self,
        *,
        base_bytes: int,
        unit_bytes: int,
        units: IntArray,
        pool: HostPool,
        host_units: IntArray,
    ) -> None:
        """Copy places of a host pool into units; the pool's memory is not watched."""
        piece = self._piece()
        piece.copy_in(
            base_bytes=base_bytes,
            unit_bytes=unit_bytes,
            units=units,
            pool=pool,
            host_units=host_units,
        )
        self._add(
            f"copy {len(units)} units of {unit_bytes} bytes in",
            piece,
            writes=(self._memory.extent(base_bytes + units * unit_bytes, unit_bytes),),
            arrays=(units, host_units),
        )

    def copy_out(
        self,
        *,
        base_bytes: int,
        unit_bytes: int,
        units: IntArray,
        pool: HostPool,
        host_units: IntArray,
    ) -> None:
        """Copy units into places of a host pool; the pool's memory is not watched."""
        piece = self._piece()
        piece.copy_out(
            base_bytes=base_bytes,
            unit_bytes=unit_bytes,
            units=units,
            pool=pool,
            host_units=host_units,
        )
        self._add(
            f"copy {len(units)} units of {unit_bytes} bytes out",
            piece,
            reads=(self._memory.extent(base_bytes + units * unit_bytes, unit_bytes),),
            arrays=(units, host_units),
        )

    def write_int32(
        self, *, offset_bytes: int, entry_count: int, indices: IntArray, values: IntArray
    ) -> None:
        """Write entries of a table of int32."""
        piece = self._piece()
        piece.write_int32(
            offset_bytes=offset_bytes, entry_count=entry_count, indices=indices, values=values
        )
        self._add(
            f"write {len(indices)} entries of the table at byte {offset_bytes}",
            piece,
            writes=(self._int32s(offset_bytes, indices),),
            arrays=(indices, values),
        )

    def write_rows(
        self, *, table: RowTable, rows: IntArray, places: IntArray, pages: IntArray
    ) -> None:
        """Write pages into rows of a request table, and how many tokens each row now reaches."""
        piece = self._piece()
        piece.write_rows(table=table, rows=rows, places=places, pages=pages)
        self._add(
            f"write {len(pages)} pages into rows of the table at byte {table.pages_offset_bytes}",
            piece,
            writes=(
                self._int32s(table.pages_offset_bytes, rows * table.row_pages + places),
                self._int32s(table.lengths_offset_bytes, rows),
            ),
            arrays=(rows, places, pages),
        )

    def write_words(self, *, offset_bytes: int, values: tuple[int, int]) -> None:
        """Write two uint64 words in one store of 16 bytes."""
        piece = self._piece()
        piece.write_words(offset_bytes=offset_bytes, values=values)
        writes = (self._memory.extent([offset_bytes], _WORDS_BYTES),)
        self._add(f"write words {values}", piece, writes=writes)
        # An applier closes each segment of an entry so: that is where its commands belong.
        for index in range(len(self._elements) - 1, -1, -1):
            label, run = self._elements[index]
            if label.endswith("]"):
                break
            self._elements[index] = Element(f"{label} [up to words {values}]", run)

    def add_recipe(self, recipe: Recipe, lists: NumberLists, first_list: int) -> bool:
        """Return False: each effect is an action of its own."""
        return False

    def seal(self) -> Sequence[Element]:
        """Return all commands, in order; nothing may be added from here on."""
        self._sealed = True
        return self._elements

    def _piece(self) -> HostCommands:
        """Return the host's commands to hold one of ours."""
        if self._sealed:
            raise DeviceError("commands that were enqueued already cannot be added to")
        return HostCommands(self._memory)

    def _int32s(self, offset_bytes: int, indices: IntArray) -> Extent:
        return self._memory.extent(offset_bytes + indices * _INT32_BYTES, _INT32_BYTES)

    def _add(
        self,
        label: str,
        piece: HostCommands,
        *,
        reads: Sequence[Extent] = (),
        writes: Sequence[Extent] = (),
        arrays: Sequence[IntArray] = (),
    ) -> None:
        self._elements.append(Element(label, _run_of(piece, Accesses(reads, writes), arrays)))


def _run_of(
    piece: HostCommands, accesses: Accesses, arrays: Sequence[npt.NDArray[Any]]
) -> Callable[[], Accesses]:
    copies = [array.copy() for array in arrays]

    def run() -> Accesses:
        for array, copy in zip(arrays, copies, strict=True):
            if not np.array_equal(array, copy):
                raise DeviceError("an array was changed after it was passed to commands")
        piece.run()
        return accesses

    return run
