"""When a stage is idle, and what may and may not be left of its work then."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable

import pytest

from kvd.alloc.names import Asked
from kvd.engine.idle import _check_waiters, check_idle, is_idle
from kvd.engine.stage import StageEngine
from kvd.errors import InvariantError
from kvd_proto.operations import (
    BackupSubmit,
    Free,
    Insert,
    Launch,
    Post,
    Processed,
    Released,
)
from tests.stateful.ranks import int32s, int64s
from tests.unit.broken_stage import admit, engine_of, idle_engine

NOTHING = b""


def _owners_first(engine: StageEngine) -> tuple[bytes, ...]:
    """Return the first page of the owner, and nothing of the other bands."""
    page = int64s([int(engine.chain.owner.bound_ids()[0])])
    return tuple(
        page if index == engine.chain.owner_index else NOTHING
        for index in range(len(engine.chain.bands))
    )


def _valued() -> StageEngine:
    return engine_of(admit(1), Insert(1, 1))


def _host_units(engine: StageEngine) -> tuple[bytes, ...]:
    return tuple(int32s([0]) if ids else NOTHING for ids in _owners_first(engine))


def _backed_up() -> StageEngine:
    engine = _valued()
    engine.decide(0, BackupSubmit(1, _owners_first(engine), _host_units(engine)))
    return engine


def _sent() -> StageEngine:
    engine = _valued()
    engine.decide(0, Post(1, _owners_first(engine)))
    return engine


@pytest.mark.parametrize(
    ("make", "idle"),
    [
        (lambda: engine_of(admit(1)), False),
        (lambda: engine_of(admit(1), Free(int64s([1]))), True),
        (lambda: engine_of(admit(1), Launch(1, 0), Free(int64s([1]))), False),
        (lambda: engine_of(admit(1), Launch(1, 0), Free(int64s([1])), Processed(1)), True),
        (_valued, True),
        (_backed_up, False),
        (_sent, False),
    ],
    ids=["request", "ended", "step", "processed", "value", "backup", "send"],
)
def test_a_stage_is_idle_without_request_step_copy_and_transfer(
    make: Callable[[], StageEngine], idle: bool
) -> None:
    engine = make()
    assert is_idle(engine) is idle
    if idle:
        check_idle(engine)


@pytest.mark.parametrize("is_evicted", [False, True], ids=["kept", "ended"])
def test_what_a_quarantine_keeps_back_is_counted_and_no_leak(is_evicted: bool) -> None:
    engine = _sent()
    if is_evicted:
        engine.requests.values.evict([1])
    engine.release(Released((), (), (), (1,)))
    assert is_idle(engine)
    check_idle(engine)
    kept_back = engine.chain.owner.vacated_units
    assert kept_back == (1 if is_evicted else 0)


def test_a_unit_that_is_missing_beside_a_quarantine_is_a_leak() -> None:
    engine = _sent()
    engine.release(Released((), (), (), (1,)))
    value = engine.requests.values.of_number[1]
    value.pages = value.pages[:-1]
    with pytest.raises(InvariantError, match=r"^idle\.units_held: values hold \d+ units"):
        check_idle(engine)


def test_an_id_that_is_neither_free_nor_bound_is_a_leak() -> None:
    engine = idle_engine()
    assert engine.chain.owner.free_ids is not None
    engine.chain.owner.free_ids.take(1)
    with pytest.raises(InvariantError, match=r"^idle\.units_held: .* are not free$"):
        check_idle(engine)


def test_a_promise_without_a_request_is_found() -> None:
    engine = idle_engine()
    engine.chain.owner.promise(1)
    with pytest.raises(InvariantError, match=r"^idle\.rows_free: .* units are promised$"):
        check_idle(engine)


@pytest.mark.case("27")
def test_a_waiter_may_wait_for_what_a_quarantine_keeps_back() -> None:
    engine = _sent()
    engine.release(Released((), (), (), (1,)))
    engine.requests.names.wait(9, Asked(8, 8, 8))
    with pytest.raises(InvariantError, match=r"^idle\.no_waiters: 1 requests wait"):
        check_idle(engine)  # it fits beside what is kept back
    engine.chain.owner.promise(engine.chain.owner.geometry.room_units)
    engine.requests.names.drop_waiting([9])
    engine.requests.names.wait(10, Asked(8, 8, 8))
    _check_waiters(engine)  # it does not fit now, and what is kept back may be why


def test_a_retracted_request_that_nobody_asks_for_again_waits_too() -> None:
    engine = idle_engine()
    engine.requests.names.wait(9)
    with pytest.raises(InvariantError, match=r"^idle\.no_waiters: "):
        check_idle(engine)
