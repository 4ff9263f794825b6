"""Request ids: they ascend, name one row, and come back only to requests that wait."""

import numpy as np
import pytest

from kvd.alloc import names as names_module
from kvd.alloc.names import REQUEST_ID_MAX, RequestNames
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode
from tests.stateful.chains import picture

UINT64_MAX = (1 << 64) - 1


def _live(*requests: int) -> RequestNames:
    """Return names in which each request has the row of its place, from 1."""
    names = RequestNames()
    for row, request in enumerate(requests, 1):
        names.open(request, row)
    return names


def _may_be_introduced(names: RequestNames, request: int) -> bool:
    try:
        names.check_new(request)
    except OperationError:
        return False
    return True


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_come_in_the_order_asked() -> None:
    assert _live(4, 7, 9).rows_of([9, 4, 7]).tolist() == [3, 1, 2]


def test_nobody_has_no_rows() -> None:
    rows = _live(4).rows_of([])
    assert rows.size == 0
    assert rows.dtype == np.int64


@pytest.mark.parametrize(
    ("asked", "twice"), [([4, 4], 4), ([7, 4, 9, 4, 9], 4), ([9, 7, 4, 7, 9], 7)]
)
def test_the_first_id_that_is_named_again_is_named(asked: list[int], twice: int) -> None:
    with pytest.raises(OperationError, match=f"^request {twice} is named twice") as caught:
        _live(4, 7, 9).rows_of(asked)
    assert caught.value.code is ErrorCode.BAD_REQUEST_ID


def test_two_rows_never_share_an_id_and_an_id_never_two_rows() -> None:
    names = _live(4, 7)
    assert names.row_of == {4: 1, 7: 2}
    assert not _may_be_introduced(names, 4)
    assert not _may_be_introduced(names, 7)


@pytest.mark.parametrize("request_id", [0, -1, REQUEST_ID_MAX + 1, UINT64_MAX])
def test_what_is_no_id_is_called_so_where_it_is_introduced(request_id: int) -> None:
    with pytest.raises(OperationError, match=f"{request_id} is not a positive 64") as caught:
        _live(4).check_new(request_id)
    assert caught.value.code is ErrorCode.BAD_REQUEST_ID


@pytest.mark.parametrize("request_id", [0, -1, REQUEST_ID_MAX + 1, UINT64_MAX])
def test_what_is_no_id_is_called_so_where_a_row_is_asked(request_id: int) -> None:
    with pytest.raises(OperationError, match=f"{request_id} is not a positive 64") as caught:
        _live(4).rows_of([4, request_id])
    assert caught.value.code is ErrorCode.BAD_REQUEST_ID


# ---- new ids -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_id", "is_new"), [(1, False), (6, False), (7, False), (8, True), (1 << 40, True)]
)
def test_ids_ascend_and_those_left_out_are_lost(request_id: int, is_new: bool) -> None:
    names = _live(7)
    names.close([7])
    assert _may_be_introduced(names, request_id) is is_new


def test_a_refused_id_is_used_up() -> None:
    names = RequestNames()
    names.refuse(5)
    assert [_may_be_introduced(names, request) for request in (4, 5, 6)] == [False, False, True]
    with pytest.raises(OperationError, match="request 5 has ended or never fitted") as caught:
        names.rows_of([5])
    assert caught.value.code is ErrorCode.UNKNOWN_REQUEST


def test_the_largest_id_ends_the_introductions() -> None:
    names = _live(REQUEST_ID_MAX)
    names.close([REQUEST_ID_MAX])
    with pytest.raises(OperationError, match=f"the highest so far is {REQUEST_ID_MAX}"):
        names.check_new(REQUEST_ID_MAX - 1)


# ---- waiting -------------------------------------------------------------------------------------


def test_who_waits_may_be_introduced_behind_newer_ids() -> None:
    names = RequestNames()
    names.wait(5)
    names.open(9, 1)
    assert names.waits(5)
    assert [_may_be_introduced(names, request) for request in (4, 5, 6)] == [False, True, False]


def test_who_waits_has_no_row_and_has_not_ended() -> None:
    names = RequestNames()
    names.wait(5)
    with pytest.raises(OperationError, match="request 5 is not admitted") as caught:
        names.rows_of([5])
    assert caught.value.code is ErrorCode.UNKNOWN_REQUEST


def test_who_came_back_waits_no_more_and_its_id_is_used_up_when_it_ends() -> None:
    names = RequestNames()
    names.wait(5)
    names.open(5, 1)
    assert not names.waits(5)
    names.close([5])
    assert not _may_be_introduced(names, 5)


def test_a_retracted_request_comes_back_as_often_as_it_is_retracted() -> None:
    names = _live(5, 6)
    for row in (3, 1, 3):
        names.close([5])
        names.wait(5)
        assert _may_be_introduced(names, 5)
        names.open(5, row)
        assert names.rows_of([6, 5]).tolist() == [2, row]
    names.close([5])
    assert not _may_be_introduced(names, 5)


def test_who_waits_may_be_refused_for_good() -> None:
    names = RequestNames()
    names.wait(5)
    names.refuse(5)
    assert not names.waits(5)
    assert not _may_be_introduced(names, 5)


def test_who_gives_up_waiting_is_forgotten_and_the_others_wait_on() -> None:
    names = _live(1)
    names.wait(5)
    names.wait(6)
    names.drop_waiting([1, 5, 99])
    assert [names.waits(request) for request in (1, 5, 6, 99)] == [False, False, True, False]
    assert [_may_be_introduced(names, request) for request in (5, 6, 99)] == [False, True, True]
    assert names.rows_of([1]).tolist() == [1]


def test_a_request_that_is_told_to_wait_twice_takes_one_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(names_module, "WAITING_COUNT_MAX", 2)
    names = RequestNames()
    names.wait(5)
    names.wait(5)
    names.check_waiting_room([5, 6])


@pytest.mark.parametrize(
    ("asked", "joining"), [([8], 1), ([5, 8], 1), ([8, 9], 2), ([5, 6, 8, 9, 10], 3)]
)
def test_room_to_wait_is_bounded_and_counts_only_who_does_not_wait_yet(
    monkeypatch: pytest.MonkeyPatch, asked: list[int], joining: int
) -> None:
    monkeypatch.setattr(names_module, "WAITING_COUNT_MAX", 2)
    names = RequestNames()
    names.wait(5)
    names.wait(6)
    before = picture(names)
    names.check_waiting_room([5, 6])
    with pytest.raises(OperationError, match=f"2 requests wait already and {joining} more"):
        names.check_waiting_room(asked)
    assert picture(names) == before


@pytest.mark.parametrize("leaves", ["open", "refuse", "drop"])
def test_who_leaves_the_waiting_ones_makes_room(
    monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    monkeypatch.setattr(names_module, "WAITING_COUNT_MAX", 1)
    names = RequestNames()
    names.wait(5)
    {
        "open": lambda: names.open(5, 1),
        "refuse": lambda: names.refuse(5),
        "drop": lambda: names.drop_waiting([5]),
    }[leaves]()
    names.check_waiting_room([6])


# ---- the epoch -----------------------------------------------------------------------------------


def test_the_epoch_moves_exactly_when_rows_change_hands() -> None:
    names = _live(5)
    epochs = [names.epoch_count]
    for step in (
        lambda: names.open(6, 2),
        lambda: names.close([5]),
        lambda: names.wait(5),
        lambda: names.refuse(7),
        lambda: names.drop_waiting([5]),
        lambda: names.rows_of([6]),
    ):
        step()
        epochs.append(names.epoch_count)
    first = epochs[0]
    assert epochs == [first, first + 1, *[first + 2] * 5]


# ---- wrong use -----------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [[1, 9], [9, 1], [1, 2], [1, 1], [0], [1, -3]])
def test_a_question_that_is_refused_changes_nothing(asked: list[int]) -> None:
    names = _live(1, 2)
    names.close([2])
    before = picture(names)
    with pytest.raises(OperationError):
        names.rows_of(asked)
    assert picture(names) == before


@pytest.mark.parametrize("request_id", [0, 1, 2, 3])
def test_an_introduction_that_is_refused_changes_nothing(request_id: int) -> None:
    names = _live(1, 3)
    names.close([3])
    before = picture(names)
    with pytest.raises(OperationError):
        names.check_new(request_id)
    assert picture(names) == before
