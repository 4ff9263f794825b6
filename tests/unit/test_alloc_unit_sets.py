"""Sets of units as arrays, against sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvd.alloc.unit_sets import NONE, Units, found_in, touches, union, unit_set, within, without

NUMBERS = st.lists(st.integers(0, 20), max_size=12)


def _array(units: list[int]) -> Units:
    return np.array(units, dtype=np.int64)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_every_operation_is_that_of_sets(
    first: list[int], second: list[int], asked: list[int]
) -> None:
    left, right = unit_set(_array(first)), unit_set(_array(second))
    assert left.tolist() == sorted(set(first))
    assert union((left, right, left)).tolist() == sorted({*first, *second})
    assert without(left, right).tolist() == sorted(set(first) - set(second))
    assert without(_array(asked), right).tolist() == [unit for unit in asked if unit not in second]
    assert found_in(_array(asked), left).tolist() == [unit in first for unit in asked]
    assert touches(_array(asked), left) is any(unit in first for unit in asked)


@given(NUMBERS, st.integers(0, 21), st.integers(0, 21))
def test_a_range_of_a_set_is_a_slice(units: list[int], one: int, other: int) -> None:
    low, high = sorted((one, other))
    members = unit_set(_array(units))
    assert members[within(members, low, high)].tolist() == [
        unit for unit in sorted(set(units)) if low <= unit < high
    ]


def test_a_set_has_memory_of_its_own() -> None:
    units = _array([1, 2, 3])
    members = unit_set(units)
    units[:] = 9
    assert members.tolist() == [1, 2, 3]


def test_the_union_of_nothing_is_empty() -> None:
    assert union([]).size == 0
    assert not NONE.flags.writeable
