"""State parts of a configuration: what one request keeps in a layer, whatever its length.

A convolution of width k keeps the last k - 1 columns of its channels.
"""

from kvd.declare.fields import ConfigFields
from kvd.declare.shard import RankShape
from kvd_proto.memory import StatePart, StateTensor


def mamba1_part(fields: ConfigFields, rank: RankShape) -> StatePart:
    """Return the state of a Mamba-1 layer."""
    inner = fields.count("mamba_expand") * fields.count("hidden_size")
    channels = rank.divided(inner, key=f"{fields.named('mamba_expand')} times hidden_size")
    return _state(
        rank,
        conv_shapes=((fields.count("mamba_d_conv", count_min=2) - 1, channels),),
        recurrent_shape=(channels, fields.count("mamba_d_state")),
    )


def mamba2_part(
    rank: RankShape,
    *,
    head_count: int,
    head_element_count: int,
    state_element_count: int,
    group_count: int,
    conv_width_count: int,
) -> StatePart:
    """Return the state of a Mamba-2 layer; groups are replicated once ranks outnumber them."""
    heads = rank.divided(head_count, key="the number of Mamba heads")
    groups = rank.divided_or_replicated(group_count, key="the number of Mamba groups")
    channels = heads * head_element_count + 2 * groups * state_element_count
    return _state(
        rank,
        conv_shapes=((conv_width_count - 1, channels),),
        recurrent_shape=(heads, head_element_count, state_element_count),
    )


def gated_delta_part(fields: ConfigFields, rank: RankShape) -> StatePart:
    """Return the state of a gated-delta layer: queries, keys and values share one convolution."""
    key_heads = rank.divided(
        fields.count("linear_num_key_heads"), key=fields.named("linear_num_key_heads")
    )
    value_heads = rank.divided(
        fields.count("linear_num_value_heads"), key=fields.named("linear_num_value_heads")
    )
    key_elements = fields.count("linear_key_head_dim")
    value_elements = fields.count("linear_value_head_dim")
    channels = 2 * key_heads * key_elements + value_heads * value_elements
    return _state(
        rank,
        conv_shapes=((fields.count("linear_conv_kernel_dim", count_min=2) - 1, channels),),
        recurrent_shape=(value_heads, key_elements, value_elements),
    )


def delta_attention_part(fields: ConfigFields, rank: RankShape) -> StatePart:
    """Return the state of a Kimi delta-attention layer: one convolution each for q, k and v."""
    heads = rank.divided(fields.count("num_heads"), key=fields.named("num_heads"))
    elements = fields.count("head_dim")
    column = (fields.count("short_conv_kernel_size", count_min=2) - 1, heads * elements)
    return _state(
        rank,
        conv_shapes=(column, column, column),
        recurrent_shape=(heads, elements, elements),
    )


def linear_attention_part(
    rank: RankShape, *, head_count: int, head_element_count: int
) -> StatePart:
    """Return the state of a linear-attention layer without a convolution."""
    heads = rank.divided(head_count, key="the number of linear-attention heads")
    return _state(
        rank, conv_shapes=(), recurrent_shape=(heads, head_element_count, head_element_count)
    )


def short_conv_part(fields: ConfigFields, rank: RankShape) -> StatePart:
    """Return the state of a gated short convolution: its tail and nothing else."""
    width = fields.count("conv_L_cache", count_min=2)
    channels = rank.divided(fields.count("hidden_size"), key=fields.named("hidden_size"))
    return _state(rank, conv_shapes=((width - 1, channels),), recurrent_shape=None)


def _state(
    rank: RankShape,
    *,
    conv_shapes: tuple[tuple[int, ...], ...],
    recurrent_shape: tuple[int, ...] | None,
) -> StatePart:
    return StatePart(
        conv=tuple(StateTensor(shape=shape, dtype=rank.conv_dtype) for shape in conv_shapes),
        recurrent=None
        if recurrent_shape is None
        else StateTensor(shape=recurrent_shape, dtype=rank.recurrent_dtype),
    )
