"""Ranks over modelled devices: real clients and a real engine, served in any order of the seed."""

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvd.errors import RaceError, WorkloadError
from kvd.testing.in_process import RankMemories
from kvd.testing.modelled.choice import Chooser, Favour, InOrder, Seeded
from kvd.testing.modelled.ranks import ModelledRank, ModelledStage
from kvd.testing.modelled.replay import StageReplay
from kvd.testing.modelled.world import World
from kvd.testing.passes import WorkloadLimits, WorkloadRequest
from kvd_client.device.port import Event
from kvd_proto.control import Mode
from kvd_proto.scalars import RequestId
from tests.simulate.stages import small_stage

SPARE_BYTES = 8_192
LIMITS = WorkloadLimits(
    running_count_max=6,
    chunk_tokens_max=8,
    prompt_tokens_max=32,
    asked_count_max=4,
    sample_step_count=1,
    sample_request_count=64,
    seed_index=1,
    reserve_batch_count=2,
)


def requests(count: int, seed: int = 5) -> list[WorkloadRequest]:
    draw = random.Random(seed)
    return [
        WorkloadRequest(
            request_id=RequestId(number),
            prompt_tokens=draw.randrange(1, 20),
            output_tokens=draw.randrange(1, 12),
        )
        for number in range(1, count + 1)
    ]


def attached(
    world: World | Chooser | int,
    *,
    mode: Mode = Mode.MIRRORED,
    overlap: bool = False,
    memories: RankMemories | None = None,
) -> ModelledStage:
    stage = small_stage(spare_bytes=SPARE_BYTES, overlap=overlap)
    return ModelledStage(
        stage.storage,
        layers=stage.layers,
        sizing=stage.sizing,
        world=world if isinstance(world, World) else World(world),
        mode=mode,
        overlap=overlap,
        memories=memories,
    )


@pytest.fixture
def stage() -> Iterator[ModelledStage]:
    with attached(3, overlap=True) as stage:
        yield stage


WORLDS: dict[str, Callable[[], World]] = {
    "drawn": lambda: World(7),
    "in order": lambda: World(InOrder()),
    "forwards last": lambda: World(Favour("0/allocator", "1/allocator"), only_needed=True),
    "forwards first": lambda: World(Favour("0/forward", "1/forward"), only_needed=True),
}


CASES = [
    *((mode, overlap, "drawn") for mode in (Mode.MIRRORED, Mode.LEADER) for overlap in (0, 1)),
    *((Mode.LEADER, 1, order) for order in WORLDS if order != "drawn"),
]


@pytest.mark.case("55")
@pytest.mark.slow
@pytest.mark.parametrize(("mode", "overlap", "order"), CASES)
def test_a_workload_is_served_without_a_race_or_a_wrong_byte(
    mode: Mode, overlap: int, order: str
) -> None:
    with attached(WORLDS[order](), mode=mode, overlap=bool(overlap)) as stage:
        replay = StageReplay(
            stage, requests(24, seed=4), LIMITS, seed=4, mode=mode, steps_ahead=2 * overlap
        )

        replay.run()

        counts = replay.schedulers[0].workload.statistics()
        assert counts.served_count == 24
        # The arena was short, pages moved and requests were retracted, or this says little.
        assert counts.waiting_pass_count > 0
        assert counts.retracted_count > 0
        assert any(
            one.label.startswith("move ") and "attach" not in one.note for one in stage.world.played
        )
        assert all(rank.forward.checked_units > 500 for rank in stage.ranks)


@pytest.mark.slow
def test_the_next_incarnation_starts_on_the_memory_of_the_one_before() -> None:
    world = World(5)
    plan = small_stage(spare_bytes=SPARE_BYTES).storage.storage
    memories = RankMemories(plan.total_bytes, ranks=2)
    for seed in (1, 2):
        with attached(world, overlap=True, memories=memories) as stage:
            StageReplay(stage, requests(6, seed), LIMITS, seed=seed).run()
    memories.close()


def played(seed: int) -> tuple[int, tuple[str, ...], list[bytes]]:
    with attached(seed, overlap=True) as stage:
        StageReplay(stage, requests(6), LIMITS, seed=seed).run()
        digests = tuple(rank.forward.places_digest for rank in stage.ranks)
        memories = [rank.memory.bytes.tobytes() for rank in stage.ranks]
        return stage.world.ran_count, digests, memories


@pytest.mark.case("95")
@pytest.mark.slow
def test_a_seed_decides_everything_and_no_seed_changes_the_outcome() -> None:
    first, again, other = played(1), played(1), played(2)

    assert first == again
    # Other orders, the same bytes in the end, on both ranks.
    assert other[1:] == first[1:]
    assert first[2][0][: len(first[2][0]) // 64] != bytes(len(first[2][0]) // 64)


def test_one_rank_is_slow_and_the_other_is_not() -> None:
    with attached(Seeded(2, {"1/": 1}), mode=Mode.LEADER) as stage:
        replay = StageReplay(
            stage, requests(4), LIMITS, seed=3, mode=Mode.LEADER, actions_between_max=8
        )
        behind: list[int] = []
        while replay.run_pass():
            waiting = [sum(len(q.items) for q in rank.device.queues) for rank in stage.ranks]
            behind.append(waiting[1] - waiting[0])

        stage.world.run()
        replay.check()
        assert sum(behind) > 10 * len(behind)


# ---- what the checks find ----


def ignore(event: Event) -> None:
    """Stand in for a wait that somebody forgot."""


@pytest.mark.case("55")
@pytest.mark.parametrize("chooser", [InOrder(), 1, 2])
@pytest.mark.parametrize("waits", ["forward", "allocator"])
def test_a_rank_whose_streams_do_not_wait_races(
    monkeypatch: pytest.MonkeyPatch, chooser: Chooser | int, waits: str
) -> None:
    stage = attached(chooser, mode=Mode.LEADER, overlap=True)
    follower = stage.ranks[1]
    stream = follower.client.stream if waits == "allocator" else follower.client.forward_stream
    monkeypatch.setattr(stream, "wait", ignore)
    replay = StageReplay(stage, requests(4), LIMITS, seed=3, mode=Mode.LEADER)

    with pytest.raises(RaceError, match="stream '1/"):
        replay.run()


def launch_one(rank: ModelledRank, replay: StageReplay) -> None:
    """Let passes run until the rank has something to read."""
    while not rank.forward.checked_units:
        assert replay.run_pass()
    rank.device.world.run()


def test_a_byte_that_nobody_wrote_is_found(stage: ModelledStage) -> None:
    replay = StageReplay(stage, requests(4), LIMITS, seed=3)
    launch_one(stage.ranks[0], replay)
    plan = stage.daemon.storage.storage
    arena = stage.ranks[0].memory.bytes[: plan.arena_bytes]
    full = arena[plan.sink_bytes :]

    full[np.flatnonzero(full)[::64]] ^= 0x40

    with pytest.raises(WorkloadError, match=r"request \d+, band .* on rank 0: "):
        replay.run()


def test_a_table_that_says_something_else_than_the_host_is_found(stage: ModelledStage) -> None:
    replay = StageReplay(stage, requests(4), LIMITS, seed=3)
    rank = stage.ranks[1]
    launch_one(rank, replay)
    plan = stage.daemon.storage.storage
    band_map = plan.region.band_maps[-1]
    table = rank.memory.table(band_map.offset_bytes, band_map.entry_count)
    table[np.flatnonzero(table)] += 1

    with pytest.raises(WorkloadError, match=r"rank 1, step \d+: request .* the tables in memory"):
        replay.run()
