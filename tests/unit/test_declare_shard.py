"""How tensor parallelism divides counts."""

import pytest

from kvd.declare.shard import RankShape, kv_dtype_of
from kvd.errors import DeclareError
from kvd_proto.memory import DType


def rank(tp_count: int) -> RankShape:
    return RankShape(tp_count=tp_count, kv_dtype=DType.BFLOAT16)


@pytest.mark.parametrize(("tp_count", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (64, 1)])
def test_heads_are_divided_and_then_replicated(tp_count: int, heads: int) -> None:
    assert rank(tp_count).divided_or_replicated(8, key="heads") == heads


@pytest.mark.parametrize("tp_count", [3, 5, 12])
def test_heads_that_neither_divide_nor_replicate_are_refused(tp_count: int) -> None:
    with pytest.raises(DeclareError, match=f"heads is 8: {tp_count} tensor-parallel"):
        rank(tp_count).divided_or_replicated(8, key="heads")


def test_an_uneven_share_is_refused() -> None:
    with pytest.raises(DeclareError, match="channels is 10, which 4"):
        rank(4).divided(10, key="channels")


def test_fp8_is_stored_as_raw_bytes() -> None:
    assert kv_dtype_of("fp8") is DType.UINT8


def test_an_unknown_type_is_refused_with_the_choices() -> None:
    with pytest.raises(DeclareError, match="'int4': expected bf16 or fp8"):
        kv_dtype_of("int4")
