"""The memory of a rank: an arena that outlives incarnations, and a fence page for each of them.

A rank's memory outlives the rank: it is given back only when nobody can touch it any more, which
the clock never proves. An arena is used again by the next incarnation of the same plan, because
100 GiB of a GPU do not exist twice; a fence page is never used again.
"""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Thread
from typing import Protocol, TypeAlias

from kvd_client.device.descriptors import create_memory, descriptor_size
from kvd_client.device.fences import FencePage, LaneValues, create_fence_page
from kvd_proto.errors import KvdError
from kvd_proto.memory import StoragePlan


class DescriptorKeeper(Protocol):
    """Where descriptors survive a restart of the daemon: a holder, or the service manager."""

    def put(self, name: str, descriptor: int, size_bytes: int) -> None:
        """Keep a descriptor under a name."""
        ...

    def drop(self, name: str) -> None:
        """Forget a name."""
        ...


ArenaMaker: TypeAlias = Callable[[str, int, str], int]
"""Takes a name, a size in bytes and a place, and returns a descriptor; raises KvdError."""


def create_host_arena(name: str, size_bytes: int, _place: str) -> int:
    """Create an arena in shared memory of this host, which is one place; raises DeviceError."""
    return create_memory(name, size_bytes)


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """The lanes of a rank as they stood when its memory was given back."""

    name: str
    lanes: tuple[LaneValues, ...]
    problem: str = ""
    """What went wrong when the memory was given back; empty for nothing."""


class Arena:
    """Arena and tables of one rank, owned by the daemon as a descriptor."""

    def __init__(
        self,
        name: str,
        *,
        size_bytes: int,
        keeper: DescriptorKeeper,
        place: str = "",
        maker: ArenaMaker = create_host_arena,
    ) -> None:
        """Create the memory and have it kept; raises KvdError with nothing left behind."""
        self.name = name
        self.size_bytes = size_bytes
        self._at_once = False
        with ExitStack() as undo:
            self.descriptor = maker(f"kvd-{name}-arena", size_bytes, place)
            undo.callback(self._close)
            keeper.put(f"{name}/arena", self.descriptor, size_bytes)
            undo.callback(keeper.drop, f"{name}/arena")
            self._undo = undo.pop_all()

    def progress_position(self, plan: StoragePlan) -> int | None:
        """Return the position in the progress word: everything before it has run.

        Its entry may have run in part. While a rank runs, the word may move on meanwhile. None if
        the memory is a GPU's, which only its ranks can read.
        """
        try:
            word = os.pread(self.descriptor, 8, plan.region.progress.offset_bytes)
        except OSError:
            return None
        return int.from_bytes(word, sys.byteorder)

    def release(self, *, at_once: bool = False) -> str:
        """Give the memory back; returns what went wrong, or nothing.

        A holder that cannot be told is no reason to keep the memory here. ``at_once`` waits until
        the bytes are free, for whoever needs them now.
        """
        self._at_once = at_once
        return _undone(self._undo)

    def _close(self) -> None:
        """Close the descriptor, in a thread of its own unless it has to be done at once.

        Whoever closes the last one frees the pages: a third of a second for each GiB of a host
        arena, in which the daemon would answer nobody.
        """
        if self._at_once:
            os.close(self.descriptor)
            return
        closing = Thread(target=os.close, args=(self.descriptor,), name="kvd-close", daemon=True)
        closing.start()


class RankMemory:
    """What one rank maps in one incarnation: its arena and a fence page of its own."""

    def __init__(self, name: str, *, arena: Arena, keeper: DescriptorKeeper) -> None:
        """Create the fence page and have it kept; raises KvdError with nothing left behind."""
        self.name = name
        self.arena = arena
        with ExitStack() as undo:
            self.fence = create_fence_page(f"kvd-{name}-fence")
            undo.callback(os.close, self.fence)
            self.page = FencePage(self.fence)
            undo.callback(self.page.close)
            self.fence_bytes = descriptor_size(self.fence)
            keeper.put(f"{name}/fence", self.fence, self.fence_bytes)
            undo.callback(keeper.drop, f"{name}/fence")
            self._undo = undo.pop_all()

    def release_fences(self) -> LaneRecord:
        """Record the lanes as they are, then complete them, then give the page back.

        The arena stays. A holder that cannot be told is no reason to keep the page here; the record
        says so.
        """
        lanes = self.page.complete()
        return LaneRecord(self.name, lanes, _undone(self._undo))


def _undone(undo: ExitStack) -> str:
    try:
        undo.close()
    except KvdError as error:
        return error.message
    return ""
