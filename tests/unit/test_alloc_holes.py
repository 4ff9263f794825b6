"""The hole container against a plain set."""

from random import Random
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.alloc import holes
from kvd.alloc.holes import HoleSet

PLACES = 60
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("add", "add_range", "take", "remove_range")),
        st.integers(0, PLACES),
        st.integers(0, PLACES),
        st.randoms(use_true_random=False),
    ),
    max_size=40,
)


def _array(places: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(places, dtype=np.int64)


def _run(free: list[bool], start: int, length: int, *, wanted: bool) -> int:
    """Return the end of the run of places that are, or are not, holes."""
    end = start
    while end < min(PLACES, start + length) and free[end] is wanted:
        end += 1
    return end


@settings(max_examples=200, deadline=None)
@given(STEPS, st.sampled_from((1, 2, 5, 2048)))
def test_the_holes_are_those_of_a_sorted_set(
    steps: list[tuple[str, int, int, Random]], front: int
) -> None:
    with mock.patch.multiple(holes, FRONT_COUNT=front, FRONT_COUNT_MAX=4 * front):
        found, free = HoleSet(PLACES), [False] * PLACES
        for verb, first, second, random in steps:
            if verb == "take":
                count = min(first, sum(free))
                lowest = [place for place in range(PLACES) if free[place]][:count]
                assert found.take(count).tolist() == lowest
                for place in lowest:
                    free[place] = False
            elif verb == "add":
                used = [place for place in range(PLACES) if not free[place]]
                random.shuffle(used)
                found.add(_array(used[:second]))
                for place in used[:second]:
                    free[place] = True
            else:
                adding = verb == "add_range"
                end = _run(free, first, second, wanted=not adding)
                (found.add_range if adding else found.remove_range)(first, end)
                free[first:end] = [adding] * (end - first)
            expected = [place for place in range(PLACES) if free[place]]
            assert found.places().tolist() == expected
            assert len(found) == len(expected)
            assert found.front_is_exact()
            assert [found.contains(place) for place in range(PLACES)] == free


@pytest.mark.parametrize("count", [holes.FRONT_COUNT - 1, holes.FRONT_COUNT, 5 * holes.FRONT_COUNT])
def test_a_take_larger_than_the_front_is_served_in_order(count: int) -> None:
    found = HoleSet(100_000)
    found.add_range(10, 90_000)
    assert found.take(count).tolist() == list(range(10, 10 + count))
    assert len(found) == 90_000 - 10 - count


def test_holes_far_apart_are_found() -> None:
    found = HoleSet(1_000_000)
    found.add(_array([999_999, 3, 500_000]))
    assert found.take(2).tolist() == [3, 500_000]
    assert found.take(1).tolist() == [999_999]


def test_additions_beyond_the_bound_of_the_front_stay_findable() -> None:
    found = HoleSet(50_000)
    found.add(_array(list(range(49_999, 0, -2))))
    assert found.front_is_exact()
    assert found.take(25_000).tolist() == list(range(1, 50_000, 2))


def test_more_than_there_is_cannot_be_taken() -> None:
    found = HoleSet(10)
    found.add_range(0, 3)
    with pytest.raises(AssertionError):
        found.take(4)


def test_what_was_taken_does_not_change_later() -> None:
    found = HoleSet(100)
    found.add_range(0, 50)
    taken = found.take(5)
    found.add(taken[::-1].copy())
    found.take(10)
    assert taken.tolist() == [0, 1, 2, 3, 4]
