"""Numbers that programs choose."""

import pytest

from kvd.alloc.numbers import NUMBER_MAX, Numbers
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode


@pytest.mark.parametrize("number", [0, -1, 5, 4, NUMBER_MAX + 1])
def test_a_number_that_is_not_positive_or_does_not_ascend_is_refused(number: int) -> None:
    numbers = Numbers("copy")
    numbers.use(5)
    with pytest.raises(OperationError, match=f"copy {number} cannot be opened.*highest .* 5") as no:
        numbers.check_new(number)
    assert no.value.code is ErrorCode.BAD_NUMBER


def test_numbers_may_leave_gaps_up_to_the_largest() -> None:
    numbers = Numbers("copy")
    for number in (1, 7, NUMBER_MAX):
        numbers.check_new(number)
        numbers.use(number)
    assert numbers.highest == NUMBER_MAX


@pytest.mark.case("122")
def test_an_unknown_number_is_named_with_its_kind() -> None:
    error = Numbers("transfer").unknown(3, "is not open")
    assert (error.message, error.code) == ("transfer 3 is not open", ErrorCode.UNKNOWN_NUMBER)
