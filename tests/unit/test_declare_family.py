"""Architectures with attention only, and what is refused of others."""

from typing import Any

import pytest

from kvd.declare.family import FAMILIES, KIND_DEFAULTS, PLAIN_DECODERS, family_of
from kvd.declare.fields import ConfigFields
from kvd.declare.shard import RankShape
from kvd.errors import DeclareError
from kvd_proto.memory import AttentionPart, DType, LatentPart, LayerDecl

RANK = RankShape(tp_count=1, kv_dtype=DType.BFLOAT16)
PLAIN: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
}


def layers_of(model_type: str, **values: Any) -> tuple[LayerDecl, ...]:
    fields = ConfigFields({**PLAIN, "model_type": model_type, **values})
    fields = fields.with_defaults(KIND_DEFAULTS.get(model_type, {}))
    return family_of(model_type)(fields, RANK)


def windows_of(layers: tuple[LayerDecl, ...]) -> list[int | None]:
    windows: list[int | None] = []
    for layer in layers:
        (part,) = layer.parts
        assert isinstance(part, AttentionPart)
        windows.append(part.window_tokens)
    return windows


@pytest.mark.parametrize("model_type", PLAIN_DECODERS)
def test_a_plain_decoder_has_one_attention_part_in_every_layer(model_type: str) -> None:
    windowed = KIND_DEFAULTS.get(model_type, {})
    part = AttentionPart(
        kv_head_count=2,
        key_element_count=windowed.get("head_dim", 64),
        value_element_count=windowed.get("head_dim", 64),
    )
    layers = layers_of(model_type, layer_types=["full_attention"] * 4)
    assert layers == (LayerDecl(parts=(part,)),) * 4


@pytest.mark.parametrize("model_type", ["foobar", "bert", "", "Llama", "mamba", "gemma3"])
def test_an_unknown_architecture_is_refused_with_the_known_ones(model_type: str) -> None:
    with pytest.raises(DeclareError) as caught:
        family_of(model_type)
    message = caught.value.message
    assert message.startswith(f"model_type {model_type!r} is unknown to kvd: declare its layers as")
    assert message.endswith(f"one of {', '.join(sorted(FAMILIES))}")


@pytest.mark.parametrize("model_type", KIND_DEFAULTS)
def test_defaults_are_those_of_a_known_architecture(model_type: str) -> None:
    assert model_type in FAMILIES


@pytest.mark.parametrize(
    ("values", "kv_head_count"),
    [
        ({"multi_query": True, "num_kv_heads": 8}, 1),
        ({"multi_query": True}, 1),
        ({}, 1),
        ({"multi_query": False, "num_kv_heads": 8}, 8),
        ({"multi_query": False}, 8),
        ({"new_decoder_architecture": True, "multi_query": True, "num_kv_heads": 2}, 2),
        ({"new_decoder_architecture": True, "multi_query": True}, 8),
    ],
)
def test_falcons_of_the_first_generation_share_one_head(
    values: dict[str, Any], kv_head_count: int
) -> None:
    (part,) = layers_of("falcon", num_key_value_heads=None, **values)[0].parts
    assert isinstance(part, AttentionPart)
    assert part.kv_head_count == kv_head_count


def test_a_decoder_with_latents_stores_latents() -> None:
    layers = layers_of("deepseek_v3", kv_lora_rank=256, qk_rope_head_dim=64)
    assert (
        layers == (LayerDecl(parts=(LatentPart(element_count=320, value_element_count=256),)),) * 4
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ssm_state_size", 16),
        ("mamba_d_state", 16),
        ("linear_num_key_heads", 16),
        ("lru_width", 2560),
        ("hybrid_override_pattern", "M*"),
        ("conv_kernel", 4),
        ("num_kv_shared_layers", 2),
        ("index_topk", 2048),
        ("kv_lora_rank", 512),
        ("global_head_dim", 512),
    ],
)
def test_a_field_that_hints_at_other_layers_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(DeclareError) as caught:
        layers_of("llama", **{key: value})
    assert f"{key} is {value!r}, which hints" in caught.value.message


@pytest.mark.parametrize("value", [None, 0, False, []])
def test_a_hint_that_is_switched_off_is_no_hint(value: object) -> None:
    assert len(layers_of("llama", num_kv_shared_layers=value)) == 4


def test_gpt_oss_alternates_windows_and_full_attention() -> None:
    assert windows_of(layers_of("gpt_oss", sliding_window=128)) == [128, None, 128, None]


@pytest.mark.parametrize(
    ("model_type", "period"), [("gemma2", 2), ("gemma3_text", 6), ("cohere2", 4), ("olmo3", 4)]
)
def test_published_patterns_apply_where_the_file_is_silent(model_type: str, period: int) -> None:
    windows = windows_of(layers_of(model_type, num_hidden_layers=12, sliding_window=16))
    assert windows == [None if (place + 1) % period == 0 else 16 for place in range(12)]


def test_a_shared_tail_reads_the_last_layer_of_its_own_kind() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"] * 2
    layers = layers_of(
        "gemma3n_text",
        num_hidden_layers=8,
        layer_types=kinds,
        sliding_window=16,
        num_kv_shared_layers=3,
    )
    assert [layer.shares_layer_index for layer in layers] == [None] * 5 + [3, 4, 3]


def test_a_shared_tail_without_a_source_is_refused() -> None:
    with pytest.raises(DeclareError, match="num_kv_shared_layers is 4: layer 0"):
        layers_of("gemma3n_text", num_kv_shared_layers=4)


def test_a_sparse_attention_indexer_is_refused() -> None:
    with pytest.raises(DeclareError, match="index_topk is 2048"):
        layers_of("deepseek_v32", kv_lora_rank=512, qk_rope_head_dim=64, index_topk=2048)
