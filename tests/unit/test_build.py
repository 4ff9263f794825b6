"""Storage plans: the byte figures of real models, and views that do not overlap."""

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from kvd.build import GroupStorage, build_group
from kvd.errors import DeclareError, PlanError, SizeError
from kvd.presets import preset_config, preset_names
from kvd_proto.memory import (
    AttentionPart,
    DeclaredConfig,
    DeclaredLayers,
    DType,
    LayerDecl,
    LayerView,
    Lifetime,
    SizingInputs,
    StatePart,
    StateTensor,
    StoragePlan,
)

GiB = 1 << 30


def preset(name: str, *, tp: int = 1, pp: int = 1, **inputs: int | str) -> GroupStorage:
    return build_group(
        DeclaredConfig(config_json=preset_config(name), name=name),
        inputs=msgspec.convert(inputs, SizingInputs),
        tp_count=tp,
        pp_count=pp,
    )


def entries(group: GroupStorage) -> list[dict[str, int]]:
    return [{band.name: band.entry_bytes for band in stage.storage.bands} for stage in group.stages]


def attention(window_tokens: int | None = None) -> AttentionPart:
    return AttentionPart(
        kv_head_count=2,
        key_element_count=16,
        value_element_count=8,
        window_tokens=window_tokens,
    )


STATE = StatePart(
    conv=(
        StateTensor(shape=(3, 5), dtype=DType.BFLOAT16),
        StateTensor(shape=(2, 4), dtype=DType.BFLOAT16),
    ),
    recurrent=StateTensor(shape=(2, 3, 4), dtype=DType.FLOAT32),
)
MIXED = DeclaredLayers(
    layers=(
        LayerDecl(parts=(STATE,)),
        LayerDecl(parts=(attention(8),)),
        LayerDecl(parts=(attention(), STATE)),
        LayerDecl(),
        LayerDecl(shares_layer_index=2),
    ),
    draft_layers=(LayerDecl(parts=(attention(),)),),
    context_tokens=64,
    name="mixed",
)


def mixed(**inputs: int) -> StoragePlan:
    group = build_group(
        MIXED,
        inputs=msgspec.convert(
            {
                "budget_bytes": 2_000_000,
                "page_tokens": 4,
                "running_requests_count": 3,
                **inputs,
            },
            SizingInputs,
        ),
    )
    return group.stages[0].storage


@pytest.mark.parametrize(
    ("name", "sizes", "page_bytes", "sink_bytes"),
    [
        ("gpt-oss-20b", {"window_128": 24_576, "full": 24_576}, 1_572_864, 1_572_864),
        ("gemma-3-27b", {"window_1024": 425_984, "full": 81_920}, 5_242_880, 27_262_976),
        ("qwen3-next-80b-a3b", {"state": 77_266_944, "full": 24_576}, 1_572_864, 77_266_944),
        ("jamba-1.5-mini", {"state": 16_056_320, "full": 16_384}, 1_048_576, 16_056_320),
        ("nemotron-h-8b", {"state": 102_137_856, "full": 16_384}, 1_048_576, 102_137_856),
        ("deepseek-v3", {"full": 70_272}, 4_497_408, 4_497_408),
        ("kimi-linear-48b-a3b", {"state": 43_417_600, "full": 8_064}, 516_096, 43_417_600),
        ("llama-4-scout", {"window_8192": 147_456, "full": 49_152}, 3_145_728, 9_437_184),
        (
            "phi-4-mini-flash",
            {"state": 3_225_600, "window_512": 40_960, "full": 5_120},
            327_680,
            3_225_600,
        ),
    ],
)
def test_models_cost_what_their_layers_say(
    name: str, sizes: dict[str, int], page_bytes: int, sink_bytes: int
) -> None:
    group = preset(name)
    assert entries(group) == [sizes]
    plan = group.stages[0].storage
    assert (plan.bands[-1].unit_bytes, plan.sink_bytes) == (page_bytes, sink_bytes)


def test_a_window_page_of_gemma_costs_its_own_entry() -> None:
    assert preset("gemma-3-27b").stages[0].storage.bands[0].unit_bytes == 27_262_976


@pytest.mark.parametrize(
    ("name", "conv_bytes", "recurrent_bytes"),
    [
        ("qwen3-next-80b-a3b", 1_769_472, 75_497_472),
        ("jamba-1.5-mini", 1_376_256, 14_680_064),
        ("nemotron-h-8b", 1_474_560, 100_663_296),
        ("kimi-linear-48b-a3b", 1_474_560, 41_943_040),
    ],
)
def test_a_slot_is_its_convolutions_and_its_recurrent_tensors(
    name: str, conv_bytes: int, recurrent_bytes: int
) -> None:
    tensors = preset(name).stages[0].sized.bands[0].tensors
    recurrent = [tensor for tensor in tensors if tensor.role == "recurrent"]
    assert sum(tensor.tensor_bytes for tensor in recurrent) == recurrent_bytes
    assert sum(tensor.tensor_bytes for tensor in tensors) - recurrent_bytes == conv_bytes
    assert min(tensor.offset_bytes for tensor in recurrent) == conv_bytes


def test_gpt_oss_at_tp_8_has_3072_bytes_per_token_and_band() -> None:
    assert entries(preset("gpt-oss-20b", tp=8)) == [{"window_128": 3072, "full": 3072}]


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_qwen3_next_replicates_its_two_kv_heads_and_divides_its_state(tp: int) -> None:
    assert entries(preset("qwen3-next-80b-a3b", tp=tp)) == [
        {"state": 77_266_944 // tp, "full": 12_288}
    ]


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 32, 64, 128])
def test_deepseek_v3_stores_the_same_latents_at_any_tp(tp: int) -> None:
    assert entries(preset("deepseek-v3", tp=tp)) == [{"full": 70_272}]


@pytest.mark.case("74")
def test_gpt_oss_at_pp_2_has_12288_bytes_per_band_and_stage() -> None:
    assert entries(preset("gpt-oss-20b", pp=2)) == [{"window_128": 12_288, "full": 12_288}] * 2


@pytest.mark.parametrize(
    ("name", "pp", "stage"),
    [
        ("gpt-oss-20b", 24, r"stage 0 \(layer 0\)"),
        ("qwen3-next-80b-a3b", 16, r"stage 0 \(layers 0 to 2\)"),
    ],
)
def test_a_partition_that_starves_a_stage_is_refused_naming_it(
    name: str, pp: int, stage: str
) -> None:
    with pytest.raises(PlanError, match=stage):
        preset(name, pp=pp)


def test_fp8_halves_token_bands_and_leaves_states() -> None:
    assert entries(preset("qwen3-next-80b-a3b", kv_dtype="fp8")) == [
        {"state": 77_266_944, "full": 12_288}
    ]


def test_ranks_that_cannot_share_the_heads_are_refused() -> None:
    with pytest.raises(DeclareError, match="num_attention_heads is 64, which 3"):
        preset("gpt-oss-20b", tp=3)


def test_a_40_gib_arena_has_the_grids_that_its_bytes_say() -> None:
    plan = preset("qwen3-next-80b-a3b").stages[0].storage
    state, full = plan.bands
    assert (state.unit_index_min, state.unit_index_end_count) == (1, plan.arena_bytes // 77_266_944)
    assert (full.unit_index_min, full.unit_index_end_count) == (50, plan.arena_bytes // 1_572_864)


@pytest.mark.parametrize(
    ("name", "byte_sum"), [("gemma-3-27b", 490_733_568), ("qwen3-next-80b-a3b", 309_067_776)]
)
def test_the_floor_is_above_the_byte_sum_and_accepted(name: str, byte_sum: int) -> None:
    floor = preset(name).budget_floor_bytes
    assert byte_sum < floor < byte_sum * 1.03
    assert preset(name, budget_bytes=floor).stages[0].sized.running_requests_count == 1
    with pytest.raises(SizeError, match="short by 1 bytes"):
        preset(name, budget_bytes=floor - 1)


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("tp", [1, 2])
def test_no_two_tensors_of_a_preset_overlap_unless_layers_share(name: str, tp: int) -> None:
    for band in preset(name, tp=tp).stages[0].sized.bands:
        spans = sorted(
            {
                (tensor.offset_bytes, tensor.offset_bytes + tensor.tensor_bytes)
                for tensor in band.tensors
            }
        )
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert spans[-1][1] <= band.entry_bytes


@pytest.mark.parametrize("name", preset_names())
def test_every_view_of_a_preset_ends_inside_the_arena(name: str) -> None:
    plan = preset(name).stages[0].storage
    ends = [view_end_bytes(view) for view in plan.views]
    assert max(ends) <= plan.arena_bytes
    assert max(ends) > 1 << 32


def view_end_bytes(view: LayerView) -> int:
    inner = sum(
        (size - 1) * stride for size, stride in zip(view.shape, view.strides_bytes, strict=True)
    )
    last = view.offset_bytes + (view.index_end_count - 1) * view.index_stride_bytes
    return last + inner + view.dtype.element_bytes


def as_array(memory: NDArray[np.uint8], view: LayerView) -> NDArray[np.uint32]:
    """Return the view over an arena as raw integers of the element size."""
    return np.ndarray(
        shape=(view.index_end_count, *view.shape),
        dtype=f"u{view.dtype.element_bytes}",
        buffer=memory,
        offset=view.offset_bytes,
        strides=(view.index_stride_bytes, *view.strides_bytes),
    )


def pattern(view: LayerView, number: int) -> NDArray[np.int64]:
    """Return what a test writes through a view: other numbers in each place and view."""
    places = np.arange(view.index_end_count, dtype=np.int64)
    return ((places * 31 + number) % 65_521).reshape((-1, *[1] * len(view.shape)))


@pytest.mark.parametrize("band", ["state", "window_8", "full"])
def test_what_is_written_through_one_view_is_seen_by_no_other(band: str) -> None:
    plan = mixed()
    memory = np.zeros(plan.total_bytes, np.uint8)
    views = [view for view in plan.views if view.band == band and view.layer_index != 4]
    for number, view in enumerate(views):
        as_array(memory, view)[...] = pattern(view, number)
    assert len(views) >= 2
    assert all(
        bool((as_array(memory, view) == pattern(view, number)).all())
        for number, view in enumerate(views)
    )
    assert not memory[plan.arena_bytes :].any()


def test_a_layer_that_shares_has_the_views_of_its_source() -> None:
    plan = mixed()
    own = [view for view in plan.views if view.layer_index == 2 and view.role in ("k", "v")]
    shared = [view for view in plan.views if view.layer_index == 4]
    assert [msgspec.structs.replace(view, layer_index=2) for view in shared] == own


def test_a_layer_without_parts_has_no_view() -> None:
    assert not [view for view in mixed().views if view.layer_index == 3]


@pytest.mark.case("48")
def test_rows_of_a_view_are_dense_and_an_entry_apart() -> None:
    plan = mixed()
    view = next(view for view in plan.views if view.role == "v" and view.band == "full")
    assert (view.shape, view.strides_bytes) == ((2, 8), (16, 2))
    assert view.index_stride_bytes == plan.bands[-1].entry_bytes


def test_a_view_counts_tokens_in_token_bands_and_slots_in_the_state_band() -> None:
    plan = mixed()
    ends = {view.band: view.index_end_count for view in plan.views}
    state, window, full = plan.bands
    assert ends == {
        "state": state.unit_index_end_count,
        "window_8": window.unit_index_end_count * 4,
        "full": full.unit_index_end_count * 4,
    }


def test_bands_come_in_address_order_with_their_lifetimes() -> None:
    assert [(band.chain_index, band.lifetime, band.page_tokens) for band in mixed().bands] == [
        (0, Lifetime.STATE, 1),
        (1, Lifetime.WINDOW, 4),
        (2, Lifetime.FULL, 4),
    ]


def test_tables_lie_behind_the_arena_in_the_same_mapping() -> None:
    plan = mixed(tracking_slots=1, draft_tokens=2)
    region = plan.region
    assert region.state_table is not None
    assert region.draft_states is not None
    tables = (
        region.request_table,
        region.row_lengths,
        region.state_table,
        region.draft_states,
        region.progress,
        region.scratch,
    )
    spans = [(table.offset_bytes, table.offset_bytes + table.table_bytes) for table in tables]
    spans += [
        (band_map.offset_bytes, band_map.offset_bytes + 4 * band_map.entry_count)
        for band_map in region.band_maps
    ]
    spans.sort()
    assert plan.arena_bytes <= spans[0][0]
    assert spans[-1][1] <= plan.total_bytes
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_tables_have_a_row_per_request_and_one_for_padding() -> None:
    region = mixed(tracking_slots=1).region
    assert region.state_table is not None
    assert (region.request_table.row_count, region.request_table.column_count) == (4, 17)
    assert (region.row_lengths.row_count, region.state_table.column_count) == (4, 2)


def test_maps_cover_all_ids() -> None:
    plan = mixed()
    counts = {band_map.band: band_map.entry_count for band_map in plan.region.band_maps}
    assert counts["window_8"] == counts["full"] == plan.virtual_page_count
    assert counts["state"] == plan.virtual_slot_count


def test_maps_of_a_pipeline_have_an_entry_per_name_on_every_stage() -> None:
    """Layers do not part evenly, so that one stage has room for more pages than there are names."""
    stages = preset("gpt-oss-20b", pp=5).stages
    assert len({stage.sized.geometry.bands[-1].unit_index_end_count for stage in stages}) > 1
    for stage in stages:
        counts = {band_map.entry_count for band_map in stage.storage.region.band_maps}
        assert counts == {stage.storage.virtual_page_count}


def test_a_plan_survives_the_wire() -> None:
    plan = mixed(draft_tokens=2)
    encoded = msgspec.msgpack.encode(plan)
    assert msgspec.msgpack.decode(encoded, type=StoragePlan) == plan


def test_the_same_inputs_give_the_same_plan() -> None:
    assert mixed() == mixed()


def test_a_groups_inputs_win_over_the_daemons_settings() -> None:
    group = build_group(
        MIXED,
        inputs=SizingInputs(page_tokens=8),
        settings=SizingInputs(page_tokens=16, budget_bytes=4_000_000),
    )
    assert (group.values.page_tokens, group.values.budget_bytes) == (8, 4_000_000)
