"""Admission with victims: who ends for whom, who does not, and what transfers keep apart."""

from dataclasses import replace

import numpy as np
import pytest

from kvd.alloc.admission import Admission, AdmissionPass
from kvd.alloc.band import Units
from kvd.alloc.chain import Shortage
from kvd.alloc.requests import Grant, RequestTable
from kvd_proto.outcomes import Reason, Verdict
from tests.stateful.chains import ONE, PAIR, block, fix, picture

FITS, WAIT, UNSCHEDULABLE = Verdict.FITS, Verdict.WAIT, Verdict.UNSCHEDULABLE

TEN = replace(ONE, arena_bytes=110, context_tokens=80, row_count=6, chunk_tokens=80)
"""Ten pages of four tokens beside the sink."""


def _rows(table: RequestTable, *requests: int) -> Units:
    return table.names.rows_of(list(requests))


def _ask(one_pass: AdmissionPass, request: int, *, pages: int, take: int = 0) -> Admission:
    return one_pass.admit(
        request, prompt_tokens=4 * pages, new_tokens_max=0, chunk_tokens=0, take_tokens=4 * take
    )


def _held(*pages: int, table: RequestTable | None = None) -> RequestTable:
    """Return a table in which requests 1, 2, ... have taken so many pages each."""
    table = table or TEN.table()
    for request, count in enumerate(pages, start=1):
        answer = _ask(AdmissionPass(table, growth_permille=0), request, pages=count)
        assert answer.verdict is FITS
        assert isinstance(table.take(_rows(table, request), 4 * count), Grant)
    return table


def _pass(table: RequestTable, *victims: int, growth_permille: int = 0) -> AdmissionPass:
    return AdmissionPass(table, growth_permille=growth_permille, victims=_rows(table, *victims))


def _state(table: RequestTable) -> object:
    """Return all state but who waits: an answer of WAIT adds the asker."""
    table.chain.settle_freed()
    return picture((table.chain, table.rows, table.holdings, table.names.row_of))


@pytest.mark.parametrize(
    ("pages", "victims", "ended"),
    [
        (1, (1, 2, 3), ()),  # one page is free
        (2, (1, 2, 3), (1,)),
        (4, (1, 2, 3), (1,)),
        (5, (1, 2, 3), (1, 2)),
        (5, (3, 2, 1), (3, 2)),
        (10, (3, 1, 2), (3, 1, 2)),
    ],
)
def test_the_fewest_victims_in_order_end_for_a_whole_demand(
    pages: int, victims: tuple[int, ...], ended: tuple[int, ...]
) -> None:
    table = _held(3, 3, 3)
    rows = _rows(table, *ended)
    one_pass = _pass(table, *victims)
    assert _ask(one_pass, 4, pages=pages).verdict is FITS
    assert one_pass.retracted.tolist() == rows.tolist()
    assert set(table.names.row_of) == {1, 2, 3, 4} - set(ended)
    assert all(table.names.waits(request) for request in ended)
    assert sum(freed.virtual.size for freed in one_pass.freed) == 3 * len(ended)
    table.holdings.check()


def test_nobody_ends_where_nobodys_end_makes_room_for_the_whole_demand() -> None:
    table = _held(3, 3, 3)
    one_pass = _pass(table, 1, 2)
    before = _state(table)
    answer = _ask(one_pass, 4, pages=8)
    assert (answer.verdict, one_pass.retracted.size) == (WAIT, 0)
    assert _state(table) == before


def test_nobody_ends_for_a_request_that_fits_no_empty_arena() -> None:
    table = _held(3, 3, 3)
    one_pass = _pass(table, 1, 2, 3)
    before = _state(table)
    assert _ask(one_pass, 4, pages=11).verdict is UNSCHEDULABLE
    assert one_pass.retracted.size == 0
    assert _state(table) == before


def test_victims_are_used_up_across_the_requests_of_a_pass() -> None:
    table = _held(3, 3, 3)
    first, second, third = _rows(table, 1, 2, 3).tolist()
    one_pass = _pass(table, 3, 1, 2)
    assert _ask(one_pass, 4, pages=3).verdict is FITS
    assert one_pass.retracted.tolist() == [third]
    assert _ask(one_pass, 5, pages=9).verdict is WAIT
    assert one_pass.retracted.tolist() == [third]
    assert _ask(one_pass, 6, pages=3).verdict is FITS
    assert one_pass.retracted.tolist() == [third, first]
    assert _ask(one_pass, 7, pages=1).verdict is FITS
    assert one_pass.retracted.tolist() == [third, first]
    assert second in table.names.row_of.values()
    table.holdings.check()


def test_a_promise_that_a_victim_did_not_take_makes_room_too() -> None:
    table = TEN.table()
    assert _ask(_pass(table), 1, pages=9).verdict is FITS
    one_pass = _pass(table, 1)
    assert _ask(one_pass, 2, pages=9).verdict is FITS
    assert set(table.names.row_of) == {2}


def test_a_victim_makes_room_where_only_a_row_is_missing() -> None:
    table = _held(1, 1, table=replace(TEN, row_count=3).table())
    one_pass = _pass(table, 2, 1)
    assert _ask(one_pass, 3, pages=1).verdict is FITS
    assert set(table.names.row_of) == {1, 3}


def test_what_a_victim_might_have_grown_to_is_not_kept_free_for_it() -> None:
    table = TEN.table()
    for request in (1, 2):
        answer = _pass(table).admit(
            request, prompt_tokens=4, new_tokens_max=12, chunk_tokens=0, take_tokens=0
        )
        assert answer.verdict is FITS
        assert isinstance(table.take(_rows(table, request), 4), Grant)
    table.holdings.lapse(_rows(table, 1, 2))  # each holds one page and may grow to four
    one_pass = _pass(table, 1, growth_permille=1000)
    assert _ask(one_pass, 3, pages=6).verdict is FITS
    assert set(table.names.row_of) == {2, 3}
    assert _ask(one_pass, 4, pages=1).verdict is WAIT  # three are kept free for request 2


def test_a_retracted_request_may_be_admitted_again() -> None:
    table = _held(3, 3, 3)
    assert _ask(_pass(table, 2), 4, pages=4).verdict is FITS
    table.free(_rows(table, 4))
    assert _ask(_pass(table), 2, pages=4).verdict is FITS


# ---- transfers -----------------------------------------------------------------------------------


def _window_high() -> RequestTable:
    """Return a chain of 14 units in which the owner needs a window to move down.

    Request 1 took six pages; its window slid and holds units 5 and 6 above four holes, the owner
    holds 9 to 14. Three pages more fit only once the window moved down.
    """
    table = replace(PAIR, arena_bytes=30, context_tokens=64, chunk_tokens=64).table()
    assert _ask(_pass(table), 1, pages=6).verdict is FITS
    assert isinstance(table.take(_rows(table, 1), 24), Grant)
    table.advance(_rows(table, 1), 24)
    table.holdings.lapse(_rows(table, 1))
    table.chain.settle_freed()
    assert [band.span for band in table.chain.bands] == [(1, 7), (9, 15)]
    return table


def test_a_request_whose_first_chunk_waits_for_transfers_waits_and_opens_nothing() -> None:
    table = _window_high()
    window = table.chain.bands[0]
    fix(window, hard=None, soft=(5, 7))
    before = _state(table)
    answer = _ask(_pass(table), 2, pages=3, take=3)
    assert (answer.verdict, answer.row_index, answer.chunk_tokens) == (WAIT, 0, 0)
    assert answer.shortage is not None
    assert (answer.shortage.reason, answer.shortage.waiting_helps) == (Reason.TRANSFERS, True)
    assert _state(table) == before
    fix(window, hard=None, soft=None)
    assert _ask(_pass(table), 2, pages=3, take=3).verdict is FITS
    assert isinstance(table.take(_rows(table, 2), 12), Grant)


def test_nobody_ends_where_transfers_would_pass_by_themselves() -> None:
    table = _window_high()
    fix(table.chain.bands[0], hard=None, soft=(5, 7))
    one_pass = _pass(table, 1)
    before = _state(table)
    answer = _ask(one_pass, 2, pages=3, take=3)
    assert answer.shortage is not None
    assert (answer.verdict, answer.shortage.reason) == (WAIT, Reason.TRANSFERS)
    assert one_pass.retracted.size == 0
    assert _state(table) == before


def test_what_several_first_chunks_take_together_is_asked_together() -> None:
    table = TEN.table()
    block(table.chain, ((10, 70),))  # four pages are left below the arena's end until it is over
    one_pass = _pass(table)
    assert _ask(one_pass, 1, pages=3, take=3).verdict is FITS
    answer = _ask(one_pass, 2, pages=2, take=2)
    assert (answer.verdict, answer.row_index) == (WAIT, 0)
    assert answer.shortage is not None
    assert answer.shortage.reason is Reason.TRANSFERS
    assert _ask(one_pass, 3, pages=2, take=1).verdict is FITS
    assert isinstance(table.take(_rows(table, 1, 3), np.array([12, 4])), Grant)
    table.holdings.check()


def test_a_request_that_takes_nothing_yet_is_admitted_beside_transfers() -> None:
    table = TEN.table()
    block(table.chain, ((10, 110),))
    assert _ask(_pass(table), 1, pages=3).verdict is FITS


def test_nobody_alive_and_transfers_in_the_way_is_no_reason_to_give_up() -> None:
    table = TEN.table()
    block(table.chain, ((10, 110),))
    answer = _ask(_pass(table), 1, pages=3, take=1)
    assert answer.verdict is WAIT
    block(table.chain, ())
    assert _ask(_pass(table), 1, pages=3, take=1).verdict is FITS


def test_victims_do_not_end_while_transfers_keep_their_room_from_being_taken() -> None:
    table = _held(3, 3, 3)
    fix(table.chain.owner, hard=None, soft=table.chain.owner.span)
    block(table.chain, ((10, 20),))
    one_pass = _pass(table, 1, 2, 3)
    before = _state(table)
    assert _ask(one_pass, 4, pages=10, take=10).verdict is WAIT
    assert one_pass.retracted.size == 0
    assert _state(table) == before
    assert _ask(one_pass, 5, pages=9, take=9).verdict is FITS


def test_a_take_ends_no_victim_while_transfers_keep_its_room_from_being_taken() -> None:
    table = _held(3, 3, 3)
    block(table.chain, ((10, 20),))
    before = picture(table)
    answer = table.take(_rows(table, 1), 4 * 7, _rows(table, 2, 3))
    assert not isinstance(answer, Grant)
    assert isinstance(answer[0], Shortage)
    assert picture(table) == before
    block(table.chain, ())
    grant = table.take(_rows(table, 1), 4 * 7, _rows(table, 2, 3))
    assert isinstance(grant, Grant)
    assert grant.retracted.size == 2
