"""Architectures with states: which layer keeps what."""

from typing import Any

import pytest

from kvd.declare.family import family_of
from kvd.declare.fields import ConfigFields
from kvd.declare.parts import attention_of, check_layers, lifetime_of, state_of
from kvd.declare.shard import RankShape
from kvd.errors import DeclareError
from kvd_proto.memory import DType, LayerDecl, StatePart

MAMBA = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
MAMBA2 = {**MAMBA, "mamba_n_heads": 16, "mamba_n_groups": 1, "mamba_d_head": 64}
GATED = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}


def layers_of(model_type: str, *, tp_count: int = 1, **values: Any) -> tuple[LayerDecl, ...]:
    base = {
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "hidden_size": 512,
    }
    rank = RankShape(tp_count=tp_count, kv_dtype=DType.BFLOAT16)
    layers = family_of(model_type)(ConfigFields({**base, **values}), rank)
    check_layers(layers, model="layer")
    return layers


def letters(layers: tuple[LayerDecl, ...]) -> str:
    """Return what each layer keeps: full, window, state, both, nothing or another's."""
    words: list[str] = []
    for layer in layers:
        word = "".join(sorted(lifetime_of(part).value[0] for part in layer.parts))
        if layer.shares_layer_index is not None:
            word += f"@{layer.shares_layer_index}"
        words.append(word or "-")
    return " ".join(words)


def test_qwen3_next_has_full_attention_at_its_interval() -> None:
    assert letters(layers_of("qwen3_next", full_attention_interval=4, **GATED)) == "s s s f"


def test_qwen3_next_takes_listed_layer_types() -> None:
    kinds = ["full_attention", "linear_attention"] * 2
    assert letters(layers_of("qwen3_next", layer_types=kinds, **GATED)) == "f s f s"


def test_jamba_has_attention_at_period_and_offset() -> None:
    layers = layers_of("jamba", attn_layer_period=4, attn_layer_offset=2, **MAMBA)
    assert letters(layers) == "s s f s"


def test_nemotron_h_reads_its_pattern() -> None:
    layers = layers_of(
        "nemotron_h",
        hybrid_override_pattern="M-*E",
        mamba_num_heads=16,
        mamba_head_dim=64,
        ssm_state_size=16,
        n_groups=2,
        conv_kernel=4,
    )
    assert letters(layers) == "s - f -"


@pytest.mark.parametrize(
    ("pattern", "complaint"), [("M*", "has 2 letters for 4"), ("M*X-", r"\[2\] is 'X'")]
)
def test_a_wrong_pattern_is_refused(pattern: str, complaint: str) -> None:
    with pytest.raises(DeclareError, match=complaint):
        layers_of(
            "nemotron_h",
            hybrid_override_pattern=pattern,
            mamba_num_heads=16,
            mamba_head_dim=64,
            ssm_state_size=16,
            n_groups=2,
            conv_kernel=4,
        )


@pytest.mark.parametrize(
    "values",
    [
        {"attn_layer_indices": [1, 3]},
        {"layer_types": ["mamba", "attention"] * 2},
        {"layers_block_type": ["mamba", "attention"] * 2},
    ],
)
def test_bamba_and_granite_list_their_attention_layers(values: dict[str, Any]) -> None:
    assert letters(layers_of("bamba", **values, **MAMBA2)) == "s f s f"


def test_falcon_h1_keeps_attention_and_state_in_every_layer() -> None:
    assert letters(layers_of("falcon_h1", **MAMBA2)) == "fs fs fs fs"


def test_hymba_keeps_both_and_shares_keys_and_values_in_groups() -> None:
    layers = layers_of(
        "hymba", global_attn_idx=[0, 3], attn_window_size=16, kv_reuse_group=[[1, 2]], **MAMBA
    )
    assert letters(layers) == "fs sw s@1 fs"


def test_kimi_linear_counts_its_layers_from_one() -> None:
    layers = layers_of(
        "kimi_linear",
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        linear_attn_config={
            "full_attn_layers": [4],
            "kda_layers": [1, 2, 3],
            "num_heads": 4,
            "head_dim": 64,
            "short_conv_kernel_size": 4,
        },
    )
    assert letters(layers) == "s s s f"


def test_kimi_linear_layers_that_are_not_named_once_are_refused() -> None:
    with pytest.raises(DeclareError, match="expected each of 1 to 4 once"):
        layers_of(
            "kimi_linear",
            kv_lora_rank=512,
            qk_rope_head_dim=64,
            linear_attn_config={"full_attn_layers": [4], "kda_layers": [0 + 1, 2]},
        )


@pytest.mark.parametrize(
    "values",
    [
        {"full_attn_idxs": [2]},
        {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    ],
)
def test_lfm2_has_short_convolutions_between_attention(values: dict[str, Any]) -> None:
    assert letters(layers_of("lfm2", conv_L_cache=3, **values)) == "s s f s"


def test_phi4_flash_serves_its_second_half_from_one_layer() -> None:
    layers = layers_of("phi4flash", num_hidden_layers=8, sliding_window=16, **MAMBA)
    assert letters(layers) == "s w s w s f - @5"


def test_phi4_flash_with_an_odd_number_of_layers_is_refused() -> None:
    with pytest.raises(DeclareError, match="num_hidden_layers is 7"):
        layers_of("phi4flash", num_hidden_layers=7, sliding_window=16, **MAMBA)


@pytest.mark.parametrize(
    "values",
    [
        {"attn_type_list": [0, 0, 0, 1]},
        {"layer_types": ["linear_attention"] * 3 + ["full_attention"]},
    ],
)
def test_minimax_has_linear_attention_between_full(values: dict[str, Any]) -> None:
    assert letters(layers_of("minimax", **values)) == "s s s f"


def test_an_unknown_kind_is_named_with_the_known_ones() -> None:
    with pytest.raises(DeclareError, match=r"layer_types\[0\] is 'mamba'.*linear_attention"):
        layers_of("minimax", layer_types=["mamba"] * 4)


def test_states_divide_by_ranks_while_few_kv_heads_are_replicated() -> None:
    layers = layers_of("qwen3_next", tp_count=4, full_attention_interval=4, **GATED)
    state, full = state_of(layers[0]), attention_of(layers[3])
    assert isinstance(state, StatePart)
    assert state.recurrent is not None
    assert state.recurrent.shape == (2, 64, 64)
    assert full is not None
    assert full == attention_of(
        layers_of("qwen3_next", tp_count=2, full_attention_interval=4, **GATED)[3]
    )
