"""What is checked around the batches of an incarnation, and when."""

# pyright: reportPrivateUsage=false

from collections.abc import Sequence
from typing import Any, cast

import pytest

from kvd.alloc.checks import IDLE_LEAKS, CheckLevel
from kvd.engine.incarnation import Incarnation
from kvd.errors import InvariantError
from kvd_proto.operations import Free, Idle, Insert, Operation, Take
from tests.stateful.ranks import body_of, int64s, stage
from tests.unit.broken_stage import admit


def _incarnation(level: CheckLevel, *, leaks_raise: bool = True) -> Incarnation:
    return Incarnation(
        stage(),
        number=1,
        ranks=(0,),
        level=level,
        ring_entries_max=100,
        lag_entries_max=100,
        leaks_raise=leaks_raise,
    )


def _send(chosen: Incarnation, *operations: Operation, program: int = 0) -> None:
    index = chosen.next_index(program)
    chosen.batch(rank=0, program=program, index=index, body=body_of(operations))
    chosen.settle()


def _leak(chosen: Incarnation) -> None:
    free_ids = chosen.engine.chain.owner.free_ids
    assert free_ids is not None
    free_ids.take(1)


COME_AND_GONE: Sequence[Operation] = (admit(1), Free(int64s([1])))


def test_a_stage_is_checked_when_its_program_says_idle_and_nobody_runs() -> None:
    chosen = _incarnation(CheckLevel.WARN)
    _send(chosen, admit(1), Idle())
    assert chosen.watch.idle_count == 0  # somebody runs
    _send(chosen, Free(int64s([1])))
    assert chosen.watch.idle_count == 0  # the program goes on
    _send(chosen, Idle())
    assert chosen.watch.idle_count == 1
    _send(chosen, Idle())
    assert chosen.watch.idle_count == 1  # nothing changed since
    _send(chosen, admit(2), Insert(1, 2), Idle())
    assert chosen.watch.idle_count == 2


def test_a_program_that_goes_on_keeps_the_stage_from_being_idle() -> None:
    chosen = _incarnation(CheckLevel.WARN)
    _send(chosen, program=1)
    _send(chosen, *COME_AND_GONE, Idle())
    assert chosen.watch.idle_count == 0
    _send(chosen, Idle(), program=1)
    assert chosen.watch.idle_count == 1


def test_a_leak_at_idle_stops_the_incarnation() -> None:
    chosen = _incarnation(CheckLevel.WARN)
    _leak(chosen)
    with pytest.raises(InvariantError, match=r"^idle\.units_held: "):
        _send(chosen, *COME_AND_GONE, Idle())


def test_a_leak_is_counted_where_it_is_not_to_raise() -> None:
    chosen = _incarnation(CheckLevel.WARN, leaks_raise=False)
    chosen.engine.requests.rows.prompt_tokens[3] = 7
    _send(chosen, *COME_AND_GONE, Idle())
    assert chosen.engine.monitor.broken_count == {"idle.rows_free": 1}
    assert "idle.rows_free" in IDLE_LEAKS
    (line,) = chosen.engine.monitor.news
    assert line.startswith("idle.rows_free: no request is live, and row 3 is free and not clean")


def test_nothing_is_looked_at_when_checks_are_off() -> None:
    chosen = _incarnation(CheckLevel.OFF)
    _leak(chosen)
    _send(chosen, *COME_AND_GONE, Idle())
    assert chosen.watch.idle_count == 0
    assert chosen.engine.monitor.broken_count == {}


def test_an_operation_that_was_wrong_and_changed_something_is_found() -> None:
    chosen = _incarnation(CheckLevel.STRICT)
    _send(chosen, admit(1))
    take = chosen.engine._decide[Take]

    def spoil(program: int, operation: Take) -> object:
        free_ids = chosen.engine.chain.owner.free_ids
        assert free_ids is not None
        free_ids.give(free_ids.take(1))
        return take(program, operation)

    cast("Any", chosen.engine)._decide[Take] = spoil
    with pytest.raises(InvariantError, match=r"^chain\.refuse_is_pure: Take was wrong and"):
        _send(chosen, Take(int64s([77])))


def test_a_stage_that_ended_is_left_alone() -> None:
    chosen = _incarnation(CheckLevel.WARN)
    _send(chosen, admit(1), Idle())
    chosen.end("over")
    chosen.given[0] = 99
    chosen.settle()
