"""Pipeline stages: layer ranges, and that all of them have the same bands."""

import pytest

from kvd.errors import PlanError
from kvd.plan.stage import plan_stages
from kvd_proto.memory import (
    AttentionPart,
    DeclaredLayers,
    DType,
    LayerDecl,
    StatePart,
    StateTensor,
)

FULL = LayerDecl(
    parts=(AttentionPart(kv_head_count=1, key_element_count=16, value_element_count=16),)
)
WINDOW = LayerDecl(
    parts=(
        AttentionPart(
            kv_head_count=1, key_element_count=16, value_element_count=16, window_tokens=8
        ),
    )
)
STATE = LayerDecl(parts=(StatePart(recurrent=StateTensor(shape=(4, 4), dtype=DType.FLOAT32)),))


def model(*layers: LayerDecl, draft: tuple[LayerDecl, ...] = ()) -> DeclaredLayers:
    return DeclaredLayers(layers=layers, draft_layers=draft, context_tokens=128)


def ranges(
    declared: DeclaredLayers, pp_count: int, given: tuple[int, ...] | None = None
) -> list[tuple[int, int]]:
    stages = plan_stages(declared, pp_count=pp_count, stage_layers_count=given)
    return [(stage.layer_index_min, stage.layer_end_count) for stage in stages]


def test_layers_are_shared_out_evenly() -> None:
    assert ranges(model(*[FULL] * 6), 3) == [(0, 2), (2, 4), (4, 6)]


def test_earlier_stages_take_what_is_left_over() -> None:
    assert ranges(model(*[FULL] * 8), 3) == [(0, 3), (3, 6), (6, 8)]


def test_given_counts_are_followed() -> None:
    assert ranges(model(*[FULL] * 6), 2, (1, 5)) == [(0, 1), (1, 6)]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ((6,), "names 1 stages: expected pp, 2"),
        ((0, 6), r"\[0, 6\]"),
        ((3, 4), "6 in all"),
    ],
)
def test_wrong_counts_are_refused(given: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        ranges(model(*[FULL] * 6), 2, given)


@pytest.mark.parametrize("pp_count", [0, -1, 7])
def test_more_stages_than_layers_or_none_are_refused(pp_count: int) -> None:
    with pytest.raises(PlanError, match=f"pp is {pp_count}: expected 1 to 6"):
        ranges(model(*[FULL] * 6), pp_count)


def test_a_stage_keeps_the_models_layer_numbers() -> None:
    stages = plan_stages(model(*[FULL] * 4), pp_count=2)
    assert [tensor.layer_index for tensor in stages[1].bands[0].tensors] == [2, 2, 3, 3]


def test_a_stage_without_full_attention_is_named_with_its_layers() -> None:
    with pytest.raises(PlanError, match=r"stage 1 \(layers 2 to 3\) has no layer with full"):
        plan_stages(model(FULL, WINDOW, WINDOW, WINDOW), pp_count=2)


def test_a_stage_without_a_band_of_another_is_named() -> None:
    with pytest.raises(PlanError, match=r"stage 1 \(layer 2\) has no layer for band window_8"):
        plan_stages(model(FULL, WINDOW, FULL), pp_count=2)


def test_the_draft_lives_in_the_last_stage() -> None:
    stages = plan_stages(model(FULL, FULL, draft=(FULL,)), pp_count=2)
    assert [stage.bands[0].entry_bytes for stage in stages] == [64, 128]


def test_a_draft_window_that_other_stages_lack_is_refused() -> None:
    with pytest.raises(PlanError, match=r"stage 0 .* window_8, which stage 1 has"):
        plan_stages(model(FULL, FULL, draft=(WINDOW,)), pp_count=2)


def test_a_recurrent_draft_of_a_target_without_states_is_refused() -> None:
    with pytest.raises(PlanError, match="draft layer 1 has a state, but the target"):
        plan_stages(model(FULL, draft=(FULL, STATE)), checkpoint_tokens=64)


def test_a_recurrent_draft_without_checkpoints_is_refused() -> None:
    with pytest.raises(PlanError, match="draft layer 0 has a state, which needs a checkpoint"):
        plan_stages(model(FULL, STATE, draft=(STATE,)))


def test_a_recurrent_draft_with_checkpoints_shares_the_targets_slot() -> None:
    (stage,) = plan_stages(model(FULL, STATE, draft=(STATE,)), checkpoint_tokens=64)
    assert [len(band.tensors) for band in stage.bands] == [2, 2]
