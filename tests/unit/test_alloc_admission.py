"""Admission: the five outcomes in their order, clips, chunks, growth, and who is waited for."""

from dataclasses import replace

import pytest

from kvd.alloc.admission import AdmissionPass
from kvd.alloc.requests import Grant, RequestTable
from kvd.errors import OperationError
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason, Verdict
from tests.stateful.chains import ONE, World, admit, fix

FITS, WAIT, UNSCHEDULABLE = Verdict.FITS, Verdict.WAIT, Verdict.UNSCHEDULABLE

TEN = replace(ONE, arena_bytes=110, context_tokens=80, row_count=6)
"""Ten pages of four tokens beside the sink."""

WINDOWED = World(
    arena_bytes=2 + 2 * 20,
    unit_bytes=(2, 2),
    lifetimes=(Lifetime.WINDOW, Lifetime.FULL),
    window_tokens=(4, 0),
    page_tokens=4,
    context_tokens=64,
    chunk_tokens=4,
)
"""Twenty units: a prompt in chunks of c pages holds at most c + 2 pages of its window."""


def _take_all(table: RequestTable, request: int, tokens: int) -> None:
    assert isinstance(table.take(table.names.rows_of([request]), tokens), Grant)


# ---- the five outcomes ---------------------------------------------------------------------------


def test_what_fits_is_promised_whole() -> None:
    table = TEN.table()
    answer = admit(table, 1, prompt=20, new=20)
    assert (answer.verdict, answer.new_tokens, answer.chunk_tokens) == (FITS, 20, 8)
    assert answer.shortage is None
    assert table.chain.promised_units == (10,)


def test_what_fits_no_empty_arena_is_refused_for_ever_even_while_others_run() -> None:
    table = TEN.table()
    assert admit(table, 1, prompt=4, new=0).verdict is FITS
    answer = admit(table, 2, prompt=44, new=0)
    assert answer.verdict is UNSCHEDULABLE
    assert answer.shortage is not None
    assert (answer.shortage.reason, answer.shortage.short_bytes) == (Reason.NO_BYTES, 10)
    assert not answer.shortage.waiting_helps
    with pytest.raises(OperationError, match="request id 2 was used before"):
        table.names.check_new(2)


def test_what_somebody_will_give_back_is_waited_for_and_named() -> None:
    table = TEN.table()
    assert admit(table, 1, prompt=40, new=0).verdict is FITS
    answer = admit(table, 2, prompt=4, new=0)
    assert answer.verdict is WAIT
    assert answer.shortage is not None
    assert answer.shortage.remover == "1 request that holds rows"
    assert (answer.shortage.reason, answer.shortage.short_units) == (Reason.NO_IDS, 1)
    table.names.check_new(2)


def test_who_was_admitted_earlier_in_the_pass_is_named_too() -> None:
    table = TEN.table()
    assert admit(table, 1, prompt=20, new=0).verdict is FITS
    one_pass = AdmissionPass(table, growth_permille=0)
    sizes = {"new_tokens_max": 0, "chunk_tokens": 0}
    assert one_pass.admit(2, prompt_tokens=20, **sizes).verdict is FITS
    answer = one_pass.admit(3, prompt_tokens=4, **sizes)
    assert answer.verdict is WAIT
    assert answer.shortage is not None
    assert answer.shortage.remover == (
        "1 request admitted in this pass and 1 request that holds rows"
    )


def test_several_that_hold_memory_are_counted() -> None:
    table = TEN.table()
    for request in (1, 2):
        assert admit(table, request, prompt=20, new=0).verdict is FITS
    answer = admit(table, 3, prompt=4, new=0)
    assert answer.shortage is not None
    assert answer.shortage.remover == "2 requests that hold rows"


def test_a_prompt_that_fits_only_in_shorter_chunks_gets_the_longest_that_does() -> None:
    table = WINDOWED.table()
    # 14 pages leave room for 6 of the window: 4 tokens behind a chunk of 4 pages may touch those.
    answer = admit(table, 1, prompt=56, new=0, chunk=48)
    assert (answer.verdict, answer.chunk_tokens) == (FITS, 16)
    row = table.names.rows_of([1])
    for tokens in (16, 16, 16, 8):
        _take_all(table, 1, tokens)
        table.advance(row, tokens)
        table.holdings.check()


@pytest.mark.case("22")
def test_a_chunk_is_never_shrunk_while_anything_is_live() -> None:
    table = WINDOWED.table()
    assert admit(table, 1, prompt=1, new=0).verdict is FITS
    for chunk in (48, 24):
        answer = admit(table, 2, prompt=52, new=0, chunk=chunk)
        assert (answer.verdict, answer.chunk_tokens) == (WAIT, 0)
    table.free(table.names.rows_of([1]))
    answer = admit(table, 2, prompt=52, new=0, chunk=48)
    assert (answer.verdict, answer.chunk_tokens) == (FITS, 20)


def test_what_nothing_outstanding_will_make_room_for_is_refused() -> None:
    table = WINDOWED.table()
    fix(table.chain.owner, hard=(3, 4), soft=None)  # 2 units are left below it, 3 are needed
    answer = admit(table, 1, prompt=56, new=0, chunk=4)
    assert answer.verdict is UNSCHEDULABLE
    assert answer.shortage is not None
    assert not answer.shortage.waiting_helps
    fix(table.chain.owner, hard=None, soft=None)
    assert admit(table, 2, prompt=56, new=0, chunk=4).verdict is FITS


def test_a_chunk_shrinks_to_what_fixed_pages_leave_and_no_further() -> None:
    table = WINDOWED.table()
    assert admit(table, 1, prompt=40, new=0, chunk=32).chunk_tokens == 32
    table.free(table.names.rows_of([1]))
    fix(table.chain.owner, hard=(6, 7), soft=None)  # the owner reaches down to unit 6: 5 are left
    answer = admit(table, 2, prompt=40, new=0, chunk=32)
    assert (answer.verdict, answer.chunk_tokens) == (FITS, 12)


def test_a_row_that_is_missing_is_waited_for() -> None:
    table = replace(TEN, row_count=2).table()
    assert admit(table, 1, prompt=4, new=0).verdict is FITS
    answer = admit(table, 2, prompt=4, new=0)
    assert (answer.verdict, answer.row_index) == (WAIT, 0)
    assert answer.shortage is not None
    assert (answer.shortage.reason, answer.shortage.short_units) == (Reason.NO_ROWS, 1)
    assert answer.shortage.remover == "1 request that holds rows"
    assert answer.shortage.waiting_helps


def test_a_request_longer_than_the_context_is_refused_before_memory_is_asked() -> None:
    answer = admit(TEN.table(), 1, prompt=40, new=41)
    assert answer.verdict is UNSCHEDULABLE
    assert answer.shortage is not None
    assert (answer.shortage.reason, answer.shortage.short_units) == (Reason.TOO_LONG, 1)


# ---- the clip ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "new", "granted"),
    [(20, 20, 20), (20, 21, 20), (20, 60, 20), (37, 40, 3), (40, 40, 0)],
)
def test_new_tokens_are_what_memory_can_ever_grant(prompt: int, new: int, granted: int) -> None:
    table = TEN.table()
    answer = admit(table, 1, prompt=prompt, new=new)
    assert (answer.verdict, answer.new_tokens) == (FITS, granted)
    assert table.rows.total_tokens[answer.row_index] == prompt + granted


def test_one_that_waits_is_told_its_clip_too() -> None:
    table = TEN.table()
    admit(table, 1, prompt=40, new=0)
    answer = admit(table, 2, prompt=20, new=60)
    assert (answer.verdict, answer.new_tokens) == (WAIT, 20)


# ---- growth --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("permille", "verdict"), [(0, FITS), (1, WAIT), (500, WAIT), (1000, WAIT)])
def test_what_lapsed_requests_may_still_grow_to_counts_as_asked(
    permille: int, verdict: Verdict
) -> None:
    table = TEN.table()
    assert admit(table, 1, prompt=8, new=24).verdict is FITS  # 8 pages
    _take_all(table, 1, 8)
    table.holdings.lapse(table.names.rows_of([1]))
    assert table.chain.promised_units == (0,)
    assert table.holdings.growth_units() == (6,)
    answer = admit(table, 2, prompt=32, new=0, growth_permille=permille)  # 2 + 8 pages
    assert answer.verdict is verdict


@pytest.mark.parametrize(("pages", "verdict"), [(4, FITS), (5, FITS), (6, WAIT)])
def test_half_of_a_growth_is_half_of_a_growth(pages: int, verdict: Verdict) -> None:
    table = TEN.table()
    admit(table, 1, prompt=8, new=24)
    _take_all(table, 1, 8)
    table.holdings.lapse(table.names.rows_of([1]))
    # 2 pages live, 3 of 6 that may come: 5 are left.
    assert admit(table, 2, prompt=4 * pages, new=0, growth_permille=500).verdict is verdict


def test_growth_is_counted_once_in_a_pass_and_not_once_per_request() -> None:
    table = TEN.table()
    admit(table, 1, prompt=8, new=24)
    _take_all(table, 1, 8)
    table.holdings.lapse(table.names.rows_of([1]))
    one_pass = AdmissionPass(table, growth_permille=500)
    verdicts = [
        one_pass.admit(request, prompt_tokens=8, new_tokens_max=0, chunk_tokens=0).verdict
        for request in (2, 3, 4)
    ]
    assert verdicts == [FITS, FITS, WAIT]


def test_growth_of_requests_whose_promise_holds_is_not_counted_twice() -> None:
    table = TEN.table()
    admit(table, 1, prompt=8, new=12)  # 5 pages, promised
    assert admit(table, 2, prompt=20, new=0, growth_permille=1000).verdict is FITS


def test_what_lacks_ids_even_in_an_empty_arena_is_told_so() -> None:
    table = replace(TEN, virtual_page_count=6).table()  # 5 pages and the sink
    answer = admit(table, 1, prompt=24, new=0)
    assert answer.verdict is UNSCHEDULABLE
    assert answer.shortage is not None
    assert (answer.shortage.reason, answer.shortage.short_units) == (Reason.NO_IDS, 1)
    assert "6 ids of full_0 asked, there are 5" in answer.shortage.obstacle
    assert answer.shortage.remover == "a larger budget"


def test_a_request_whose_new_tokens_are_clipped_keeps_the_chunk_asked() -> None:
    answer = admit(TEN.table(), 1, prompt=30, new=34, chunk=7)
    assert (answer.verdict, answer.new_tokens, answer.chunk_tokens) == (FITS, 10, 7)
