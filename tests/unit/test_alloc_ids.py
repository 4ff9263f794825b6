"""Free ids: first in, first out."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.alloc.ids import FreeIds


def test_a_fresh_ring_holds_every_id_but_the_sink() -> None:
    assert FreeIds(5).ids().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("id_count", [1, 2])
def test_the_smallest_rings_never_hand_out_the_sink(id_count: int) -> None:
    ids = FreeIds(id_count)
    assert ids.take(len(ids)).tolist() == list(range(1, id_count))
    assert len(ids) == 0


@settings(deadline=None)
@given(st.integers(2, 20), st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60))
def test_ids_come_back_in_the_order_in_which_they_were_given(
    id_count: int, steps: list[tuple[bool, int]]
) -> None:
    ids, free, used = FreeIds(id_count), deque(range(1, id_count)), deque[int]()
    for takes, number in steps:
        if takes:
            count = min(number, len(free))
            expected = [free.popleft() for _ in range(count)]
            assert ids.take(count).tolist() == expected
            used.extend(expected)
        else:
            back = [used.pop() for _ in range(min(number, len(used)))]
            ids.give(np.array(back, dtype=np.int64))
            free.extend(back)
        assert ids.ids().tolist() == list(free)
        assert len(ids) == len(free)


def test_a_name_is_not_reused_while_others_are_free() -> None:
    ids = FreeIds(4)
    ids.give(ids.take(1))
    assert ids.take(3).tolist() == [2, 3, 1]


def test_more_than_there_are_cannot_be_taken() -> None:
    with pytest.raises(AssertionError):
        FreeIds(4).take(4)


def test_more_than_were_taken_cannot_come_back() -> None:
    ids = FreeIds(4)
    with pytest.raises(AssertionError):
        ids.give(np.array([1], dtype=np.int64))


def test_taken_ids_stay_as_they_are() -> None:
    ids = FreeIds(4)
    taken = ids.take(3)
    ids.give(np.array([3, 2, 1], dtype=np.int64))
    assert taken.tolist() == [1, 2, 3]
