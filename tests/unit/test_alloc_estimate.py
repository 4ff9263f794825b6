"""Estimates are for people: their own type, roughly right, and never read by a decision."""

from dataclasses import replace
from typing import Any, cast

import pytest

from kvd.alloc.checks import CheckLevel
from kvd.alloc.estimate import Estimate, estimate_available
from kvd.engine.stage import StageEngine
from kvd.errors import InvariantError, OperationError
from kvd_proto.operations import Admit, Idle, Launch
from tests.stateful.chains import ONE, THREE, admit
from tests.stateful.ranks import int32s, int64s, stage

NAME = "chain.estimate_in_decision"


def engine(level: CheckLevel) -> StageEngine:
    return StageEngine(stage(), level=level)


def read_while_deciding(asked: StageEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the engine's capacity question look at an estimate first, as careless code would."""
    seen: list[int] = []
    exact = asked.chain.fits

    def careless(*arguments: Any, **named: Any) -> bool:
        seen.extend(estimate.read() for estimate in estimate_available(asked.chain)[:1])
        return exact(*arguments, **named)

    monkeypatch.setattr(asked.chain, "fits", careless)
    return seen


def admit_one() -> Admit:
    return Admit(int64s([1]), int32s([8]), int32s([8]), b"", 0)


def test_an_empty_arena_lets_every_band_have_all_of_it() -> None:
    chain = THREE.chain()
    usable_bytes = 400 - 10
    assert [one.read() for one in estimate_available(chain)] == [
        min(usable_bytes // band.geometry.unit_bytes, band.geometry.room_units)
        for band in chain.bands
    ]


def test_what_is_live_and_what_is_promised_is_not_available() -> None:
    table = ONE.table()
    admit(table, 1, prompt=8, new=8)
    before = [one.read() for one in estimate_available(table.chain)]
    table.take(table.names.rows_of([1]), 8)
    assert before == [39 - 4]
    assert [one.read() for one in estimate_available(table.chain)] == before


def test_ids_bound_the_estimate_where_they_are_scarcer_than_bytes() -> None:
    table = replace(ONE, virtual_page_count=6).table()
    admit(table, 1, prompt=4, new=4)
    assert [one.read() for one in estimate_available(table.chain)] == [5 - 2]


def test_an_estimate_is_no_number() -> None:
    one, other = estimate_available(THREE.chain())[:2]
    with pytest.raises(TypeError):
        assert cast("Any", one) < cast("Any", other)
    with pytest.raises(TypeError):
        assert cast("Any", one) + 1
    with pytest.raises(TypeError):
        int(cast("Any", one))
    assert one != estimate_available(THREE.chain())[0]
    assert str(one.read()) not in repr(one)


def test_a_decision_that_reads_an_estimate_is_stopped_when_strict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = engine(CheckLevel.STRICT)
    read_while_deciding(asked, monkeypatch)
    with pytest.raises(InvariantError, match=f"^{NAME}: .*band state"):
        asked.decide(0, admit_one())


def test_a_decision_that_reads_an_estimate_is_counted_at_level_warn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = engine(CheckLevel.WARN)
    seen = read_while_deciding(asked, monkeypatch)
    assert asked.decide(0, admit_one()) == engine(CheckLevel.WARN).decide(0, admit_one())
    assert seen
    assert asked.monitor.broken_count == {NAME: len(seen)}


def test_nothing_is_checked_at_level_off(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = engine(CheckLevel.OFF)
    assert read_while_deciding(asked, monkeypatch) == []
    asked.decide(0, admit_one())
    assert asked.monitor.broken_count == {}


@pytest.mark.parametrize("level", list(CheckLevel))
def test_between_decisions_everybody_may_read(level: CheckLevel) -> None:
    asked = engine(level)
    asked.decide(0, Idle())
    assert all(one.read() > 0 for one in estimate_available(asked.chain))
    assert asked.monitor.broken_count == {}


def test_a_decision_ends_when_it_raises() -> None:
    asked = engine(CheckLevel.STRICT)
    with pytest.raises(OperationError):
        asked.decide(0, Launch(5, 0))
    assert all(one.read() > 0 for one in estimate_available(asked.chain))


def test_an_estimate_made_before_a_decision_is_caught_inside_it() -> None:
    asked = engine(CheckLevel.STRICT)
    kept: Estimate = estimate_available(asked.chain)[0]
    asked.monitor.deciding = True
    with pytest.raises(InvariantError, match=f"^{NAME}"):
        kept.read()
