"""Nobody is told of a state slot before the launch that clears it; positions say which one does."""

import numpy as np
import pytest

from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.clearings import SlotClearings
from kvd.engine.incarnation import Incarnation
from kvd.engine.stage import StageEngine
from kvd.errors import InvariantError, OperationError
from kvd_proto.codec import decode_reply
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import (
    Admit,
    BackupSubmit,
    Free,
    Hold,
    Launch,
    Operation,
    Post,
    Processed,
    Publish,
    WriteSet,
)
from kvd_proto.outcomes import Done, Failed, Outcome, Resolved
from tests.stateful.ranks import body_of, incarnation, int32s, int64s
from tests.stateful.values import STATE, engine_with_value, held

BEFORE = r"state slot 2: it was just handed out, and the next launch clears it"
UNDER = r"state slot 2: step 1, which is in flight, clears it"


def named(slots: list[int]) -> tuple[bytes, ...]:
    """Return state slots as operations name units per band."""
    return tuple(int64s(slots if band == STATE else []) for band in range(4))


def post(engine: StageEngine) -> Post:
    return Post(1, named(held(engine, 2, STATE)))


def backup(engine: StageEngine) -> BackupSubmit:
    return BackupSubmit(1, named(held(engine, 2, STATE)), (int32s([0]), b"", b"", b""))


def launch(step: int, position: int = 0) -> Launch:
    """Return the notice of a launch over a request that is not the slot's."""
    return Launch(step, position, WriteSet.REQUESTS, int64s([3]))


def refused(engine: StageEngine, operation: Operation, match: str) -> None:
    with pytest.raises(OperationError, match=match) as caught:
        engine.decide(0, operation)
    assert caught.value.code is ErrorCode.IN_USE


def engine_of_two() -> StageEngine:
    """Return an engine on which requests 2 and 3 run, over neither of which was a launch."""
    engine = engine_with_value()
    engine.decide(0, Admit(int64s([3]), int32s([4]), int32s([4]), int32s([4])))
    return engine


# ---- who may read a slot -------------------------------------------------------------------------


def test_what_no_launch_has_cleared_is_neither_sent_nor_backed_up() -> None:
    engine = engine_of_two()
    refused(engine, post(engine), BEFORE)
    refused(engine, backup(engine), BEFORE)


def test_what_a_launch_in_flight_clears_is_backed_up_behind_it_and_not_sent() -> None:
    engine = engine_of_two()
    engine.decide(0, launch(1))
    refused(engine, post(engine), UNDER)
    assert isinstance(engine.decide(0, backup(engine)).result, Done)
    engine.decide(0, Processed(1))
    assert isinstance(engine.decide(0, post(engine)).result, Resolved)


def test_a_slot_that_is_freed_was_never_cleared() -> None:
    engine = engine_of_two()
    (cleared,) = held(engine, 2, STATE)
    engine.decide(0, launch(1))
    engine.decide(0, Admit(int64s([4]), int32s([4]), int32s([4]), int32s([4])))
    (due,) = held(engine, 4, STATE)
    clearings = engine.steps.clearings
    assert (clearings.step_of(cleared), clearings.is_due(due)) == (1, True)
    engine.decide(0, Free(int64s([2, 4])))
    assert (clearings.step_of(cleared), clearings.is_due(due)) == (0, False)


def test_a_slot_that_a_peer_fills_is_cleared_by_no_launch() -> None:
    engine = engine_of_two()
    slots = named(held(engine, 2, STATE))
    engine.decide(0, Hold(1, slots))
    assert isinstance(engine.decide(0, Publish(1)).result, Resolved)
    assert not engine.steps.clearings.is_due(held(engine, 2, STATE)[0])


# ---- which launch clears a slot ------------------------------------------------------------------


def test_a_launch_clears_what_was_handed_out_up_to_its_position() -> None:
    clearings = SlotClearings()
    for position in (3, 4, 5):
        clearings.hand_out(np.array([position]))
        clearings.place(position)
    clearings.launch(1, 4)
    assert [clearings.step_of(slot) for slot in (3, 4, 5)] == [1, 1, 0]
    assert [clearings.is_due(slot) for slot in (3, 4, 5)] == [False, False, True]
    clearings.launch(2, 5)
    assert [clearings.step_of(slot) for slot in (3, 4, 5)] == [1, 1, 2]


def test_what_is_handed_out_where_nobody_says_is_cleared_by_every_launch() -> None:
    clearings = SlotClearings()
    clearings.hand_out(np.array([3]))
    clearings.launch(1, 0)
    assert clearings.step_of(3) == 1


def test_positions_rise_in_the_order_of_hand_out() -> None:
    clearings, monitor = SlotClearings(), CheckMonitor(CheckLevel.STRICT)
    slots = np.arange(4)
    for slot, position in zip(slots, (7, 8, 6), strict=False):
        clearings.check(slots, 0, monitor)
        clearings.hand_out(slots[slot : slot + 1])
        clearings.check(slots, 0, monitor)
        clearings.place(position)
    with pytest.raises(InvariantError, match=r"step\.clearings_bound"):
        clearings.check(slots, 0, monitor)


def send(world: Incarnation, program: int, *operations: Operation) -> list[Outcome]:
    """Send a batch of one of several programs; returns its outcomes."""
    position, index = world.log.end_position, world.next_index(program)
    world.confirm(0, position)
    _, reply = world.batch(rank=0, program=program, index=index, body=body_of(operations))
    return [entry.outcome for entry in decode_reply(reply).entries if entry.program == program]


def test_a_slot_handed_out_behind_a_launch_that_is_told_later_waits_for_the_next() -> None:
    """The launch stood at a position; another program was given a slot before its notice."""
    world = incarnation()
    send(world, 0, Admit(int64s([1]), int32s([4]), int32s([4]), int32s([4])))
    position = world.log.end_position
    send(world, 1, Admit(int64s([2]), int32s([4]), int32s([4]), int32s([4])))
    send(world, 0, Launch(1, position, WriteSet.REQUESTS, int64s([1])), Processed(1))
    slots = held(world.engine, 2, STATE)
    assert world.engine.steps.clearings.is_due(slots[0])
    failed = send(world, 1, Post(1, named(slots)))[0].result
    assert isinstance(failed, Failed)
    assert failed.code == ErrorCode.IN_USE.value
    position = world.log.end_position
    send(world, 0, Launch(2, position, WriteSet.REQUESTS, int64s([1])), Processed(2))
    assert isinstance(send(world, 1, Post(1, named(slots)))[0].result, Resolved)
