"""The memory of one rank in one incarnation: its arena, its fence page, and when it is quiet.

A rank's memory outlives the rank: it is given back only when nobody can touch it any more, which
the clock never proves.
"""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from kvd.serve.lifeline import Lifeline
from kvd_client.device.descriptors import create_memory, descriptor_size
from kvd_client.device.fences import FencePage, LaneValues, create_fence_page
from kvd_proto.errors import KvdError


class DescriptorKeeper(Protocol):
    """Where descriptors survive a restart of the daemon: a holder, or the service manager."""

    def put(self, name: str, descriptor: int, size_bytes: int) -> None:
        """Keep a descriptor under a name."""
        ...

    def drop(self, name: str) -> None:
        """Forget a name."""
        ...


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """The lanes of a rank as they stood when its memory was given back."""

    name: str
    lanes: tuple[LaneValues, ...]
    problem: str = ""
    """What went wrong when the memory was given back; empty for nothing."""


class RankMemory:
    """Arena and fence page of one rank, owned by the daemon as descriptors."""

    def __init__(self, name: str, *, arena_bytes: int, keeper: DescriptorKeeper) -> None:
        """Create the memory and have it kept; raises KvdError with nothing left behind."""
        self.name = name
        self.arena_bytes = arena_bytes
        with ExitStack() as undo:
            self.arena = create_memory(f"kvd-{name}-arena", arena_bytes)
            undo.callback(os.close, self.arena)
            self.fence = create_fence_page(f"kvd-{name}-fence")
            undo.callback(os.close, self.fence)
            self.page = FencePage(self.fence)
            undo.callback(self.page.close)
            keeper.put(f"{name}/arena", self.arena, arena_bytes)
            undo.callback(keeper.drop, f"{name}/arena")
            self.fence_bytes = descriptor_size(self.fence)
            keeper.put(f"{name}/fence", self.fence, self.fence_bytes)
            undo.callback(keeper.drop, f"{name}/fence")
            self._undo = undo.pop_all()

    def quiet(self, lifeline: Lifeline) -> bool:
        """Return whether nobody can touch the memory any more.

        On the host device a process that ended takes its streams along. One that lives must have
        let go of its lifeline, which its library does after its streams ran dry, and its lanes must
        agree.
        """
        if lifeline.process_ended:
            return True
        return not lifeline.connected and self.page.quiet

    def release(self) -> LaneRecord:
        """Complete the lanes and give the memory back; returns the lanes as they were.

        A holder that cannot be told is no reason to keep the memory here; the record says so.
        """
        lanes = self.page.complete()
        try:
            self._undo.close()
        except KvdError as error:
            return LaneRecord(self.name, lanes, error.message)
        return LaneRecord(self.name, lanes)
