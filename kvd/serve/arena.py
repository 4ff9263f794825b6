"""Where the memory of ranks comes from, and how much of it there is: a host's, or its GPUs'.

The daemon owns arenas as descriptors. Host memory it creates itself; memory of a GPU is created by
a helper process, so that no call of a GPU's driver ever runs in here.
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from kvd.errors import ServeError
from kvd.serve.memory import create_host_arena
from kvd_proto.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio

HOST = ""
"""The place of memory that is the host's; a GPU's is called by its UUID."""


class Arenas(Protocol):
    """Creates arenas on one kind of device."""

    @property
    def device_name(self) -> str:
        """Return ``host`` or ``cuda``."""
        ...

    def place_of(self, gpu_uuid: str) -> str:
        """Return where a rank's memory has to be; raises ServeError if it cannot be there.

        ``gpu_uuid`` is what the rank's hello says: the GPU of its device, empty for the host.
        """
        ...

    def rooms_bytes(self) -> Mapping[str, int]:
        """Return how much memory each place has; nothing larger is even tried."""
        ...

    def prepare(self, loop: "asyncio.AbstractEventLoop", on_ready: Callable[[], None]) -> bool:
        """Return whether `create` answers at once; if not, ``on_ready`` is called when it does."""
        ...

    def create(self, name: str, size_bytes: int, place: str) -> int:
        """Return the descriptor of fresh memory; raises KvdError. Contents are unknown."""
        ...

    def close(self) -> None:
        """End whatever helps; memory that exists stays."""
        ...


class HostArenas:
    """Arenas in shared memory of this host."""

    @property
    def device_name(self) -> str:
        """Return ``host``."""
        return "host"

    def place_of(self, gpu_uuid: str) -> str:
        """Return the host; raises ServeError for a rank that works on a GPU."""
        if gpu_uuid:
            raise ServeError(
                f"gpu_uuid {gpu_uuid!r} asks for a CUDA device; this daemon serves the host "
                f"device: start it with --device cuda, or attach without a CUDA device",
                code=ErrorCode.BAD_HELLO,
            )
        return HOST

    def rooms_bytes(self) -> Mapping[str, int]:
        """Return the memory of this host."""
        return {HOST: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}

    def prepare(self, loop: "asyncio.AbstractEventLoop", on_ready: Callable[[], None]) -> bool:
        """Return True: this process does it itself."""
        return True

    def create(self, name: str, size_bytes: int, place: str) -> int:
        """Return the descriptor of fresh memory, filled with zero; raises DeviceError."""
        return create_host_arena(name, size_bytes, place)

    def close(self) -> None:
        """Do nothing: there is no helper."""


def check_room(arenas: Arenas, group: str, wanted_bytes: Mapping[str, int], ranks: str) -> None:
    """Raise ServeError if a place has less memory than a group wants there altogether."""
    rooms = arenas.rooms_bytes()
    for place, bytes_there in wanted_bytes.items():
        if bytes_there > rooms[place]:
            where = "this host" if place == HOST else place
            raise ServeError(
                f"group {group!r} asks {bytes_there} bytes on the {arenas.device_name} device for "
                f"{ranks}, {where} has {rooms[place]}; lower budget_bytes",
                code=ErrorCode.BAD_MODEL,
            )
