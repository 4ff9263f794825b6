"""Architectures with states: which layers attend, which keep a state, which do both."""

from collections.abc import Mapping

from kvd.declare.attention import (
    FULL_NAMES,
    attention_part,
    divide_query_heads,
    head_element_count,
    latent_part,
    layer_count_of,
    layer_kinds,
    layer_windows,
)
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
from kvd.errors import DeclareError, shown
from kvd.units import exact_div
from kvd_proto.memory import LayerDecl, StatePart


def qwen3_next_layers(fields: ConfigFields, rank: RankShape) -> tuple[LayerDecl, ...]:
    """Qwen3-Next: gated delta layers with full attention at a fixed interval."""
    count = layer_count_of(fields)
    if fields.has("layer_types"):
        kinds = layer_kinds(fields)
    else:
        period = fields.count("full_attention_interval")
        kinds = tuple(
            "linear_attention" if (place + 1) % period else "full_attention"
            for place in range(count)
        )
    state = LayerDecl(parts=(gated_delta_part(fields, rank),))
    return _by_kind(fields, rank, kinds, {"linear_attention": state}, key="layer_types")


def jamba_layers(fields: ConfigFields, rank: RankShape) -> tuple[LayerDecl, ...]:
    """Jamba: Mamba-1 layers with full attention at a fixed interval."""
    period = fields.count("attn_layer_period")
    offset = fields.count("attn_layer_offset", count_min=0)
    state = LayerDecl(parts=(mamba1_part(fields, rank),))
    full = LayerDecl(parts=(attention_part(fields, rank),))
    return tuple(
        full if place % period == offset else state for place in range(layer_count_of(fields))
    )


def nemotron_h_layers(fields: ConfigFields, rank: RankShape) -> tuple[LayerDecl, ...]:
    """Nemotron-H: one letter per layer, M for Mamba-2 and * for attention."""
    pattern = fields.text("hybrid_override_pattern")
    count = layer_count_of(fields)
    if len(pattern) != count:
        raise DeclareError(
            f"{fields.named('hybrid_override_pattern')} has {len(pattern)} letters for {count} "
            "layers"
        )
    state = mamba2_part(
        rank,
        head_count=fields.count("mamba_num_heads"),
        head_element_count=fields.count("mamba_head_dim"),
        state_element_count=fields.count("ssm_state_size"),
        group_count=fields.count("n_groups"),
        conv_width_count=fields.count("conv_kernel", count_min=2),
    )
    of_letter = {
        "M": LayerDecl(parts=(state,)),
        "*": LayerDecl(parts=(attention_part(fields, rank),)),
        "-": LayerDecl(),
        "E": LayerDecl(),
    }
    for place, letter in enumerate(pattern):
        if letter not in of_letter:
            raise DeclareError(
                f"{fields.named('hybrid_override_pattern')}[{place}] is {shown(letter)}: expected "
                "one of M, *, - and E"
            )
    return tuple(of_letter[letter] for letter in pattern)


def bamba_layers(fields: ConfigFields, rank: RankShape) -> tuple[LayerDecl, ...]:
    """Bamba and Granite 4: Mamba-2 layers with attention at listed places."""
    count = layer_count_of(fields)
    if fields.has("attn_layer_indices"):
        places = fields.counts("attn_layer_indices")
        kinds = tuple("attention" if place in places else "mamba" for place in range(count))
        key = "attn_layer_indices"
    else:
        key = "layer_types" if fields.has("layer_types") else "layers_block_type"
        kinds = layer_kinds(fields, key)
    state = LayerDecl(parts=(_mamba2_of(fields, rank),))
    return _by_kind(fields, rank, kinds, {"mamba": state}, key=key)


def falcon_h1_layers(fields: ConfigFields, rank: RankShape) -> tuple[LayerDecl, ...]:
    """Falcon-H1: attention and Mamba-2 side by side in every layer."""
    both = LayerDecl(parts=(attention_part(fields, rank), _mamba2_of(fields, rank)))
    return (both,) * layer_count_of(fields)


def hymba_layers(fields: ConfigFields, rank: RankShape) -> tuple[LayerDecl, ...]:
    """Attention and Mamba side by side in each layer; groups of layers share one KV.

    The model's learned prefix tokens have the same keys and values in every request, so an engine
    keeps them once beside its weights; they are no part of a request.
    """
    places = fields.counts("global_attn_idx")
    key = "attn_window_size" if fields.has("attn_window_size") else "sliding_window"
    window = fields.count(key)
    state = mamba1_part(fields, rank)
    source_of: dict[int, int] = {}
    groups = fields.count_lists("kv_reuse_group") if fields.has("kv_reuse_group") else ()
    for group in groups:
        source_of.update((place, group[0]) for place in group[1:])
    return tuple(
        LayerDecl(parts=(state,), shares_layer_index=source_of[place])
        if place in source_of
        else LayerDecl(
            parts=(
                attention_part(fields, rank, window_tokens=None if place in places else window),
                state,
            )
        )
        for place in range(layer_count_of(fields))
    )


def kimi_linear_layers(fields: ConfigFields, rank: RankShape) -> tuple[LayerDecl, ...]:
    """Latent attention at the listed layers, counted from 1; delta attention at the others."""
    linear = fields.section("linear_attn_config")
    count = layer_count_of(fields)
    full = linear.counts("full_attn_layers", count_min=1)
    delta = linear.counts("kda_layers", count_min=1)
    if sorted((*full, *delta)) != list(range(1, count + 1)):
        raise DeclareError(
            f"{linear.named('full_attn_layers')} and kda_layers name {len(full) + len(delta)} "
            f"layers: expected each of 1 to {count} once"
        )
    divide_query_heads(fields, rank)
    latent = LayerDecl(parts=(latent_part(fields, rank),))
    state = LayerDecl(parts=(delta_attention_part(linear, rank),))
    return tuple(latent if place in full else state for place in range(1, count + 1))


def lfm2_layers(fields: ConfigFields, rank: RankShape) -> tuple[LayerDecl, ...]:
    """LFM2: gated short convolutions with attention at listed places."""
    count = layer_count_of(fields)
    if fields.has("layer_types"):
        kinds, key = layer_kinds(fields), "layer_types"
    else:
        places, key = fields.counts("full_attn_idxs"), "full_attn_idxs"
        kinds = tuple("full_attention" if place in places else "conv" for place in range(count))
    state = LayerDecl(parts=(short_conv_part(fields, rank),))
    return _by_kind(fields, rank, kinds, {"conv": state}, key=key)


def phi4_flash_layers(fields: ConfigFields, rank: RankShape) -> tuple[LayerDecl, ...]:
    """SambaY: Mamba and windows alternate in the first half; one layer's KV serves the second.

    Layer L/2 is the last with a state and layer L/2 + 1 the only one with full attention. Behind
    them even layers gate an earlier output, storing nothing, and odd ones read that one KV.
    """
    count = layer_count_of(fields)
    period = fields.count("mb_per_layer", default=2)
    middle = count // 2
    source = middle + 1
    if count % 2 or source % period == 0:
        raise DeclareError(
            f"{fields.named('num_hidden_layers')} is {count}: expected an even number that puts "
            f"attention, not a Mamba layer, at place {source}"
        )
    listed = [window for window in layer_windows(fields) if window is not None]
    window = listed[0] if listed else None
    state = LayerDecl(parts=(mamba1_part(fields, rank),))
    layers: list[LayerDecl] = []
    for place in range(count):
        if place % period == 0:
            layers.append(state if place <= middle else LayerDecl())
        elif place <= source:
            part = attention_part(fields, rank, window_tokens=None if place == source else window)
            layers.append(LayerDecl(parts=(part,)))
        else:
            layers.append(LayerDecl(shares_layer_index=source))
    return tuple(layers)


def minimax_layers(fields: ConfigFields, rank: RankShape) -> tuple[LayerDecl, ...]:
    """MiniMax: linear attention with full attention at listed places."""
    count = layer_count_of(fields)
    if fields.has("attn_type_list"):
        key = "attn_type_list"
        flags = fields.counts(key)
        if len(flags) != count:
            raise DeclareError(f"{fields.named(key)} has {len(flags)} entries for {count} layers")
        kinds = tuple("full_attention" if flag else "linear_attention" for flag in flags)
    else:
        kinds, key = layer_kinds(fields), "layer_types"
    heads = fields.count("num_attention_heads")
    state = linear_attention_part(
        rank, head_count=heads, head_element_count=head_element_count(fields)
    )
    return _by_kind(fields, rank, kinds, {"linear_attention": LayerDecl(parts=(state,))}, key=key)


def _mamba2_of(fields: ConfigFields, rank: RankShape) -> StatePart:
    heads = fields.count("mamba_n_heads")
    if fields.has("mamba_d_head") and fields.values["mamba_d_head"] != "auto":
        elements = fields.count("mamba_d_head")
    else:
        elements = _inner_head_elements(fields, head_count=heads)
    return mamba2_part(
        rank,
        head_count=heads,
        head_element_count=elements,
        state_element_count=fields.count("mamba_d_state"),
        group_count=fields.count("mamba_n_groups", default=1),
        conv_width_count=fields.count("mamba_d_conv", count_min=2),
    )


def _inner_head_elements(fields: ConfigFields, *, head_count: int) -> int:
    """Return the elements of one Mamba-2 head where only the inner size is given."""
    inner = fields.count("mamba_expand", default=2) * fields.count("hidden_size")
    if inner % head_count != 0:
        raise DeclareError(
            f"{fields.named('hidden_size')} times mamba_expand is {inner}, not a multiple of "
            f"mamba_n_heads {head_count}"
        )
    return exact_div(inner, head_count)


def _by_kind(
    fields: ConfigFields,
    rank: RankShape,
    kinds: tuple[str, ...],
    states: Mapping[str, LayerDecl],
    *,
    key: str,
) -> tuple[LayerDecl, ...]:
    """Return full attention or the named state for each kind; DeclareError if one is unknown."""
    full = LayerDecl(parts=(attention_part(fields, rank),))
    for place, kind in enumerate(kinds):
        if kind not in states and kind not in FULL_NAMES:
            raise DeclareError(
                f"{fields.named(key)}[{place}] is {shown(kind)}: expected {FULL_NAMES[0]} or "
                + " or ".join(sorted(states))
            )
    return tuple(states.get(kind, full) for kind in kinds)
