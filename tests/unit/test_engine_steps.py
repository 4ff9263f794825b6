"""Operations while forwards are in flight: what pends, what settles, and who waits for what."""

import pytest

from kvd.alloc.checks import CheckLevel
from kvd.engine.stage import StageEngine
from kvd.errors import OperationError
from kvd.price.layout import Step
from kvd.price.plans import first_plan
from kvd_proto.operations import (
    Admit,
    Advance,
    BatchEnd,
    Free,
    Idle,
    Launch,
    Operation,
    Processed,
    Relief,
    Standing,
    Take,
    WriteSet,
)
from kvd_proto.outcomes import Done, Move, Outcome, Refusal, TakeResult, Wait
from tests.stateful.chains import picture
from tests.stateful.ranks import CONTEXT_TOKENS, int32s, int64s, stage


def _engine(**options: int) -> StageEngine:
    return StageEngine(stage(**options), level=CheckLevel.STRICT)


def _admit(*requests: int, prompt: int = 8, new: int = 8, take: int = 0, chunk: int = 0) -> Admit:
    count = len(requests)
    takes = int32s([take] * count) if take else b""
    return Admit(int64s(requests), int32s([prompt] * count), int32s([new] * count), takes, chunk)


def busy(*operations: Operation) -> StageEngine:
    """Return an engine with requests 1 and 2 in the standing set, 8 tokens each, all settled."""
    engine = _engine()
    for operation in (
        _admit(1, 2, take=8),
        Standing(int64s([1, 2])),
        BatchEnd(),
        *operations,
    ):
        engine.decide(0, operation)
    engine.settle()
    return engine


@pytest.mark.parametrize(
    "operation",
    [_admit(9), Take(), Advance(), Free(int64s([1])), Relief((0, 0, 0, 0)), Idle(), Launch(2, 0)],
    ids=lambda operation: type(operation).__name__,
)
def test_everything_is_decided_while_steps_are_in_flight(operation: Operation) -> None:
    engine = busy(Launch(1, 0))
    assert not isinstance(engine.decide(0, operation).result, Refusal)
    assert engine.steps.in_flight_count >= 1


@pytest.mark.case("54")
def test_what_is_freed_under_a_step_in_flight_pends_and_comes_back_when_it_is_processed() -> None:
    engine = busy(Launch(1, 0))
    live = [band.live_units for band in engine.chain.bands]
    engine.decide(0, Free(int64s([1])))
    freed = [
        before - band.live_units for before, band in zip(live, engine.chain.bands, strict=True)
    ]
    assert [band.pending_units for band in engine.chain.bands] == freed
    assert all(freed)
    holes = [band.hole_units for band in engine.chain.bands]
    engine.decide(0, Launch(2, 0))
    engine.decide(0, Processed(1))
    assert [band.pending_units for band in engine.chain.bands] == [0] * 4
    assert [band.hole_units for band in engine.chain.bands] == [
        before + count for before, count in zip(holes, freed, strict=True)
    ]


@pytest.mark.case("54")
def test_a_page_pends_under_the_newest_step_not_under_the_one_that_is_processed_next() -> None:
    engine = busy(Launch(1, 0), Launch(2, 0), Free(int64s([1])))
    pending = [band.pending_units for band in engine.chain.bands]
    engine.decide(0, Processed(1))
    assert [band.pending_units for band in engine.chain.bands] == pending
    engine.decide(0, Processed(2))
    assert [band.pending_units for band in engine.chain.bands] == [0] * 4


def test_every_rank_waits_for_its_own_step_once_one_rank_says_it_is_processed() -> None:
    engine = busy(Launch(1, 0))
    assert engine.decide(0, Processed(1)) == Outcome(Done(), ((Wait(1),),))


def test_pending_units_count_as_free_in_every_answer() -> None:
    engine = busy()
    asked = tuple(band.live_units for band in engine.chain.bands)
    most = _most_that_fits(engine, asked)
    engine.decide(0, Launch(1, 0))
    engine.decide(0, Free(int64s([1])))
    under_a_step = _most_that_fits(engine, asked)
    engine.decide(0, Processed(1))
    assert under_a_step == _most_that_fits(engine, asked) > most


def _most_that_fits(engine: StageEngine, each: tuple[int, ...]) -> int:
    """Return how many times over a demand fits."""
    times = 0
    while engine.chain.fits(tuple(units * (times + 1) for units in each)):
        times += 1
    return times


def test_a_take_that_is_short_of_holes_settles_the_oldest_batch_and_runs_behind_its_step() -> None:
    engine = busy()
    chain = engine.chain
    engine.decide(0, Relief(tuple(band.hole_units for band in chain.bands)))
    while chain.owner.hole_units:  # leave no hole that could be taken instead
        engine.decide(0, Take(tokens=4))
    engine.decide(0, Launch(1, 0))
    engine.decide(0, Free(int64s([1])))
    freed = chain.owner.pending_units
    engine.decide(0, Launch(2, 0))
    outcome = engine.decide(0, Take(int64s([2]), 4))
    assert isinstance(outcome.result, TakeResult)
    assert outcome.segments[0][0] == Wait(1)
    assert chain.owner.pending_units == 0
    assert chain.owner.hole_units == freed - 1
    assert (engine.steps.retired_count, engine.steps.processed_count) == (1, 0)
    assert engine.decide(0, Processed(1)) == Outcome(Done())
    assert engine.decide(0, Processed(2)) == Outcome(Done(), ((Wait(2),),))


def test_a_refused_take_settles_nothing() -> None:
    engine = _engine(spare_bytes=0)
    engine.decide(0, _admit(1, prompt=8, new=0, take=8))
    engine.decide(0, _admit(2, prompt=8, new=0, take=8))
    engine.decide(0, Launch(1, 0))
    engine.decide(0, Free(int64s([2])))
    engine.decide(0, BatchEnd())
    engine.settle()
    before = picture(engine.requests)
    refused = engine.decide(0, Take(int64s([1]), CONTEXT_TOKENS - 8))
    assert isinstance(refused.result, Refusal)
    assert refused.segments == ()
    assert picture(engine.requests) == before
    assert engine.chain.owner.pending_units == 2


def test_a_layout_that_moves_settles_everything_and_runs_behind_the_newest_step() -> None:
    engine = busy(Launch(1, 0), Free(int64s([1])), Launch(2, 0))
    demand = _demand_that_moves(engine)
    outcome = engine.decide(0, Relief(demand))
    effects = [effect for segment in outcome.segments for effect in segment]
    assert effects[0] == Wait(2)
    assert any(isinstance(effect, Move) for effect in effects)
    assert [band.pending_units for band in engine.chain.bands] == [0] * 4


def _demand_that_moves(engine: StageEngine) -> tuple[int, ...]:
    """Return the smallest demand of the owner that fits, but not without a move."""
    chain = engine.chain
    for count in range(1, chain.owner.geometry.room_units):
        demand = tuple(count if index == chain.owner_index else 0 for index in range(4))
        layout = first_plan(chain.snapshot(), demand)
        if layout is not None and layout.step is not Step.NO_MOVE:
            return demand
    raise AssertionError("no demand needs a move")


def test_a_write_set_with_a_request_that_ended_meanwhile_is_unknown_and_the_launch_stands() -> None:
    engine = busy()
    engine.decide(0, Launch(1, 0, WriteSet.REQUESTS, int64s([1])))
    assert not engine.chain.owner.usage.has_unknown_writes
    engine.decide(0, Free(int64s([2])))
    engine.decide(0, Launch(2, 0, WriteSet.REQUESTS, int64s([1, 2])))
    assert engine.chain.owner.usage.has_unknown_writes
    assert engine.steps.launched_count == 2


def test_a_write_set_that_is_no_list_of_ids_is_refused() -> None:
    engine = busy()
    before = picture(engine)
    with pytest.raises(OperationError, match="named twice"):
        engine.decide(0, Launch(1, 0, WriteSet.REQUESTS, int64s([1, 1])))
    assert picture(engine) == before


def test_a_layout_that_moves_settles_what_pends_under_a_step_that_was_waited_for() -> None:
    engine = busy(Launch(1, 0))
    engine.chain.order.wait_step(1)
    engine.chain.order.take_waits()
    engine.decide(0, Free(int64s([1])))
    assert engine.chain.owner.pending_units
    outcome = engine.decide(0, Relief(_demand_that_moves(engine)))
    assert isinstance(outcome.result, Done)
    assert [band.pending_units for band in engine.chain.bands] == [0] * 4
    effects = [effect for segment in outcome.segments for effect in segment]
    assert not any(isinstance(effect, Wait) for effect in effects)
