"""State parts: shapes of convolution tails and recurrent tensors on one rank."""

import pytest

from kvd.declare.fields import ConfigFields
from kvd.declare.shard import RankShape
from kvd.declare.state import (
    delta_attention_part,
    gated_delta_part,
    linear_attention_part,
    mamba1_part,
    mamba2_part,
    short_conv_part,
)
from kvd.errors import DeclareError
from kvd_proto.memory import DType, StatePart

GATED = ConfigFields(
    {
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
)


def rank(tp_count: int = 1) -> RankShape:
    return RankShape(tp_count=tp_count, kv_dtype=DType.UINT8)


def shapes(part: StatePart) -> list[tuple[int, ...]]:
    tensors = part.conv if part.recurrent is None else (*part.conv, part.recurrent)
    return [tensor.shape for tensor in tensors]


def mamba2(rank_shape: RankShape, group_count: int = 8) -> StatePart:
    return mamba2_part(
        rank_shape,
        head_count=128,
        head_element_count=64,
        state_element_count=128,
        group_count=group_count,
        conv_width_count=4,
    )


def test_mamba1_keeps_a_column_less_than_its_convolution_is_wide() -> None:
    fields = ConfigFields(
        {"mamba_expand": 2, "hidden_size": 4096, "mamba_d_state": 16, "mamba_d_conv": 4}
    )
    assert shapes(mamba1_part(fields, rank())) == [(3, 8192), (8192, 16)]


def test_mamba2_convolves_inputs_and_both_projections_of_every_group() -> None:
    assert shapes(mamba2(rank())) == [(3, 10240), (128, 64, 128)]


def test_mamba2_divides_by_ranks() -> None:
    assert shapes(mamba2(rank(4))) == [(3, 2560), (32, 64, 128)]


def test_mamba2_replicates_groups_once_ranks_outnumber_them() -> None:
    assert shapes(mamba2(rank(4), group_count=1)) == [(3, 2048 + 256), (32, 64, 128)]


def test_gated_delta_shares_one_convolution_between_queries_keys_and_values() -> None:
    assert shapes(gated_delta_part(GATED, rank())) == [(3, 8192), (32, 128, 128)]


def test_gated_delta_refuses_ranks_that_do_not_divide_its_heads() -> None:
    with pytest.raises(DeclareError, match="linear_num_key_heads is 16, which 32"):
        gated_delta_part(GATED, rank(32))


def test_delta_attention_has_a_convolution_each_for_queries_keys_and_values() -> None:
    fields = ConfigFields({"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4})
    assert shapes(delta_attention_part(fields, rank())) == [(3, 4096)] * 3 + [(32, 128, 128)]


def test_linear_attention_has_no_convolution() -> None:
    part = linear_attention_part(rank(2), head_count=64, head_element_count=128)
    assert shapes(part) == [(32, 128, 128)]


def test_a_short_convolution_has_no_recurrent_tensor() -> None:
    part = short_conv_part(ConfigFields({"conv_L_cache": 3, "hidden_size": 2048}), rank(2))
    assert shapes(part) == [(2, 1024)]


def test_a_convolution_without_a_tail_is_refused() -> None:
    with pytest.raises(DeclareError, match="conv_L_cache is 1"):
        short_conv_part(ConfigFields({"conv_L_cache": 1, "hidden_size": 2048}), rank())


def test_recurrent_states_stay_in_32_bits_whatever_the_cache_type() -> None:
    part = mamba2(rank())
    assert part.recurrent is not None
    assert (part.conv[0].dtype, part.recurrent.dtype) == (DType.BFLOAT16, DType.FLOAT32)
