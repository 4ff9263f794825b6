"""Memory of a dead rank: given back when it is quiet or on an administrator's word, not on time."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

from kvd.serve.leaving import Leaving
from kvd.serve.memory import Arena, RankMemory
from tests.unit.serve_parts import FakeProcess, Keeper

if TYPE_CHECKING:
    from kvd.serve.lifeline import Lifeline


@pytest.fixture
def process() -> FakeProcess:
    return FakeProcess(pid=31)


@pytest.fixture
def leaving(process: FakeProcess) -> Iterator[Leaving]:
    arena = Arena("g.1.0.0", size_bytes=8192, keeper=Keeper())
    memory = RankMemory("g.1.0.0", arena=arena, keeper=Keeper())
    yield Leaving(
        memory=memory,
        processes=(cast("Lifeline", process),),
        rank="stage 0 rank 0 (process 31)",
        key=(0, 0),
        ended_at_s=100.0,
        driver=None,
    )
    memory.release_fences()
    arena.release()


def test_past_its_time_memory_is_set_aside_once_and_not_given_back(leaving: Leaving) -> None:
    assert not leaving.look()
    assert not leaving.overdue(102.0, wait_ms=2000)

    assert leaving.overdue(102.1, wait_ms=2000)
    assert not leaving.overdue(103.0, wait_ms=2000)

    assert leaving.quarantined_at_s == 102.1
    assert not leaving.look()
    assert leaving.describe() == (
        "stage 0 rank 0 (process 31): process 31 lives and keeps its mapping"
    )
    assert leaving.bytes == 8192


def test_memory_in_quarantine_comes_back_when_it_falls_quiet(
    leaving: Leaving, process: FakeProcess
) -> None:
    leaving.overdue(200.0, wait_ms=2000)

    process.process_ended = True

    assert leaving.look()
    assert leaving.reason == "its processes have ended"


def test_memory_in_quarantine_comes_back_on_an_administrators_word(leaving: Leaving) -> None:
    leaving.overdue(200.0, wait_ms=2000)

    leaving.free_on_proof("the card was taken out")

    assert leaving.look()
    assert leaving.reason == "an administrator states: the card was taken out"
