"""From a declaration to layers."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.declare.model import LAYERS_COUNT_MAX, declare_model
from kvd.errors import DeclareError
from kvd.presets import preset_config, preset_names
from kvd_proto.memory import (
    AttentionPart,
    DeclaredConfig,
    DeclaredLayers,
    DType,
    LayerDecl,
)

PLAIN = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "hidden_size": 512,
    "max_position_embeddings": 4096,
}


def declared(config: object, **more: object) -> DeclaredConfig:
    text = config if isinstance(config, bytes) else msgspec.json.encode(config)
    draft = more.get("draft")
    return DeclaredConfig(
        config_json=text,
        draft_config_json=None if draft is None else msgspec.json.encode(draft),
    )


def first_part(model: DeclaredLayers) -> AttentionPart:
    part = model.layers[0].parts[0]
    assert isinstance(part, AttentionPart)
    return part


def test_a_configuration_is_cut_for_one_rank() -> None:
    assert first_part(declare_model(declared(PLAIN), tp_count=4)).kv_head_count == 2


def test_the_cache_type_reaches_every_part() -> None:
    assert first_part(declare_model(declared(PLAIN), kv_dtype="fp8")).dtype is DType.UINT8


def test_declared_parts_come_through_unchanged() -> None:
    part = AttentionPart(kv_head_count=3, key_element_count=8, value_element_count=8)
    model = DeclaredLayers(layers=(LayerDecl(parts=(part,)),), context_tokens=128)
    assert declare_model(model, tp_count=4, kv_dtype="fp8") is model


@pytest.mark.parametrize("section", ["text_config", "language_config", "llm_config"])
def test_the_text_part_of_a_model_of_several_inputs_counts(section: str) -> None:
    model = declare_model(declared({"model_type": "any_vl", section: PLAIN}))
    assert (len(model.layers), model.context_tokens) == (2, 4096)


def test_a_text_part_without_a_type_has_that_of_the_whole() -> None:
    inner = {key: value for key, value in PLAIN.items() if key != "model_type"}
    outer = {"model_type": "gpt_oss", "text_config": {**inner, "sliding_window": 16}}
    layers = declare_model(declared(outer)).layers
    parts = [part for layer in layers for part in layer.parts]
    assert [isinstance(part, AttentionPart) and part.window_tokens for part in parts] == [16, None]


@pytest.mark.parametrize("model_type", ["foobar", "bert", "gpt2"])
def test_an_unknown_architecture_is_refused_before_its_fields_are_read(model_type: str) -> None:
    with pytest.raises(DeclareError, match=f"^model_type '{model_type}' is unknown to kvd"):
        declare_model(declared({"model_type": model_type}))


@pytest.mark.parametrize("nothing", [{}, {"model_type": None}, {"model_type": ""}])
def test_a_configuration_without_an_architecture_names_the_missing_key(
    nothing: dict[str, object],
) -> None:
    silent = {key: value for key, value in PLAIN.items() if key != "model_type"}
    with pytest.raises(DeclareError, match=r"^model_type is missing.*declared as parts$"):
        declare_model(declared({**silent, **nothing}))


def test_a_text_part_without_any_type_names_the_key_with_its_section() -> None:
    silent = {key: value for key, value in PLAIN.items() if key != "model_type"}
    with pytest.raises(DeclareError, match=r"^text_config\.model_type is missing"):
        declare_model(declared({"text_config": silent}))


def test_a_draft_of_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(DeclareError, match="model_type 'foobar' is unknown"):
        declare_model(declared(PLAIN, draft={**PLAIN, "model_type": "foobar"}))


def test_a_draft_model_is_declared_beside_the_target() -> None:
    model = declare_model(declared(PLAIN, draft={**PLAIN, "num_hidden_layers": 1}))
    assert len(model.draft_layers) == 1


def test_a_configuration_that_names_no_context_leaves_it_open() -> None:
    silent = {key: value for key, value in PLAIN.items() if key != "max_position_embeddings"}
    assert declare_model(declared(silent)).context_tokens == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe{}", "is not JSON"),
        (b"[1, 2]", "holds list: expected a JSON object"),
        (b"{}", "model_type is missing"),
        (b'{"model_type": "llama"}', "num_hidden_layers is missing"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
)
def test_a_text_that_is_no_configuration_is_refused(text: bytes, complaint: str) -> None:
    with pytest.raises(DeclareError, match=complaint):
        declare_model(declared(text))


def test_infinity_as_published_files_write_it_is_read() -> None:
    text = msgspec.json.encode(PLAIN)[:-1] + b', "time_step_limit": [0.0, Infinity]}'
    assert len(declare_model(declared(text)).layers) == 2


def test_an_encoder_decoder_is_refused() -> None:
    with pytest.raises(DeclareError, match="is_encoder_decoder is true"):
        declare_model(declared({**PLAIN, "is_encoder_decoder": True}))


def test_an_absurd_number_of_layers_is_refused() -> None:
    with pytest.raises(DeclareError, match="num_hidden_layers is 4097"):
        declare_model(declared({**PLAIN, "num_hidden_layers": LAYERS_COUNT_MAX + 1}))


@pytest.mark.parametrize("tp_count", [0, -1])
def test_less_than_one_rank_is_refused(tp_count: int) -> None:
    with pytest.raises(DeclareError, match=f"tp is {tp_count}"):
        declare_model(declared(PLAIN), tp_count=tp_count)


def test_no_layers_are_refused() -> None:
    with pytest.raises(DeclareError, match="no layers"):
        declare_model(DeclaredLayers(layers=(), context_tokens=1))


def test_a_negative_context_is_refused() -> None:
    with pytest.raises(DeclareError, match="context_tokens is -1"):
        declare_model(DeclaredLayers(layers=(LayerDecl(),), context_tokens=-1))


def test_a_wrong_draft_layer_is_named_as_one() -> None:
    model = DeclaredLayers(
        layers=(LayerDecl(),),
        draft_layers=(LayerDecl(shares_layer_index=0),),
        context_tokens=1,
    )
    with pytest.raises(DeclareError, match="draft layer 0 shares"):
        declare_model(model)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(-2, 70), st.text(max_size=4), st.none()), max_size=70),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


@settings(print_blob=True, deadline=None, max_examples=150)
@given(st.sampled_from(preset_names()), st.data())
def test_a_damaged_configuration_is_read_or_refused_and_nothing_else(
    name: str, data: st.DataObject
) -> None:
    config: dict[str, Any] = json.loads(preset_config(name))
    inner: dict[str, Any] = config.get("text_config", config)
    inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(JUNK)
    try:
        model = declare_model(declared(json.dumps(config).encode()), tp_count=2)
    except DeclareError:
        return
    assert len(model.layers) == inner["num_hidden_layers"]
