"""Rounding, spelled out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvd.units import align_down, align_up, ceil_div, exact_div, floor_div

NUMBERS = st.integers(-(1 << 70), 1 << 70)
DIVISORS = st.integers(1, 1 << 40)


@given(NUMBERS, DIVISORS)
def test_rounding_brackets_the_quotient(dividend: int, divisor: int) -> None:
    low, high = floor_div(dividend, divisor), ceil_div(dividend, divisor)
    assert low * divisor <= dividend <= high * divisor
    assert high - low == (dividend % divisor != 0)


@given(NUMBERS, DIVISORS)
def test_aligning_brackets_the_value_with_multiples(value: int, grain: int) -> None:
    low, high = align_down(value, grain), align_up(value, grain)
    assert low <= value <= high < low + 2 * grain
    assert low % grain == high % grain == 0


@given(NUMBERS, DIVISORS)
def test_exact_division_undoes_multiplication(value: int, divisor: int) -> None:
    assert exact_div(value * divisor, divisor) == value


def test_exact_division_refuses_a_remainder_and_names_both_numbers() -> None:
    with pytest.raises(AssertionError, match="7 is not a multiple of 2"):
        exact_div(7, 2)


@pytest.mark.parametrize("divide", [ceil_div, floor_div, exact_div, align_up, align_down])
@pytest.mark.parametrize("divisor", [0, -1])
def test_a_divisor_is_positive(divide: object, divisor: int) -> None:
    assert callable(divide)
    with pytest.raises(AssertionError):
        divide(8, divisor)
