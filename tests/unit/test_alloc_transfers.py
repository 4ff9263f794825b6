"""Transfers: holds, publications, sends, their ends, and quarantine."""

import numpy as np
import pytest

from kvd.alloc.signals import transfer_signal
from kvd.alloc.uses import UseKind
from kvd.engine.stage import StageEngine
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import (
    Admit,
    Advance,
    CancelHold,
    Evict,
    Free,
    Hold,
    Insert,
    Launch,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Operation,
    Post,
    Processed,
    Publish,
    Released,
    Relief,
    Take,
    WriteSet,
)
from kvd_proto.outcomes import NO_COLUMN, Column, Done, Outcome, Pump, Resolved, Wait
from tests.stateful.chains import Picture, picture
from tests.stateful.ranks import columns_of, int32s, int64s
from tests.stateful.values import (
    FULL,
    LONG_WINDOW,
    backup,
    engine_with_value,
    held,
    hold,
    hosts,
    missing,
    pages,
    post,
)

OWNER_ONLY = (NO_COLUMN, NO_COLUMN, NO_COLUMN, Column(0))


def _received(*operations: Operation) -> StageEngine:
    """Return an engine in which transfer 1 is held for request 2's pages, and more."""
    engine = engine_with_value()
    for operation in (hold(1, FULL, held(engine, 2, FULL)), *operations):
        engine.decide(0, operation)
    return engine


def _books(engine: StageEngine) -> Picture:
    """Return everything that a decision may depend on."""
    return picture((engine.requests, engine.uses.copies, engine.uses.transfers, engine.counters))


def _uses(engine: StageEngine, band: int = FULL) -> dict[UseKind, int | None]:
    return {record.kind: record.unit_count for record in engine.chain.bands[band].usage.records()}


# ---- receives ------------------------------------------------------------------------------------


def test_a_held_transfer_is_published_where_its_units_lie_now() -> None:
    engine = _received()
    assert _uses(engine) == {UseKind.RECEIVE_HOLD: 2}
    outcome = engine.decide(0, Publish(1))
    assert outcome.result == Resolved(OWNER_ONLY, engine.chain.move_epoch)
    ids = np.array(held(engine, 2, FULL))
    assert columns_of(outcome) == [engine.chain.owner.physical(ids).tolist()]
    assert _uses(engine) == {UseKind.NETWORK_RECEIVE: 2}


def test_a_published_transfer_that_is_over_leaves_no_use() -> None:
    engine = _received(Publish(1))
    engine.release(Released(transfers=(1,)))
    assert _uses(engine) == {}
    assert engine.uses.transfers.was_over(1)
    engine.decide(0, Free(int64s([2])))


def test_a_hold_is_given_up_without_a_trace() -> None:
    engine = _received(CancelHold(1))
    assert _uses(engine) == {}
    assert engine.uses.transfers.was_over(1)


def test_publishing_runs_behind_copies_of_the_same_units() -> None:
    engine = engine_with_value()
    engine.decide(0, backup(1, FULL, held(engine, 2, FULL)))
    engine.decide(0, hold(1, FULL, held(engine, 2, FULL)))
    assert engine.decide(0, Publish(1)).segments == ((Wait(copy=1),),)


def test_publishing_waits_for_sends_of_the_same_units_and_changes_nothing_until_then() -> None:
    engine = engine_with_value()
    ids = held(engine, 2, FULL)
    engine.decide(0, post(1, FULL, ids[:1]))
    engine.decide(0, hold(2, FULL, ids))
    before = _books(engine)
    assert engine.decide(0, Publish(2)) == Outcome(Pump((1,)))
    assert _books(engine) == before
    engine.release(Released(transfers=(1,)))
    assert isinstance(engine.decide(0, Publish(2)).result, Resolved)


def test_publishing_what_a_step_writes_is_wrong_until_that_is_processed() -> None:
    engine = _received(Launch(1, 0, WriteSet.REQUESTS, int64s([2])))
    before = _books(engine)
    with pytest.raises(OperationError, match="transfer 1 cannot be published: step 1") as caught:
        engine.decide(0, Publish(1))
    assert caught.value.code is ErrorCode.IN_USE
    assert _books(engine) == before
    engine.decide(0, Processed(1))
    assert isinstance(engine.decide(0, Publish(1)).result, Resolved)


def test_publishing_waits_for_no_step_that_names_no_writes_since_the_units_are_newer() -> None:
    engine = _received(Launch(1, 0))
    assert isinstance(engine.decide(0, Publish(1)).result, Resolved)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        (Free(int64s([2])), "request 2 cannot have units of band full that transfer 1 has"),
        (Advance(int64s([2]), 1), "request 2 cannot have units of band full that transfer 1 has"),
        (Take(int64s([3]), 4, victims=int64s([2])), "request 2 cannot have units"),
        (
            Admit(int64s([9]), int32s([8]), int32s([8]), victims=int64s([2])),
            "request 2 cannot have units",
        ),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, Operation) else None,
)
def test_whoever_a_peer_writes_for_neither_ends_nor_advances(
    operation: Operation, problem: str, published: bool
) -> None:
    engine = _received(
        Admit(int64s([3]), int32s([8]), int32s([8]), int32s([8])),
        *([Publish(1)] if published else []),
    )
    before = _books(engine)
    with pytest.raises(OperationError, match=problem):
        engine.decide(0, operation)
    assert _books(engine) == before
    if published:
        engine.release(Released(transfers=(1,)))
    else:
        engine.decide(0, CancelHold(1))
    engine.decide(0, operation)


@pytest.mark.parametrize("published", [False, True])
def test_a_value_that_a_peer_writes_is_not_evicted(published: bool) -> None:
    engine = _received(Insert(2, 2), *([Publish(1)] if published else []))
    before = _books(engine)
    with pytest.raises(OperationError, match=r"the eviction of value 2 cannot have .* transfer 1"):
        engine.decide(0, Evict(int64s([1, 2])))
    assert _books(engine) == before


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        (hold(1, FULL, [1]), "transfer 1 cannot be opened"),
        (hold(2, FULL, [99]), "virtual page 99 of band full is not bound"),
        (hold(2, FULL, [1, 1]), "virtual page 1 of band full is named twice"),
        (hold(2, FULL, [9]), "transfer 2 cannot have units of band full that transfer 1 has"),
        (Hold(2, (b"",) * 4), "names no unit at all"),
        (hold(2, LONG_WINDOW, [3]), "load 1 is to fill; it is not submitted"),
        (Publish(2), "transfer 2 is not open; only a held one"),
        (CancelHold(2), "transfer 2 is not open; only a held one"),
        (post(2, FULL, [9]), r"transfer 2 cannot read .* transfer 1 still has \(receive hold"),
        (post(2, FULL, [0]), "virtual page 0 of band full is the sink"),
        (post(2, LONG_WINDOW, [3]), "load 1 is to fill; it is not submitted"),
        (Post(2, (b"",)), "1 lists; 4 are needed"),
    ],
)
def test_wrong_use_of_a_transfer_is_named_and_changes_nothing(
    operation: Operation, problem: str
) -> None:
    engine = _received(LoadReserve(1, 1, (0, 2, 0, 0)), LoadName(1, LONG_WINDOW, int64s([3])))
    assert held(engine, 2, FULL)[0] == 9
    before = _books(engine)
    with pytest.raises(OperationError, match=problem):
        engine.decide(0, operation)
    assert _books(engine) == before


@pytest.mark.parametrize("operation", [Publish(1), CancelHold(1)])
def test_a_published_transfer_can_only_end(operation: Operation) -> None:
    engine = _received(Publish(1))
    with pytest.raises(OperationError, match="transfer 1 is published; only a held one"):
        engine.decide(0, operation)


# ---- sends ---------------------------------------------------------------------------------------


def test_a_send_reads_units_where_they_lie_now() -> None:
    engine = engine_with_value()
    ids = pages(engine, FULL)[:2]
    outcome = engine.decide(0, post(1, FULL, ids))
    assert outcome.result == Resolved(OWNER_ONLY, engine.chain.move_epoch)
    assert columns_of(outcome) == [engine.chain.owner.physical(np.array(ids)).tolist()]
    assert _uses(engine) == {UseKind.NETWORK_SEND: 2}


@pytest.mark.parametrize("launch", [Launch(1, 0), Launch(1, 0, WriteSet.REQUESTS, int64s([2]))])
def test_what_a_step_may_write_is_sent_once_it_is_processed(launch: Launch) -> None:
    engine = engine_with_value()
    engine.decide(0, launch)
    operation = post(1, FULL, held(engine, 2, FULL))
    before = _books(engine)
    with pytest.raises(OperationError, match=r"transfer 1 cannot read .* step 1 still has"):
        engine.decide(0, operation)
    assert _books(engine) == before
    engine.decide(0, Processed(1))
    assert isinstance(engine.decide(0, operation).result, Resolved)


def test_what_no_step_in_flight_writes_is_sent_at_once() -> None:
    engine = engine_with_value()
    engine.decide(0, Launch(1, 0, WriteSet.REQUESTS, int64s([2])))
    assert isinstance(engine.decide(0, post(1, FULL, pages(engine, FULL))).result, Resolved)


def test_what_a_load_writes_is_sent_once_that_is_over() -> None:
    engine = engine_with_value()
    for operation in (
        LoadReserve(1, 1, (0, 1, 0, 0)),
        LoadName(1, LONG_WINDOW, int64s(missing(engine, LONG_WINDOW)[-1:])),
        LoadSubmit(1, hosts(LONG_WINDOW, 1)),
    ):
        engine.decide(0, operation)
    send = post(1, LONG_WINDOW, pages(engine, LONG_WINDOW))
    with pytest.raises(OperationError, match=r"copy 1 still has \(copy write"):
        engine.decide(0, send)
    engine.release(Released(copies=(1,)))
    assert isinstance(engine.decide(0, send).result, Resolved)


def test_what_is_freed_under_a_send_is_nobodys_until_that_is_over() -> None:
    engine = engine_with_value()
    ids = held(engine, 2, FULL)
    engine.decide(0, post(1, FULL, ids))
    engine.decide(0, Free(int64s([2])))
    owner = engine.chain.owner
    assert owner.vacated_units == 2
    holes = owner.hole_units
    engine.release(Released(transfers=(1,)))
    assert (owner.vacated_units, owner.hole_units) == (0, holes + 2)


def test_what_is_freed_under_a_send_and_a_step_comes_back_only_with_the_later_of_the_two() -> None:
    engine = engine_with_value()
    engine.decide(0, post(1, FULL, held(engine, 2, FULL)))
    engine.decide(0, Launch(1, 0))
    engine.decide(0, Free(int64s([2])))
    owner = engine.chain.owner
    assert owner.pending_units == 2
    before = owner.snapshot()
    assert (before.pending_units, before.vacated_network_units) == (0, 2)
    blocked = engine.chain.snapshot().blocked
    assert sum(end - start for start, end in blocked) == 2 * owner.geometry.unit_bytes
    engine.decide(0, Processed(1))
    after = owner.snapshot()
    assert (after.pending_units, after.vacated_network_units) == (0, 2)
    assert engine.chain.snapshot().blocked == blocked
    engine.release(Released(transfers=(1,)))
    assert owner.snapshot().vacated_network_units == 0


def test_what_pends_in_quarantine_counts_as_live() -> None:
    engine = engine_with_value()
    engine.decide(0, post(1, FULL, held(engine, 2, FULL)))
    engine.release(Released(quarantined=(1,)))
    engine.decide(0, Launch(1, 0))
    engine.decide(0, Free(int64s([2])))
    owner = engine.chain.owner
    pending = owner.snapshot()
    engine.decide(0, Processed(1))
    assert owner.snapshot().live_units == pending.live_units == owner.live_units + 2
    assert owner.snapshot().pending_units == pending.pending_units == 0


def test_a_request_with_an_open_send_is_no_victim() -> None:
    engine = engine_with_value()
    engine.decide(0, Admit(int64s([3]), int32s([8]), int32s([8]), int32s([8])))
    engine.decide(0, post(1, FULL, held(engine, 2, FULL)))
    before = _books(engine)
    with pytest.raises(
        OperationError, match=r"request 2 cannot have .* transfer 1 has \(network s"
    ):
        engine.decide(0, Take(int64s([3]), 4, victims=int64s([2])))
    assert _books(engine) == before


def test_a_relief_that_needs_sent_units_to_move_names_the_transfers_and_changes_nothing() -> None:
    engine = engine_with_value()
    chain = engine.chain
    for number, band in enumerate((LONG_WINDOW, 2), 1):
        engine.decide(0, post(number, band, pages(engine, band)))
    count = chain.owner.hole_units
    while True:
        count += 4
        demand = (0, 0, 0, count)
        before = _books(engine)
        outcome = engine.decide(0, Relief(demand))
        if outcome.result != Done():
            break
    assert outcome == Outcome(Pump((1, 2)))
    assert _books(engine) == before
    engine.release(Released(transfers=(1, 2)))
    assert engine.decide(0, Relief(demand)).result == Done()


# ---- quarantine ----------------------------------------------------------------------------------


def test_quarantined_units_never_move_and_are_not_reused_but_their_request_ends() -> None:
    engine = _received(Publish(1))
    engine.release(Released(quarantined=(1,)))
    owner = engine.chain.owner
    assert owner.usage.hard_extent() is not None
    engine.decide(0, Free(int64s([2])))
    assert owner.usage.astray_units == 2
    assert engine.uses.transfers.awaited == ()
    engine.chain.settle_freed()
    assert (owner.vacated_units, engine.chain.order.fences.is_empty) == (2, True)
    engine.release(Released(transfers=(1,)))
    assert (owner.usage.astray_units, owner.vacated_units) == (0, 0)


def test_a_request_in_quarantine_is_no_victim() -> None:
    engine = _received(Admit(int64s([3]), int32s([8]), int32s([8]), int32s([8])), Publish(1))
    engine.release(Released(quarantined=(1,)))
    with pytest.raises(OperationError, match=r"request 2 cannot have .* transfer 1"):
        engine.decide(0, Take(int64s([3]), 4, victims=int64s([2])))


def test_a_copy_and_a_transfer_of_one_number_are_two_things() -> None:
    engine = engine_with_value()
    engine.decide(0, backup(1, FULL, pages(engine, FULL)))
    engine.decide(0, post(1, FULL, pages(engine, FULL)))
    engine.release(Released(copies=(1,)))
    assert _uses(engine) == {UseKind.NETWORK_SEND: 8}
    assert [record.signal for record in engine.chain.owner.usage.records()] == [transfer_signal(1)]


def test_moves_are_counted_for_whoever_keeps_places() -> None:
    engine = engine_with_value()
    before = engine.chain.move_epoch
    moved = engine.decide(0, post(1, FULL, [1])).result
    assert isinstance(moved, Resolved)
    assert moved.move_epoch == before
    engine.release(Released(transfers=(1,)))
    chain = engine.chain
    for count in range(1, chain.owner.geometry.room_units):
        if not chain.fits((0, 0, 0, count)):
            break
        engine.decide(0, Relief((0, 0, 0, count)))
    assert engine.chain.move_epoch > before
