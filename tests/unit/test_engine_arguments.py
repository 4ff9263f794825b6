"""Arrays and numbers out of operations, checked before anything is changed."""

import numpy as np
import pytest

from kvd.engine.arguments import read_request_ids, read_tokens
from kvd.errors import OperationError
from tests.stateful.ranks import int32s, int64s


def test_request_ids_are_read_as_64_bit_numbers() -> None:
    assert read_request_ids(int64s([1, -1, (1 << 63) - 1]), what="x") == [1, -1, (1 << 63) - 1]


@pytest.mark.parametrize("encoded", [b"", bytes(7), bytes(9)])
def test_ragged_request_ids_are_refused(encoded: bytes) -> None:
    with pytest.raises(OperationError, match=f"free.requests of {len(encoded)} bytes"):
        read_request_ids(encoded, what="free.requests")


def test_token_counts_are_read_one_per_request() -> None:
    tokens = read_tokens(int32s([3, (1 << 31) - 1]), count=2, what="x", tokens_min=1)
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [3, (1 << 31) - 1]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_token_counts_than_of_requests_is_refused(count: int) -> None:
    with pytest.raises(OperationError, match=f"x has 8 bytes, {count} requests need {4 * count}"):
        read_tokens(int32s([1, 2]), count=count, what="x", tokens_min=1)


@pytest.mark.parametrize("tokens", [0, -1, -(1 << 31)])
def test_too_few_tokens_are_refused_with_the_number(tokens: int) -> None:
    with pytest.raises(OperationError, match=f"x has {tokens}, at least 1 is needed"):
        read_tokens(int32s([5, tokens]), count=2, what="x", tokens_min=1)
