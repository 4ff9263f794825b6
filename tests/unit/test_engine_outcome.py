"""Outcomes of operations: columns, results and the order of effects."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from kvd.alloc.band import Freed, Moves, Units
from kvd.alloc.chain import BandMoves, ChainAllocator, Shortage
from kvd.alloc.requests import NOTHING_GRANTED, Grant
from kvd.engine.outcome import OutcomeBuilder, refusal_of
from kvd_proto.outcomes import (
    NO_COLUMN,
    ClearSlots,
    Done,
    Move,
    Outcome,
    Reason,
    ResetRows,
    TakeResult,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
)
from kvd_proto.outcomes import Freed as FreedResult
from tests.stateful.chain_steps import array
from tests.stateful.chains import ONE, THREE
from tests.stateful.ranks import columns_of

NONE: Units = np.zeros(0, dtype=np.int64)
MOVES = BandMoves(1, Moves(array(5), array(20), array(11)))
PAGES = Grant(
    retracted=NONE,
    freed=[],
    moves=[],
    page_rows=array(1, 1, 2),
    page_places=array(0, 1, 0),
    virtual=array(7, 8, 9),
    physical=[array(12, 13, 14), array(79, 78, 77)],
    slot_rows=NONE,
    slot_virtual=NONE,
    slot_physical=NONE,
)
"""Pages of a chain with a state, a window and the owner."""


def _chain() -> ChainAllocator:
    return THREE.chain()


def _effects(outcome: Outcome) -> list[object]:
    return [effect for segment in outcome.segments for effect in segment]


def _kinds(outcome: Outcome) -> list[type]:
    return [type(effect) for effect in _effects(outcome)]


def test_nothing_is_an_outcome_of_its_result_alone() -> None:
    assert OutcomeBuilder(_chain()).build(Done()) == Outcome(Done())


def test_rows_that_were_handed_out_are_reset() -> None:
    builder = OutcomeBuilder(_chain())
    builder.reset_rows(array(3, 4))
    outcome = builder.build(Done())
    (effect,) = _effects(outcome)
    assert isinstance(effect, ResetRows)
    assert columns_of(outcome)[effect.rows] == [3, 4]


def test_freed_ids_are_counted_per_band_and_read_as_the_sink() -> None:
    builder = OutcomeBuilder(_chain())
    result = builder.freed([Freed(1, array(4, 5)), Freed(2, NONE), Freed(0, array(1))])
    assert result == FreedResult((1, 2, 0))
    outcome = builder.build(result)
    shown = [
        (effect.band, columns_of(outcome)[effect.virtual], effect.physical)
        for effect in _effects(outcome)
        if isinstance(effect, WriteMap)
    ]
    assert shown == [(1, [4, 5], NO_COLUMN), (0, [1], NO_COLUMN)]


def test_ended_rows_lose_their_slots_where_there_are_any() -> None:
    builder = OutcomeBuilder(_chain())
    outcome = builder.build(builder.ended(array(2, 3), []))
    (effect,) = _effects(outcome)
    assert isinstance(effect, WriteSlots)
    columns = columns_of(outcome)
    assert (columns[effect.rows], columns[effect.virtual]) == ([2, 3], [0, 0])
    builder = OutcomeBuilder(ONE.chain())
    assert _effects(builder.build(builder.ended(array(2, 3), []))) == []


def test_a_move_is_followed_by_its_map_entries() -> None:
    builder = OutcomeBuilder(_chain())
    builder.moves([MOVES])
    outcome = builder.build(Done())
    move, entry = _effects(outcome)
    assert isinstance(move, Move)
    assert isinstance(entry, WriteMap)
    columns = columns_of(outcome)
    assert (columns[move.sources], columns[move.destinations]) == ([20], [11])
    assert (columns[entry.virtual], entry.physical) == ([5], move.destinations)


def test_a_grant_names_pages_once_for_its_result_and_its_effects() -> None:
    builder = OutcomeBuilder(_chain())
    result = builder.grant(PAGES)
    outcome = builder.build(result)
    columns = columns_of(outcome)
    assert [columns[column] for column in (result.page_rows, result.page_places)] == [
        [1, 1, 2],
        [0, 1, 0],
    ]
    assert result.physical[0] == NO_COLUMN
    assert [columns[column] for column in result.physical[1:]] == [[12, 13, 14], [79, 78, 77]]
    assert _kinds(outcome) == [Zero, WriteMap, Zero, WriteMap, WriteRows]
    zero, entry = _effects(outcome)[:2]
    assert isinstance(zero, Zero)
    assert isinstance(entry, WriteMap)
    assert (zero.units, entry.physical, entry.virtual) == (
        result.physical[1],
        result.physical[1],
        result.virtual,
    )
    assert len(columns) == 5


@pytest.mark.case("77")
def test_a_grant_of_slots_maps_writes_and_clears_them() -> None:
    builder = OutcomeBuilder(_chain())
    result = builder.grant(
        NOTHING_GRANTED._replace(slot_rows=array(4), slot_virtual=array(2), slot_physical=array(1))
    )
    outcome = builder.build(result)
    columns = columns_of(outcome)
    assert columns[result.physical[0]] == [1]
    assert result.page_rows == result.virtual == NO_COLUMN
    assert _kinds(outcome) == [WriteMap, WriteSlots, ClearSlots]


@pytest.mark.case("77")
def test_whoever_is_retracted_leaves_first_then_units_move_then_new_ones_are_zeroed() -> None:
    builder = OutcomeBuilder(_chain())
    result = builder.grant(
        PAGES._replace(retracted=array(3), freed=[Freed(2, array(6))], moves=[MOVES])
    )
    outcome = builder.build(result)
    assert columns_of(outcome)[result.retracted] == [3]
    assert _kinds(outcome) == [
        WriteMap,
        WriteSlots,
        Move,
        WriteMap,
        Zero,
        WriteMap,
        Zero,
        WriteMap,
        WriteRows,
    ]


@pytest.mark.parametrize(("unit", "segments"), [(20, 2), (19, 1)])
def test_new_pages_where_moved_ones_lay_are_zeroed_in_a_segment_of_their_own(
    unit: int, segments: int
) -> None:
    builder = OutcomeBuilder(_chain())
    grant = PAGES._replace(moves=[MOVES], physical=[array(unit, 30, 31), array(79, 78, 77)])
    if unit == 19:
        grant = grant._replace(physical=[array(17, 18, 19), array(79, 78, 77)])
    assert len(builder.build(builder.grant(grant)).segments) == segments


def test_nothing_granted_is_an_empty_take() -> None:
    builder = OutcomeBuilder(_chain())
    result = builder.grant(NOTHING_GRANTED)
    assert result == TakeResult(physical=(NO_COLUMN,) * 3)


def test_a_shortage_travels_with_all_that_it_says() -> None:
    shortage = Shortage(
        reason=Reason.TRANSFERS,
        band="full",
        short_units=3,
        short_bytes=15,
        obstacle="pages that a transfer reads",
        remover="the transfer's end",
        waiting_helps=True,
    )
    refusal = refusal_of(shortage, stage_index=2, request=9)
    shown = structs.asdict(refusal)
    assert (shown.pop("stage"), shown.pop("request")) == (2, 9)
    assert Shortage(**shown) == shortage
    assert not refusal_of(
        replace(shortage, waiting_helps=False), stage_index=0, request=0
    ).waiting_helps
