"""Attention parts of a configuration: heads, latents, and how far each layer looks back."""

from kvd.declare.fields import ConfigFields
from kvd.declare.shard import RankShape
from kvd.errors import DeclareError, shown
from kvd.units import exact_div
from kvd_proto.memory import AttentionPart, LatentPart

FULL_NAMES = ("full_attention", "attention", "global_attention", "global")
WINDOW_NAMES = ("sliding_attention", "local_attention", "sliding_window_attention", "local")
CHUNK_NAMES = ("chunked_attention",)
_KV_HEAD_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")


def head_element_count(fields: ConfigFields) -> int:
    """Return the elements of one head; derived from the hidden size where it is not given."""
    for key in ("head_dim", "attention_head_dim"):
        if fields.has(key):
            return fields.count(key)
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    if hidden % heads != 0:
        raise DeclareError(
            f"{fields.named('hidden_size')} is {hidden}, not a multiple of num_attention_heads "
            f"{heads}, and head_dim is missing"
        )
    return exact_div(hidden, heads)


def attention_part(
    fields: ConfigFields, rank: RankShape, *, window_tokens: int | None = None
) -> AttentionPart:
    """Return the keys and values that one rank stores for an attention layer.

    Raises DeclareError when the heads do not fit the number of ranks.
    """
    divide_query_heads(fields, rank)
    key_elements = head_element_count(fields)
    return AttentionPart(
        kv_head_count=_kv_heads_of_rank(fields, rank),
        key_element_count=fields.count("kq_head_dim", default=key_elements),
        value_element_count=fields.count("v_head_dim", default=key_elements),
        dtype=rank.kv_dtype,
        window_tokens=window_tokens,
    )


def divide_query_heads(fields: ConfigFields, rank: RankShape) -> None:
    """Check that ranks can share the query heads; DeclareError if they cannot."""
    key = "num_attention_heads"
    rank.divided(fields.count(key), key=fields.named(key))


def latent_part(fields: ConfigFields, rank: RankShape) -> LatentPart:
    """Return the latent row of an MLA layer; every rank stores all of it."""
    latent = fields.count("kv_lora_rank")
    return LatentPart(
        element_count=latent + fields.count("qk_rope_head_dim"),
        value_element_count=latent,
        dtype=rank.kv_dtype,
    )


def layer_count_of(fields: ConfigFields) -> int:
    """Return the number of layers."""
    return fields.count("num_hidden_layers")


def layer_kinds(fields: ConfigFields, key: str = "layer_types") -> tuple[str, ...]:
    """Return a per-layer list of names; DeclareError if its length is not the number of layers."""
    kinds = fields.texts(key)
    if len(kinds) != layer_count_of(fields):
        raise DeclareError(
            f"{fields.named(key)} has {len(kinds)} entries for {layer_count_of(fields)} layers"
        )
    return kinds


def layer_windows(fields: ConfigFields) -> tuple[int | None, ...]:
    """Return how many tokens each layer looks back; None where it sees all of them.

    Configurations say it in five ways; the most explicit one that is present counts.
    """
    count = layer_count_of(fields)
    if fields.has("layer_types"):
        return tuple(
            window_of_kind(fields, kind, key=f"layer_types[{place}]")
            for place, kind in enumerate(layer_kinds(fields))
        )
    if fields.has("attention_chunk_size"):
        return _chunked_windows(fields, count)
    if not fields.has("sliding_window") or not fields.flag("use_sliding_window", default=True):
        return (None,) * count
    if isinstance(fields.values["sliding_window"], list):
        return _listed_windows(fields, count)
    window = fields.count("sliding_window")
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        if fields.has(key):
            period = fields.count(key)
            return tuple(None if (place + 1) % period == 0 else window for place in range(count))
    first = fields.count("max_window_layers", default=0, count_min=0)
    return tuple(window if place >= first else None for place in range(count))


def window_of_kind(fields: ConfigFields, kind: str, *, key: str) -> int | None:
    """Return the window of a layer type's name; DeclareError if the name is unknown."""
    if kind in FULL_NAMES:
        return None
    if kind in WINDOW_NAMES:
        return fields.count("sliding_window")
    if kind in CHUNK_NAMES:
        return fields.count("attention_chunk_size")
    raise DeclareError(
        f"{fields.named(key)} is {shown(kind)}: kvd knows "
        + ", ".join((FULL_NAMES[0], WINDOW_NAMES[0], CHUNK_NAMES[0]))
        + " here"
    )


def _kv_heads_of_rank(fields: ConfigFields, rank: RankShape) -> int:
    """Return one rank's heads of keys and values; as many as queries where nothing else is said."""
    if fields.flag("multi_query", default=False) and not fields.has("num_kv_heads"):
        return 1
    key = next((key for key in _KV_HEAD_KEYS if fields.has(key)), "num_attention_heads")
    return rank.divided_or_replicated(fields.count(key), key=fields.named(key))


def _chunked_windows(fields: ConfigFields, count: int) -> tuple[int | None, ...]:
    """Return chunks for the layers with rotary positions; the ones without see everything."""
    chunk = fields.count("attention_chunk_size")
    if fields.has("no_rope_layers") and fields.items("no_rope_layers"):
        rotary = fields.counts("no_rope_layers")
        if len(rotary) != count:
            raise DeclareError(
                f"{fields.named('no_rope_layers')} has {len(rotary)} entries for {count} layers"
            )
        return tuple(chunk if flag else None for flag in rotary)
    period = fields.count("no_rope_layer_interval", default=4)
    return tuple(None if (place + 1) % period == 0 else chunk for place in range(count))


def _listed_windows(fields: ConfigFields, count: int) -> tuple[int | None, ...]:
    items = fields.items("sliding_window")
    if len(items) != count:
        raise DeclareError(
            f"{fields.named('sliding_window')} has {len(items)} entries for {count} layers"
        )
    each = ConfigFields(
        {str(place): item for place, item in enumerate(items)}, fields.named("sliding_window")
    )
    return tuple(each.optional_count(str(place)) for place in range(count))
