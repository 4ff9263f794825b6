"""One method per operation: results, effects, and wrong use that changes nothing."""

import pytest

from kvd.alloc import names
from kvd.alloc.checks import CheckLevel
from kvd.engine.arguments import OPERATION_REQUESTS_MAX, TOKENS_MAX, read_admit
from kvd.engine.stage import StageEngine
from kvd.errors import InvariantError, OperationError
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import (
    Admit,
    Advance,
    BatchEnd,
    Free,
    Launch,
    Operation,
    Processed,
    Relief,
    Standing,
    Take,
)
from kvd_proto.outcomes import (
    NO_COLUMN,
    AdmitResult,
    ClearSlots,
    Done,
    Freed,
    Outcome,
    Reason,
    Refusal,
    ResetRows,
    Skipped,
    TakeResult,
    Verdict,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
)
from tests.stateful.chains import picture
from tests.stateful.ranks import CONTEXT_TOKENS, Tables, columns_of, int32s, int64s, stage


def _engine(**options: int) -> StageEngine:
    return StageEngine(stage(**options), level=CheckLevel.STRICT)


def _admit(*requests: int, prompt: int = 8, new: int = 8, take: int = 0, chunk: int = 0) -> Admit:
    count = len(requests)
    takes = int32s([take] * count) if take else b""
    return Admit(int64s(requests), int32s([prompt] * count), int32s([new] * count), takes, chunk)


def _busy(*operations: Operation) -> StageEngine:
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


def _effects(outcome: Outcome) -> list[type]:
    return [type(effect) for segment in outcome.segments for effect in segment]


# ---- admit ---------------------------------------------------------------------------------------


def test_an_admit_answers_each_request_for_itself() -> None:
    outcome = _engine().decide(0, _admit(1, 2, 3, prompt=40, new=20))
    result, columns = outcome.result, columns_of(outcome)
    assert isinstance(result, AdmitResult)
    assert columns[result.verdicts] == [Verdict.FITS] * 3
    assert columns[result.rows] == [1, 2, 3]
    assert _effects(outcome) == [ResetRows]


def test_a_request_that_does_not_fit_has_no_row_and_a_refusal() -> None:
    outcome = _engine().decide(0, _admit(1, 2, prompt=90, new=20))
    result, columns = outcome.result, columns_of(outcome)
    assert isinstance(result, AdmitResult)
    assert columns[result.verdicts] == [Verdict.UNSCHEDULABLE] * 2
    assert columns[result.rows] == [0, 0]
    assert [(refusal.request, refusal.reason) for refusal in result.refusals] == [
        (1, Reason.TOO_LONG),
        (2, Reason.TOO_LONG),
    ]
    assert outcome.segments == ()


def test_a_first_chunk_is_granted_with_the_verdict() -> None:
    outcome = _engine().decide(0, _admit(1, prompt=8, take=6))
    result, columns = outcome.result, columns_of(outcome)
    assert isinstance(result, AdmitResult)
    assert columns[result.virtual] == [1, 2]
    assert columns[result.physical[0]] == [1]
    assert columns[result.page_places] == [0, 1]
    assert _effects(outcome) == [
        ResetRows,
        *[Zero, WriteMap] * 3,
        WriteRows,
        WriteMap,
        WriteSlots,
        ClearSlots,
    ]


def test_only_what_fits_is_granted_its_chunk() -> None:
    engine = _engine(rows=1)
    outcome = engine.decide(0, _admit(1, 2, take=4))
    result, columns = outcome.result, columns_of(outcome)
    assert isinstance(result, AdmitResult)
    assert columns[result.verdicts] == [Verdict.FITS, Verdict.WAIT]
    assert columns[result.page_rows] == [1]
    assert result.refusals[0].reason is Reason.NO_ROWS


WRONG_ADMITS = [
    pytest.param(_admit(0), "request id 0 is not", ErrorCode.BAD_REQUEST_ID, id="zero"),
    pytest.param(_admit(-5), "request id -5 is not", ErrorCode.BAD_REQUEST_ID, id="negative"),
    pytest.param(_admit(9, 9), "9 after 9; new ids ascend", ErrorCode.BAD_REQUEST_ID, id="twice"),
    pytest.param(
        _admit(9, 8), "8 after 9; new ids ascend", ErrorCode.BAD_REQUEST_ID, id="descending"
    ),
    pytest.param(_admit(9, 1), "request 1 is admitted", ErrorCode.BAD_REQUEST_ID, id="known"),
    pytest.param(_admit(9, prompt=0), "has 0, at least 1", ErrorCode.BAD_ARGUMENT, id="no prompt"),
    pytest.param(
        _admit(9, new=-1), "has -1, at least 0", ErrorCode.BAD_ARGUMENT, id="negative new"
    ),
    pytest.param(
        _admit(9, prompt=90, take=17), "asks 17 .* at most 16", ErrorCode.BAD_ARGUMENT, id="chunk"
    ),
    pytest.param(
        _admit(9, prompt=5, new=3, take=8),
        "asks 8 .* at most 5",
        ErrorCode.BAD_ARGUMENT,
        id="behind",
    ),
    pytest.param(
        _admit(9, take=4, chunk=-1), "chunk_tokens is -1", ErrorCode.BAD_ARGUMENT, id="minus chunk"
    ),
    pytest.param(
        _admit(9, take=4, chunk=TOKENS_MAX + 1), "chunk_tokens is", ErrorCode.BAD_ARGUMENT, id="32"
    ),
    pytest.param(
        _admit(9, take=4, chunk=(1 << 64) - 1), "chunk_tokens is", ErrorCode.BAD_ARGUMENT, id="64"
    ),
    pytest.param(
        Admit(int64s([9]), int32s([1, 2]), int32s([1])), "8 bytes", ErrorCode.BAD_ARGUMENT, id="two"
    ),
    pytest.param(Admit(b"", b"", b""), "of 0 bytes", ErrorCode.BAD_ARGUMENT, id="none"),
    pytest.param(Admit(b"abc", b"", b""), "of 3 bytes", ErrorCode.BAD_ARGUMENT, id="ragged"),
]
WRONG_USE = [
    pytest.param(Take(int64s([7])), "request 7 is not admitted", ErrorCode.UNKNOWN_REQUEST, id="t"),
    pytest.param(Take(int64s([1, 1])), "named twice", ErrorCode.BAD_REQUEST_ID, id="take twice"),
    pytest.param(Take(int64s([0])), "request id 0", ErrorCode.BAD_REQUEST_ID, id="take zero"),
    pytest.param(Take(int64s([-1])), "request id -1", ErrorCode.BAD_REQUEST_ID, id="take minus"),
    pytest.param(Take(tokens=0), "take.tokens is 0", ErrorCode.BAD_ARGUMENT, id="no token"),
    pytest.param(
        Take(tokens=-1), "take.tokens is -1", ErrorCode.BAD_ARGUMENT, id="minus one token"
    ),
    pytest.param(
        Take(tokens=CONTEXT_TOKENS + 1), "take.tokens is 101", ErrorCode.BAD_ARGUMENT, id="too many"
    ),
    pytest.param(
        Take(tokens=(1 << 64) - 1), "take.tokens is", ErrorCode.BAD_ARGUMENT, id="far too many"
    ),
    pytest.param(
        Take(tokens=CONTEXT_TOKENS - 7), "grow to 101 tokens", ErrorCode.BAD_ARGUMENT, id="context"
    ),
    pytest.param(Take(b"1"), "of 1 bytes", ErrorCode.BAD_ARGUMENT, id="ragged ids"),
    pytest.param(
        Take(tokens_each=int32s([1])), "4 bytes, 2 requests", ErrorCode.BAD_ARGUMENT, id="one count"
    ),
    pytest.param(
        Take(tokens_each=int32s([1, 0])), "has 0, at least 1", ErrorCode.BAD_ARGUMENT, id="count 0"
    ),
    pytest.param(
        Advance(tokens=9), "computed 9 tokens: it took 8", ErrorCode.BAD_ARGUMENT, id="ad"
    ),
    pytest.param(
        Advance(int64s([7])), "request 7 is not admitted", ErrorCode.UNKNOWN_REQUEST, id="advance"
    ),
    pytest.param(Free(b""), "of 0 bytes", ErrorCode.BAD_ARGUMENT, id="free none"),
    pytest.param(
        Free(int64s([1, 7])), "request 7 is not", ErrorCode.UNKNOWN_REQUEST, id="free one"
    ),
    pytest.param(Free(int64s([1, 1])), "named twice", ErrorCode.BAD_REQUEST_ID, id="free twice"),
    pytest.param(
        Standing(int64s([1])), "in the standing set already", ErrorCode.BAD_REQUEST_ID, id="add"
    ),
    pytest.param(
        Standing(b"", int64s([7])), "request 7 is not", ErrorCode.UNKNOWN_REQUEST, id="remove"
    ),
    pytest.param(
        Relief((1, 1)), r"has 2 counts, \[1, 1\]; 4 counts", ErrorCode.BAD_ARGUMENT, id="relief two"
    ),
    pytest.param(
        Relief(()), r"has 0 counts, \[\]; 4 counts", ErrorCode.BAD_ARGUMENT, id="relief nothing"
    ),
    pytest.param(
        Relief((0, 0, -1, 0)), "counts of 0 or more", ErrorCode.BAD_ARGUMENT, id="relief minus"
    ),
    pytest.param(Launch(2, 0), "the next step is 1", ErrorCode.STEP_ORDER, id="launch"),
    pytest.param(Processed(1), "no step is in flight", ErrorCode.STEP_ORDER, id="processed"),
]


@pytest.mark.parametrize(("operation", "words", "code"), [*WRONG_ADMITS, *WRONG_USE])
def test_wrong_use_names_the_value_and_changes_nothing(
    operation: Operation, words: str, code: ErrorCode
) -> None:
    engine = _busy()
    before = picture(engine)
    with pytest.raises(OperationError, match=words) as caught:
        engine.decide(0, operation)
    assert caught.value.code is code
    assert picture(engine) == before


def test_the_number_of_requests_of_one_operation_is_bounded() -> None:
    ids = int64s(range(1, OPERATION_REQUESTS_MAX + 2))
    with pytest.raises(OperationError, match=f"at most {OPERATION_REQUESTS_MAX}"):
        _engine().decide(0, Free(ids))


def test_an_admit_beyond_the_bound_on_waiters_admits_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(names, "WAITING_COUNT_MAX", 1)
    engine = _engine(rows=1)
    before = picture(engine)
    with pytest.raises(OperationError, match="0 requests wait already and 3 more"):
        engine.decide(0, _admit(1, 2, 3))
    assert picture(engine) == before


# ---- take, advance, free -------------------------------------------------------------------------


def test_a_request_that_waits_may_be_asked_behind_newer_ones() -> None:
    engine = _engine()
    engine.requests.names.wait(3)
    asked = read_admit(_admit(7, 3, 9), engine.requests)
    assert asked.ids == [7, 3, 9]


def test_a_take_inside_a_page_grants_nothing_and_has_no_effects() -> None:
    engine = _engine()
    engine.decide(0, _admit(1, take=5))
    assert engine.decide(0, Take(int64s([1]), 3)) == Outcome(TakeResult())


def test_a_take_of_the_standing_set_names_no_ids() -> None:
    engine = _busy()
    outcome = engine.decide(0, Take())
    result, columns = outcome.result, columns_of(outcome)
    assert isinstance(result, TakeResult)
    assert columns[result.page_rows] == [1, 2]
    assert columns[result.page_places] == [2, 2]
    assert result.physical[0] == NO_COLUMN
    assert _effects(outcome) == [*[Zero, WriteMap] * 3, WriteRows]


def test_a_take_of_nobody_is_no_error() -> None:
    assert _engine().decide(0, Take()) == Outcome(TakeResult())


@pytest.mark.case("117")
def test_a_refused_take_is_a_value_and_changes_nothing() -> None:
    engine = _engine(spare_bytes=0)
    engine.decide(0, _admit(1, prompt=8, new=0, take=8))
    engine.decide(0, BatchEnd())
    engine.settle()
    before = picture(engine.requests)
    outcome = engine.decide(0, Take(int64s([1]), CONTEXT_TOKENS - 8))
    result = outcome.result
    assert isinstance(result, Refusal)
    assert (outcome.segments, outcome.columns) == ((), b"")
    assert picture(engine.requests) == before
    assert engine.refusal_counts == {result.reason.value: 1}


@pytest.mark.case("59")
def test_rows_that_left_a_window_are_unbound() -> None:
    engine = _engine()
    engine.decide(0, _admit(1, prompt=16, take=16))
    outcome = engine.decide(0, Advance(int64s([1]), 16))
    result, columns = outcome.result, columns_of(outcome)
    assert result == Freed((0, 0, 2, 0))  # 16 tokens behind a window of 8 in pages of 4
    (effect,) = outcome.segments[0]
    assert isinstance(effect, WriteMap)
    assert (effect.band, effect.physical, columns[effect.virtual]) == (2, NO_COLUMN, [1, 2])


def test_a_free_unbinds_everything_the_request_held() -> None:
    engine = _busy()
    outcome = engine.decide(0, Free(int64s([1])))
    assert outcome.result == Freed((1, 2, 2, 2))
    assert _effects(outcome) == [WriteMap] * 4 + [WriteSlots]


def test_the_same_free_twice_is_refused_the_second_time() -> None:
    engine = _busy(Free(int64s([1])))
    with pytest.raises(OperationError, match="request 1 has ended"):
        engine.decide(0, Free(int64s([1])))


def test_the_same_ids_mean_other_rows_once_requests_have_come_and_gone() -> None:
    engine = _engine()
    engine.decide(0, _admit(1, 2, take=4))
    engine.decide(0, Take(int64s([2]), 4))
    engine.decide(0, Free(int64s([1])))
    engine.decide(0, Free(int64s([2])))
    with pytest.raises(OperationError, match="request 2 has ended"):
        engine.decide(0, Take(int64s([2]), 4))


@pytest.mark.parametrize(
    "operation",
    [Take(int64s([1, 9])), Advance(int64s([9])), Free(int64s([9])), Standing(int64s([9]))],
)
def test_a_request_refused_in_this_batch_makes_its_operations_skipped(operation: Operation) -> None:
    engine = _busy()
    engine.decide(0, _admit(9, prompt=1000))
    before = picture(engine.requests)
    assert engine.decide(0, operation) == Outcome(Skipped(9))
    assert picture(engine.requests) == before
    engine.decide(0, BatchEnd())
    with pytest.raises(OperationError, match="request 9 has ended or never fitted"):
        engine.decide(0, operation)


def test_programs_have_standing_sets_of_their_own() -> None:
    engine = _busy()
    assert engine.decide(1, Take()) == Outcome(TakeResult())
    engine.decide(1, Standing(int64s([2])))
    outcome = engine.decide(1, Take())
    assert isinstance(outcome.result, TakeResult)
    assert columns_of(outcome)[outcome.result.page_rows] == [2]


def test_a_relief_that_has_room_is_done_and_one_that_has_none_is_refused() -> None:
    engine = _busy()
    assert engine.decide(0, Relief((1, 1, 1, 1))) == Outcome(Done())
    result = engine.decide(0, Relief((0, 250, 0, 200))).result
    assert isinstance(result, Refusal)
    assert (result.reason, result.band) == (Reason.NO_BYTES, "window_20")


def test_a_relief_of_more_than_an_empty_arena_holds_is_not_helped_by_waiting() -> None:
    result = _busy().decide(0, Relief((0, 250, 0, 200))).result
    assert isinstance(result, Refusal)
    assert (result.waiting_helps, result.remover) == (False, "a larger budget")


@pytest.mark.parametrize("units", [256, 10_000, 1 << 60, (1 << 64) - 1])
def test_a_relief_of_more_units_than_a_band_has_places_is_wrong_use(units: int) -> None:
    engine = _busy()
    before = picture(engine)
    with pytest.raises(OperationError, match=rf"asks {units} units of band window_20; .*25[0-9]"):
        engine.decide(0, Relief((0, units, 0, 0)))
    assert picture(engine) == before


def test_a_broken_invariant_is_found_right_after_the_operation() -> None:
    engine = _busy()
    engine.chain.owner.promised_units += 1
    with pytest.raises(
        InvariantError, match=r"^(chain\.promises_covered|request\.promises_add_up)"
    ):
        engine.decide(0, Take())


def test_tables_written_by_effects_alone_show_what_requests_hold() -> None:
    storage = stage()
    engine, tables = StageEngine(storage, level=CheckLevel.STRICT), Tables(storage.storage)
    operations: list[Operation] = [
        _admit(1, 2, prompt=40, new=20, take=16),
        Advance(int64s([1, 2]), 16),
        Take(int64s([2]), 16),
        Free(int64s([1])),
        _admit(3, prompt=30, take=7),
        Advance(int64s([2]), 16),
        BatchEnd(),
    ]
    for position, operation in enumerate(operations, 1):
        tables.apply(position, engine.decide(0, operation))
        rows = engine.requests.rows
        for index, band in enumerate(engine.chain.bands):
            bound = band.bound_ids()
            assert tables.maps[index].nonzero()[0].tolist() == bound.tolist()
            assert tables.maps[index][bound].tolist() == band.physical(bound).tolist()
            assert (tables.written[index][band.physical(bound)] > 0).all()
        for row in engine.requests.names.row_of.values():
            count = int(rows.page_count[row])
            assert tables.rows[row, :count].tolist() == rows.pages[row, :count].tolist()
        assert tables.slots.tolist() == rows.slot.tolist()
    assert tables.reset_rows == [1, 2, 3]
