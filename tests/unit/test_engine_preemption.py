"""Admits with victims: what is checked, what is answered, and effects in their order."""

import pytest

from kvd.alloc.checks import CheckLevel
from kvd.engine.stage import StageEngine
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import Admit, BatchEnd, Free, Standing, Take
from kvd_proto.outcomes import (
    NO_COLUMN,
    AdmitResult,
    ClearSlots,
    Move,
    Outcome,
    Reason,
    ResetRows,
    Skipped,
    TakeResult,
    Verdict,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
)
from tests.stateful.chains import block, picture, post_nothing
from tests.stateful.ranks import Tables, columns_of, int32s, int64s, stage

STORAGE = stage(rows=4, spare_bytes=14 << 10)
"""Room for 4 requests that end soon, and for 3 that do not; there are no more rows."""


class Played:
    """An engine, and the tables that its effects write."""

    def __init__(self) -> None:
        self.engine = StageEngine(STORAGE, level=CheckLevel.STRICT)
        self.tables = Tables(STORAGE.storage)
        self.position = 0

    def decide(self, operation: Admit | Take | Free | BatchEnd | Standing) -> Outcome:
        """Decide and apply one operation, and compare all tables with the books."""
        outcome = self.engine.decide(0, operation)
        self.position += 1
        self.tables.apply(self.position, outcome)
        for index, band in enumerate(self.engine.chain.bands):
            bound = band.bound_ids()
            assert self.tables.maps[index].nonzero()[0].tolist() == bound.tolist()
            assert self.tables.maps[index][bound].tolist() == band.physical(bound).tolist()
        assert self.tables.slots.tolist() == self.engine.requests.rows.slot.tolist()
        return outcome

    @property
    def live(self) -> list[int]:
        return sorted(self.engine.requests.names.row_of)


def _admit(
    *requests: int,
    prompt: int = 8,
    new: int = 0,
    take: int = 8,
    reserve: int = 0,
    victims: tuple[int, ...] = (),
) -> Admit:
    count = len(requests)
    return Admit(
        int64s(requests),
        int32s([prompt] * count),
        int32s([new] * count),
        int32s([take] * count) if take else b"",
        reserve_batches=reserve,
        victims=int64s(victims),
    )


def _verdicts(outcome: Outcome) -> list[int]:
    assert isinstance(outcome.result, AdmitResult)
    return columns_of(outcome)[outcome.result.verdicts]


def _retracted(outcome: Outcome) -> list[int]:
    """Return the rows that victims lost."""
    assert isinstance(outcome.result, AdmitResult)
    place = outcome.result.retracted
    return [] if place == NO_COLUMN else columns_of(outcome)[place]


def _full() -> Played:
    """Return a stage in which requests 1, 2 and 3 hold promises that leave no room for a fourth."""
    played = Played()
    assert _verdicts(played.decide(_admit(1, 2, 3, new=16))) == [Verdict.FITS] * 3
    assert _verdicts(played.decide(_admit(4, prompt=32, new=16))) == [Verdict.WAIT]
    played.decide(BatchEnd())
    return played


def test_the_fewest_victims_end_and_are_named_by_row() -> None:
    played = _full()
    row_of = dict(played.engine.requests.names.row_of)
    outcome = played.decide(_admit(4, prompt=32, new=16, victims=(3, 2, 1)))
    assert _verdicts(outcome) == [Verdict.FITS]
    count = len(_retracted(outcome))
    assert 0 < count < 3
    assert _retracted(outcome) == [row_of[3], row_of[2]][:count]
    assert played.live == [*range(1, 4 - count), 4]
    assert played.engine.counters["retracted"] == count


def test_nobody_ends_where_there_is_room() -> None:
    played = Played()
    played.decide(_admit(1))
    outcome = played.decide(_admit(2, victims=(1,)))
    assert (_verdicts(outcome), _retracted(outcome)) == ([Verdict.FITS], [])
    assert played.live == [1, 2]


def test_nobody_ends_and_nothing_changes_where_no_end_helps() -> None:
    played = _full()
    before = picture((played.engine.chain, played.engine.requests.rows))
    outcome = played.decide(_admit(4, prompt=60, new=30, victims=(3,)))
    assert (_verdicts(outcome), _retracted(outcome)) == ([Verdict.WAIT], [])
    assert outcome.segments == ()
    assert picture((played.engine.chain, played.engine.requests.rows)) == before
    assert played.live == [1, 2, 3]


def test_victims_leave_all_tables_before_their_rows_are_given_away() -> None:
    played = _full()
    outcome = played.decide(_admit(4, prompt=32, new=16, victims=(3, 2, 1)))
    assert isinstance(outcome.result, AdmitResult)
    kinds = [type(effect) for segment in outcome.segments for effect in segment]
    ended = kinds.index(WriteSlots)
    assert set(kinds[:ended]) == {WriteMap}
    assert kinds[ended + 1] is ResetRows
    assert not {Move, Zero, WriteRows, ClearSlots} & set(kinds[: ended + 2])
    assert kinds.count(WriteRows) == 1


def test_a_row_is_given_away_in_the_admit_that_took_it() -> None:
    played = Played()
    assert _verdicts(played.decide(_admit(1, 2, 3, 4))) == [Verdict.FITS] * 4
    row_of = dict(played.engine.requests.names.row_of)
    assert _verdicts(played.decide(_admit(5))) == [Verdict.WAIT]  # no row is free
    played.decide(BatchEnd())
    outcome = played.decide(_admit(5, victims=(2, 3)))
    assert _retracted(outcome) == [row_of[2]]
    assert isinstance(outcome.result, AdmitResult)
    assert columns_of(outcome)[outcome.result.rows] == [row_of[2]]
    assert played.live == [1, 3, 4, 5]


def test_a_retracted_request_leaves_the_standing_set_and_may_be_admitted_again() -> None:
    played = _full()
    played.decide(Standing(int64s([1, 2, 3])))
    played.decide(_admit(4, prompt=32, new=16, victims=(3, 2, 1)))
    assert 3 not in played.live
    with pytest.raises(OperationError, match="request 3 is not admitted"):
        played.decide(Take(int64s([3]), 1))
    standing = [request for request in (1, 2) if request in played.live]
    rows = played.engine.requests.names.rows_of(standing)
    tokens = played.engine.requests.rows.tokens
    before = tokens.copy()
    assert isinstance(played.decide(Take()).result, TakeResult)
    assert sorted((tokens != before).nonzero()[0].tolist()) == sorted(rows.tolist())
    played.decide(Free(int64s(played.live)))
    assert _verdicts(played.decide(_admit(3))) == [Verdict.FITS]


def test_a_retracted_requests_old_lapse_does_not_end_a_later_promise() -> None:
    played = Played()
    played.decide(_admit(1, new=40, reserve=3))
    played.decide(_admit(2, new=40))
    played.decide(_admit(3, new=40, victims=(1,)))
    assert played.live == [2, 3]
    played.decide(Free(int64s([2])))
    assert _verdicts(played.decide(_admit(1, new=40))) == [Verdict.FITS]
    promised = played.engine.chain.promised_units
    for _ in range(4):
        played.decide(BatchEnd())
    assert played.engine.chain.promised_units == promised


# ---- wrong use -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "victims", "words", "code"),
    [
        (4, (7,), "request 7 is not admitted", ErrorCode.UNKNOWN_REQUEST),
        (4, (0,), "request id 0", ErrorCode.BAD_REQUEST_ID),
        (4, (3, 3), "request 3 is named twice", ErrorCode.BAD_REQUEST_ID),
        (4, (3, 4), "admit.victims has 4, which the same admit", ErrorCode.BAD_REQUEST_ID),
        (5, (3, 5), "admit.victims has 5, which the same admit", ErrorCode.BAD_REQUEST_ID),
        (3, (3,), "request 3 is admitted already", ErrorCode.BAD_REQUEST_ID),
    ],
)
def test_a_wrong_victim_is_named_and_changes_nothing(
    asked: int, victims: tuple[int, ...], words: str, code: ErrorCode
) -> None:
    engine = _full().engine
    before = picture(engine.requests)
    with pytest.raises(OperationError, match=words) as caught:
        engine.decide(0, _admit(asked, prompt=32, new=16, victims=victims))
    assert caught.value.code is code
    assert picture(engine.requests) == before


def test_a_ragged_list_of_victims_is_refused() -> None:
    operation = Admit(int64s([4]), int32s([8]), int32s([0]), victims=b"abc")
    with pytest.raises(OperationError, match=r"admit\.victims of 3 bytes"):
        _full().engine.decide(0, operation)


def test_victims_count_among_those_that_may_have_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = _full().engine  # request 4 waits
    monkeypatch.setattr("kvd.alloc.names.WAITING_COUNT_MAX", 2)
    with pytest.raises(OperationError, match="1 requests wait already and 2 more may have to"):
        engine.decide(0, _admit(5, prompt=32, new=16, victims=(3,)))


def test_an_admit_whose_victim_was_refused_in_this_batch_is_skipped() -> None:
    played = _full()
    played.decide(_admit(9, prompt=90, new=10))
    assert played.decide(_admit(10, victims=(3, 9))).result == Skipped(9)


# ---- transfers -----------------------------------------------------------------------------------


def test_an_admit_whose_chunk_waits_for_transfers_waits_and_changes_nothing() -> None:
    played = Played()
    played.decide(_admit(1))
    engine = played.engine
    post_nothing(engine.uses.transfers)
    block(engine.chain, ((engine.chain.geometry.sink_bytes, engine.chain.geometry.arena_bytes),))
    before = picture((engine.chain, engine.requests.rows))
    outcome = played.decide(_admit(2, 3))
    assert _verdicts(outcome) == [Verdict.WAIT] * 2
    assert isinstance(outcome.result, AdmitResult)
    assert {refusal.reason for refusal in outcome.result.refusals} == {Reason.TRANSFERS}
    assert all(refusal.waiting_helps for refusal in outcome.result.refusals)
    assert outcome.segments == ()
    assert picture((engine.chain, engine.requests.rows)) == before
    block(engine.chain, ())
    played.decide(BatchEnd())
    assert _verdicts(played.decide(_admit(2, 3))) == [Verdict.FITS] * 2
