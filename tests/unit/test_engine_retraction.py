"""Promises that lapse, victims that are retracted, and what their effects are."""

import pytest

from kvd.alloc.checks import CheckLevel
from kvd.engine.arguments import PERMILLE, RESERVE_BATCHES_MAX
from kvd.engine.stage import StageEngine
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import Admit, BatchEnd, Free, Idle, Launch, Relief, Standing, Take
from kvd_proto.outcomes import (
    NO_COLUMN,
    AdmitResult,
    Done,
    Freed,
    Move,
    Outcome,
    Pump,
    Reason,
    Refusal,
    Skipped,
    TakeResult,
    Verdict,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
)
from tests.stateful.chains import fix, picture, post_nothing
from tests.stateful.ranks import CONTEXT_TOKENS, Tables, columns_of, int32s, int64s, stage

STORAGE = stage(rows=5, spare_bytes=1 << 13)
"""Room for 48 units, all of one size: three requests fill it long before they end."""


class Played:
    """An engine, and the tables that its effects write."""

    def __init__(self, *, idle_moves_max: int = 0, batch_moves_max: int = 0) -> None:
        self.engine = StageEngine(
            STORAGE,
            level=CheckLevel.STRICT,
            idle_moves_max=idle_moves_max,
            batch_moves_max=batch_moves_max,
        )
        self.tables = Tables(STORAGE.storage)
        self.position = 0

    def decide(
        self, operation: Admit | Take | Free | BatchEnd | Idle | Relief | Standing
    ) -> Outcome:
        """Decide and apply one operation, and compare the maps with the bands."""
        outcome = self.engine.decide(0, operation)
        self.position += 1
        self.tables.apply(self.position, outcome)
        for index, band in enumerate(self.engine.chain.bands):
            bound = band.bound_ids()
            assert self.tables.maps[index].nonzero()[0].tolist() == bound.tolist()
            assert self.tables.maps[index][bound].tolist() == band.physical(bound).tolist()
        assert self.tables.slots.tolist() == self.engine.requests.rows.slot.tolist()
        return outcome


def _admit(
    *requests: int, prompt: int = 8, new: int = 40, reserve: int = 1, take: int = 8
) -> Admit:
    count = len(requests)
    return Admit(
        int64s(requests),
        int32s([prompt] * count),
        int32s([new] * count),
        int32s([take] * count),
        reserve_batches=reserve,
    )


def _verdicts(outcome: Outcome) -> list[int]:
    assert isinstance(outcome.result, AdmitResult)
    return columns_of(outcome)[outcome.result.verdicts]


def _full(**options: int) -> Played:
    """Return a stage that three requests of lapsed promises have filled with their takes."""
    played = Played(**options)
    for request in (1, 2, 3):
        assert _verdicts(played.decide(_admit(request))) == [Verdict.FITS]
        played.decide(BatchEnd())
    assert played.engine.counters["lapsed"] == 3
    for turn in range(CONTEXT_TOKENS):
        outcome = played.decide(Take(int64s([1 + turn % 3]), 4))
        if isinstance(outcome.result, Refusal):
            return played
    raise AssertionError("the stage never filled up")


# ---- lapses --------------------------------------------------------------------------------------


def test_a_promise_is_held_until_its_batches_are_over() -> None:
    played = Played()
    played.decide(_admit(1, 2, reserve=2))
    promised = played.engine.chain.promised_units
    assert max(promised) > 0
    played.decide(BatchEnd())
    assert played.engine.chain.promised_units == promised
    assert _verdicts(played.decide(_admit(3))) == [Verdict.WAIT]
    played.decide(BatchEnd())
    assert played.engine.chain.promised_units == (0, 0, 0, 0)
    assert _verdicts(played.decide(_admit(3))) == [Verdict.FITS]


def test_what_was_taken_before_a_lapse_stays() -> None:
    played = Played()
    played.decide(_admit(1))
    live = [band.live_units for band in played.engine.chain.bands]
    played.decide(BatchEnd())
    assert [band.live_units for band in played.engine.chain.bands] == live
    assert isinstance(played.decide(Take(int64s([1]), 4)).result, TakeResult)


def test_a_request_that_ended_has_no_promise_to_lapse() -> None:
    played = Played()
    played.decide(_admit(1))
    played.decide(Free(int64s([1])))
    played.decide(BatchEnd())
    assert played.engine.counters["lapsed"] == 0


def test_batches_of_another_program_do_not_age_a_promise() -> None:
    played = Played()
    played.decide(_admit(1))
    promised = played.engine.chain.promised_units
    played.engine.decide(1, BatchEnd())
    assert played.engine.chain.promised_units == promised


def test_a_request_admitted_again_does_not_inherit_its_old_lapse() -> None:
    played = Played()
    played.decide(_admit(1, reserve=3))
    played.decide(_admit(2, prompt=4, new=0, take=4))
    played.decide(BatchEnd())
    # Request 2 was promised nothing more, and what is left is promised to request 1.
    outcome = played.decide(Take(int64s([2]), 32, victims=int64s([1])))
    assert isinstance(outcome.result, TakeResult)
    assert outcome.result.retracted != NO_COLUMN
    played.decide(Free(int64s([2])))
    assert _verdicts(played.decide(_admit(1, reserve=0))) == [Verdict.FITS]
    promised = played.engine.chain.promised_units
    for _ in range(4):
        played.decide(BatchEnd())
        assert played.engine.chain.promised_units == promised


def test_a_share_of_what_lapsed_requests_may_grow_to_is_kept_free_for_them() -> None:
    played = Played()
    played.decide(_admit(1))
    played.decide(BatchEnd())
    counts = (int64s([2]), int32s([40]), int32s([0]))
    assert _verdicts(played.decide(Admit(*counts, growth_permille=PERMILLE))) == [Verdict.WAIT]
    assert _verdicts(played.decide(Admit(*counts))) == [Verdict.FITS]


@pytest.mark.parametrize(
    ("reserve", "growth", "words"),
    [
        (-1, 0, "admit.reserve_batches is -1; 0 to"),
        (RESERVE_BATCHES_MAX + 1, 0, "admit.reserve_batches is"),
        (0, -1, "admit.growth_permille is -1; 0 to 1000"),
        (0, 1001, "admit.growth_permille is 1001; 0 to 1000"),
    ],
)
def test_a_wrong_reserve_or_growth_is_named_and_changes_nothing(
    reserve: int, growth: int, words: str
) -> None:
    engine = Played().engine
    before = picture(engine)
    operation = Admit(
        int64s([1]), int32s([4]), int32s([4]), reserve_batches=reserve, growth_permille=growth
    )
    with pytest.raises(OperationError, match=words) as caught:
        engine.decide(0, operation)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert picture(engine) == before


# ---- retraction ----------------------------------------------------------------------------------


def test_without_victims_a_take_beyond_memory_is_refused() -> None:
    played = _full()
    outcome = played.decide(Take(int64s([1]), 24))
    assert isinstance(outcome.result, Refusal)
    assert outcome.result.reason in (Reason.NO_BYTES, Reason.NO_IDS)
    assert outcome.result.waiting_helps
    assert outcome.segments == ()


def test_the_first_victims_whose_end_makes_room_are_retracted_and_named() -> None:
    played = _full()
    row_of = dict(played.engine.requests.names.row_of)
    outcome = played.decide(Take(int64s([1]), 4, victims=int64s([3, 2])))
    result = outcome.result
    assert isinstance(result, TakeResult)
    assert columns_of(outcome)[result.retracted] == [row_of[3]]
    assert sorted(played.engine.requests.names.row_of) == [1, 2]
    assert played.engine.counters["retracted"] == 1


def test_all_victims_go_where_it_takes_all_of_them() -> None:
    played = _full()
    row_of = dict(played.engine.requests.names.row_of)
    # 7 pages of 3 units each are more than what is free and what one of them holds.
    outcome = played.decide(Take(int64s([1]), 28, victims=int64s([2, 3])))
    assert isinstance(outcome.result, TakeResult)
    assert columns_of(outcome)[outcome.result.retracted] == [row_of[2], row_of[3]]


def test_nobody_is_retracted_where_nobodys_end_would_help() -> None:
    played = _full()
    before = picture(played.engine.requests)
    # 17 pages of 3 units each do not fit beside the 16 units that the taker holds already.
    outcome = played.decide(Take(int64s([1]), 68, victims=int64s([3, 2])))
    assert isinstance(outcome.result, Refusal)
    assert outcome.result.request == 1
    assert picture(played.engine.requests) == before


def test_a_victim_among_the_takers_takes_nothing() -> None:
    played = _full()
    row_of = dict(played.engine.requests.names.row_of)
    outcome = played.decide(Take(int64s([1, 2, 3]), 12, victims=int64s([2, 3])))
    result, columns = outcome.result, columns_of(outcome)
    assert isinstance(result, TakeResult)
    retracted = columns[result.retracted]
    assert retracted in ([row_of[2]], [row_of[2], row_of[3]])
    assert not set(columns[result.page_rows]) & set(retracted)


def test_victims_are_spared_where_there_is_room() -> None:
    played = Played()
    played.decide(_admit(1, 2, new=8))
    outcome = played.decide(Take(int64s([1]), 4, victims=int64s([2])))
    assert isinstance(outcome.result, TakeResult)
    assert outcome.result.retracted == NO_COLUMN
    assert sorted(played.engine.requests.names.row_of) == [1, 2]


def test_a_retracted_request_leaves_the_standing_set_and_may_be_admitted_again() -> None:
    played = _full()
    played.decide(Standing(int64s([1, 3])))
    played.decide(Take(int64s([1]), 4, victims=int64s([3])))
    with pytest.raises(OperationError, match="request 3 is not admitted"):
        played.decide(Take(int64s([3]), 1))
    outcome = played.decide(Take())
    assert isinstance(outcome.result, TakeResult)
    played.decide(Free(int64s([1, 2])))
    assert _verdicts(played.decide(_admit(3, prompt=40))) == [Verdict.FITS]


def test_a_retracted_request_is_taken_out_of_the_tables_before_others_move_in() -> None:
    played = _full()
    outcome = played.decide(Take(int64s([1]), 24, victims=int64s([3, 2])))
    kinds = [type(effect) for segment in outcome.segments for effect in segment]
    moves = kinds.count(Move)
    assert kinds == [
        *[WriteMap] * 4,
        WriteSlots,
        *[Move, WriteMap] * moves,
        *[Zero, WriteMap] * 3,
        WriteRows,
    ]


@pytest.mark.parametrize(
    ("victims", "words", "code"),
    [
        ([7], "request 7 is not admitted", ErrorCode.UNKNOWN_REQUEST),
        ([3, 3], "request 3 is named twice", ErrorCode.BAD_REQUEST_ID),
        ([0], "request id 0", ErrorCode.BAD_REQUEST_ID),
        ([-1], "request id -1", ErrorCode.BAD_REQUEST_ID),
    ],
)
def test_a_wrong_victim_is_named_and_changes_nothing(
    victims: list[int], words: str, code: ErrorCode
) -> None:
    engine = _full().engine
    before = picture(engine.requests)
    with pytest.raises(OperationError, match=words) as caught:
        engine.decide(0, Take(int64s([1]), 4, victims=int64s(victims)))
    assert caught.value.code is code
    assert picture(engine.requests) == before


def test_a_ragged_list_of_victims_is_refused() -> None:
    with pytest.raises(OperationError, match=r"take\.victims of 3 bytes"):
        _full().engine.decide(0, Take(int64s([1]), 4, victims=b"abc"))


def test_a_take_whose_victim_was_refused_in_this_batch_is_skipped() -> None:
    played = _full()
    played.decide(_admit(9, prompt=90, new=20, take=8))
    assert played.decide(Take(int64s([1]), 4, victims=int64s([3, 9]))).result == Skipped(9)


# ---- relief and compaction -----------------------------------------------------------------------


def test_a_relief_moves_live_units_out_of_the_way_and_grants_nothing() -> None:
    played = _full()
    played.decide(Free(int64s([2])))
    played.decide(BatchEnd())
    live = [band.live_units for band in played.engine.chain.bands]
    outcome = played.decide(Relief((12, 0, 0, 0)))
    assert outcome.result == Done()
    kinds = {type(effect) for segment in outcome.segments for effect in segment}
    assert kinds == {Move, WriteMap}
    assert [band.live_units for band in played.engine.chain.bands] == live
    assert played.engine.chain.bands[0].hole_units >= 12


def test_a_relief_that_transfers_hold_up_names_them_and_changes_nothing() -> None:
    played = _full()
    played.decide(Free(int64s([2])))
    played.decide(BatchEnd())
    post_nothing(played.engine.uses.transfers)
    for band in played.engine.chain.bands:
        if band.live_units:
            fix(band, hard=None, soft=band.span)
    played.engine.chain.settle_freed()
    before = picture(played.engine.requests)
    assert played.engine.decide(0, Relief((12, 0, 0, 0))) == Outcome(Pump((9001,)))
    assert picture(played.engine.requests) == before


@pytest.mark.parametrize(
    ("options", "operation"),
    [({"idle_moves_max": 3}, Idle()), ({"batch_moves_max": 3}, BatchEnd())],
)
def test_unasked_moves_are_bounded_and_follow_operations_only(
    options: dict[str, int], operation: Idle | BatchEnd
) -> None:
    played = _full()
    played.decide(Free(int64s([1])))
    before = played.engine
    assert before.decide(0, Idle()) == before.decide(0, BatchEnd()) == Outcome(Done())
    played = _full(**options)
    played.decide(Free(int64s([1])))
    moved = 0
    for _ in range(50):
        outcome = played.decide(operation)
        columns = columns_of(outcome)
        count = sum(
            len(columns[effect.sources])
            for segment in outcome.segments
            for effect in segment
            if isinstance(effect, Move)
        )
        assert count <= 3
        moved += count
    assert moved > 3
    assert played.decide(operation) == Outcome(Done())


def test_nothing_moves_at_the_end_of_a_batch_while_a_step_is_in_flight() -> None:
    played = _full(batch_moves_max=3)
    played.decide(Free(int64s([1])))
    played.engine.decide(0, Launch(1, 0))
    assert played.decide(BatchEnd()) == Outcome(Done())


def test_a_free_gives_up_a_request_that_waits() -> None:
    played = _full()
    assert _verdicts(played.decide(_admit(9))) == [Verdict.WAIT]
    played.decide(BatchEnd())
    assert played.decide(Free(int64s([9]))).result == Freed((0, 0, 0, 0))
    with pytest.raises(OperationError, match="request id 9 was used before"):
        played.decide(_admit(9))
