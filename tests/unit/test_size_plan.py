"""Sized plans: running requests, targets, refusals, stages that agree."""

import msgspec
import pytest

from kvd.errors import SizeError
from kvd.limits import STATE_SHARE_MAX
from kvd.plan.stage import StagePlan, plan_stages
from kvd.price.search import fits_empty
from kvd.size.inputs import SizingValues, resolve_sizing
from kvd.size.plan import SizedPlan, size_stages
from kvd_proto.memory import (
    AttentionPart,
    DeclaredLayers,
    DType,
    LayerDecl,
    SizingInputs,
    StatePart,
    StateTensor,
)

MiB = 1 << 20


def attention(window_tokens: int | None = None, heads: int = 4) -> LayerDecl:
    part = AttentionPart(
        kv_head_count=heads,
        key_element_count=64,
        value_element_count=64,
        window_tokens=window_tokens,
    )
    return LayerDecl(parts=(part,))


STATE = LayerDecl(parts=(StatePart(recurrent=StateTensor(shape=(64, 64), dtype=DType.FLOAT32)),))


def stages_of(*layers: LayerDecl, pp_count: int = 1) -> tuple[StagePlan, ...]:
    return plan_stages(DeclaredLayers(layers=layers, context_tokens=1024), pp_count=pp_count)


def values(budget_bytes: int = 64 * MiB, **inputs: int | float) -> SizingValues:
    return resolve_sizing(
        msgspec.convert({"budget_bytes": budget_bytes, **inputs}, SizingInputs),
        settings=SizingInputs(page_tokens=16, chunk_tokens=256),
        model_context_tokens=1024,
        has_state=True,
    )


def size(stages: tuple[StagePlan, ...], sizing: SizingValues) -> SizedPlan:
    return size_stages(stages, sizing)[0]


HYBRID = stages_of(STATE, attention(64), attention())


def test_arena_and_tables_fill_the_budget() -> None:
    sized = size(HYBRID, values())
    assert sized.total_bytes == 64 * MiB
    assert sized.arena_bytes + sized.region.region_bytes == sized.total_bytes


def test_an_odd_budget_is_not_overdrawn() -> None:
    sized = size(HYBRID, values(64 * MiB - 1))
    assert 64 * MiB - 2 * 4096 <= sized.total_bytes <= 64 * MiB - 1


def test_the_targets_fit_an_empty_chain_together() -> None:
    sized = size(HYBRID, values())
    assert fits_empty(sized.geometry, sized.target_units)


def test_the_owners_target_cannot_be_raised() -> None:
    sized = size(stages_of(STATE, attention()), values())
    state, full = sized.target_units
    assert not fits_empty(sized.geometry, (state, full + 1))


def test_the_state_share_decides_how_many_slots_are_aimed_at() -> None:
    sized = size(HYBRID, values(state_share=1.0))
    slot_bytes = sized.bands[0].entry_bytes
    assert sized.target_units[0] == sized.arena_bytes // 2 // slot_bytes - 1


def test_explicit_slots_are_aimed_at_as_given() -> None:
    assert size(HYBRID, values(state_slots=77)).target_units[0] == 77


def test_a_share_that_leaves_no_room_for_the_other_bands_is_cut() -> None:
    sized = size(HYBRID, values(state_share=STATE_SHARE_MAX))
    assert all(
        target >= floor for target, floor in zip(sized.target_units, sized.floor_units, strict=True)
    )


def test_running_requests_are_capped_as_asked() -> None:
    assert size(HYBRID, values(running_requests_count=7)).running_requests_count == 7


def test_running_requests_never_exceed_what_slots_serve() -> None:
    sized = size(HYBRID, values(state_slots=77, running_requests_count=500))
    assert sized.running_requests_count == 77 // 3
    assert sized.row_count == 77 // 3 + 1


def test_without_a_cap_2048_requests_are_guessed() -> None:
    long = stages_of(attention())
    sizing = resolve_sizing(
        SizingInputs(budget_bytes=512 * MiB),
        settings=SizingInputs(),
        model_context_tokens=1 << 20,
        has_state=False,
    )
    assert size(long, sizing).running_requests_count == 2048


def test_a_window_aims_at_what_all_rows_retain_and_one_chunk() -> None:
    sized = size(stages_of(attention(64), attention()), values(running_requests_count=4))
    # 4 rows of 64 + 16 + 1 tokens, a chunk of 256 and a page of 16, in pages of 16.
    assert sized.target_units[0] == -(-(4 * 81 + 256 + 16) // 16)


def test_a_window_never_aims_at_more_pages_than_the_owner_has() -> None:
    sized = size(stages_of(attention(512), attention()), values())
    assert sized.target_units[0] <= sized.target_units[1]


@pytest.mark.parametrize("page_tokens", [1, 16, 64])
def test_a_budget_of_exactly_the_floor_serves_one_request(page_tokens: int) -> None:
    floor = size(HYBRID, values(page_tokens=page_tokens)).budget_floor_bytes
    sized = size(HYBRID, values(floor, page_tokens=page_tokens))
    assert sized.running_requests_count == 1
    assert fits_empty(sized.geometry, sized.floor_units)


@pytest.mark.case("13")
@pytest.mark.parametrize("short_bytes", [1, 4096, 100_000])
def test_a_budget_below_the_floor_says_by_how_much(short_bytes: int) -> None:
    floor = size(HYBRID, values()).budget_floor_bytes
    with pytest.raises(SizeError, match=f"short by {short_bytes} bytes") as caught:
        size(HYBRID, values(floor - short_bytes))
    assert caught.value.short_bytes == short_bytes


def test_the_stage_with_the_highest_floor_is_named() -> None:
    stages = stages_of(attention(), *[attention()] * 4, pp_count=2)
    with pytest.raises(SizeError, match="stage 0 needs at least budget_floor"):
        size(stages, values(1 * MiB))


def test_slots_that_serve_no_request_are_refused() -> None:
    with pytest.raises(SizeError, match=r"state_slots is 2: .*one takes 3"):
        size(HYBRID, values(state_slots=2))


def test_more_slots_than_fit_are_refused_with_the_most_that_do() -> None:
    with pytest.raises(SizeError, match=r"state_slots is 100000.* at most (\d+)") as caught:
        size(HYBRID, values(state_slots=100_000))
    most = int(caught.value.message.split("at most ")[1].split()[0])
    assert size(HYBRID, values(state_slots=most)).target_units[0] == most
    with pytest.raises(SizeError):
        size(HYBRID, values(state_slots=most + 1))


def test_more_token_places_than_32_bit_ids_name_are_refused() -> None:
    tiny = stages_of(attention(heads=1))
    with pytest.raises(SizeError, match=r"band full would have .* token places"):
        size(tiny, values(1 << 40, running_requests_count=4))


def test_speculation_pays_its_states_out_of_the_state_share() -> None:
    plain = size(HYBRID, values(running_requests_count=8))
    drafting = size(HYBRID, values(running_requests_count=8, draft_tokens=4))
    draft_slots = 9 * 4
    assert dict(drafting.fixed_bytes)["draft_states"] == draft_slots * 16_384
    assert plain.target_units[0] - drafting.target_units[0] in (draft_slots, draft_slots + 1)


@pytest.mark.case("74")
def test_stages_agree_on_requests_pages_and_slots() -> None:
    stages = stages_of(STATE, attention(), attention(), STATE, attention(), pp_count=2)
    first, second = size_stages(stages, values())
    assert first.arena_bytes != second.arena_bytes
    assert first.running_requests_count == second.running_requests_count
    assert first.target_units == second.target_units
    assert (first.virtual_page_count, first.virtual_slot_count) == (
        second.virtual_page_count,
        second.virtual_slot_count,
    )


def test_virtual_pages_are_those_of_the_stage_with_the_fewest() -> None:
    stages = stages_of(*[attention()] * 5, pp_count=2)
    sized = size_stages(stages, values())
    ends = [stage.geometry.bands[-1].unit_index_end_count for stage in sized]
    assert [stage.virtual_page_count for stage in sized] == [min(ends)] * 2
