"""The only door to memory: what a device offers, whatever it is made of.

A device maps memory that arrived as a file descriptor, plays streams, and carries out the few
things an allocator does to bytes. Those are collected in `Commands` first and enqueued as one
piece, so that a decode step costs one submission however many tables it touches.

Nothing here waits for a stream except what is called `synchronize` or `close`, and a submission
that finds a device far behind. Offsets count from byte 0 of a mapping and need 64 bits.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from kvd_client.device.fences import Lane, LaneNumber
from kvd_client.device.host_pool import HostPool
from kvd_client.device.places import RowTable
from kvd_client.device.recipes import Recipe

IntArray: TypeAlias = npt.NDArray[np.int64]
"""Units, table places or values; 64 bits on the host, whatever a table stores."""


class NumberLists:
    """Lists of numbers laid end to end: the columns of a reply, as a device may take them whole."""

    __slots__ = ("lengths", "numbers", "starts")

    def __init__(self, numbers: IntArray, lengths: Sequence[int], starts: Sequence[int]) -> None:
        """Take all numbers, and where each list starts among them."""
        self.numbers = numbers
        self.lengths = lengths
        self.starts = starts


class Event(Protocol):
    """A point in a stream's order, for other streams and the host of the same process."""

    @property
    def reached(self) -> bool:
        """Return whether the stream got there without a failure; what is decided never asks."""
        ...

    def synchronize(self, timeout_ms: int) -> None:
        """Block the host until the stream got there; raises DeviceError, of a time-out too."""
        ...


class Memory(Protocol):
    """One mapping of one descriptor in this process."""

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the mapping."""
        ...

    @property
    def writable(self) -> bool:
        """Return whether this process may write to it."""
        ...

    @property
    def address(self) -> int:
        """Return where byte 0 lies in the address space that kernels use."""
        ...

    @property
    def buffer(self) -> memoryview:
        """Return the bytes as the host sees them; raises DeviceError where the host cannot."""
        ...

    @property
    def device_array(self) -> object | None:
        """Return what speaks ``__cuda_array_interface__`` for all bytes; None for host memory."""
        ...

    def read_bytes(self, start_bytes: int, end_bytes: int) -> bytes:
        """Return a copy of bytes ``[start, end)`` as they are now; waits for no stream.

        For small ranges, such as a progress word or a table. Raises DeviceError.
        """
        ...

    def close(self) -> None:
        """Give the mapping up; views that are still alive stay valid until they die."""
        ...


class Commands(Protocol):
    """Work on one memory, collected in order, to be enqueued as one piece.

    Every method checks at once that what it names lies within the memory, and raises DeviceError
    otherwise. The single units and indices are for the caller to check, who knows what they may be
    (`kvd_client.device.assembly` does it for effects). Nothing is executed before the commands are
    enqueued, and arrays must not change after they were passed.
    """

    def zero_bytes(self, *, start_bytes: int, end_bytes: int) -> None:
        """Fill ``[start_bytes, end_bytes)`` with zero."""
        ...

    def zero_units(self, *, base_bytes: int, unit_bytes: int, units: IntArray) -> None:
        """Fill units ``[base + unit * unit_bytes, + unit_bytes)`` with zero."""
        ...

    def move_units(
        self, *, base_bytes: int, unit_bytes: int, sources: IntArray, destinations: IntArray
    ) -> None:
        """Copy units to others; the two lists are equally long.

        A unit may be copied onto itself. Apart from that, no unit is source and destination, and
        none is a destination twice.
        """
        ...

    def write_int32(
        self, *, offset_bytes: int, entry_count: int, indices: IntArray, values: IntArray
    ) -> None:
        """Write entries of a table of int32; an index that occurs twice gets the last value."""
        ...

    def write_rows(
        self,
        *,
        table: RowTable,
        rows: IntArray,
        places: IntArray,
        pages: IntArray,
    ) -> None:
        """Write pages into rows of a request table, and how many tokens each row now reaches.

        The places of a row ascend, so its last one says how far the row reaches.
        """
        ...

    def write_words(self, *, offset_bytes: int, values: tuple[int, int]) -> None:
        """Write two uint64 words in one store, so that a killed process leaves both or neither."""
        ...

    def add_recipe(self, recipe: Recipe, lists: NumberLists, first_list: int) -> bool:
        """Add all pieces of a recipe, or none and return False: then they come one by one.

        Its columns are the lists from ``first_list`` on, and those fit the recipe: the caller
        checked them. A device that gains nothing by it always returns False.
        """
        ...


@runtime_checkable
class CopyCommands(Commands, Protocol):
    """Commands of a device that also copies units between its memory and a host pool."""

    def copy_in(
        self,
        *,
        base_bytes: int,
        unit_bytes: int,
        units: IntArray,
        pool: HostPool,
        host_units: IntArray,
    ) -> None:
        """Copy places of a pool into units, pair by pair; no unit is named twice."""
        ...

    def copy_out(
        self,
        *,
        base_bytes: int,
        unit_bytes: int,
        units: IntArray,
        pool: HostPool,
        host_units: IntArray,
    ) -> None:
        """Copy units into places of a pool, pair by pair; no place is named twice."""
        ...


class Stream(Protocol):
    """An ordered queue of work that runs apart from the thread that fills it.

    A failure of the work is kept: nothing later runs, and every later call raises DeviceError from
    it. Events behind the failure end as failed, so a stream that waits on one fails too.
    """

    @property
    def name(self) -> str:
        """Return the name that errors use."""
        ...

    def enqueue(self, commands: Commands) -> None:
        """Enqueue collected commands; the caller must not add to them afterwards."""
        ...

    def submit(self, work: Callable[[], None]) -> None:
        """Enqueue host-side work in the stream's order."""
        ...

    def record(self) -> Event:
        """Enqueue an event and return it."""
        ...

    def wait(self, event: Event) -> None:
        """Make later work of this stream wait for an event that was recorded already."""
        ...

    def synchronize(self, timeout_ms: int) -> None:
        """Block until everything enqueued is over; raises DeviceError with code TIMED_OUT."""
        ...

    def close(self, timeout_ms: int) -> None:
        """Run what is enqueued, then end the stream; raises DeviceError with code TIMED_OUT."""
        ...


@runtime_checkable
class LaneWriter(Protocol):
    """A stream that stores a lane's number itself, also when this process is gone by then.

    It is for devices whose work outlives the process that enqueued it. Where it does not, the end
    of the process says all that a lane could.
    """

    def write_done(self, lane: Lane, number: LaneNumber) -> None:
        """Enqueue the store of a lane's ``done``, behind everything that is on the stream."""
        ...


class Device(Protocol):
    """A kind of memory with streams that work on it."""

    @property
    def name(self) -> str:
        """Return ``host`` or ``cuda``."""
        ...

    @property
    def takes_recipes(self) -> bool:
        """Return whether `Commands.add_recipe` is ever worth asking."""
        ...

    @property
    def gpu_uuid(self) -> str:
        """Return the GPU that memory has to be on, as ``nvidia-smi`` prints it; empty for none."""
        ...

    def map(self, descriptor: int, size_bytes: int, *, writable: bool = True) -> Memory:
        """Map a descriptor, which stays the caller's to close; raises DeviceError."""
        ...

    def stream(self, name: str, lane: Lane | None = None) -> Stream:
        """Start a stream; with a lane, each submission is counted there for other processes."""
        ...

    def commands(self, memory: Memory) -> Commands:
        """Return an empty list of commands on a memory that this device mapped."""
        ...
