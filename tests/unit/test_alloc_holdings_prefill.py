"""Sums over rows made by hand, and the end of a prompt whose row holds more than a step needs."""

from dataclasses import replace

import numpy as np
import pytest

from kvd.alloc.band import Units
from kvd.alloc.chain import UnitCounts
from kvd.alloc.requests import Grant, RequestTable
from kvd.errors import InvariantError
from kvd_proto.memory import Lifetime
from tests.stateful.chains import THREE, World, admit

STRADDLE = World(
    arena_bytes=400,
    unit_bytes=(6, 5),
    lifetimes=(Lifetime.WINDOW, Lifetime.FULL),
    window_tokens=(3, 0),
)
"""A window of 3 tokens in pages of 4: 4 pages beside a chunk of 8, 2 beside a step."""


def _rows(*rows: int) -> Units:
    return np.array(rows, dtype=np.int64)


def _row(
    table: RequestTable,
    row: int,
    *,
    pages: int,
    dropped: int = 0,
    slot: int = 0,
    peaks: UnitCounts,
    promised: bool = True,
) -> None:
    """Write the columns of a row that holdings read."""
    columns = table.rows
    columns.request_id[row] = 10 + row
    columns.page_count[row] = pages
    columns.slot[row] = slot
    columns.promised[row] = promised
    for index, peak in enumerate(peaks):
        columns.peak_units[index][row] = peak
    columns.dropped_pages[1][row] = dropped


def _by_hand() -> RequestTable:
    """Return four rows over a state, a window and the owner; no band knows of them."""
    table = replace(THREE, row_count=7).table()
    _row(table, 1, pages=5, dropped=2, slot=3, peaks=(1, 4, 6))  # lacks 0, 1, 1
    _row(table, 2, pages=2, peaks=(1, 5, 4))  # lacks 1, 3, 2
    _row(table, 3, pages=3, dropped=1, slot=1, peaks=(1, 4, 7), promised=False)  # lacks 0, 2, 4
    _row(table, 4, pages=6, slot=2, peaks=(1, 4, 5))  # 2 and 1 beyond its peaks
    return table


EVERYBODY = _rows(1, 2, 3, 4)


# ---- sums ----------------------------------------------------------------------------------------


def test_a_row_holds_its_slot_its_pages_and_of_a_window_what_did_not_slide_out() -> None:
    assert _by_hand().holdings.held_sums(EVERYBODY) == (3, 3 + 2 + 2 + 6, 5 + 2 + 3 + 6)


def test_what_one_row_holds_beyond_its_peak_pays_for_nobody_else() -> None:
    assert _by_hand().holdings.owed_sums(EVERYBODY) == (1, 1 + 3, 1 + 2)


@pytest.mark.parametrize(
    ("index", "spare"), [(0, [0, 1, 0, 0]), (1, [1, 3, 0, 0]), (2, [1, 2, 0, 0])]
)
def test_spare_units_come_row_by_row_in_the_order_asked(index: int, spare: list[int]) -> None:
    holdings = _by_hand().holdings
    assert holdings.spare(index, EVERYBODY).tolist() == spare
    assert holdings.spare(index, EVERYBODY[::-1]).tolist() == spare[::-1]


def test_only_lapsed_rows_grow_and_rows_of_nobody_do_not() -> None:
    table = _by_hand()
    assert table.holdings.growth_units() == (0, 2, 4)
    _row(table, 5, pages=1, peaks=(1, 1, 9), promised=False)
    assert table.holdings.growth_units() == (1, 2, 12)
    table.rows.request_id[5] = 0
    assert table.holdings.growth_units() == (0, 2, 4)


def test_nobody_holds_owes_or_spares_nothing() -> None:
    holdings = _by_hand().holdings
    assert holdings.held_sums(_rows()) == holdings.owed_sums(_rows()) == (0, 0, 0)
    assert holdings.spare(1, _rows()).size == 0


def test_a_lapse_takes_exactly_what_its_rows_owe_from_each_band() -> None:
    table = _by_hand()
    for band, units in zip(table.chain.bands, (1, 4, 3), strict=True):
        band.promise(units)
    table.holdings.lapse(_rows(3, 2))
    assert table.chain.promised_units == table.holdings.owed_sums(EVERYBODY) == (0, 1, 1)
    assert table.rows.promised[EVERYBODY].tolist() == [1, 0, 0, 1]
    assert table.holdings.growth_units() == (1, 5, 6)
    assert table.holdings.uneven_count == 1


# ---- the end of a prompt -------------------------------------------------------------------------


def _opened(*, prompts: tuple[int, ...], new: int) -> RequestTable:
    table = STRADDLE.table()
    for request, prompt in enumerate(prompts, 1):
        table.open(request, (4, 14), prompt_tokens=prompt, new_tokens=new, chunk_tokens=8)
    return table


def _held(table: RequestTable, row: int, *, pages: int, dropped: int) -> None:
    """Let a row hold pages, and its promises be what that leaves."""
    table.rows.page_count[row] = pages
    table.rows.dropped_pages[0][row] = dropped
    rows = table.rows.request_id.nonzero()[0]
    for index, band in enumerate(table.chain.bands):
        band.promise(table.holdings.owed(index, rows) - band.promised_units)


def test_a_prompt_that_ends_leaves_a_step_and_gives_the_rest_of_its_chunk_back() -> None:
    table = _opened(prompts=(32, 32), new=24)
    _held(table, 1, pages=8, dropped=7)
    _held(table, 2, pages=2, dropped=0)
    assert table.chain.promised_units == (3 + 2, 6 + 12)
    table.holdings.end_prefill(_rows(1))
    assert [int(peak) for peak in table.rows.peak_units[0][1:3]] == [2, 4]
    assert table.chain.promised_units == (1 + 2, 6 + 12)
    assert table.rows.limit_tokens[1:3].tolist() == [56, 32]
    assert table.rows.reach_tokens[1:3].tolist() == [1, 8]
    assert table.rows.prefilling[1:3].tolist() == [0, 1]
    assert (table.holdings.prefilling_count, table.holdings.uneven_count) == (1, 0)


@pytest.mark.parametrize(("pages", "uneven"), [(7, 0), (8, 0), (9, 0), (10, 1), (11, 1)])
def test_a_row_that_holds_more_than_a_step_needs_when_its_prompt_ends_is_uneven(
    pages: int, uneven: int
) -> None:
    table = _opened(prompts=(32, 32), new=24)
    _held(table, 1, pages=pages, dropped=7)
    table.holdings.end_prefill(_rows(1, 2))
    assert table.holdings.uneven_count == uneven
    assert table.rows.uneven[1:3].tolist() == [uneven, 0]
    assert table.chain.promised_units == table.holdings.owed_sums(_rows(1, 2))


def test_a_decode_token_taken_before_the_prompt_is_stated_leaves_promises_in_order() -> None:
    table = STRADDLE.table()
    admit(table, 1, prompt=9, new=24, chunk=8)
    row = table.names.rows_of([1])
    for take, state in ((8, 8), (1, 0), (4, 1), (0, 4), (4, 4), (11, 11)):
        if take:
            assert isinstance(table.take(row, take), Grant)
        if state:
            table.advance(row, state)
        table.holdings.check()
    table.free(row)
    table.holdings.check()
    assert table.chain.promised_units == (0, 0)


# ---- broken by hand ------------------------------------------------------------------------------


def _busy() -> RequestTable:
    """Return two requests of two pages each, checked."""
    table = THREE.table()
    for request in (1, 2):
        admit(table, request)
    assert isinstance(table.take(table.names.rows_of([1, 2]), 8), Grant)
    table.holdings.check()
    return table


@pytest.mark.parametrize(
    ("column", "row", "value", "band"),
    [
        pytest.param("page_count", 1, 1, "window_1", id="a page too few"),
        pytest.param("page_count", 2, 3, "window_1", id="a page too many"),
        pytest.param("request_id", 2, 0, "state_0", id="a row forgotten"),
        pytest.param("slot", 2, 1, "state_0", id="a slot shared"),
    ],
)
def test_rows_that_tell_another_story_than_bands_break_request_rows_match_bands(
    column: str, row: int, value: int, band: str
) -> None:
    table = _busy()
    getattr(table.rows, column)[row] = value
    with pytest.raises(InvariantError, match=f"units of band {band}") as caught:
        table.holdings.check()
    assert caught.value.name == "request.rows_match_bands"


def test_a_page_that_slid_out_of_its_row_alone_breaks_request_rows_match_bands() -> None:
    table = _busy()
    table.rows.dropped_pages[1][1] = 1
    with pytest.raises(InvariantError, match="3 units of band window_1, the band has 4") as caught:
        table.holdings.check()
    assert caught.value.name == "request.rows_match_bands"


@pytest.mark.parametrize(
    ("index", "band", "change"),
    [
        (0, "state_0", 1),
        (1, "window_1", 1),
        (1, "window_1", -1),
        (2, "full_2", 1),
        (2, "full_2", -1),
    ],
)
def test_a_peak_that_changed_alone_breaks_request_promises_add_up(
    index: int, band: str, change: int
) -> None:
    table = _busy()
    table.rows.peak_units[index][1] += change
    with pytest.raises(InvariantError, match=f"units of band {band}, the band promised") as caught:
        table.holdings.check()
    assert caught.value.name == "request.promises_add_up"


def test_a_row_that_forgot_its_promise_breaks_request_promises_add_up() -> None:
    table = _busy()
    table.rows.promised[1] = 0
    with pytest.raises(InvariantError) as caught:
        table.holdings.check()
    assert caught.value.name == "request.promises_add_up"
