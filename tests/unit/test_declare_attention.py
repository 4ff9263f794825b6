"""Attention parts: heads, latents and windows."""

from typing import Any

import pytest

from kvd.declare.attention import (
    attention_part,
    head_element_count,
    latent_part,
    layer_windows,
)
from kvd.declare.fields import ConfigFields
from kvd.declare.shard import RankShape
from kvd.errors import DeclareError
from kvd_proto.memory import DType


def fields(**values: Any) -> ConfigFields:
    base = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512}
    return ConfigFields({**base, **values})


def rank(tp_count: int = 1, kv_dtype: DType = DType.BFLOAT16) -> RankShape:
    return RankShape(tp_count=tp_count, kv_dtype=kv_dtype)


def test_head_size_follows_from_the_hidden_size() -> None:
    assert head_element_count(fields()) == 64


def test_a_given_head_size_wins() -> None:
    assert head_element_count(fields(head_dim=128)) == 128


def test_a_hidden_size_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(DeclareError, match="hidden_size is 513"):
        head_element_count(fields(hidden_size=513))


def test_without_kv_heads_every_query_head_has_its_own() -> None:
    assert attention_part(fields(), rank()).kv_head_count == 8


def test_multi_query_has_one_kv_head() -> None:
    assert attention_part(fields(multi_query=True), rank()).kv_head_count == 1


@pytest.mark.parametrize("key", ["num_key_value_heads", "num_kv_heads", "multi_query_group_num"])
def test_kv_heads_are_found_under_their_names(key: str) -> None:
    assert attention_part(fields(**{key: 2}), rank()).kv_head_count == 2


def test_values_may_be_wider_than_keys() -> None:
    part = attention_part(fields(head_dim=64, v_head_dim=128), rank())
    assert (part.key_element_count, part.value_element_count) == (64, 128)


def test_query_heads_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(DeclareError, match="num_attention_heads is 8, which 16"):
        attention_part(fields(num_key_value_heads=1), rank(16))


def test_a_latent_row_is_the_same_on_every_rank() -> None:
    latent = fields(kv_lora_rank=512, qk_rope_head_dim=64)
    assert latent_part(latent, rank(4)) == latent_part(latent, rank(1))


def test_the_value_of_a_latent_row_is_its_prefix() -> None:
    part = latent_part(fields(kv_lora_rank=512, qk_rope_head_dim=64), rank())
    assert (part.element_count, part.value_element_count) == (576, 512)


@pytest.mark.parametrize(
    ("values", "windows"),
    [
        ({}, (None, None, None, None)),
        ({"sliding_window": 16}, (16, 16, 16, 16)),
        ({"sliding_window": 16, "use_sliding_window": False}, (None,) * 4),
        ({"sliding_window": 16, "max_window_layers": 3}, (None, None, None, 16)),
        ({"sliding_window": 16, "sliding_window_pattern": 2}, (16, None, 16, None)),
        ({"sliding_window": [None, 16, None, 16]}, (None, 16, None, 16)),
        ({"attention_chunk_size": 32}, (32, 32, 32, None)),
        ({"attention_chunk_size": 32, "no_rope_layers": [1, 0, 1, 0]}, (32, None, 32, None)),
        ({"attention_chunk_size": 32, "no_rope_layers": []}, (32, 32, 32, None)),
        (
            {
                "layer_types": [
                    "sliding_attention",
                    "chunked_attention",
                    "full_attention",
                    "full_attention",
                ],
                "sliding_window": 16,
                "attention_chunk_size": 32,
                "sliding_window_pattern": 2,
            },
            (16, 32, None, None),
        ),
    ],
)
def test_windows_are_read_in_every_published_form(
    values: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    assert layer_windows(fields(**values)) == windows


def test_an_unknown_layer_type_is_named_with_its_place() -> None:
    with pytest.raises(DeclareError, match=r"layer_types\[1\] is 'ring_attention'"):
        layer_windows(fields(layer_types=["full_attention", "ring_attention"] * 2))


@pytest.mark.parametrize(
    "values",
    [
        {"layer_types": ["full_attention"]},
        {"sliding_window": [16]},
        {"attention_chunk_size": 32, "no_rope_layers": [1]},
    ],
)
def test_a_list_of_another_length_than_the_layers_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(DeclareError, match="has 1 entries for 4 layers"):
        layer_windows(fields(**values))
