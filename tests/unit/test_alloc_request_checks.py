"""What rows, names and columns may say of each other, one contradiction at a time."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable

import pytest

from kvd.alloc.requests import RequestTable
from kvd.errors import InvariantError
from tests.unit.broken_books import WINDOW, busy


def _lose_a_name(table: RequestTable) -> None:
    del table.names.row_of[2]


def _wait_with_a_row(table: RequestTable) -> None:
    table.names._waiting[2] = None


def _use_an_id_beyond(table: RequestTable) -> None:
    table.names.highest_id = 2


def _compute_beyond_tokens(table: RequestTable) -> None:
    table.rows.computed_tokens[table.names.row_of[2]] = 9


def _outgrow_pages(table: RequestTable) -> None:
    row = table.names.row_of[2]
    table.rows.tokens[row] = table.rows.capacity_tokens[row] = 12


def _shrink_pages(table: RequestTable) -> None:
    table.rows.capacity_tokens[table.names.row_of[2]] = 8 - 4


def _forget_the_opening(table: RequestTable) -> None:
    table.rows.opened_count[table.names.row_of[2]] = 0


def _slide_too_late(table: RequestTable) -> None:
    table.rows.slides_at_tokens[WINDOW][table.names.row_of[2]] += 4


def _miscount_slotless(table: RequestTable) -> None:
    table.slotless_count = 1


def _miscount_prompts(table: RequestTable) -> None:
    table.holdings.prefilling_count -= 1


def _miscount_uneven(table: RequestTable) -> None:
    table.holdings.uneven_count += 1


@pytest.mark.parametrize(
    ("contradict", "name"),
    [
        (_lose_a_name, "request.names_match_rows"),
        (_wait_with_a_row, "request.names_match_rows"),
        (_use_an_id_beyond, "request.names_match_rows"),
        (_compute_beyond_tokens, "request.columns_exact"),
        (_outgrow_pages, "request.columns_exact"),
        (_shrink_pages, "request.columns_exact"),
        (_forget_the_opening, "request.columns_exact"),
        (_slide_too_late, "request.columns_exact"),
        (_miscount_slotless, "request.columns_exact"),
        (_miscount_prompts, "request.columns_exact"),
        (_miscount_uneven, "request.columns_exact"),
    ],
)
def test_a_contradiction_is_found(contradict: Callable[[RequestTable], None], name: str) -> None:
    table = busy()
    contradict(table)
    with pytest.raises(InvariantError) as caught:
        table.check()
    assert caught.value.name == name


def test_a_table_whose_requests_have_all_ended_agrees_with_itself() -> None:
    table = busy()
    table.free(table.names.rows_of([1, 2, 3]))
    table.check(deep=True)
