"""What the CUDA device asks of the driver: a seam, so that everything above it runs without a GPU.

Handles of streams and events are opaque. Addresses are those that kernels use, except where a
method says that it takes one of the host. Every method raises DeviceError naming the call and the
driver's own name of what went wrong.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

Handle: TypeAlias = Any
"""A stream or an event, in whatever form the driver's calls take fastest."""

Address: TypeAlias = int
"""Where bytes lie in the address space that kernels use."""


class Driver(Protocol):
    """One GPU, in the primary context that torch and cupy use as well."""

    @property
    def gpu_uuid(self) -> str:
        """Return the GPU's UUID as ``nvidia-smi`` prints it."""
        ...

    @property
    def multiprocessor_count(self) -> int:
        """Return how many multiprocessors run blocks."""
        ...

    @property
    def granularity_bytes(self) -> int:
        """Return the multiple that shareable memory comes in."""
        ...

    def enter(self) -> None:
        """Make the context current in this thread, unless it is so already."""
        ...

    # ---- memory -------------------------------------------------------------------------------

    def import_memory(self, descriptor: int, size_bytes: int, *, writable: bool) -> int:
        """Map shareable memory and return its address; the size is a multiple of granularity."""
        ...

    def unmap_memory(self, address: int, size_bytes: int) -> None:
        """Wait until the context is idle, then undo `import_memory`."""
        ...

    def allocate(self, size_bytes: int) -> int:
        """Return the address of fresh device memory, filled with zero."""
        ...

    def free(self, address: int) -> None:
        """Give memory of `allocate` back."""
        ...

    def allocate_host(self, size_bytes: int) -> int:
        """Return the host address of fresh page-locked memory."""
        ...

    def free_host(self, host_address: int) -> None:
        """Give memory of `allocate_host` back."""
        ...

    def register(self, host_address: int, size_bytes: int) -> int:
        """Register host memory that exists already; returns the address that streams use."""
        ...

    def unregister(self, host_address: int) -> None:
        """Undo `register`."""
        ...

    def read(self, address: int, size_bytes: int) -> bytes:
        """Return bytes of device memory; blocks for a copy, behind no stream's work."""
        ...

    # ---- streams and events -------------------------------------------------------------------

    def new_stream(self) -> Handle:
        """Return a new stream, which never waits for the legacy default stream."""
        ...

    def known_stream(self, raw: int) -> Handle:
        """Return the handle of somebody else's stream."""
        ...

    def raw_stream(self, stream: Handle) -> int:
        """Return a stream as the integer that torch and cupy take."""
        ...

    def current(self, stream: Handle) -> AbstractContextManager[None]:
        """Make a stream the one that torch and cupy enqueue on in this thread."""
        ...

    def end_stream(self, stream: Handle) -> None:
        """Destroy a stream of `new_stream`."""
        ...

    def capture_check(self, stream: Handle) -> Callable[[], bool]:
        """Return what tells whether a stream is being captured into a graph."""
        ...

    def new_event(self) -> Handle:
        """Return a new event for this process, without timing."""
        ...

    def end_event(self, event: Handle) -> None:
        """Destroy an event."""
        ...

    def record(self, event: Handle, stream: Handle) -> None:
        """Record an event behind everything enqueued on a stream."""
        ...

    def is_reached(self, event: Handle) -> bool:
        """Return whether the GPU got to where the event was recorded last."""
        ...

    def wait_event(self, stream: Handle, event: Handle) -> None:
        """Make a stream wait for where an event was recorded last."""
        ...

    def write_word(self, stream: Handle, address: int, value: int) -> None:
        """Enqueue a store of 64 bits, behind everything that the stream wrote before."""
        ...

    def wait_word(self, stream: Handle, address: int, value: int) -> None:
        """Make a stream wait until 64 bits are at or behind a value, in cyclic order."""
        ...

    def upload(self, stream: Handle, address: int, host_address: int, size_bytes: int) -> None:
        """Enqueue a copy from page-locked host memory."""
        ...

    # ---- kernels ------------------------------------------------------------------------------

    def launcher(
        self, stream: Handle, *, moves: bool, inline: bool, arguments_address: Address
    ) -> Callable[[int], None]:
        """Return what launches the kernel for submissions that move units, or for all others.

        It takes how many blocks to start, and reads the arguments at each launch: one pointer for
        each, beginning at an address of the host. Inline, the submission is the argument. Only one
        thread may use it at a time.
        """
        ...

    # ---- events of other processes ------------------------------------------------------------

    def new_shared_event(self) -> tuple[Handle, bytes]:
        """Return a new event that other processes can open, and the bytes they open it with."""
        ...

    def open_shared_event(self, shared: bytes) -> Handle:
        """Open another process's event."""
        ...

    # ---- memory of other processes, the classic way -------------------------------------------

    def share_classic(self, address: int) -> bytes:
        """Return the bytes with which other processes open memory of `allocate`."""
        ...

    def open_classic(self, shared: bytes) -> int:
        """Map another process's memory and return the address of its first byte."""
        ...

    def close_classic(self, address: int) -> None:
        """Wait until the context is idle, then undo `open_classic`."""
        ...
