"""Loads and backups: what they take, what they fix, what they read and write, and their ends."""

import numpy as np
import pytest

from kvd.alloc.clearance import Hazard
from kvd.alloc.signals import copy_signal
from kvd.alloc.uses import UseKind
from kvd.engine.stage import StageEngine
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import (
    Admit,
    BackupSubmit,
    Evict,
    Free,
    Launch,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Operation,
    Processed,
    Publish,
    Released,
    Relief,
    WriteSet,
)
from kvd_proto.outcomes import (
    Column,
    Copy,
    CopyStream,
    Done,
    Outcome,
    Refusal,
    Wait,
    WriteMap,
)
from tests.stateful.chains import picture
from tests.stateful.ranks import columns_of, int32s, int64s
from tests.stateful.values import (
    FULL,
    LONG_WINDOW,
    SHORT_WINDOW,
    STATE,
    backup,
    engine_with_value,
    held,
    hold,
    hosts,
    missing,
    pages,
    per_band,
)

RESERVE = LoadReserve(1, 1, (0, 2, 0, 0))


def _reserved() -> StageEngine:
    """Return an engine with load 1, of two units of the first window, into value 1."""
    engine = engine_with_value()
    assert engine.decide(0, RESERVE).result == Done()
    return engine


def _submitted() -> StageEngine:
    engine = _reserved()
    names = missing(engine, LONG_WINDOW)[-2:]
    engine.decide(0, LoadName(1, LONG_WINDOW, int64s(names)))
    engine.decide(0, LoadSubmit(1, hosts(LONG_WINDOW, 2)))
    return engine


def _kinds(engine: StageEngine, band: int) -> list[UseKind]:
    return [record.kind for record in engine.chain.bands[band].usage.records()]


# ---- loads ---------------------------------------------------------------------------------------


def test_a_reserved_unit_is_live_and_fixed_and_has_no_name() -> None:
    engine = engine_with_value()
    band = engine.chain.bands[LONG_WINDOW]
    live, ids = band.live_units, band.bound_ids().tolist()
    engine.decide(0, RESERVE)
    assert band.live_units == live + 2
    assert band.bound_ids().tolist() == ids
    extent = band.usage.hard_extent()
    assert extent is not None
    assert extent[1] - extent[0] >= 2
    assert _kinds(engine, LONG_WINDOW) == [UseKind.LOAD_RESERVATION]


def test_naming_binds_units_in_the_order_of_taking_and_ends_the_reservation_with_the_last() -> None:
    engine = _reserved()
    units = engine.uses.copies.loads[1].reserved[LONG_WINDOW].tolist()
    names = missing(engine, LONG_WINDOW)[-2:]
    for place, name in enumerate(reversed(names)):
        assert _kinds(engine, LONG_WINDOW) == [UseKind.LOAD_RESERVATION]
        outcome = engine.decide(0, LoadName(1, LONG_WINDOW, int64s([name])))
        assert [type(effect) for effect in outcome.segments[0]] == [WriteMap]
        assert columns_of(outcome) == [[name], [units[place]]]
    assert _kinds(engine, LONG_WINDOW) == []
    # The value keeps them in the order of the sequence, however they were named.
    assert pages(engine, LONG_WINDOW)[:2] == names


def _relieve_until_moved(engine: StageEngine, band: int, ids: list[int]) -> Outcome | None:
    """Make ever more room until one of a band's units lies elsewhere; return that relief.

    None if they stay where they are, whatever room is asked for.
    """
    chain, names = engine.chain, np.array(ids)
    lay = chain.bands[band].physical(names).tolist()
    for index in (FULL, STATE):
        for count in range(1, chain.bands[index].geometry.room_units):
            demand = tuple(count if place == index else 0 for place in range(4))
            if not chain.fits(demand):
                break
            outcome = engine.decide(0, Relief(demand))
            if chain.bands[band].physical(names).tolist() != lay:
                return outcome
    return None


@pytest.mark.case("37")
def test_a_submitted_load_writes_its_units_where_they_lie_now() -> None:
    engine = _reserved()
    names = missing(engine, LONG_WINDOW)[-2:]
    engine.decide(0, LoadName(1, LONG_WINDOW, int64s(names)))
    band = engine.chain.bands[LONG_WINDOW]
    lay = band.physical(np.array(names)).tolist()
    assert _relieve_until_moved(engine, LONG_WINDOW, names) is not None
    lies = band.physical(np.array(names)).tolist()
    assert lies != lay
    outcome = engine.decide(0, LoadSubmit(1, (b"", int32s([5, 3]), b"", b"")))
    assert outcome.segments == ((Copy(1, CopyStream.LOAD, LONG_WINDOW, Column(0), Column(1)),),)
    assert columns_of(outcome) == [lies, [5, 3]]
    assert _kinds(engine, LONG_WINDOW) == [UseKind.COPY_WRITE]


def test_a_unit_that_a_load_writes_moves_behind_the_load() -> None:
    engine = _submitted()
    written = [it for it in pages(engine, LONG_WINDOW) if it <= 3]
    outcome = _relieve_until_moved(engine, LONG_WINDOW, written)
    assert outcome is not None
    assert outcome.segments[0][0] == Wait(copy=1)


def test_a_unit_does_not_move_while_its_load_has_nameless_ones() -> None:
    engine = _reserved()
    names = missing(engine, LONG_WINDOW)[-2:]
    engine.decide(0, LoadName(1, LONG_WINDOW, int64s(names[:1])))
    assert _relieve_until_moved(engine, LONG_WINDOW, names[:1]) is None
    engine.decide(0, LoadName(1, LONG_WINDOW, int64s(names[1:])))
    assert _relieve_until_moved(engine, LONG_WINDOW, names) is not None


def test_several_bands_load_together() -> None:
    engine = engine_with_value()
    engine.decide(0, LoadReserve(1, 1, (0, 1, 2, 0)))
    first, second = missing(engine, LONG_WINDOW)[-1:], missing(engine, SHORT_WINDOW)[-2:]
    engine.decide(0, LoadName(1, SHORT_WINDOW, int64s(second)))
    with pytest.raises(OperationError, match="1 of its units of band window_20 have no name"):
        engine.decide(0, LoadSubmit(1, (b"", int32s([0]), int32s([0, 1]), b"")))
    engine.decide(0, LoadName(1, LONG_WINDOW, int64s(first)))
    outcome = engine.decide(0, LoadSubmit(1, (b"", int32s([0]), int32s([0, 1]), b"")))
    assert [effect.band for effect in outcome.segments[0] if isinstance(effect, Copy)] == [
        SHORT_WINDOW,
        LONG_WINDOW,
    ]


def test_a_load_that_is_over_leaves_no_use_and_its_units_with_the_value() -> None:
    engine = _submitted()
    held_ids = pages(engine, LONG_WINDOW)
    engine.release(Released(copies=(1,)))
    assert _kinds(engine, LONG_WINDOW) == []
    assert pages(engine, LONG_WINDOW) == held_ids
    assert engine.uses.copies.was_over(1)
    assert not engine.requests.values.get(1).spoiled


def test_a_load_that_failed_spoils_its_value_if_that_is_still_there() -> None:
    engine = _submitted()
    engine.release(Released(copies=(1,), failed_copies=(1,)))
    assert engine.requests.values.get(1).spoiled
    engine = _submitted()
    engine.decide(0, Evict(int64s([1])))
    engine.release(Released(copies=(1,), failed_copies=(1,)))


def test_a_cancelled_load_gives_named_and_nameless_units_back() -> None:
    engine = _reserved()
    band = engine.chain.bands[LONG_WINDOW]
    before, ids = band.live_units, pages(engine, LONG_WINDOW)
    name = missing(engine, LONG_WINDOW)[-1]
    engine.decide(0, LoadName(1, LONG_WINDOW, int64s([name])))
    outcome = engine.decide(0, LoadCancel(1))
    assert [type(effect) for effect in outcome.segments[0]] == [WriteMap]
    assert columns_of(outcome) == [[name]]
    assert band.live_units == before - 2
    assert pages(engine, LONG_WINDOW) == ids
    assert _kinds(engine, LONG_WINDOW) == []


def test_what_a_cancelled_load_gives_back_under_a_step_in_flight_pends() -> None:
    engine = _reserved()
    engine.decide(0, Launch(1, 0))
    engine.decide(0, LoadCancel(1))
    assert engine.chain.bands[LONG_WINDOW].pending_units == 2
    engine.decide(0, Processed(1))
    assert engine.chain.bands[LONG_WINDOW].pending_units == 0


def test_a_reservation_settles_what_pends_where_holes_do_not_cover_it() -> None:
    engine = engine_with_value()
    band = engine.chain.bands[LONG_WINDOW]
    engine.decide(0, Relief(tuple(item.hole_units for item in engine.chain.bands)))
    engine.decide(0, Launch(1, 0))
    engine.decide(0, Free(int64s([2])))
    pending = band.pending_units
    assert pending >= 2
    while band.hole_units:  # other loads take the holes
        number = engine.uses.copies.numbers.highest + 1
        engine.decide(0, LoadReserve(number, 1, (0, 1, 0, 0)))
        engine.decide(0, LoadName(number, LONG_WINDOW, int64s(missing(engine, LONG_WINDOW)[:1])))
    number = engine.uses.copies.numbers.highest + 1
    outcome = engine.decide(0, LoadReserve(number, 1, (0, 1, 0, 0)))
    assert outcome.segments == ((Wait(1),),)
    assert band.pending_units == 0


@pytest.mark.case("61", "91")
@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        (LoadReserve(1, 1, (0, 2, 0, 0)), "copy 1 cannot be opened.*highest so far is 1"),
        (LoadReserve(2, 9, (0, 2, 0, 0)), "value 9 was never inserted"),
        (LoadReserve(2, 1, (0, 0, 0, 1)), "1 units of band full; only windows are loaded"),
        (LoadReserve(2, 1, (1, 0, 0, 0)), "1 units of band state; only windows are loaded"),
        (LoadReserve(2, 1, (0, 5, 0, 0)), "value 1 has 1 pages there to load"),
        (LoadReserve(2, 1, (0, 0, 0, 0)), "asks no unit at all"),
        (LoadReserve(2, 1, (0, 1)), "4 counts"),
        (LoadName(1, 4, int64s([1])), "band is 4"),
        (LoadName(1, LONG_WINDOW, b""), "not an array of 1 to"),
        (LoadName(1, LONG_WINDOW, int64s([1, 2, 3])), "3 units of band window_20; it has 2"),
        (LoadName(1, SHORT_WINDOW, int64s([1])), "1 units of band window_8; it has 0"),
        (LoadName(1, LONG_WINDOW, int64s([1, 1])), "page 1 a unit .* named twice"),
        (LoadName(1, LONG_WINDOW, int64s([99])), "page 99 a unit .* no page of value 1"),
        (LoadName(1, LONG_WINDOW, int64s([8])), "page 8 a unit .* no page of value 1"),
        (LoadName(2, LONG_WINDOW, int64s([1])), "copy 2 is no load that is open"),
        (LoadSubmit(1, hosts(LONG_WINDOW, 2)), "2 of its units of band window_20 have no name"),
        (LoadSubmit(3, hosts(LONG_WINDOW, 2)), "copy 3 is no load that is open"),
        (LoadCancel(7), "copy 7 is no load that is open"),
        (Evict(int64s([1])), "value 1 cannot be evicted: load 1 into it is neither"),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, Operation) else None,
)
def test_wrong_use_of_a_load_is_named_and_changes_nothing(
    operation: Operation, problem: str
) -> None:
    engine = _reserved()
    before = picture(engine)
    with pytest.raises(OperationError, match=problem):
        engine.decide(0, operation)
    assert picture(engine) == before


@pytest.mark.parametrize(
    ("host_units", "problem"),
    [
        (hosts(LONG_WINDOW, 1), "4 bytes for band 1; 2 units need 8"),
        ((b"", int32s([0, 1]), int32s([0]), b""), "4 bytes for band 2; 0 units need 0"),
        ((b"", int32s([-1, 0]), b"", b""), "has -1; 0 or more"),
        ((b"", int32s([3, 3]), b"", b""), "twice"),
        ((b"", int32s([0, 1])), "2 lists; 4 are needed"),
    ],
)
def test_places_in_host_pools_are_checked(host_units: tuple[bytes, ...], problem: str) -> None:
    engine = _reserved()
    engine.decide(0, LoadName(1, LONG_WINDOW, int64s(missing(engine, LONG_WINDOW)[-2:])))
    before = picture(engine)
    with pytest.raises(OperationError, match=problem):
        engine.decide(0, LoadSubmit(1, host_units))
    assert picture(engine) == before


@pytest.mark.case("88")
@pytest.mark.parametrize(
    "operation",
    [LoadName(1, LONG_WINDOW, int64s([1])), LoadSubmit(1, hosts(1, 2)), LoadCancel(1)],
    ids=lambda item: type(item).__name__,
)
def test_a_submitted_load_can_only_end(operation: Operation) -> None:
    engine = _submitted()
    before = picture(engine)
    with pytest.raises(OperationError, match="copy 1 is a load that is submitted already"):
        engine.decide(0, operation)
    assert picture(engine) == before


def test_a_reservation_that_does_not_fit_is_refused_and_opens_nothing() -> None:
    engine = engine_with_value(rows=20, spare_bytes=1 << 13)
    for request, prompt in enumerate((90, 30, 30, 20, 12, 8, 8, 8, 8, 4, 4, 4), 3):
        engine.decide(0, Admit(int64s([request]), int32s([prompt]), int32s([8])))
    assert not engine.chain.fits((0, 3, 6, 0))
    before = picture(engine)
    counts = dict(engine.refusal_counts)
    outcome = engine.decide(0, LoadReserve(1, 1, (0, 3, 6, 0)))
    assert isinstance(outcome.result, Refusal)
    assert outcome.segments == ()
    engine.refusal_counts = counts
    assert picture(engine) == before


@pytest.mark.case("89")
def test_an_evicted_value_leaves_a_running_load_behind_that_its_next_writer_waits_for() -> None:
    engine = _submitted()
    engine.decide(0, Evict(int64s([1])))
    band = engine.chain.bands[LONG_WINDOW]
    facts = {record.kind: record.unit_count for record in band.usage.records()}
    assert facts == {UseKind.COPY_WRITE: 2}
    band.merge_freed()
    band.absorb()
    waits = [signal for _, signal, _ in engine.chain.order.fences.records()]
    left = [record.signal for record in band.usage.records()]
    assert set(waits) | set(left) == {copy_signal(1)}


# ---- backups -------------------------------------------------------------------------------------


@pytest.mark.case("37")
def test_a_backup_reads_units_where_they_lie_now() -> None:
    engine = engine_with_value()
    ids = pages(engine, FULL)[:3]
    outcome = engine.decide(0, backup(1, FULL, ids))
    units = engine.chain.owner.physical(np.array(ids))
    assert outcome.segments == ((Copy(1, CopyStream.BACKUP, FULL, Column(0), Column(1)),),)
    assert columns_of(outcome) == [units.tolist(), [0, 1, 2]]
    assert _kinds(engine, FULL) == [UseKind.COPY_READ]


@pytest.mark.case("68")
def test_a_backup_of_requests_and_slots_needs_no_value() -> None:
    engine = engine_with_value()
    engine.decide(0, Launch(1, 0, WriteSet.REQUESTS, int64s([2])))
    ids = [held(engine, 2, band) for band in range(4)]
    outcome = engine.decide(
        0,
        BackupSubmit(
            1, tuple(int64s(it) for it in ids), tuple(int32s(range(len(it))) for it in ids)
        ),
    )
    assert [effect.band for effect in outcome.segments[0] if isinstance(effect, Copy)] == [
        STATE,
        LONG_WINDOW,
        SHORT_WINDOW,
        FULL,
    ]


def test_a_backup_runs_behind_the_load_that_fills_its_units() -> None:
    engine = _submitted()
    ids = pages(engine, LONG_WINDOW)
    outcome = engine.decide(0, backup(2, LONG_WINDOW, ids))
    assert outcome.segments[0][0] == Wait(copy=1)
    # One wait is enough for everything that follows on the allocator's stream.
    assert not any(
        isinstance(effect, Wait)
        for effect in engine.decide(0, backup(3, LONG_WINDOW, ids)).segments[0]
    )


@pytest.mark.case("94")
def test_a_unit_that_a_backup_reads_moves_and_leaves_a_fence_until_that_is_over() -> None:
    engine = engine_with_value()
    ids = pages(engine, LONG_WINDOW)
    engine.decide(0, backup(1, LONG_WINDOW, ids))
    assert _relieve_until_moved(engine, LONG_WINDOW, ids) is not None
    fences = [(hazard, signal) for hazard, signal, _ in engine.chain.order.fences.records()]
    assert fences == [(Hazard.COPY_READ, copy_signal(1))]
    engine.release(Released(copies=(1,)))
    assert engine.chain.order.fences.is_empty
    assert _kinds(engine, LONG_WINDOW) == []


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        (backup(1, FULL, [1]), "copy 1 cannot be opened"),
        (backup(2, FULL, [0]), "virtual page 0 of band full is the sink"),
        (backup(2, FULL, [99]), "virtual page 99 of band full is not bound"),
        (backup(2, FULL, [-1]), "virtual page -1 of band full is outside"),
        (backup(2, FULL, [1 << 40]), "virtual page .* of band full is outside"),
        (backup(2, FULL, [1, 1]), "virtual page 1 of band full is named twice"),
        (backup(2, LONG_WINDOW, [2]), "virtual page 2 of band window_20 is not bound"),
        (BackupSubmit(2, (b"",) * 4, (b"",) * 4), "names no unit at all"),
        (BackupSubmit(2, (b"",), (b"",)), "1 lists; 4 are needed"),
        (BackupSubmit(2, per_band(FULL, [1, 2]), hosts(FULL, 1)), "4 bytes for band 3; 2 units"),
        (BackupSubmit(2, (b"abc", b"", b"", b""), (b"",) * 4), "not an array of 0 to"),
        (backup(2, LONG_WINDOW, [3]), "load 1 is to fill; it is not submitted"),
        (backup(2, FULL, [5]), "transfer 1 still has .receive hold"),
    ],
)
def test_wrong_use_of_a_backup_is_named_and_changes_nothing(
    operation: Operation, problem: str
) -> None:
    engine = _reserved()
    assert missing(engine, LONG_WINDOW)[-1] == 3
    engine.decide(0, LoadName(1, LONG_WINDOW, int64s([3])))
    engine.decide(0, hold(1, FULL, [5]))
    before = picture(engine)
    with pytest.raises(OperationError, match=problem):
        engine.decide(0, operation)
    assert picture(engine) == before


def test_what_a_peer_writes_is_backed_up_once_it_is_over() -> None:
    engine = engine_with_value()
    engine.decide(0, hold(1, FULL, [5]))
    engine.decide(0, Publish(1))
    with pytest.raises(OperationError, match=r"transfer 1 still has \(network receive") as caught:
        engine.decide(0, backup(1, FULL, [5]))
    assert caught.value.code is ErrorCode.IN_USE
    engine.release(Released(transfers=(1,)))
    assert engine.decide(0, backup(1, FULL, [5])).result == Done()


def test_a_backup_waits_for_no_step_because_its_stream_follows_the_forwards() -> None:
    engine = engine_with_value()
    engine.decide(0, Launch(1, 0, WriteSet.REQUESTS, int64s([2])))
    engine.decide(0, Launch(2, 0))
    outcome = engine.decide(0, backup(1, FULL, held(engine, 2, FULL)))
    assert [type(effect) for effect in outcome.segments[0]] == [Copy]
