"""Mirrored and log-following ranks, whatever their number, see one history and one memory."""

import pytest

from kvd.errors import DivergenceError
from kvd_proto.codec import digest_of, encode
from kvd_proto.operations import Take
from kvd_proto.outcomes import AdmitResult, Failed, Freed, Refusal, Skipped, TakeResult
from tests.stateful.program import TIGHT, batches, honest_batches
from tests.stateful.ranks import Rank, incarnation, int64s, stage

SEEDS = pytest.mark.parametrize("seed", range(4))


def _mirrored(ranks: int, seed: int, count: int = 45) -> list[Rank]:
    """Play a program on every rank; whoever is first changes from batch to batch."""
    world = incarnation(ranks=ranks, storage=TIGHT)
    members = [Rank(world, rank, storage=TIGHT) for rank in range(ranks)]
    for number, operations in enumerate(batches(seed, count)):
        for turn in range(ranks):
            members[(number + turn) % ranks].send(*operations)
        world.settle()
    return members


def _led(followers: int, seed: int, count: int = 45) -> list[Rank]:
    """Play a program on one rank; the others follow, each at its own pace."""
    world = incarnation(ranks=followers + 1, storage=TIGHT)
    leader, *others = [Rank(world, rank, storage=TIGHT) for rank in range(followers + 1)]
    for number, operations in enumerate(batches(seed, count)):
        leader.send(*operations)
        world.settle()
        for other in others:
            if number % (other.rank + 1) == 0:
                other.follow()
    for other in others:
        other.follow()
    return [leader, *others]


@SEEDS
def test_a_program_meets_every_kind_of_answer(seed: int) -> None:
    print("seed", seed)
    kinds = {type(entry.outcome.result) for entry in _mirrored(1, seed, 120)[0].entries}
    assert {AdmitResult, TakeResult, Failed, Freed} <= kinds


def test_the_seeds_meet_refusals_and_skipped_operations() -> None:
    kinds = {
        type(entry.outcome.result)
        for seed in range(4)
        for entry in _mirrored(1, seed, 120)[0].entries
    }
    assert {Refusal, Skipped} <= kinds


@pytest.mark.case("95")
@SEEDS
@pytest.mark.parametrize("ranks", [2, 4])
def test_mirrored_ranks_have_one_history_and_one_memory(ranks: int, seed: int) -> None:
    print("seed", seed)
    (alone,) = _mirrored(1, seed)
    for member in _mirrored(ranks, seed):
        assert member.position == alone.position
        assert member.entries == alone.entries
        assert member.replies == alone.replies
        assert member.tables.picture() == alone.tables.picture()


@SEEDS
@pytest.mark.parametrize("followers", [0, 1, 3])
def test_a_leader_and_its_followers_have_the_history_of_mirrored_ranks(
    followers: int, seed: int
) -> None:
    print("seed", seed)
    (alone,) = _mirrored(1, seed)
    leader, *others = _led(followers, seed)
    assert leader.replies == alone.replies
    for member in (leader, *others):
        assert member.position == alone.position
        assert member.entries == alone.entries
        assert member.tables.picture() == alone.tables.picture()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_an_honest_program_is_never_refused_and_leaves_nothing(ranks: int) -> None:
    world = incarnation(ranks=ranks)
    members = [Rank(world, rank, storage=stage()) for rank in range(ranks)]
    for operations in honest_batches(40):
        for member in members:
            member.send(*operations)
        world.settle()
    kinds = {type(entry.outcome.result) for entry in members[0].entries}
    assert not kinds & {Failed, Refusal, Skipped}


@pytest.mark.parametrize("wrong_rank", [1, 2, 3])
@pytest.mark.parametrize("number", [0, 7, 30])
def test_a_planted_operation_ends_the_incarnation_before_that_rank_applies_it(
    wrong_rank: int, number: int
) -> None:
    world = incarnation(ranks=4, storage=TIGHT)
    members = [Rank(world, rank, storage=TIGHT) for rank in range(4)]
    program = batches(1, 31)
    for operations in program[:number]:
        for member in members:
            member.send(*operations)
        world.settle()
    planted = Take(int64s([1 << 40]), 3)
    members[0].send(*program[number])
    before = members[wrong_rank].tables.picture()
    with pytest.raises(DivergenceError, match=f"rank {wrong_rank} sent take.*1099511627776"):
        members[wrong_rank].send(planted, *program[number][1:])
    assert members[wrong_rank].tables.picture() == before
    assert members[wrong_rank].position == world.applied[wrong_rank]


def test_a_rank_sees_from_the_digest_that_another_operation_was_decided() -> None:
    world = incarnation(ranks=2, storage=TIGHT)
    (entry, _) = Rank(world, 0, storage=TIGHT).send(Take(int64s([1])))
    assert entry.digest == digest_of(encode(Take(int64s([1]))))
    assert entry.digest != digest_of(encode(Take(int64s([2]))))
