"""What the tests of memory and its end share: a keeper, processes and a driver that do as told."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvd.errors import ServeError
from kvd.serve.quiet import DriverAnswer


@dataclass
class Keeper:
    """Keeps names; the ``fail_at``-th call fails."""

    fail_at: int = 0
    names: list[str] = field(default_factory=list[str])
    calls: int = 0

    def put(self, name: str, descriptor: int, size_bytes: int) -> None:
        self._count(name)
        assert os.fstat(descriptor).st_size == size_bytes
        self.names.append(name)

    def drop(self, name: str) -> None:
        self.names.remove(name)
        self._count(name)

    def _count(self, name: str) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise ServeError(f"the holder is gone: {name}")


@dataclass
class FakeProcess:
    """A process of a rank, as its lifeline shows it."""

    process_ended: bool = False
    let_go: bool = False
    pid: int = 7
    parted: bool = False


@dataclass
class FakeDriver:
    """A driver that lists these processes, or cannot be asked."""

    listed: list[int] = field(default_factory=list[int])
    reachable: bool = True
    asked: list[int] = field(default_factory=list[int])

    def ask(self, pids: Sequence[int]) -> DriverAnswer:
        self.asked += pids
        if not self.reachable:
            return DriverAnswer(False, "the driver cannot be asked")
        found = [pid for pid in pids if pid in self.listed]
        return DriverAnswer(not found, f"the driver lists {found}" if found else "")
