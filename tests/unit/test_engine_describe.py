"""Operations in words."""

import pytest

from kvd.engine.describe import LIST_SHOWN_COUNT, describe_operation
from kvd_proto.codec import encode
from kvd_proto.operations import BatchEnd, Free, Launch, Operation, Relief, Standing, Take
from tests.stateful.ranks import int32s, int64s


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (Free(int64s([1, 1 << 40])), "free(requests=[1, 1099511627776])"),
        (Take(int64s([7]), 1, int32s([64])), "take(requests=[7], tokens=1, tokens_each=[64])"),
        (Take(), "take(tokens=1)"),
        (Standing(int64s([1]), int64s([2])), "standing(add=[1], remove=[2])"),
        (Launch(3, 12), "launch(step=3, position=12, writes=unknown)"),
        (Relief((1, 2)), "relief(demand_units=(1, 2))"),
        (BatchEnd(), "batch_end()"),
        (Free(b"abc"), "free(requests=<3 bytes>)"),
    ],
)
def test_an_operation_is_one_readable_line(operation: Operation, words: str) -> None:
    assert describe_operation(encode(operation)) == words


def test_a_long_list_is_cut_and_counted() -> None:
    words = describe_operation(encode(Free(int64s(range(1, 1001)))))
    assert words == "free(requests=[1, 2, 3, 4, 5, 6, 7, 8, ... 1000 in all])"
    assert words.count(",") == LIST_SHOWN_COUNT


@pytest.mark.parametrize("encoded", [b"", b"\xff", encode(["steal"])])
def test_bytes_that_are_no_operation_are_counted(encoded: bytes) -> None:
    assert describe_operation(encoded) == f"{len(encoded)} bytes that are no operation"
