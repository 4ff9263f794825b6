"""From a declaration to layers: the one door of this package.

A configuration is read here; parts that an engine declared itself come through unchanged. Either
way `check_layers` has passed, so what follows may rely on it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from kvd.declare.attention import layer_count_of
from kvd.declare.family import KIND_DEFAULTS, family_of
from kvd.declare.fields import ConfigFields
from kvd.declare.parts import check_layers
from kvd.declare.shard import RankShape, kv_dtype_of
from kvd.errors import DeclareError
from kvd_proto.memory import Declaration, DeclaredConfig, DeclaredLayers, LayerDecl

LAYERS_COUNT_MAX: Final = 4096
"""The deepest published models have a few hundred; a larger number is a broken file."""

_TEXT_SECTIONS: Final = ("text_config", "language_config", "llm_config")
_CONTEXT_KEYS: Final = (
    "max_position_embeddings",
    "model_max_length",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_positions",
)


def declare_model(
    declaration: Declaration, *, tp_count: int = 1, kv_dtype: str = "bf16"
) -> DeclaredLayers:
    """Return the layers of a model with the sizes of one of ``tp_count`` ranks.

    ``tp_count`` and ``kv_dtype`` concern configurations; parts declared one by one already have
    the sizes and types of a rank. ``context_tokens`` is 0 where a configuration does not say it.
    Raises DeclareError naming the key or the layer that is wrong.
    """
    if tp_count < 1:
        raise DeclareError(f"tp is {tp_count}: expected at least 1 rank")
    if isinstance(declaration, DeclaredConfig):
        declared = _from_config(
            declaration, RankShape(tp_count=tp_count, kv_dtype=kv_dtype_of(kv_dtype))
        )
    else:
        declared = declaration
    if declared.context_tokens < 0:
        raise DeclareError(f"context_tokens is {declared.context_tokens}: expected at least 0")
    check_layers(declared.layers, model="layer")
    check_layers(declared.draft_layers, model="draft layer")
    if not declared.layers:
        raise DeclareError("the declaration has no layers")
    return declared


def decode_config(text: bytes, *, what: str = "config.json") -> Mapping[str, Any]:
    """Return a configuration's fields; DeclareError if the text is not a JSON object."""
    try:
        # The standard parser, since published files hold Infinity, which strict ones refuse.
        value = json.loads(text)
    except RecursionError as error:
        raise DeclareError(f"{what} is nested too deeply for a configuration") from error
    except ValueError as error:
        raise DeclareError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DeclareError(f"{what} holds {type(value).__name__}: expected a JSON object")
    return cast("dict[str, Any]", value)


def _from_config(declaration: DeclaredConfig, rank: RankShape) -> DeclaredLayers:
    target = _text_fields(decode_config(declaration.config_json))
    draft_layers: tuple[LayerDecl, ...] = ()
    if declaration.draft_config_json is not None:
        draft = _text_fields(decode_config(declaration.draft_config_json, what="the draft's"))
        draft_layers = _layers_of(draft, rank)
    return DeclaredLayers(
        layers=_layers_of(target, rank),
        context_tokens=next((target.count(key) for key in _CONTEXT_KEYS if target.has(key)), 0),
        draft_layers=draft_layers,
        name=declaration.name or target.text("_name_or_path", default=""),
    )


def _text_fields(config: Mapping[str, Any]) -> ConfigFields:
    """Return the fields of the language model, wherever the file keeps them."""
    fields = ConfigFields(config)
    if not fields.has("num_hidden_layers"):
        section = next((key for key in _TEXT_SECTIONS if fields.has(key)), None)
        if section is not None:
            outer_type = fields.text("model_type", default="")
            fields = fields.section(section).with_defaults({"model_type": outer_type})
    if fields.flag("is_encoder_decoder", default=False):
        raise DeclareError(
            f"{fields.named('is_encoder_decoder')} is true: kvd serves decoders only"
        )
    return fields.with_defaults(KIND_DEFAULTS.get(fields.text("model_type", default=""), {}))


def _layers_of(fields: ConfigFields, rank: RankShape) -> tuple[LayerDecl, ...]:
    # First of all: fields of an unknown architecture may have any names.
    model_type = fields.text("model_type", default="")
    if not model_type:
        raise DeclareError(
            f"{fields.named('model_type')} is missing: expected the name of an architecture, as "
            "llama; a model without one is declared as parts"
        )
    family = family_of(model_type)
    count = layer_count_of(fields)
    if count > LAYERS_COUNT_MAX:
        raise DeclareError(
            f"{fields.named('num_hidden_layers')} is {count}: expected at most {LAYERS_COUNT_MAX}"
        )
    return family(fields, rank)
