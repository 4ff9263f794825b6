"""A rank's memory: made whole or not at all; its lanes are journalled before they are completed."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvd.errors import ServeError
from kvd.serve.memory import Arena, RankMemory
from kvd.testing.small_rank import PLAN
from kvd_client.device.fences import FencePage
from tests.unit.serve_parts import Keeper


def descriptors() -> int:
    """Count what is open, once arenas that are being closed are closed."""
    for thread in threading.enumerate():
        if thread.name == "kvd-close":
            thread.join()
    return len(list(Path("/proc/self/fd").iterdir()))


def make_arena(keeper: Keeper) -> Callable[[], object]:
    return Arena("g.1.0.0", size_bytes=PLAN.total_bytes, keeper=keeper).release


def make_both(keeper: Keeper) -> Callable[[], object]:
    arena = Arena("g.1.0.0", size_bytes=PLAN.total_bytes, keeper=Keeper())
    try:
        memory = RankMemory("g.1.0.0", arena=arena, keeper=keeper)
    except ServeError:
        arena.release()
        raise
    return lambda: (memory.release_fences().problem, arena.release())[0]


@pytest.mark.parametrize("make", [make_arena, make_both])
def test_memory_that_cannot_be_kept_is_not_made(
    make: Callable[[Keeper], Callable[[], object]],
) -> None:
    keeper, before = Keeper(fail_at=1), descriptors()

    with pytest.raises(ServeError, match="the holder is gone"):
        make(keeper)

    assert keeper.names == []
    assert descriptors() == before


@pytest.mark.parametrize("make", [make_arena, make_both])
def test_memory_is_given_back_even_if_the_holder_cannot_be_told(
    make: Callable[[Keeper], Callable[[], object]],
) -> None:
    keeper, before = Keeper(fail_at=2), descriptors()
    release = make(keeper)

    problem = release()

    assert isinstance(problem, str)
    assert "the holder is gone" in problem
    assert keeper.names == []
    assert descriptors() == before


def test_lanes_are_recorded_as_they_were_and_completed_and_the_arena_stays() -> None:
    keeper = Keeper()
    arena = Arena("g.1.0.0", size_bytes=PLAN.total_bytes, keeper=keeper)
    memory = RankMemory("g.2.0.0", arena=arena, keeper=keeper)
    page = FencePage(memory.fence)
    page.lane(0).begin()

    record = memory.release_fences()

    assert record.name == "g.2.0.0"
    assert (record.lanes[0].begun, record.lanes[0].done) == (1, 0)
    assert page.quiet
    assert keeper.names == ["g.1.0.0/arena"]
    assert arena.release() == ""
    page.close()


def test_bytes_that_are_needed_now_are_free_when_the_arena_is_released() -> None:
    before = descriptors()
    arena = Arena("g.1.0.0", size_bytes=PLAN.total_bytes, keeper=Keeper())

    assert arena.release(at_once=True) == ""

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_progress_word_is_read_from_the_arena_itself() -> None:
    arena = Arena("g.1.0.0", size_bytes=PLAN.total_bytes, keeper=Keeper())
    assert arena.progress_position(PLAN) == 0
    word = (41).to_bytes(8, "little") + (2).to_bytes(8, "little")

    os.pwrite(arena.descriptor, word, PLAN.region.progress.offset_bytes)

    assert arena.progress_position(PLAN) == 41
    arena.release()


def test_memory_that_only_a_gpu_can_read_has_no_progress_word_here() -> None:
    arena = Arena("g.1.0.0", size_bytes=PLAN.total_bytes, keeper=Keeper())
    reading, writing = os.pipe()
    arena.descriptor, own = reading, arena.descriptor

    assert arena.progress_position(PLAN) is None

    arena.descriptor = own
    arena.release()
    os.close(reading)
    os.close(writing)
