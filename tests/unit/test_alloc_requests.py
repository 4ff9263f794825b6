"""Requests: verdicts, promises, takes that are all or nothing, slides and frees."""

# pyright: reportPrivateUsage=false

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from kvd.alloc import names
from kvd.alloc.checks import CheckLevel
from kvd.alloc.names import REQUEST_ID_MAX
from kvd.alloc.requests import Grant, RequestTable
from kvd.errors import InvariantError, OperationError
from kvd_proto.errors import ErrorCode
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason, Verdict
from tests.stateful.chains import ONE, THREE, World, admit, picture

STRADDLE = World(
    arena_bytes=400,
    unit_bytes=(6, 5),
    lifetimes=(Lifetime.WINDOW, Lifetime.FULL),
    window_tokens=(3, 0),
)
"""A window of 3 tokens in pages of 4."""


def _admit(
    table: RequestTable, request: int, *, prompt: int = 8, new: int = 8, chunk: int = 0
) -> Verdict:
    return admit(table, request, prompt=prompt, new=new, chunk=chunk).verdict


def _take(table: RequestTable, requests: list[int], tokens: int) -> Grant:
    grant = table.take(table.names.rows_of(requests), tokens)
    assert isinstance(grant, Grant)
    table.holdings.check()
    return grant


def _array(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_id", [0, -1, -(1 << 63), REQUEST_ID_MAX + 1])
def test_an_id_that_is_no_positive_64_bit_integer_is_refused(request_id: int) -> None:
    table = THREE.table()
    with pytest.raises(OperationError, match=f"{request_id} is not a positive") as caught:
        table.names.check_new(request_id)
    assert caught.value.code is ErrorCode.BAD_REQUEST_ID
    with pytest.raises(OperationError, match=f"{request_id} is not a positive") as caught:
        table.names.rows_of([request_id])
    assert caught.value.code is ErrorCode.BAD_REQUEST_ID


def test_the_largest_id_is_an_id() -> None:
    table = THREE.table()
    table.names.check_new(REQUEST_ID_MAX)
    assert _admit(table, REQUEST_ID_MAX) is Verdict.FITS


def test_an_id_is_introduced_once_and_ids_ascend() -> None:
    table = THREE.table()
    assert _admit(table, 5) is Verdict.FITS
    with pytest.raises(OperationError, match="5 is admitted already"):
        table.names.check_new(5)
    with pytest.raises(OperationError, match=r"4 was used before.*highest so far is 5"):
        table.names.check_new(4)
    table.names.check_new(6)


@pytest.mark.parametrize(
    ("request_id", "problem"),
    [(1, "has ended or never fitted"), (2, "has ended or never"), (9, "is not admitted")],
)
def test_a_request_that_does_not_live_is_refused_with_what_became_of_it(
    request_id: int, problem: str
) -> None:
    table = THREE.table()
    assert _admit(table, 1) is Verdict.FITS
    assert _admit(table, 2, prompt=1000) is Verdict.UNSCHEDULABLE
    table.free(table.names.rows_of([1]))
    with pytest.raises(OperationError, match=f"request {request_id} {problem}") as caught:
        table.names.rows_of([request_id])
    assert caught.value.code is ErrorCode.UNKNOWN_REQUEST


def test_a_request_named_twice_is_refused() -> None:
    table = THREE.table()
    _admit(table, 1)
    _admit(table, 2)
    with pytest.raises(OperationError, match="request 2 is named twice") as caught:
        table.names.rows_of([2, 1, 2])
    assert caught.value.code is ErrorCode.BAD_REQUEST_ID


# ---- admission -----------------------------------------------------------------------------------


def test_admission_promises_the_whole_demand_at_once() -> None:
    table = THREE.table()
    assert _admit(table, 1) is Verdict.FITS
    assert table.chain.promised_units == (1, 3, 4)
    assert [band.hole_units for band in table.chain.bands] == [0, 0, 0]
    table.holdings.check()


def test_a_request_longer_than_the_context_never_fits() -> None:
    table = THREE.table()
    answer = admit(table, 1, prompt=60, new=5)
    assert answer.verdict is Verdict.UNSCHEDULABLE
    assert answer.shortage is not None
    assert answer.shortage.reason is Reason.TOO_LONG
    assert "65 tokens, the context length is 64" in answer.shortage.obstacle
    assert not answer.shortage.waiting_helps
    assert len(table.rows.free) == THREE.row_count - 1


def test_a_request_that_fits_no_empty_arena_is_told_at_once() -> None:
    table = replace(ONE, arena_bytes=100).table()
    answer = admit(table, 1, prompt=40, new=0)
    assert answer.verdict is Verdict.UNSCHEDULABLE
    assert answer.shortage is not None
    assert (answer.shortage.reason, answer.shortage.short_bytes) == (Reason.NO_BYTES, 10)
    assert _admit(table, 2, prompt=36, new=0) is Verdict.FITS


def test_two_that_fit_alone_do_not_both_fit_and_the_second_may_ask_again() -> None:
    table = replace(ONE, arena_bytes=100).table()
    assert _admit(table, 1, prompt=20, new=0) is Verdict.FITS
    before = picture(table.chain)
    assert _admit(table, 2, prompt=20, new=0) is Verdict.WAIT
    assert picture(table.chain) == before
    table.names.check_new(2)
    table.free(table.names.rows_of([1]))
    assert _admit(table, 2, prompt=20, new=0) is Verdict.FITS
    table.holdings.check()


def test_a_promise_holds_whatever_others_take_meanwhile() -> None:
    table = replace(ONE, arena_bytes=110, virtual_page_count=99).table()
    assert _admit(table, 1, prompt=4, new=16) is Verdict.FITS
    assert _admit(table, 2, prompt=4, new=16) is Verdict.FITS
    _take(table, [1], 8)
    refused = table.take(table.names.rows_of([1]), 16)
    assert not isinstance(refused, Grant)
    assert (refused[0].reason, refused[1]) == (Reason.NO_BYTES, 1)
    _take(table, [2], 8)


def test_no_request_row_is_a_reason_of_its_own() -> None:
    table = replace(THREE, row_count=2).table()
    assert _admit(table, 1, prompt=1, new=1) is Verdict.FITS
    answer = admit(table, 2, prompt=1, new=1)
    assert answer.verdict is Verdict.WAIT
    assert answer.shortage is not None
    assert answer.shortage.reason is Reason.NO_ROWS


def test_requests_beyond_the_bound_cannot_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "WAITING_COUNT_MAX", 2)
    table = replace(ONE, arena_bytes=100).table()
    assert _admit(table, 1, prompt=30, new=0) is Verdict.FITS
    assert _admit(table, 2, prompt=30, new=0) is Verdict.WAIT
    table.names.check_waiting_room([2, 3])
    with pytest.raises(OperationError, match=r"1 requests wait already and 2 more .* at most 2"):
        table.names.check_waiting_room([2, 3, 4])


# ---- takes ---------------------------------------------------------------------------------------


def test_a_take_hands_out_pages_place_by_place() -> None:
    table = THREE.table()
    _admit(table, 1)
    _admit(table, 2)
    grant = _take(table, [1, 2], 6)
    assert grant.page_rows.tolist() == [1, 1, 2, 2]
    assert grant.page_places.tolist() == [0, 1, 0, 1]
    assert grant.virtual.tolist() == [1, 2, 3, 4]
    assert grant.slot_rows.tolist() == [1, 2]
    assert _take(table, [1, 2], 2).virtual.size == 0
    assert _take(table, [2], 1).page_places.tolist() == [2]


def test_a_slot_is_taken_once() -> None:
    table = THREE.table()
    _admit(table, 1)
    assert _take(table, [1], 1).slot_virtual.tolist() == [1]
    assert _take(table, [1], 7).slot_virtual.size == 0


@pytest.mark.parametrize("taken", [1, 8, 60, 61])
def test_a_take_past_the_context_is_refused_and_changes_nothing(taken: int) -> None:
    table = replace(ONE, context_tokens=62).table()
    _admit(table, 1, prompt=62, new=0, chunk=62)
    _take(table, [1], taken)
    before = picture(table)
    with pytest.raises(OperationError, match="grow to 63 tokens, the context length is 62"):
        table.take(table.names.rows_of([1]), 63 - taken)
    assert picture(table) == before
    _take(table, [1], 62 - taken)


def test_a_take_of_many_is_refused_whole_when_one_exceeds() -> None:
    table = replace(ONE, arena_bytes=100).table()
    for request in (1, 2):
        assert _admit(table, request, prompt=8, new=8) is Verdict.FITS
    table.chain.settle_freed()
    before = picture(table)
    refused = table.take(table.names.rows_of([1, 2]), _array(8, 24))
    assert not isinstance(refused, Grant)
    assert picture(table) == before
    _take(table, [1, 2], 16)


def test_a_request_may_exceed_its_promise_where_there_is_room() -> None:
    table = THREE.table()
    _admit(table, 1, prompt=4, new=0)
    _take(table, [1], 20)
    assert table.chain.promised_units == (0, 0, 0)
    table.advance(table.names.rows_of([1]), 20)
    table.holdings.check()
    table.free(table.names.rows_of([1]))
    table.holdings.check()


# ---- slides --------------------------------------------------------------------------------------


def test_a_page_slides_out_when_no_row_of_it_is_in_the_window() -> None:
    table = STRADDLE.table()
    _admit(table, 1, prompt=16, new=16)
    _take(table, [1], 8)
    row = table.names.rows_of([1])
    assert table.advance(row, 6) == []
    (slide,) = table.advance(row, 1)
    assert (slide.band_index, slide.virtual.tolist()) == (0, [1])
    assert [band.live_units for band in table.chain.bands] == [1, 2]
    table.holdings.check()


def test_a_long_advance_slides_several_pages_out() -> None:
    table = STRADDLE.table()
    _admit(table, 1, prompt=40, new=0, chunk=40)
    _take(table, [1], 40)
    (slide,) = table.advance(table.names.rows_of([1]), 40)
    assert slide.virtual.tolist() == list(range(1, 10))
    table.holdings.check()


def test_what_slid_out_is_promised_again_while_the_prompt_lasts_and_a_step_from_then_on() -> None:
    table = STRADDLE.table()
    window = table.chain.bands[0]
    _admit(table, 1, prompt=32, new=24)
    assert window.promised_units == 4  # 3 tokens behind a chunk of 8 touch 4 pages at most
    row = table.names.rows_of([1])
    for chunk in range(4):
        _take(table, [1], 8)
        assert window.live_units + window.promised_units == 4
        table.advance(row, 8)
        table.holdings.check()
        assert window.live_units + window.promised_units == (4 if chunk < 3 else 2)
    for _ in range(24):
        _take(table, [1], 1)
        table.advance(row, 1)
        table.holdings.check()
        assert window.live_units + window.promised_units == 2
    assert table.chain.promised_units == (2 - window.live_units, 0)


def test_computing_more_than_was_taken_is_refused_and_changes_nothing() -> None:
    table = STRADDLE.table()
    _admit(table, 1)
    _admit(table, 2)
    _take(table, [1, 2], 8)
    before = picture(table)
    with pytest.raises(OperationError, match="request 2 cannot have computed 9 tokens: it took 8"):
        table.advance(table.names.rows_of([1, 2]), _array(8, 9))
    assert picture(table) == before


# ---- ending --------------------------------------------------------------------------------------


@pytest.mark.case("67")
def test_a_freed_request_leaves_nothing_behind() -> None:
    table = THREE.table()
    empty = table.chain.spans
    _admit(table, 1)
    _take(table, [1], 8)
    freed = table.free(table.names.rows_of([1]))
    assert [(index, units.tolist()) for index, units in freed] == [
        (1, [1, 2]),
        (2, [1, 2]),
        (0, [1]),
    ]
    table.chain.settle_freed()
    table.holdings.check()
    assert table.chain.spans[0] == empty[0]
    assert table.chain.spans[2] == empty[2]
    assert table.chain.promised_units == (0, 0, 0)


@pytest.mark.case("65")
def test_a_request_freed_before_its_first_take_gives_its_promise_back() -> None:
    table = THREE.table()
    _admit(table, 1)
    freed = table.free(table.names.rows_of([1]))
    assert all(units.size == 0 for _, units in freed)
    table.holdings.check()


def test_a_double_free_names_the_request_and_loses_nothing() -> None:
    table = THREE.table()
    _admit(table, 1)
    _admit(table, 2)
    table.free(table.names.rows_of([1]))
    before = picture(table)
    with pytest.raises(OperationError, match="request 1 has ended") as caught:
        table.free(table.names.rows_of([2, 1]))
    assert caught.value.code is ErrorCode.UNKNOWN_REQUEST
    assert picture(table) == before


@pytest.mark.case("41")
def test_a_recycled_page_does_not_keep_its_last_tenants_window() -> None:
    world = replace(STRADDLE, virtual_page_count=6)
    table = world.table()
    _admit(table, 1, prompt=16, new=0, chunk=16)
    _take(table, [1], 16)
    table.advance(table.names.rows_of([1]), 16)
    table.free(table.names.rows_of([1]))
    _admit(table, 2, prompt=16, new=0, chunk=16)
    _take(table, [2], 16)
    table.free(table.names.rows_of([2]))
    table.holdings.check()


# ---- broken by hand ------------------------------------------------------------------------------


def _breaks(table: RequestTable, name: str) -> None:
    with pytest.raises(InvariantError) as caught:
        table.holdings.check()
    assert caught.value.name == name


def _busy() -> RequestTable:
    table = THREE.table()
    _admit(table, 1)
    _take(table, [1], 8)
    return table


def test_a_page_that_no_request_names_breaks_request_rows_match_bands() -> None:
    table = _busy()
    table.rows.page_count[1] = 1
    _breaks(table, "request.rows_match_bands")


def test_a_slot_that_no_request_names_breaks_request_rows_match_bands() -> None:
    table = _busy()
    table.rows.slot[1] = 0
    _breaks(table, "request.rows_match_bands")


def test_a_promise_that_nobody_has_breaks_request_promises_add_up() -> None:
    table = _busy()
    table.chain.owner.promise(-1)
    _breaks(table, "request.promises_add_up")


def test_rows_are_compared_with_bands_in_strict_mode_only() -> None:
    table = _busy()
    table.rows.slot[1] = 0
    table.chain.monitor.level = CheckLevel.WARN
    table.holdings.check()


def test_a_lone_request_that_outgrows_memory_is_not_told_to_wait() -> None:
    table = replace(ONE, arena_bytes=110, virtual_page_count=99).table()
    admit(table, 1, prompt=4, new=0)
    refused = table.take(table.names.rows_of([1]), 44)
    assert not isinstance(refused, Grant)
    assert not refused[0].waiting_helps
    assert "nobody but who asks holds memory" in refused[0].remover


@pytest.mark.parametrize(("tokens", "helps"), [(40, True), (44, False)])
def test_a_request_beside_others_waits_only_for_what_an_empty_arena_holds(
    tokens: int, helps: bool
) -> None:
    table = replace(ONE, arena_bytes=110, virtual_page_count=99).table()
    admit(table, 1, prompt=4, new=0)
    admit(table, 2, prompt=4, new=0)
    refused = table.take(table.names.rows_of([1]), tokens)
    assert not isinstance(refused, Grant)
    assert refused[0].waiting_helps is helps
    assert refused[0].remover == ("a request that ends" if helps else "a larger budget")
