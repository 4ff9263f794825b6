"""A group's memory: arenas are used again for the same plan, fence pages never."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest
from msgspec import structs

from kvd.alloc.checks import CheckLevel
from kvd.engine.incarnation import Incarnation
from kvd.engine.stage import StageEngine
from kvd.errors import ServeError
from kvd.serve.group_memory import GroupMemory
from kvd.serve.leaving import Leaving
from kvd.serve.memory import Arena, RankMemory
from kvd_client.device.descriptors import create_memory
from kvd_proto.codec import decode_reply
from kvd_proto.memory import StoragePlan
from kvd_proto.operations import Admit
from tests.stateful.ranks import body_of, int32s, int64s, stage
from tests.unit.serve_parts import FakeProcess, Keeper

if TYPE_CHECKING:
    from kvd.serve.lifeline import Lifeline

PLAN = stage().storage
WIDER = structs.replace(PLAN, total_bytes=PLAN.total_bytes + 4096)
RANKS = ((0, 0), (0, 1))


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
def memory(keeper: Keeper) -> Iterator[GroupMemory]:
    memory = GroupMemory("g", keeper=keeper)
    yield memory
    memory.release_arenas()
    assert keeper.names == []


def places(count: int, place: str = "") -> dict[tuple[int, int], str]:
    """Let so many ranks work in one place."""
    return {(0, rank): place for rank in range(count)}


def everything(engine: StageEngine, confirmed_position: int) -> StageEngine:
    """Let everything survive."""
    return engine


def unreadable(_arena: Arena, _plan: StoragePlan) -> None:
    """Return what is known of the progress word of a GPU's memory."""


def incarnation(memory: GroupMemory) -> Incarnation:
    (legacy,), _ = memory.inherit()
    return Incarnation(
        stage(),
        number=1,
        ranks=(0, 1),
        level=CheckLevel.STRICT,
        ring_entries_max=0,
        lag_entries_max=1000,
        legacy=legacy,
    )


def end(
    memory: GroupMemory, world: Incarnation, ranks: dict[tuple[int, int], RankMemory]
) -> list[FakeProcess]:
    """End an incarnation; returns its processes, which live still."""
    world.end("rank 1 is lost")
    processes = [FakeProcess(pid=rank) for _, rank in ranks]
    leaving = [
        Leaving(
            memory=ranks[key],
            processes=(cast("Lifeline", process),),
            rank=f"rank {key[1]}",
            key=key,
            ended_at_s=10.0,
            driver=None,
        )
        for key, process in zip(ranks, processes, strict=True)
    ]
    memory.end((world,), leaving)
    return processes


@pytest.mark.case("112")
def test_the_same_plan_runs_on_the_same_arenas_with_fresh_fence_pages(
    memory: GroupMemory, keeper: Keeper
) -> None:
    first = memory.create((PLAN,), number=1, places=places(2))
    for process in end(memory, incarnation(memory), first):
        process.process_ended = True
    assert [item.rank for item in memory.release_quiet()] == ["rank 0", "rank 1"]

    second = memory.create((PLAN,), number=2, places=places(2))

    assert [second[key].arena for key in RANKS] == [first[key].arena for key in RANKS]
    assert sorted(keeper.names) == [
        *("g.1.0.0/arena", "g.1.0.1/arena"),
        *("g.2.0.0/fence", "g.2.0.1/fence"),
    ]
    assert all(second[key].page.quiet for key in RANKS)
    for one in second.values():
        one.release_fences()


@pytest.mark.case("115")
def test_another_plan_gets_new_arenas_once_the_old_ones_are_given_back(
    memory: GroupMemory, keeper: Keeper
) -> None:
    for one in memory.create((PLAN,), number=1, places=places(1)).values():
        one.release_fences()

    second = memory.create((WIDER,), number=2, places=places(1))

    assert second[0, 0].arena.size_bytes == WIDER.total_bytes
    assert sorted(keeper.names) == ["g.2.0.0/arena", "g.2.0.0/fence"]
    second[0, 0].release_fences()


def test_a_rank_that_works_on_another_gpu_gets_memory_there(memory: GroupMemory) -> None:
    made: list[tuple[str, int, str]] = []

    def make(name: str, size_bytes: int, place: str) -> int:
        made.append((name, size_bytes, place))
        return create_memory(name, size_bytes)

    for number, place in enumerate(("GPU-1", "GPU-1", "GPU-2"), start=1):
        created = memory.create((PLAN,), number=number, places=places(1, place), maker=make)
        created[0, 0].release_fences()

    size_bytes = PLAN.total_bytes
    assert made == [
        ("kvd-g.1.0.0-arena", size_bytes, "GPU-1"),
        ("kvd-g.3.0.0-arena", size_bytes, "GPU-2"),
    ]


@pytest.mark.parametrize("fail_at", [1, 2, 3])
def test_memory_that_cannot_be_had_leaves_what_there_was(
    memory: GroupMemory, keeper: Keeper, fail_at: int
) -> None:
    for one in memory.create((PLAN,), number=1, places=places(3)).values():
        one.release_fences()
    keeper.fail_at, keeper.calls = fail_at, 0

    with pytest.raises(ServeError, match="the holder is gone"):
        memory.create((PLAN,), number=2, places=places(3))

    assert keeper.names == ["g.1.0.0/arena", "g.1.0.1/arena", "g.1.0.2/arena"]


@pytest.mark.case("119", "120")
@pytest.mark.parametrize("fail_at", [1, 2, 3, 4])
def test_memory_is_made_for_every_rank_or_for_none(
    memory: GroupMemory, keeper: Keeper, fail_at: int
) -> None:
    keeper.fail_at = fail_at

    with pytest.raises(ServeError, match="the holder is gone"):
        memory.create((PLAN,), number=1, places=places(2))

    assert keeper.names == []
    assert not memory.has_arenas


def test_nobody_starts_on_memory_that_is_not_quiet(memory: GroupMemory) -> None:
    first = memory.create((PLAN,), number=1, places=places(2))
    processes = end(memory, incarnation(memory), first)
    assert memory.release_quiet() == []
    assert memory.quarantine(12.5, wait_ms=2000) == memory.leaving
    assert memory.quarantine(13.0, wait_ms=2000) == []
    assert memory.quarantined_bytes == 2 * PLAN.total_bytes
    assert memory.blockers() == (
        "rank 0: process 0 lives and keeps its mapping, "
        "rank 1: process 1 lives and keeps its mapping"
    )
    with pytest.raises(AssertionError):
        memory.create((PLAN,), number=2, places=places(2))

    for process in processes:
        process.process_ended = True
    memory.release_quiet()

    assert memory.quarantined_bytes == 0


@pytest.mark.parametrize("progress", [0, 2])
def test_where_values_survive_every_rank_redoes_what_its_memory_lacks(
    memory: GroupMemory, monkeypatch: pytest.MonkeyPatch, progress: int
) -> None:
    monkeypatch.setattr(StageEngine, "survivor", everything)
    first = memory.create((PLAN,), number=1, places=places(2))
    world = incarnation(memory)
    admit = Admit(int64s([1]), int32s([8]), int32s([8]), int32s([8]))
    world.batch(rank=0, program=0, index=0, body=body_of([admit]))
    write_progress(first[0, 1], progress)
    for process in end(memory, world, first):
        process.process_ended = True
    memory.release_quiet()
    assert memory.has_survivors

    for one in memory.create((PLAN,), number=2, places=places(2)).values():
        one.release_fences()
    (legacy,), redo = memory.inherit()

    assert legacy.engine is world.engine
    assert decode_reply(redo[0, 0]).position == 1
    assert decode_reply(redo[0, 1]).position == max(1, progress)
    assert not memory.has_survivors


def test_nothing_survives_when_one_rank_lacks_more_than_is_kept(
    memory: GroupMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StageEngine, "survivor", everything)
    monkeypatch.setattr("kvd.engine.log.TRIM_STRIDE_ENTRIES", 0)
    first = memory.create((PLAN,), number=1, places=places(2))
    world = incarnation(memory)
    for index in range(0, 8, 2):
        world.batch(rank=0, program=0, index=index, body=body_of([Admit(b"", b"", b"")]))
        for rank in range(2):
            world.confirm(rank, world.log.end_position)
        world.settle()
    assert world.log.first_position > 1
    write_progress(first[0, 0], world.log.end_position)
    for process in end(memory, world, first):
        process.process_ended = True
    memory.release_quiet()

    for one in memory.create((PLAN,), number=2, places=places(2)).values():
        one.release_fences()
    (legacy,), redo = memory.inherit()

    assert (legacy.engine, legacy.end_position, redo) == (None, world.log.end_position, {})


@pytest.mark.parametrize(("confirmed", "survives"), [({0: 1, 1: 2}, True), ({0: 1}, False)])
def test_memory_that_the_daemon_cannot_read_is_redone_from_what_its_rank_confirmed(
    memory: GroupMemory,
    monkeypatch: pytest.MonkeyPatch,
    confirmed: dict[int, int],
    survives: bool,
) -> None:
    monkeypatch.setattr(StageEngine, "survivor", everything)
    monkeypatch.setattr(Arena, "progress_position", unreadable)
    first = memory.create((PLAN,), number=1, places=places(2))
    world = incarnation(memory)
    admit = Admit(int64s([1]), int32s([8]), int32s([8]), int32s([8]))
    world.batch(rank=0, program=0, index=0, body=body_of([admit]))
    memory.note_confirmed((world,))
    assert world.confirmed == {}
    world.confirmed.update(confirmed)
    for process in end(memory, world, first):
        process.process_ended = True
    memory.release_quiet()

    for one in memory.create((PLAN,), number=2, places=places(2)).values():
        one.release_fences()
    (legacy,), redo = memory.inherit()

    assert (legacy.engine is not None) is survives
    positions = {key: decode_reply(body).position for key, body in redo.items()}
    assert positions == ({(0, 0): 1, (0, 1): 2} if survives else {})


def write_progress(memory: RankMemory, position: int) -> None:
    os.pwrite(
        memory.arena.descriptor,
        position.to_bytes(8, "little"),
        PLAN.region.progress.offset_bytes,
    )
