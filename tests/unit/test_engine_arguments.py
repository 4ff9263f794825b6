"""Arrays and numbers out of operations, checked before anything is changed."""

import numpy as np
import pytest

from kvd.engine.arguments import (
    TOKENS_MAX,
    UNITS_MAX,
    check_tokens,
    check_units,
    read_request_ids,
    read_tokens,
)
from kvd.errors import OperationError
from kvd.price.geometry import BandKind, chain_geometry
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


BANDS = chain_geometry(
    arena_bytes=100,
    sink_bytes=10,
    bands=(("state", BandKind.GROW_UP, 10), ("full", BandKind.GROW_DOWN, 4)),
).bands


@pytest.mark.parametrize("units", [(), (1,), (1, 2, 3), (1, -1)])
def test_units_are_one_count_per_band(units: tuple[int, ...]) -> None:
    with pytest.raises(OperationError, match="2 counts of 0 or more are needed"):
        check_units(units, BANDS, what="x", within_room=False)


@pytest.mark.parametrize("count", [UNITS_MAX + 1, (1 << 64) - 1])
def test_units_of_any_size_are_refused_before_they_are_multiplied(count: int) -> None:
    check_units((0, UNITS_MAX), BANDS, what="x", within_room=False)
    with pytest.raises(OperationError, match=f"x asks {count} units of band full"):
        check_units((0, count), BANDS, what="x", within_room=False)


def test_a_band_has_room_for_what_the_arena_holds_of_it_alone() -> None:
    check_units((9, 22), BANDS, what="x", within_room=True)
    with pytest.raises(OperationError, match=r"asks 10 units of band state; .* room for 9"):
        check_units((10, 0), BANDS, what="x", within_room=True)


@pytest.mark.parametrize("tokens", [0, TOKENS_MAX + 1, (1 << 64) - 1])
def test_a_token_count_out_of_range_is_named(tokens: int) -> None:
    check_tokens(TOKENS_MAX, what="x", tokens_min=1)
    with pytest.raises(OperationError, match=f"x is {tokens}; 1 to {TOKENS_MAX}"):
        check_tokens(tokens, what="x", tokens_min=1)
