"""Redo: from the first unconfirmed segment to the end of the log, and nothing that is void."""

from collections.abc import Iterator, Sequence

import pytest

from kvd.testing.modelled.choice import InOrder
from kvd.testing.modelled.device import ModelledDevice
from kvd.testing.modelled.world import World
from kvd.testing.small_rank import FULL, PLAN, STATE, TOTAL_BYTES, SmallRank, outcome
from kvd_client.device.apply import Applier, read_progress
from kvd_client.device.redo import redo
from kvd_client.errors import ReplyError
from kvd_proto.outcomes import (
    OWN_PROGRAM,
    AnyEffect,
    ClearSlots,
    Column,
    Copy,
    CopyStream,
    Entry,
    Move,
    Outcome,
    ResetRows,
    Wait,
    Zero,
)

ZEROES = [outcome([Zero(FULL, Column(0))], columns=[[unit]]) for unit in (20, 21, 22)]
"""Entries 1 to 3."""


@pytest.fixture
def rank() -> Iterator[SmallRank]:
    rank = SmallRank()
    rank.applier.clear()
    rank.settle()
    yield rank
    rank.close()


def run(rank: SmallRank, outcomes: Sequence[Outcome], *, first_position: int = 1) -> int:
    entries = [Entry(OWN_PROGRAM, 0, 0, one) for one in outcomes]
    end = redo(
        device=rank.device,
        memory=rank.memory,
        plan=PLAN,
        stream=rank.stream,
        first_position=first_position,
        entries=entries,
    )
    rank.settle()
    return end


def zeroed(rank: SmallRank) -> list[int]:
    return [unit for unit in range(20, 24) if not rank.units(FULL)[unit].any()]


def test_memory_on_which_nothing_ran_gets_everything(rank: SmallRank) -> None:
    assert run(rank, ZEROES) == 3

    assert zeroed(rank) == [20, 21, 22]
    assert read_progress(rank.memory, PLAN) == (3, 0)


@pytest.mark.parametrize("first_position", [1, 2])
def test_what_ran_is_not_done_again(rank: SmallRank, first_position: int) -> None:
    rank.applier.apply_reply(1, ZEROES[:2])
    rank.settle()
    rank.units(FULL)[20:22] = 1  # what forwards wrote since

    assert run(rank, ZEROES[first_position - 1 :], first_position=first_position) == 3

    assert zeroed(rank) == [22]


def test_it_starts_behind_the_confirmed_segment_of_an_entry(rank: SmallRank) -> None:
    halves = outcome([Zero(FULL, Column(0))], [Zero(FULL, Column(1))], columns=[[20], [21]])
    rank.applier.apply(1, outcome(halves.segments[0], columns=[[20], [21]]))
    rank.settle()
    rank.units(FULL)[20] = 1

    assert run(rank, [halves, *ZEROES[2:]]) == 2

    assert zeroed(rank) == [21, 22]
    assert read_progress(rank.memory, PLAN) == (2, 0)


def test_memory_that_is_at_the_end_already_changes_in_nothing(rank: SmallRank) -> None:
    rank.applier.apply_reply(1, ZEROES)
    rank.settle()
    before = rank.memory.bytes.copy()

    assert run(rank, ZEROES[2:], first_position=3) == 3

    assert (rank.memory.bytes == before).all()


def test_waits_copies_and_what_belongs_to_a_launch_are_void(rank: SmallRank) -> None:
    effects: list[AnyEffect] = [
        Wait(5),
        Copy(1, CopyStream.LOAD, FULL, Column(0), Column(0)),
        ClearSlots(Column(0)),
        ResetRows(Column(1)),
        Zero(FULL, Column(0)),
    ]

    assert run(rank, [outcome(effects, columns=[[23], [1]])]) == 1

    assert zeroed(rank) == [23]
    assert rank.units(STATE)[23].any()


@pytest.mark.parametrize(("first_position", "applied_count"), [(2, 0), (3, 1), (1, 3)])
def test_a_gap_before_what_came_is_refused_with_nothing_done(
    rank: SmallRank, first_position: int, applied_count: int
) -> None:
    rank.applier.apply_reply(1, ZEROES[:applied_count])
    rank.settle()
    before = rank.memory.bytes.copy()

    with pytest.raises(ReplyError, match=r"stub\.redo_gapless: this memory is at position"):
        run(rank, ZEROES[:1] if applied_count == 3 else ZEROES, first_position=first_position)

    assert (rank.memory.bytes == before).all()


def test_a_segment_that_moves_and_then_waits_is_confirmed_before_the_next() -> None:
    world = World(InOrder())
    device = ModelledDevice(world)
    memory = device.allocate(TOTAL_BYTES)
    stream, forward = device.stream("allocator"), device.stream("forward")
    applier = Applier(device=device, memory=memory, plan=PLAN, stream=stream, overlaps=True)
    applier.note_step(1, forward.record())
    moves = [Move(FULL, Column(0), Column(1)), Wait(1)]

    applier.apply_reply(
        1, [ZEROES[0], outcome(moves, [Zero(FULL, Column(0))], columns=[[30], [31]])]
    )
    world.run()

    labels = [action.label.partition(" [")[0] for action in world.played]
    assert [label for label in labels if label.startswith("write words")] == [
        "write words (1, 0)",
        "write words (2, 0)",
        "write words (2, 1)",
    ]
    assert labels[-3] == "write words (2, 0)"
    assert labels[-2].startswith("zero 1 units")
