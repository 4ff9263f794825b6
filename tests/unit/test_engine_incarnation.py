"""One incarnation: exactly once, agreement, facts, gates, and what is kept."""

from collections.abc import Sequence

import pytest

from kvd.engine.incarnation import BATCH_OPERATIONS_MAX, Incarnation
from kvd.errors import DivergenceError, OperationError, SessionError
from kvd_proto.codec import decode_reply, digest_of, encode, join_batch
from kvd_proto.errors import ErrorCode, FrameError
from kvd_proto.operations import (
    Admit,
    BatchEnd,
    Free,
    Idle,
    IncarnationEnd,
    Launch,
    Operation,
    Processed,
    RankFailed,
    StepAborted,
    Take,
)
from kvd_proto.outcomes import (
    FACT_PROGRAM,
    OWN_PROGRAM,
    AdmitResult,
    BatchReply,
    Done,
    Entry,
    Failed,
    Freed,
    NotRun,
    Skipped,
    TakeResult,
)
from tests.stateful.chains import picture
from tests.stateful.ranks import body_of, incarnation, int32s, int64s, stage


def _admit(*requests: int, prompt: int = 8, new: int = 8) -> Admit:
    count = len(requests)
    return Admit(int64s(requests), int32s([prompt] * count), int32s([new] * count))


def _send(
    world: Incarnation,
    operations: Sequence[Operation],
    *,
    rank: int = 0,
    index: int | None = None,
    program: int = 0,
) -> BatchReply:
    first = world.next_index(program) if index is None else index
    _, reply = world.batch(rank=rank, program=program, index=first, body=body_of(operations))
    world.settle()
    return decode_reply(reply)


def _next(world: Incarnation, *operations: Operation) -> BatchReply:
    """Confirm everything so far, so that the reply holds this batch alone."""
    world.confirm(0, world.log.end_position)
    return _send(world, operations)


def _results(reply: BatchReply) -> list[object]:
    return [entry.outcome.result for entry in reply.entries]


def _kinds(reply: BatchReply) -> list[type]:
    return [type(result) for result in _results(reply)]


# ---- batches -------------------------------------------------------------------------------------


def test_entries_carry_program_index_and_digest() -> None:
    reply = _send(incarnation(), [_admit(1), Take(int64s([1]), 8)])
    assert reply.position == 1
    assert [(entry.program, entry.index) for entry in reply.entries] == [(0, 0), (0, 1), (0, 2)]
    assert reply.entries[1].digest == digest_of(encode(Take(int64s([1]), 8)))


@pytest.mark.parametrize("index", [1, 4, 1 << 40])
def test_a_batch_that_leaves_a_gap_is_refused(index: int) -> None:
    world = incarnation()
    with pytest.raises(SessionError, match=f"index {index}, program 0 continues at 0") as caught:
        _send(world, [_admit(1)], index=index)
    assert caught.value.code is ErrorCode.BAD_INDEX
    assert world.log.end_position == 0


@pytest.mark.parametrize("index", [-1, 1, 2])
def test_a_repetition_that_starts_inside_a_batch_is_refused(index: int) -> None:
    world = incarnation()
    _send(world, [_admit(1), Idle()])
    with pytest.raises(SessionError, match=f"index {index}, where no batch") as caught:
        _send(world, [Idle()], index=index)
    assert caught.value.code is ErrorCode.BAD_INDEX


def test_a_batch_sent_again_gets_the_same_reply_and_is_decided_once() -> None:
    world = incarnation()
    operations = [_admit(1), Take(int64s([1]), 8)]
    first = _send(world, operations)
    before = picture(world.engine.requests)
    assert _send(world, operations, index=0) == first
    assert picture(world.engine.requests) == before
    assert world.log.end_position == 3


def test_a_reply_lost_twice_behind_later_entries_is_still_there() -> None:
    world = incarnation(ranks=2)
    first = _send(world, [_admit(1)])
    world.confirm(0, 2)
    _send(world, [Take(int64s([1]), 4)])
    assert _send(world, [_admit(1)], rank=1, index=0) == first


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\xff", id="garbage"),
        pytest.param(b"\x90", id="no operation"),
        pytest.param(join_batch([encode(Idle())]), id="no end"),
        pytest.param(join_batch([encode(BatchEnd()), encode(Idle())]), id="an end in the middle"),
        pytest.param(join_batch([encode(BatchEnd())] * 2), id="two ends"),
        pytest.param(
            join_batch([encode(Idle())] * BATCH_OPERATIONS_MAX + [encode(BatchEnd())]),
            id="too many operations",
        ),
        pytest.param(join_batch([encode(_admit(1)), encode(["steal"])]), id="unknown operation"),
    ],
)
def test_a_batch_that_is_none_changes_nothing(body: bytes) -> None:
    world = incarnation()
    engine = picture(world.engine)
    with pytest.raises(FrameError):
        world.batch(rank=0, program=0, index=0, body=body)
    assert picture(world.engine) == engine
    assert (world.next_index(0), world.log.end_position) == (0, 0)


def test_wrong_use_stops_the_batch_and_says_so() -> None:
    world = incarnation()
    reply = _send(world, [_admit(1), Free(int64s([2])), _admit(3), Idle()])
    assert _kinds(reply) == [AdmitResult, Failed, NotRun, NotRun, Done]
    assert _results(reply)[1] == Failed("UNKNOWN_REQUEST", "request 2 is not admitted")
    assert _kinds(_next(world, Free(int64s([1])), _admit(3))) == [Freed, AdmitResult, Done]


def test_what_names_a_request_refused_in_the_same_batch_is_skipped() -> None:
    world = incarnation()
    reply = _send(
        world,
        [
            _admit(1),
            _admit(2, prompt=1000),
            Take(int64s([1, 2])),
            Free(int64s([2])),
            Take(int64s([1])),
        ],
    )
    assert _kinds(reply) == [AdmitResult, AdmitResult, Skipped, Skipped, TakeResult, Done]
    assert _results(reply)[2] == Skipped(2)
    assert isinstance(_results(_next(world, Free(int64s([2]))))[0], Failed)


def test_a_step_launched_behind_the_end_of_the_log_is_wrong_use() -> None:
    world = incarnation()
    (first, _) = _results(_send(world, [Launch(1, 1 << 62)]))
    assert isinstance(first, Failed)
    assert "the log ends at 0" in first.message
    assert _kinds(_next(world, Launch(1, 2), Processed(1))) == [Done, Done, Done]


def test_two_programs_are_numbered_each_for_itself() -> None:
    world = incarnation()
    _send(world, [_admit(1)], program=0)
    reply = _send(world, [_admit(2)], program=5)
    assert [(entry.program, entry.index) for entry in reply.entries][-2:] == [(5, 0), (5, 1)]
    assert (world.next_index(0), world.next_index(5)) == (2, 2)


# ---- agreement -----------------------------------------------------------------------------------


def test_a_mirrored_rank_gets_the_same_entries() -> None:
    world = incarnation(ranks=2)
    operations = [_admit(1), Take(int64s([1]), 8)]
    assert _send(world, operations, rank=0) == _send(world, operations, rank=1, index=0)


def test_a_divergence_shows_index_bodies_ranks_and_what_was_applied() -> None:
    world = incarnation(ranks=2)
    _send(world, [_admit(1), Take(int64s([1]), 8)])
    world.confirm(0, 3)
    with pytest.raises(DivergenceError) as caught:
        _send(world, [_admit(1), Take(int64s([1]), 9)], rank=1, index=0)
    assert caught.value.message == (
        "ranks diverged at program 0 index 1: rank 0 sent take(requests=[1], tokens=8), "
        "rank 1 sent take(requests=[1], tokens=9); rank 0 has applied position 3, "
        "rank 1 position 0"
    )
    assert caught.value.code is ErrorCode.DIVERGED


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        ([Idle(), Idle()], r"index 1: rank 0 sent batch_end\(\), rank 1 sent idle\(\)"),
        ([], r"index 0: rank 0 sent idle\(\), rank 1 sent batch_end\(\)"),
    ],
)
def test_a_longer_or_shorter_batch_is_a_divergence(operations: list[Operation], words: str) -> None:
    world = incarnation(ranks=2)
    _send(world, [Idle()])
    with pytest.raises(DivergenceError, match=words):
        _send(world, operations, rank=1, index=0)


def test_a_rank_that_changes_its_mind_is_told_so() -> None:
    world = incarnation()
    _send(world, [Idle()])
    with pytest.raises(DivergenceError, match="rank 0 sent again"):
        _send(world, [], index=0)


def test_operations_are_compared_and_not_messages() -> None:
    world = incarnation(ranks=2)
    reply = _send(world, [Idle()])
    same = b"\xdc\x00\x02" + encode(Idle()) + encode(BatchEnd())
    _, again = world.batch(rank=1, program=0, index=0, body=same)
    assert decode_reply(again) == reply


def test_garbage_where_a_batch_was_decided_is_a_frame_error() -> None:
    world = incarnation(ranks=2)
    _send(world, [Idle()])
    with pytest.raises(FrameError):
        world.batch(rank=1, program=0, index=0, body=b"\xff")


# ---- cursors and memory --------------------------------------------------------------------------


def test_a_reply_starts_behind_what_the_rank_applied() -> None:
    world = incarnation()
    _send(world, [_admit(1)])
    world.confirm(0, 2)
    reply = _send(world, [Idle()])
    assert (reply.position, len(reply.entries)) == (3, 2)


@pytest.mark.parametrize(("before", "applied"), [(0, 3), (2, 1), (2, -1)])
def test_an_impossible_cursor_is_refused(before: int, applied: int) -> None:
    world = incarnation()
    _send(world, [_admit(1)])
    world.confirm(0, before)
    with pytest.raises(SessionError, match=f"rank 0 says it applied position {applied}") as caught:
        world.confirm(0, applied)
    assert caught.value.code is ErrorCode.BAD_INDEX
    assert world.applied[0] == before


def test_a_follower_gets_later_entries_or_nothing() -> None:
    world = incarnation(ranks=2)
    assert world.follow(1) is None
    reply = _send(world, [_admit(1)])
    followed = world.follow(1)
    assert followed is not None
    assert decode_reply(followed) == reply
    world.confirm(1, 2)
    assert world.follow(1) is None


def test_the_log_stays_bounded_while_all_ranks_keep_up() -> None:
    world = incarnation(ranks=2, ring=8)
    for _ in range(100):
        index = world.next_index(0)
        for rank in (0, 1):
            _send(world, [Idle()], rank=rank, index=index)
            world.confirm(rank, world.log.end_position)
    assert world.log.end_position - world.log.first_position < 8 + 8 // 4 + 2


def test_trimming_keeps_what_the_slowest_rank_needs() -> None:
    world = incarnation(ranks=2, ring=4)
    for _ in range(50):
        _send(world, [Idle()])
        world.confirm(0, world.log.end_position)
    assert world.log.first_position == 1
    for number in range(50):
        reply = _send(world, [Idle()], rank=1, index=2 * number)
        world.confirm(1, reply.position + len(reply.entries) - 1)
    assert world.applied[1] == world.log.end_position
    assert world.log.first_position > 90


def test_a_batch_waits_when_the_slowest_rank_is_too_far_behind() -> None:
    world = incarnation(ranks=2, lag=5)
    for _ in range(3):
        assert not world.lags(0, world.next_index(0))
        _send(world, [Idle()])
    assert world.lags(0, world.next_index(0))
    assert not world.lags(0, 0)
    world.confirm(0, 6)
    world.confirm(1, 2)
    assert not world.lags(0, world.next_index(0))


def test_a_rank_that_was_given_everything_lets_the_next_batch_go() -> None:
    world = incarnation(ranks=2, lag=1)
    _send(world, [Idle()] * 20)
    assert world.lags(0, world.next_index(0))
    assert world.follow(1) is not None
    assert world.applied[1] == 0
    assert not world.lags(0, world.next_index(0))


# ---- facts and gates -----------------------------------------------------------------------------


def _entries(world: Incarnation) -> list[Entry]:
    return list(decode_reply(world.log.reply(0, world.log.end_position)).entries)


def test_a_fact_is_logged_once_per_rank() -> None:
    world = incarnation(ranks=2)
    body = encode(StepAborted(1))
    for rank in (0, 1, 0, 1):
        assert world.fact(rank, body) is None
    assert [(entry.program, entry.index) for entry in _entries(world)] == [
        (FACT_PROGRAM, 0),
        (FACT_PROGRAM, 1),
    ]


def test_a_failed_rank_is_reported_to_the_caller() -> None:
    world = incarnation()
    assert world.fact(0, encode(RankFailed("device"))) == RankFailed("device")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"\xff", FrameError),
        (encode(Idle()), FrameError),
        (encode(StepAborted(99)), OperationError),
    ],
)
def test_a_wrong_fact_is_refused_and_not_logged(body: bytes, error: type[Exception]) -> None:
    world = incarnation()
    with pytest.raises(error):
        world.fact(0, body)
    assert world.log.end_position == 0


def test_an_end_enters_behind_the_step_notices_of_the_next_batch() -> None:
    world = incarnation()
    _send(world, [_admit(1), Launch(1, 0)])
    world.submit_end("administration")
    assert world.ended is None
    world.confirm(0, 3)
    reply = _send(world, [Processed(1), Take(int64s([1]))])
    assert [entry.program for entry in reply.entries] == [0, OWN_PROGRAM, 0, 0]
    assert _kinds(reply) == [Done, Done, NotRun, NotRun]
    assert reply.entries[1].digest == digest_of(encode(IncarnationEnd("administration")))
    assert world.ended == "administration"


def test_an_end_enters_at_once_while_the_program_is_idle() -> None:
    world = incarnation()
    _send(world, [Idle()])
    world.submit_end("administration")
    assert world.ended == "administration"
    assert _entries(world)[-1].program == OWN_PROGRAM


def test_an_end_waits_for_the_idle_that_its_batch_brings() -> None:
    world = incarnation()
    _send(world, [Idle()])
    _send(world, [_admit(1)])
    world.submit_end("administration")
    assert world.ended is None
    reply = _send(world, [Processed(9)])
    assert world.ended is not None
    assert [entry.program for entry in reply.entries][-2:] == [OWN_PROGRAM, 0]


def test_the_end_of_a_rank_needs_no_gate() -> None:
    world = incarnation()
    _send(world, [_admit(1)])
    world.end("rank 1 ended")
    assert world.ended == "rank 1 ended"


def test_an_incarnation_ends_once_with_its_first_cause() -> None:
    world = incarnation()
    world.submit_end("first")
    world.submit_end("second")
    world.end("third")
    _send(world, [Idle()])
    world.submit_end("fourth")
    assert world.ended == "first"
    assert [entry.program for entry in _entries(world)].count(OWN_PROGRAM) == 1


def test_two_ends_before_a_gate_are_one() -> None:
    world = incarnation()
    _send(world, [_admit(1)])
    world.submit_end("first")
    world.submit_end("second")
    _send(world, [Take(int64s([1]))])
    assert world.ended == "first"
    assert [entry.program for entry in _entries(world)].count(OWN_PROGRAM) == 1


def test_nothing_is_decided_after_the_end() -> None:
    world = incarnation()
    _send(world, [_admit(1)])
    world.end("rank 1 ended")
    before = picture(world.engine.requests)
    assert _kinds(_send(world, [Take(int64s([1])), Free(int64s([1]))]))[-3:] == [NotRun] * 3
    assert picture(world.engine.requests) == before


def test_when_a_batch_is_settled_does_not_change_what_is_decided() -> None:
    tight = stage(spare_bytes=1 << 13)
    worlds = [incarnation(storage=tight), incarnation(storage=tight)]
    batches = [
        [_admit(1, 2), Take(int64s([1, 2]), 16)],
        [Free(int64s([1])), _admit(3, prompt=40)],
        [Take(int64s([3]), 16)],
        [Free(int64s([2])), _admit(4)],
    ]
    for operations in batches:
        for world, settles in zip(worlds, (True, False), strict=True):
            world.batch(rank=0, program=0, index=world.next_index(0), body=body_of(operations))
            if settles:
                world.settle()
    assert _entries(worlds[0]) == _entries(worlds[1])
