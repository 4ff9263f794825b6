"""A rank's memory: made whole or not at all, given back only when nobody can touch it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from kvd.errors import ServeError
from kvd.serve.memory import RankMemory
from kvd_client.device.fences import FencePage

if TYPE_CHECKING:
    from kvd.serve.lifeline import Lifeline


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
class FakeLifeline:
    """What memory asks of a lifeline."""

    connected: bool = True
    process_ended: bool = False


@pytest.fixture
def memory() -> Iterator[RankMemory]:
    made = RankMemory("g.1.0.0", arena_bytes=8192, keeper=Keeper())
    yield made
    made.release()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_quiet(memory: RankMemory, lifeline: FakeLifeline) -> bool:
    return memory.quiet(cast("Lifeline", lifeline))


@pytest.mark.parametrize("fail_at", [1, 2])
def test_memory_that_cannot_be_kept_is_not_made(fail_at: int) -> None:
    keeper, before = Keeper(fail_at), descriptors()

    with pytest.raises(ServeError, match="the holder is gone"):
        RankMemory("g.1.0.0", arena_bytes=8192, keeper=keeper)

    assert keeper.names == []
    assert descriptors() == before


@pytest.mark.parametrize("fail_at", [3, 4])
def test_memory_is_given_back_even_if_the_holder_cannot_be_told(fail_at: int) -> None:
    keeper, before = Keeper(fail_at), descriptors()
    memory = RankMemory("g.1.0.0", arena_bytes=8192, keeper=keeper)

    record = memory.release()

    assert "the holder is gone" in record.problem
    assert record.name == "g.1.0.0"
    assert keeper.names == []
    assert descriptors() == before


def test_lanes_are_recorded_as_they_were_and_completed() -> None:
    memory = RankMemory("g.1.0.0", arena_bytes=8192, keeper=Keeper())
    page = FencePage(memory.fence)
    page.lane(0).begin()

    record = memory.release()

    assert record.problem == ""
    assert (record.lanes[0].begun, record.lanes[0].done) == (1, 0)
    assert page.quiet
    page.close()


@pytest.mark.parametrize(
    ("connected", "ended", "busy", "quiet"),
    [
        (True, False, False, False),
        (True, False, True, False),
        (False, False, False, True),
        (False, False, True, False),
        (True, True, True, True),
        (False, True, True, True),
    ],
)
def test_memory_is_quiet_when_its_process_ended_or_let_go_with_its_lanes_done(
    memory: RankMemory, connected: bool, ended: bool, busy: bool, quiet: bool
) -> None:
    if busy:
        memory.page.lane(1).begin()

    assert is_quiet(memory, FakeLifeline(connected, ended)) is quiet
