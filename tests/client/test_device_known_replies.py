"""Replies whose shape came before are applied as one recipe; whatever is unlike them is not."""

from collections.abc import Iterator

import numpy as np
import pytest

from kvd.testing.small_rank import FULL, PLAN, outcome
from kvd_client.device.apply import Applier, StepGuard, read_progress
from kvd_client.device.assembly import WaitFor
from kvd_client.device.columns import decode_columns
from kvd_client.device.cuda.commands import CudaCommands
from kvd_client.device.known_replies import known_reply
from kvd_client.device.places import PlanPlaces
from kvd_client.device.recipes import RECIPES_MAX, Recipes
from kvd_client.errors import ReplyError
from kvd_proto.outcomes import (
    AnyEffect,
    ClearSlots,
    Column,
    Move,
    Outcome,
    Wait,
    WriteMap,
    Zero,
)
from tests.client.test_device_recipes import Ranks, decode_step

NEWEST_STEP = 4
FIRST, SECOND, THIRD = Column(0), Column(1), Column(2)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    for applier in (ranks.host.applier, ranks.cuda):
        applier.note_ordered_step(NEWEST_STEP)
    yield ranks
    ranks.close()


def is_known(*outcomes: Outcome) -> bool:
    recipes = Recipes(PlanPlaces(PLAN))
    columns = decode_columns(outcomes)
    return known_reply(outcomes, columns, recipes, newest_step=NEWEST_STEP) is not None


def waits(step: int = 0, copy: int = 0) -> Outcome:
    return outcome([Wait(step=step, copy=copy)])


TAKEN = decode_step((1, 0, 5, 20))
FREED = outcome([WriteMap(FULL, FIRST)], columns=[[7, 8]])


@pytest.mark.parametrize(
    "outcomes",
    [
        (TAKEN,),
        (outcome(), waits(NEWEST_STEP), FREED, TAKEN, outcome()),
        (outcome(columns=[[1, 2], []]), FREED, outcome(columns=[[3]]), TAKEN),
        (outcome([WriteMap(FULL, FIRST)], [Zero(FULL, SECOND)], columns=[[7], [20]]),),
    ],
)
def test_effects_that_wait_for_nothing_are_known(ranks: Ranks, outcomes: list[Outcome]) -> None:
    assert is_known(*outcomes)

    assert ranks.apply(*outcomes) == 1

    ranks.check()
    assert read_progress(ranks.memory, PLAN) == read_progress(ranks.host.memory, PLAN)


@pytest.mark.parametrize(
    "outcomes",
    [
        (),
        (outcome(),),
        (waits(NEWEST_STEP),),
        (waits(NEWEST_STEP + 1), TAKEN),
        (waits(copy=1), TAKEN),
        (outcome([Wait(step=1), WriteMap(FULL, FIRST)], columns=[[7]]),),
        (TAKEN, outcome([ClearSlots(FIRST)], columns=[[9]])),
        (outcome([Move(FULL, FIRST, SECOND)], columns=[[9], [10]]),),
        (outcome([WriteMap(FULL, FIRST)], columns=[[96]]),),
    ],
)
def test_anything_else_is_not(outcomes: list[Outcome]) -> None:
    assert not is_known(*outcomes)


@pytest.mark.parametrize("effect", [Zero(FULL, SECOND), WriteMap(FULL, FIRST, SECOND)])
def test_an_entry_cannot_name_the_columns_of_the_next(ranks: Ranks, effect: AnyEffect) -> None:
    with pytest.raises(ReplyError, match="an effect names column 1 of 1"):
        ranks.apply(outcome([effect], columns=[[20]]), outcome(columns=[[20]]))


def test_columns_of_different_entries_need_not_be_equally_long(ranks: Ranks) -> None:
    pairs = [WriteMap(FULL, FIRST, SECOND)]
    two, three = outcome(pairs, columns=[[5, 6], [20, 21]]), outcome(pairs, columns=[[7], [22]])

    assert is_known(two, three)
    assert ranks.apply(two, three) == 1
    ranks.check()
    assert not is_known(outcome(pairs, columns=[[5, 6], [20]]), three)


def test_a_step_in_flight_is_waited_for(ranks: Ranks) -> None:
    ranks.driver.holds_events = True
    end = ranks.stream.record()
    ranks.driver.holds_events = False
    ranks.cuda.note_step(NEWEST_STEP + 1, end)

    reply = ranks.cuda.assemble_reply(1, [outcome(), waits(NEWEST_STEP + 1), FREED, TAKEN])

    wait, commands = reply.pieces
    assert wait == WaitFor(end)
    assert isinstance(commands, CudaCommands)
    assert commands.sole is not None
    assert len(ranks.cuda.assemble_reply(1, [waits(NEWEST_STEP + 1), TAKEN]).pieces) == 1


@pytest.mark.parametrize("reached", [False, True])
def test_reads_of_launched_steps_come_first(ranks: Ranks, reached: bool) -> None:
    ranks.driver.holds_events = not reached
    reads_end, end = ranks.stream.record(), ranks.stream.record()
    ranks.driver.holds_events = False
    ranks.cuda.note_step(NEWEST_STEP + 1, end, barrier=reads_end)

    pieces = ranks.cuda.assemble_reply(1, [FREED, TAKEN]).pieces

    assert list(pieces[:-1]) == ([] if reached else [WaitFor(reads_end)])
    commands = pieces[-1]
    assert isinstance(commands, CudaCommands)
    assert commands.sole is not None


def test_a_wait_between_effects_is_for_all_of_them(ranks: Ranks) -> None:
    ranks.driver.holds_events = True
    ends = [ranks.stream.record(), ranks.stream.record()]
    ranks.driver.holds_events = False
    for number, end in enumerate(ends, NEWEST_STEP + 1):
        ranks.cuda.note_step(number, end)
    steps = [waits(NEWEST_STEP + 2), waits(NEWEST_STEP + 1)]

    pieces = ranks.cuda.assemble_reply(1, [steps[0], FREED, steps[1], TAKEN]).pieces

    assert list(pieces[:-1]) == [WaitFor(ends[1])]


def test_a_guarded_reply_waits_where_the_guard_stands(ranks: Ranks) -> None:
    ranks.driver.holds_events = True
    end = ranks.stream.record()
    ranks.driver.holds_events = False
    ranks.cuda.note_step(NEWEST_STEP + 1, end)
    guard = StepGuard(entry_index=1, step=NEWEST_STEP + 1)
    reply = ranks.cuda.assemble_reply(1, [FREED, TAKEN], guard=guard)
    assert len(reply.pieces) == 3


def test_a_guard_for_a_step_that_was_never_launched_is_refused(ranks: Ranks) -> None:
    guard = StepGuard(entry_index=0, step=NEWEST_STEP + 1)
    with pytest.raises(ReplyError, match="waits for step 5"):
        ranks.cuda.assemble_reply(1, [TAKEN], guard=guard)


def test_segments_that_are_done_already_are_not_done_again(ranks: Ranks) -> None:
    entry = outcome([WriteMap(FULL, FIRST)], [Zero(FULL, SECOND)], columns=[[7], [20]])
    host = ranks.host.new_applier(segment_start_index=1)
    cuda = Applier(
        device=ranks.device,
        memory=ranks.memory,
        plan=PLAN,
        stream=ranks.stream,
        segment_start_index=1,
    )
    for applier in (host, cuda):
        applier.apply_reply(1, [entry])
        applier.apply_reply(2, [TAKEN])
    ranks.check()


def test_words_behind_a_move_are_out_before_a_recipe_of_the_next_segment(ranks: Ranks) -> None:
    """Redoing a move whose source a later segment has zeroed would lose the page."""
    (columns,) = decode_columns([TAKEN])
    recipe = Recipes(PlanPlaces(PLAN)).of(TAKEN.segments[0])
    assert recipe is not None
    units = np.array([9, 10], dtype=np.int64)
    place = PLAN.region.progress.offset_bytes
    moving = ranks.device.commands(ranks.memory)
    moving.move_units(base_bytes=0, unit_bytes=128, sources=units[:1], destinations=units[1:])
    ranks.stream.enqueue(moving)

    commands = ranks.device.commands(ranks.memory)
    for index in range(3):
        assert commands.add_recipe(recipe, columns.lists, 0)
        commands.write_words(offset_bytes=place, values=(1, index))
    assert [launch.words for launch in commands.launches] == [(1, 0), (1, 2)]


def test_words_for_two_places_are_both_written(ranks: Ranks) -> None:
    (columns,) = decode_columns([TAKEN])
    recipe = Recipes(PlanPlaces(PLAN)).of(TAKEN.segments[0])
    assert recipe is not None
    place = PLAN.region.progress.offset_bytes
    commands = ranks.device.commands(ranks.memory)
    assert commands.add_recipe(recipe, columns.lists, 0)
    commands.write_words(offset_bytes=place, values=(1, 2))
    commands.write_words(offset_bytes=place + 16, values=(3, 4))
    ranks.stream.enqueue(commands)
    written = np.frombuffer(ranks.memory.read_bytes(place, place + 32), dtype=np.int64)
    assert written.tolist() == [1, 2, 3, 4]


def test_work_left_to_the_next_launch_is_kept(ranks: Ranks) -> None:
    ranks.apply(outcome([ClearSlots(FIRST)], columns=[[10, 11]]))
    ranks.apply(decode_step((1, 0, 5, 21)))  # half of slot 10
    ranks.check()


def test_shapes_of_replies_do_not_pile_up() -> None:
    recipes = Recipes(PlanPlaces(PLAN))
    segments = ((WriteMap(FULL, FIRST),),)
    first = recipes.of_reply(((segments, 0, 1),))
    assert first is not None
    assert recipes.of_reply(((segments, 0, 1),)) is first
    for first_column in range(1, RECIPES_MAX + 1):
        recipes.of_reply(((segments, first_column, 1),))
    assert recipes.of_reply(((segments, 0, 1),)) is not first
