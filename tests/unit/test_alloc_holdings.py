"""What rows were promised and hold: lapses, the end of a prompt, and sums row by row."""

import pytest

from kvd.alloc.checks import CheckLevel
from kvd.alloc.requests import Grant, RequestTable
from kvd.errors import InvariantError
from kvd_proto.outcomes import Verdict
from tests.stateful.chains import THREE, admit

STATE, WINDOW, FULL = range(3)


def _table(*requests: int, prompt: int = 24, new: int = 16) -> RequestTable:
    table = THREE.table()
    for request in requests:
        assert admit(table, request, prompt=prompt, new=new).verdict is Verdict.FITS
    return table


def _step(table: RequestTable, request: int, tokens: int) -> None:
    row = table.names.rows_of([request])
    assert isinstance(table.take(row, tokens), Grant)
    table.advance(row, tokens)
    table.holdings.check()


def test_a_row_owes_what_it_lacks_to_its_peak() -> None:
    table = _table(1)
    holdings, row = table.holdings, table.names.rows_of([1])
    assert holdings.owed_sums(row) == (1, 5, 10)
    _step(table, 1, 8)
    assert holdings.owed_sums(row) == (0, 3, 8)
    assert holdings.held_sums(row) == (1, 2, 2)
    assert holdings.spare(FULL, row).tolist() == [8]


def test_sums_over_rows_are_the_sums_of_rows() -> None:
    table = _table(1, 2)
    _step(table, 2, 8)
    rows = table.names.rows_of([1, 2])
    assert table.holdings.owed(FULL, rows) == 10 + 8
    assert table.holdings.spare(FULL, rows).tolist() == [10, 8]
    assert table.holdings.held_sums(rows) == (1, 2, 2)


def test_a_lapse_ends_what_is_owed_and_leaves_what_is_held() -> None:
    table = _table(1, 2)
    _step(table, 1, 8)
    row = table.names.rows_of([1])
    table.holdings.lapse(row)
    table.holdings.check()
    assert table.holdings.owed_sums(row) == (0, 0, 0)
    assert table.holdings.held_sums(row) == (1, 2, 2)
    assert table.chain.promised_units == (1, 5, 10)  # of the other
    assert table.holdings.growth_units() == (0, 3, 8)


def test_a_promise_lapses_once() -> None:
    table = _table(1)
    row = table.names.rows_of([1])
    table.holdings.lapse(row)
    table.holdings.lapse(row)
    table.holdings.check()
    assert table.chain.promised_units == (0, 0, 0)
    assert table.holdings.uneven_count == 1


def test_a_lapsed_row_is_not_promised_again_what_slides_out_of_its_window() -> None:
    table = _table(1, prompt=40, new=0)
    table.holdings.lapse(table.names.rows_of([1]))
    for _ in range(5):
        _step(table, 1, 8)
        assert table.chain.promised_units == (0, 0, 0)


def test_the_end_of_the_prompt_gives_the_chunk_back() -> None:
    table = _table(1, prompt=16, new=24)
    row = table.names.rows_of([1])
    assert table.rows.peak_units[WINDOW][row].tolist() == [4]
    _step(table, 1, 8)
    assert table.rows.peak_units[WINDOW][row].tolist() == [4]
    assert table.holdings.prefilling_count == 1
    _step(table, 1, 8)
    # 8 tokens behind the newest page and a step of one touch 3 pages.
    assert table.rows.peak_units[WINDOW][row].tolist() == [3]
    assert table.holdings.prefilling_count == 0
    assert table.rows.reach_tokens[row].tolist() == [1]
    assert table.rows.limit_tokens[row].tolist() == [40]


def test_the_end_of_a_prompt_of_a_lapsed_row_promises_nothing() -> None:
    table = _table(1, prompt=16, new=24)
    table.holdings.lapse(table.names.rows_of([1]))
    _step(table, 1, 8)
    _step(table, 1, 8)
    assert table.chain.promised_units == (0, 0, 0)
    assert table.holdings.growth_units() == (0, 1, 6)


def test_an_uneven_row_is_counted_once_however_often_it_is_marked() -> None:
    table = _table(1, 2)
    rows = table.names.rows_of([1, 2])
    table.holdings.mark_uneven(rows[:1])
    table.holdings.mark_uneven(rows)
    assert table.holdings.uneven_count == 2
    table.free(rows)
    assert table.holdings.uneven_count == 0


@pytest.mark.parametrize("tokens", [12, 40])
def test_a_row_that_took_more_than_its_promise_is_uneven_and_owes_nothing_there(
    tokens: int,
) -> None:
    table = _table(1, prompt=8, new=0)
    row = table.names.rows_of([1])
    assert isinstance(table.take(row, tokens), Grant)
    table.holdings.check()
    assert table.holdings.uneven_count == 1
    assert table.holdings.owed_sums(row) == (0, 0, 0)
    table.advance(row, tokens)
    table.holdings.check()
    # A promise is what a row lacks to its peak: what slides out below it is owed again.
    assert table.holdings.owed(WINDOW, row) == 0


def test_nobody_grows_while_all_promises_hold() -> None:
    assert _table(1, 2).holdings.growth_units() == (0, 0, 0)


@pytest.mark.parametrize("index", [STATE, WINDOW, FULL])
def test_a_promise_of_nobody_breaks_request_promises_add_up(index: int) -> None:
    table = _table(1)
    table.chain.bands[index].promise(1)
    with pytest.raises(InvariantError, match=r"^request\.promises_add_up: .* still take"):
        table.holdings.check()


def test_a_page_in_two_rows_breaks_request_rows_match_bands() -> None:
    table = _table(1, 2)
    _step(table, 1, 8)
    _step(table, 2, 8)
    table.rows.pages[2, 0] = table.rows.pages[1, 0]
    with pytest.raises(InvariantError, match=r"^request\.rows_match_bands: .* (full_2|window_1)"):
        table.holdings.check()


def test_rows_are_looked_at_in_strict_mode_only() -> None:
    table = _table(1)
    table.chain.bands[FULL].promise(1)
    table.chain.monitor.level = CheckLevel.WARN
    table.holdings.check()
    table.chain.monitor.level = CheckLevel.STRICT
    with pytest.raises(InvariantError):
        table.holdings.check()
