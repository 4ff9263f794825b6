"""Bands of one stage: grouping, order, layout inside an entry, refusals."""

import pytest

from kvd.errors import PlanError
from kvd.plan.storage import PlacedLayer, PlannedBand, plan_bands
from kvd_proto.memory import (
    AttentionPart,
    DType,
    LatentPart,
    LayerDecl,
    ModelRole,
    Part,
    StatePart,
    StateTensor,
)


def attention(*, heads: int = 1, elements: int = 16, window: int | None = None) -> AttentionPart:
    return AttentionPart(
        kv_head_count=heads,
        key_element_count=elements,
        value_element_count=elements,
        window_tokens=window,
    )


def state(*, channels: int = 8) -> StatePart:
    return StatePart(
        conv=(StateTensor(shape=(3, channels), dtype=DType.BFLOAT16),),
        recurrent=StateTensor(shape=(2, 4), dtype=DType.FLOAT32),
    )


def placed(*layers: LayerDecl, model: ModelRole = ModelRole.TARGET) -> tuple[PlacedLayer, ...]:
    return tuple(
        PlacedLayer(model=model, layer_index=index, layer=layer)
        for index, layer in enumerate(layers)
    )


def one(*parts: Part) -> LayerDecl:
    return LayerDecl(parts=parts)


def bands_of(*layers: PlacedLayer) -> tuple[PlannedBand, ...]:
    return plan_bands(layers, stage="stage 0")


def places(band: PlannedBand) -> list[tuple[int, str, int]]:
    return [(tensor.layer_index, tensor.role, tensor.offset_bytes) for tensor in band.tensors]


def test_the_chain_is_state_then_windows_from_the_longest_then_full() -> None:
    layers = placed(
        one(attention(window=16)), one(attention()), one(attention(window=64)), one(state())
    )
    assert [band.name for band in bands_of(*layers)] == ["state", "window_64", "window_16", "full"]


def test_full_attention_alone_is_a_chain_of_one_band() -> None:
    assert [band.name for band in bands_of(*placed(one(attention())))] == ["full"]


def test_a_token_entry_holds_layer_after_layer_keys_before_values() -> None:
    (band,) = bands_of(*placed(one(attention(heads=2)), one(attention(heads=2))))
    assert places(band) == [(0, "k", 0), (0, "v", 64), (1, "k", 128), (1, "v", 192)]
    assert band.entry_bytes == 256


def test_a_latent_row_stands_for_keys_and_values() -> None:
    part = LatentPart(element_count=24, value_element_count=16)
    (band,) = bands_of(*placed(one(part), one(part)))
    assert places(band) == [(0, "latent", 0), (1, "latent", 48)]
    assert band.entry_bytes == 96


def test_a_token_entry_is_padded_to_32_bytes() -> None:
    part = LatentPart(element_count=24, value_element_count=16)
    (band,) = bands_of(*placed(one(part)))
    assert band.entry_bytes == 64


def test_a_slot_stacks_each_tensor_over_the_layers_and_is_padded_to_256_bytes() -> None:
    band, _ = bands_of(*placed(one(state()), one(state()), one(attention())))
    assert places(band) == [
        (0, "conv_0", 0),
        (1, "conv_0", 48),
        (0, "recurrent", 96),
        (1, "recurrent", 128),
    ]
    assert band.entry_bytes == 256


def test_stacked_tensors_start_on_16_bytes() -> None:
    band, _ = bands_of(*placed(one(state(channels=9)), one(attention())))
    assert places(band) == [(0, "conv_0", 0), (0, "recurrent", 64)]


def test_a_layer_with_attention_and_state_is_in_both_bands() -> None:
    bands = bands_of(*placed(one(attention(), state())))
    assert [[tensor.layer_index for tensor in band.tensors] for band in bands] == [[0, 0], [0, 0]]


def test_a_layer_that_shares_adds_no_bytes_and_has_the_same_place() -> None:
    (alone,) = bands_of(*placed(one(attention())))
    (shared,) = bands_of(*placed(one(attention()), LayerDecl(shares_layer_index=0)))
    assert shared.entry_bytes == alone.entry_bytes
    assert places(shared) == [(0, "k", 0), (0, "v", 32), (1, "k", 0), (1, "v", 32)]


def test_a_sharing_layer_may_keep_a_state_of_its_own() -> None:
    layers = placed(one(attention(), state()), LayerDecl(parts=(state(),), shares_layer_index=0))
    states, full = bands_of(*layers)
    assert [tensor.layer_index for tensor in states.tensors] == [0, 1, 0, 1]
    assert [tensor.layer_index for tensor in full.tensors] == [0, 0, 1, 1]


def test_a_draft_follows_the_target_inside_the_entry() -> None:
    layers = placed(one(attention(heads=2)))
    draft = placed(one(attention(heads=1)), model=ModelRole.DRAFT)
    (band,) = bands_of(*layers, *draft)
    assert [(tensor.model, tensor.offset_bytes) for tensor in band.tensors] == [
        (ModelRole.TARGET, 0),
        (ModelRole.TARGET, 64),
        (ModelRole.DRAFT, 128),
        (ModelRole.DRAFT, 160),
    ]
    assert band.entry_bytes == 192


def test_a_window_of_the_draft_that_the_target_lacks_is_a_band_of_its_own() -> None:
    draft = placed(one(attention(window=8)), model=ModelRole.DRAFT)
    bands = bands_of(*placed(one(attention())), *draft)
    assert [band.name for band in bands] == ["window_8", "full"]


def test_a_stage_without_full_attention_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="stage 0 has no layer with full attention"):
        bands_of(*placed(one(attention(window=8)), one(state())))


@pytest.mark.parametrize(
    "other",
    [
        attention(heads=2),
        attention(elements=32),
        LatentPart(element_count=16, value_element_count=8),
    ],
)
def test_two_geometries_in_one_band_are_refused_naming_both_layers(other: Part) -> None:
    with pytest.raises(PlanError, match=r"layer 2 has .* but layer 0, which would share its band"):
        bands_of(*placed(one(attention()), one(attention(window=8)), one(other)))


def test_two_state_geometries_are_refused() -> None:
    with pytest.raises(PlanError, match=r"layer 1 has a state of .* but layer 0"):
        bands_of(*placed(one(state(), attention()), one(state(channels=16))))


def test_different_geometries_in_different_bands_are_fine() -> None:
    bands = bands_of(*placed(one(attention(heads=1)), one(attention(heads=4, window=8))))
    assert [band.entry_bytes for band in bands] == [256, 64]


def test_a_draft_with_another_kind_of_rows_is_refused() -> None:
    draft = placed(one(LatentPart(element_count=16, value_element_count=8)), model=ModelRole.DRAFT)
    with pytest.raises(PlanError, match=r"draft layer 0 has latent rows .* one kind of rows"):
        bands_of(*placed(one(attention())), *draft)


def test_a_misaligned_row_is_refused_naming_its_layer() -> None:
    with pytest.raises(
        PlanError, match="layer 0 has k rows of 20 bytes: expected a multiple of 16"
    ):
        bands_of(*placed(one(attention(elements=10))))


def test_keys_in_another_stage_are_refused() -> None:
    layers = placed(one(attention()), one(attention()), LayerDecl(shares_layer_index=0))
    with pytest.raises(PlanError, match="layer 2 in stage 0 reads the KV of layer 0"):
        bands_of(*layers[1:])
