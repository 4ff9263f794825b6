"""A program's standing set."""

import pytest

from kvd.alloc.requests import RequestTable
from kvd.engine.standing import StandingSet
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode
from tests.stateful.chains import THREE, admit, picture


def _table(count: int) -> RequestTable:
    table = THREE.table()
    for request in range(1, count + 1):
        admit(table, request, prompt=4, new=4)
    return table


def _members(standing: StandingSet, table: RequestTable) -> list[int]:
    return table.rows.request_id[standing.rows(table)].tolist()


def test_members_stand_in_the_order_in_which_they_were_added() -> None:
    table, standing = _table(4), StandingSet()
    standing.change(table, add=[3, 1], remove=[])
    standing.change(table, add=[2], remove=[])
    assert _members(standing, table) == [3, 1, 2]


def test_a_freed_request_leaves_by_itself() -> None:
    table, standing = _table(3), StandingSet()
    standing.change(table, add=[1, 2, 3], remove=[])
    table.free(table.names.rows_of([2]))
    assert _members(standing, table) == [1, 3]


def test_a_reused_row_does_not_bring_its_old_request_back() -> None:
    table, standing = _table(5), StandingSet()
    standing.change(table, add=[1, 2], remove=[])
    row = table.names.rows_of([1]).tolist()
    table.free(table.names.rows_of([1]))
    admit(table, 9, prompt=4, new=4)
    assert table.names.rows_of([9]).tolist() == row
    assert _members(standing, table) == [2]


def test_a_request_that_was_retracted_and_came_back_is_no_member_even_in_its_old_row() -> None:
    table, standing = _table(5), StandingSet()
    standing.change(table, add=[1, 2], remove=[])
    row = table.names.rows_of([1])
    table.free(row)
    table.names.wait(1)  # as a retraction does
    admit(table, 1, prompt=4, new=4)
    assert table.names.rows_of([1]).tolist() == row.tolist()
    assert _members(standing, table) == [2]
    standing.change(table, add=[1], remove=[])
    assert _members(standing, table) == [2, 1]


def test_a_member_that_is_removed_and_added_moves_to_the_end() -> None:
    table, standing = _table(3), StandingSet()
    standing.change(table, add=[1, 2, 3], remove=[])
    standing.change(table, add=[1], remove=[1])
    assert _members(standing, table) == [2, 3, 1]


@pytest.mark.parametrize(
    ("add", "remove", "words", "code"),
    [
        ([1], [], "request 1 is in the standing set already", ErrorCode.BAD_REQUEST_ID),
        ([3, 3], [], "request 3 is named twice", ErrorCode.BAD_REQUEST_ID),
        ([], [3], "request 3 is not in the standing set", ErrorCode.BAD_REQUEST_ID),
        ([], [1, 1], "request 1 is named twice", ErrorCode.BAD_REQUEST_ID),
        ([9], [1], "request 9 is not admitted", ErrorCode.UNKNOWN_REQUEST),
        ([], [1, 9], "request 9 is not admitted", ErrorCode.UNKNOWN_REQUEST),
        ([0], [], "request id 0 is not a positive", ErrorCode.BAD_REQUEST_ID),
    ],
)
def test_wrong_use_names_the_request_and_changes_nothing(
    add: list[int], remove: list[int], words: str, code: ErrorCode
) -> None:
    table, standing = _table(3), StandingSet()
    standing.change(table, add=[1, 2], remove=[])
    before = picture(standing)
    with pytest.raises(OperationError, match=words) as caught:
        standing.change(table, add=add, remove=remove)
    assert caught.value.code is code
    assert picture(standing) == before
