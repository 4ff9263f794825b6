"""Model families: how the layers of each architecture follow from its configuration.

A family is a function from fields to one `LayerDecl` per layer. An architecture without an entry in
`FAMILIES` is refused, and so is a plain decoder with a field that hints at layers of another kind:
an arena planned for the wrong layers would be found out only by a kernel.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from kvd.declare.attention import (
    attention_part,
    divide_query_heads,
    latent_part,
    layer_count_of,
    layer_windows,
)
from kvd.declare.fields import ConfigFields
from kvd.declare.hybrid import (
    bamba_layers,
    falcon_h1_layers,
    hymba_layers,
    jamba_layers,
    kimi_linear_layers,
    lfm2_layers,
    minimax_layers,
    nemotron_h_layers,
    phi4_flash_layers,
    qwen3_next_layers,
)
from kvd.declare.shard import RankShape
from kvd.errors import DeclareError, shown
from kvd_proto.memory import LayerDecl

Layers: TypeAlias = tuple[LayerDecl, ...]
Family: TypeAlias = Callable[[ConfigFields, RankShape], Layers]

UNSUPPORTED_HINTS: Final = (
    "ssm",
    "mamba",
    "conv",
    "linear_attn",
    "linear_num",
    "linear_key",
    "linear_value",
    "lru_width",
    "rwkv",
    "retention",
    "recurrent",
    "hybrid",
    "attn_layer",
    "attn_type",
    "block_types",
    "block_type",
    "block_configs",
    "index_topk",
    "kv_lora",
    "compress_ratio",
    "kv_shared",
    "kv_reuse",
    "cla_share",
    "global_attn",
    "cross_attention",
    "encoder_layers",
    "sparse_attention",
    "sparse_config",
    "global_head",
    "swa_",
)
"""Parts of field names that only architectures with other than plain attention layers carry."""

KIND_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "gpt_oss": {"head_dim": 64, "num_key_value_heads": 8},
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3_text": {
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131_072,
    },
    "gemma3n_text": {"sliding_window": 512, "sliding_window_pattern": 5},
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "olmo3": {"sliding_window": 4096, "sliding_window_pattern": 4},
}
"""Defaults of the published configuration classes that published files rely on."""


PLAIN_DECODERS: Final = (
    "apertus",
    "arcee",
    "baichuan",
    "bailing_moe",
    "bitnet",
    "chatglm",
    "cohere",
    "cohere2",
    "deepseek",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4v_moe_text",
    "glm4v_text",
    "gpt_neox",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "helium",
    "internlm",
    "internlm2",
    "internlm3",
    "llama",
    "llama4_text",
    "mimo",
    "minicpm",
    "ministral",
    "mistral",
    "mixtral",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "orion",
    "persimmon",
    "phi",
    "phi3",
    "phi3_v",
    "phi4mm",
    "phimoe",
    "qwen",
    "qwen2",
    "qwen2_5_vl",
    "qwen2_5_vl_text",
    "qwen2_moe",
    "qwen2_vl",
    "qwen2_vl_text",
    "qwen3",
    "qwen3_moe",
    "qwen3_vl_moe_text",
    "qwen3_vl_text",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
    "xverse",
)
"""Values of ``model_type`` whose layers all have one attention over keys and values, full or within
a window, and whose published files say so in the fields that `kvd.declare.attention` reads."""


def family_of(model_type: str) -> Family:
    """Return how to read the layers of an architecture; DeclareError if it is unknown."""
    family = FAMILIES.get(model_type)
    if family is None:
        raise DeclareError(
            f"model_type {shown(model_type)} is unknown to kvd: declare its layers as parts, or "
            f"give one of {', '.join(sorted(FAMILIES))}"
        )
    return family


def _plain_decoder(fields: ConfigFields, rank: RankShape) -> Layers:
    for key in sorted(fields.values):
        # Off is off: files of plain models may carry such a field with nothing in it.
        hinting = any(hint in key.lower() for hint in UNSUPPORTED_HINTS)
        if hinting and fields.values[key] not in (None, False, 0, "", [], {}):
            raise DeclareError(
                f"{fields.named(key)} is {shown(fields.values[key])}, which hints at layers other "
                f"than the plain attention of model_type {shown(fields.text('model_type'))}; "
                "declare its layers as parts instead"
            )
    return _attention_only(fields, rank)


def _falcon(fields: ConfigFields, rank: RankShape) -> Layers:
    """Falcon: files of the first generation name as many KV heads as queries, and mean one."""
    is_multi_query = fields.flag("multi_query", default=True)
    if is_multi_query and not fields.flag("new_decoder_architecture", default=False):
        fields = ConfigFields({**fields.values, "num_kv_heads": 1}, fields.path)
    elif not fields.has("num_kv_heads"):
        heads = fields.count("num_attention_heads")
        fields = fields.with_defaults({"num_kv_heads": heads})
    return _plain_decoder(fields, rank)


def _attention_only(fields: ConfigFields, rank: RankShape) -> Layers:
    return tuple(
        LayerDecl(parts=(attention_part(fields, rank, window_tokens=window),))
        for window in layer_windows(fields)
    )


def _latent(fields: ConfigFields, rank: RankShape) -> Layers:
    if fields.has("index_topk"):
        raise DeclareError(
            f"{fields.named('index_topk')} is {shown(fields.values['index_topk'])}: kvd does not "
            "store the keys of a sparse-attention indexer"
        )
    divide_query_heads(fields, rank)
    return (LayerDecl(parts=(latent_part(fields, rank),)),) * layer_count_of(fields)


def _gpt_oss(fields: ConfigFields, rank: RankShape) -> Layers:
    if fields.has("layer_types"):
        return _attention_only(fields, rank)
    kinds = [
        "full_attention" if place % 2 else "sliding_attention"
        for place in range(layer_count_of(fields))
    ]
    return _attention_only(fields.with_defaults({"layer_types": kinds}), rank)


def _shared_tail(fields: ConfigFields, rank: RankShape) -> Layers:
    """Gemma-3n: the last layers read the KV of the last earlier layer of their own kind."""
    windows = layer_windows(fields)
    shared = fields.count("num_kv_shared_layers", default=0, count_min=0)
    first = len(windows) - shared
    layers: list[LayerDecl] = []
    for place, window in enumerate(windows):
        if place < first:
            layers.append(LayerDecl(parts=(attention_part(fields, rank, window_tokens=window),)))
            continue
        sources = [source for source in range(max(0, first)) if windows[source] == window]
        if not sources:
            raise DeclareError(
                f"{fields.named('num_kv_shared_layers')} is {shared}: layer {place} has no "
                "earlier layer of its own kind to share with"
            )
        layers.append(LayerDecl(shares_layer_index=sources[-1]))
    return tuple(layers)


FAMILIES: Final[Mapping[str, Family]] = {
    **dict.fromkeys(PLAIN_DECODERS, _plain_decoder),
    "bamba": bamba_layers,
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "deepseek_v32": _latent,
    "falcon": _falcon,
    "falcon_h1": falcon_h1_layers,
    "gemma3n_text": _shared_tail,
    "gpt_oss": _gpt_oss,
    "granitemoehybrid": bamba_layers,
    "hymba": hymba_layers,
    "jamba": jamba_layers,
    "kimi_k2": _latent,
    "kimi_linear": kimi_linear_layers,
    "lfm2": lfm2_layers,
    "lfm2_moe": lfm2_layers,
    "minimax": minimax_layers,
    "minimax_m1": minimax_layers,
    "minimax_m2": minimax_layers,
    "minimax_text_01": minimax_layers,
    "nemotron_h": nemotron_h_layers,
    "phi4flash": phi4_flash_layers,
    "qwen3_5_moe_text": qwen3_next_layers,
    "qwen3_5_text": qwen3_next_layers,
    "qwen3_next": qwen3_next_layers,
}
"""By ``model_type``; for a model of several kinds of input, that of its text part."""
