"""Values in the log, the sink, own entries at gates, and what survives an incarnation."""

import numpy as np
import pytest

from kvd.engine.incarnation import Incarnation
from kvd.engine.stage import StageEngine
from kvd.errors import OperationError
from kvd_proto.codec import decode_own_entry, encode
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import (
    Admit,
    Advance,
    AnyOwnEntry,
    CopyEnded,
    Evict,
    Free,
    Idle,
    IncarnationEnd,
    Insert,
    Launch,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Operation,
    Processed,
    Publish,
    Released,
    ResetSink,
    StepAborted,
    TransferEnded,
    WriteSet,
)
from kvd_proto.outcomes import (
    FACT_PROGRAM,
    OWN_PROGRAM,
    AdmitResult,
    Done,
    Freed,
    Outcome,
    ReleasedResult,
    Skipped,
    Wait,
    WriteSlots,
    ZeroSink,
)
from tests.stateful.chains import picture
from tests.stateful.ranks import Rank, incarnation, int32s, int64s, stage
from tests.stateful.values import (
    FULL,
    LONG_WINDOW,
    backup,
    engine_with_value,
    held,
    hold,
    hosts,
    pages,
    post,
)

VALUE: tuple[Operation, ...] = (
    Admit(int64s([1]), int32s([32]), int32s([0]), int32s([32]), 32),
    Advance(int64s([1]), 32),
    Insert(1, 1),
)


# ---- values --------------------------------------------------------------------------------------


def test_inserting_takes_the_request_out_of_the_tables_and_frees_nothing() -> None:
    engine = engine_with_value()
    live = [band.live_units for band in engine.chain.bands]
    outcome = engine.decide(0, Insert(2, 2))
    assert outcome.result == Done()
    assert [type(effect) for effect in outcome.segments[0]] == [WriteSlots]
    assert [band.live_units for band in engine.chain.bands] == live


def test_inserting_a_request_that_was_refused_in_the_batch_is_skipped() -> None:
    engine = engine_with_value()
    answer = engine.decide(0, Admit(int64s([3]), int32s([90]), int32s([90]))).result
    assert isinstance(answer, AdmitResult)
    assert [refusal.request for refusal in answer.refusals] == [3]
    assert engine.decide(0, Insert(2, 3)).result == Skipped(3)


@pytest.mark.case("81")
def test_evicting_gives_units_back_per_band() -> None:
    engine = engine_with_value()
    counts = tuple(len(pages(engine, band)) for band in range(4))
    assert engine.decide(0, Evict(int64s([1]))).result == Freed(counts)


@pytest.mark.parametrize(
    ("operation", "problem", "code"),
    [
        (Insert(1, 2), "value 1 cannot be opened.*highest so far is 1", ErrorCode.BAD_NUMBER),
        (Insert(0, 2), "value 0 cannot be opened", ErrorCode.BAD_NUMBER),
        (Insert(2, 1), "request 1 has ended", ErrorCode.UNKNOWN_REQUEST),
        (Insert(2, 9), "request 9 is not admitted", ErrorCode.UNKNOWN_REQUEST),
        (Evict(int64s([2])), "value 2 was never inserted", ErrorCode.UNKNOWN_NUMBER),
        (Evict(int64s([1, 1])), "names value 1 twice", ErrorCode.BAD_ARGUMENT),
        (Evict(b""), "not an array of 1 to", ErrorCode.BAD_ARGUMENT),
        (Evict(b"1234"), "evict.values of 4 bytes is not an array", ErrorCode.BAD_ARGUMENT),
    ],
)
def test_wrong_use_of_values_is_named_and_changes_nothing(
    operation: Operation, problem: str, code: ErrorCode
) -> None:
    engine = engine_with_value()
    before = picture(engine)
    with pytest.raises(OperationError, match=problem) as caught:
        engine.decide(0, operation)
    assert caught.value.code is code
    assert picture(engine) == before


# ---- the sink ------------------------------------------------------------------------------------


@pytest.mark.case("79")
def test_the_sink_is_zeroed_behind_the_newest_step() -> None:
    engine = engine_with_value()
    assert engine.decide(0, ResetSink()) == Outcome(Done(), ((ZeroSink(),),))
    engine.decide(0, Launch(1, 0))
    engine.decide(0, Launch(2, 0))
    assert engine.decide(0, ResetSink()) == Outcome(Done(), ((Wait(2), ZeroSink()),))
    assert engine.decide(0, ResetSink()) == Outcome(Done(), ((ZeroSink(),),))


# ---- ends in the log -----------------------------------------------------------------------------


def _ranks(count: int = 2) -> tuple[Incarnation, list[Rank]]:
    """Return an incarnation whose rank 0 sent VALUE and one backup of it, and its ranks."""
    storage = stage()
    world = incarnation(ranks=count, storage=storage)
    ranks = [Rank(world, rank, storage=storage) for rank in range(count)]
    for rank in ranks:
        rank.send(*VALUE, backup(1, FULL, [1, 2]))
        rank.follow()
    return world, ranks


def _own(world: Incarnation) -> list[AnyOwnEntry]:
    records = world.log.records(1, world.log.end_position)
    return [decode_own_entry(it.body) for it in records if it.program == OWN_PROGRAM]


@pytest.mark.case("25")
def test_a_copy_is_released_behind_the_step_notices_of_the_next_batch() -> None:
    world, ranks = _ranks()
    for rank in (0, 1):
        assert world.fact(rank, encode(CopyEnded(1))) is None
        assert _own(world) == []
    ranks[0].send(Launch(1, 0), Free(int64s([9])))
    programs = [it.program for it in world.log.records(1, world.log.end_position)]
    assert programs[-5:] == [FACT_PROGRAM, 0, OWN_PROGRAM, 0, 0]
    assert _own(world) == [Released(copies=(1,))]
    entries = [entry for entry in ranks[0].entries if entry.program == OWN_PROGRAM]
    assert [entry.outcome for entry in entries] == [Outcome(ReleasedResult(copies=(1,)))]
    assert not world.engine.chain.owner.usage.records()[1:]


@pytest.mark.case("25")
def test_a_copy_is_released_at_once_while_all_programs_are_idle() -> None:
    world, ranks = _ranks()
    ranks[0].send(Idle())
    world.fact(0, encode(CopyEnded(1)))
    assert _own(world) == []
    world.fact(1, encode(CopyEnded(1)))
    assert _own(world) == [Released(copies=(1,))]
    ranks[1].send(Idle())
    ranks[1].follow()
    assert ranks[1].entries[-1].outcome.result == ReleasedResult(copies=(1,))


def test_a_repeated_word_is_not_logged_and_a_wrong_one_is_refused() -> None:
    world, _ = _ranks()
    world.fact(0, encode(CopyEnded(1)))
    end = world.log.end_position
    world.fact(0, encode(CopyEnded(1)))
    assert world.log.end_position == end
    with pytest.raises(OperationError, match="copy 2 was never submitted"):
        world.fact(0, encode(CopyEnded(2)))
    with pytest.raises(OperationError, match="transfer 1 was never posted"):
        world.fact(0, encode(TransferEnded(1)))
    assert world.log.end_position == end


def test_words_about_copies_are_forgotten_when_those_are_over() -> None:
    world, ranks = _ranks(1)
    for number in range(1, 200):
        world.fact(0, encode(CopyEnded(number)))
        ranks[0].send(backup(number + 1, FULL, [1]))
    sizes = len(picture(world._endings)), len(world._facts)  # pyright: ignore[reportPrivateUsage]
    assert sizes == (len(picture(_ranks(1)[0]._endings)), 0)  # pyright: ignore[reportPrivateUsage]
    assert len(world.engine.uses.copies.backups) == 1


def test_what_is_over_is_logged_before_the_incarnation_ends() -> None:
    world, _ = _ranks(1)
    world.fact(0, encode(CopyEnded(1)))
    world.end("over")
    assert _own(world) == [Released(copies=(1,)), IncarnationEnd("over")]
    world.submit_end("again")
    assert len(_own(world)) == 2


def test_an_end_that_waits_for_a_gate_is_not_forgotten_for_a_copy() -> None:
    world, ranks = _ranks(1)
    world.submit_end("drained")
    world.fact(0, encode(CopyEnded(1)))
    ranks[0].send(Launch(1, 0))
    assert _own(world) == [Released(copies=(1,)), IncarnationEnd("drained")]
    assert world.ended == "drained"


def test_a_release_comes_behind_what_the_batch_before_left_to_do() -> None:
    """What a take is given must not depend on whether the daemon settled between two batches."""
    given: list[list[int]] = []
    for settles in (True, False):
        world, ranks = _ranks(1)
        ranks[0].send(post(1, FULL, [1, 2, 3]), Evict(int64s([1])))
        if settles:
            world.settle()
        world.fact(0, encode(TransferEnded(1)))
        ranks[0].send(Admit(int64s([2]), int32s([12]), int32s([8]), int32s([12])))
        given.append(held_places(world.engine, 2))
    assert given[0] == given[1]


def held_places(engine: StageEngine, request: int) -> list[int]:
    """Return where the pages of a request lie."""
    rows = engine.requests.names.rows_of([request])
    ids = engine.requests.holdings.ids(FULL, rows)
    places: list[int] = engine.chain.owner.physical(ids).tolist()
    return places


# ---- sealed values -------------------------------------------------------------------------------


def engine_with_cleared_value() -> StageEngine:
    """Return the engine as if a launch had cleared the slot of value 1 long ago."""
    engine = engine_with_value()
    slot = engine.uses.values.get(1).slot
    engine.steps.clearings.zero(np.array([slot]))
    return engine


def test_a_value_is_sealed_only_once_a_launch_has_cleared_its_slot() -> None:
    engine = engine_with_value()
    assert engine.uses.sealed_values(0) == ()
    engine.decide(0, Launch(1, 0, WriteSet.REQUESTS, int64s([2])))
    assert engine.uses.sealed_values(0) == ()
    engine.decide(0, Processed(1))
    assert engine.uses.sealed_values(0) == (1,)


def test_a_value_is_sealed_where_its_insertion_and_its_last_step_have_passed_on_every_rank() -> (
    None
):
    rank = Rank(world := incarnation(ranks=1, storage=(storage := stage())), 0, storage=storage)
    rank.send(*VALUE[:2])
    rank.send(Launch(1, rank.position))
    rank.send(VALUE[2])
    inserted = rank.position - 1
    assert world.engine.uses.sealed_values(rank.position) == ()
    rank.send(Processed(1))
    processed = rank.position - 1
    sealed = [world.engine.uses.sealed_values(position) for position in range(rank.position + 1)]
    assert sealed == [()] * processed + [(1,)] * (rank.position + 1 - processed)
    assert inserted < processed


@pytest.mark.case("115")
@pytest.mark.parametrize(
    ("opens", "ends"),
    [
        ([Launch(1, 0)], [Processed(1)]),
        ([backup(1, FULL, [1])], [Released(copies=(1,))]),
        ([hold(1, FULL, [1])], []),
        ([hold(1, FULL, [1]), Publish(1)], [Released(transfers=(1,))]),
        (
            [
                LoadReserve(1, 1, (0, 1, 0, 0)),
                LoadName(1, LONG_WINDOW, int64s([3])),
                LoadSubmit(1, hosts(LONG_WINDOW, 1)),
            ],
            [Released(copies=(1,))],
        ),
    ],
    ids=["step", "backup", "hold", "receive", "load"],
)
def test_a_value_is_not_sealed_while_something_of_it_is_open(
    opens: list[Operation], ends: list[Operation | Released]
) -> None:
    engine = engine_with_cleared_value()
    assert engine.uses.sealed_values(0) == (1,)
    for operation in opens:
        engine.decide(0, operation)
        assert engine.uses.sealed_values(0) == ()
    for end in ends:
        if isinstance(end, Released):
            engine.release(end)
        else:
            engine.decide(0, end)
        assert engine.uses.sealed_values(0) == (1,)


@pytest.mark.case("102")
def test_a_value_is_never_sealed_once_its_load_failed_or_its_receive_went_astray() -> None:
    for released, opens in (
        (Released(quarantined=(1,)), [hold(1, FULL, [1]), Publish(1)]),
        (
            Released(copies=(1,), failed_copies=(1,)),
            [
                LoadReserve(1, 1, (0, 1, 0, 0)),
                LoadName(1, LONG_WINDOW, int64s([3])),
                LoadSubmit(1, hosts(LONG_WINDOW, 1)),
            ],
        ),
    ):
        engine = engine_with_value()
        for operation in opens:
            engine.decide(0, operation)
        engine.release(released)
        assert engine.uses.sealed_values(0) == ()


def test_a_step_that_names_whom_it_writes_for_unseals_no_value() -> None:
    engine = engine_with_cleared_value()
    engine.decide(0, Launch(1, 0, WriteSet.REQUESTS, int64s([2])))
    assert engine.uses.sealed_values(0) == (1,)
    engine.decide(0, Insert(2, 2))
    assert engine.uses.sealed_values(0) == (1,)
    engine.decide(0, Processed(1))
    assert engine.uses.sealed_values(0) == (1, 2)


def test_an_aborted_step_may_have_written_any_value() -> None:
    storage = stage()
    world = incarnation(ranks=1, storage=storage)
    rank = Rank(world, 0, storage=storage)
    rank.send(*VALUE)
    rank.send(Admit(int64s([2]), int32s([8]), int32s([8]), int32s([8])))
    rank.send(Launch(1, rank.position, WriteSet.REQUESTS, int64s([2])), Processed(1))
    rank.send(Launch(2, rank.position, WriteSet.REQUESTS, int64s([2])))
    assert world.engine.uses.sealed_values(rank.position) == (1,)
    world.fact(0, encode(StepAborted(2)))
    assert world.engine.uses.sealed_values(rank.position) == ()
    rank.send(Processed(2))
    assert world.engine.uses.sealed_values(rank.position) == (1,)


def test_a_read_by_a_peer_leaves_a_value_sealed() -> None:
    engine = engine_with_cleared_value()
    engine.decide(0, post(1, FULL, pages(engine, FULL)))
    assert engine.uses.sealed_values(0) == (1,)
    assert held(engine, 2, FULL)
