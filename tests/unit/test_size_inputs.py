"""Sizing inputs: what applies, and what is refused before any plan is looked at."""

import pytest

from kvd.errors import SizeError
from kvd.size.inputs import DEFAULT_SIZING, SizingValues, kv_dtype_name, resolve_sizing
from kvd_proto.memory import SizingInputs


def resolve(
    inputs: SizingInputs,
    *,
    settings: SizingInputs = DEFAULT_SIZING,
    model_context_tokens: int = 4096,
    has_state: bool = True,
) -> SizingValues:
    return resolve_sizing(
        inputs,
        settings=settings,
        model_context_tokens=model_context_tokens,
        has_state=has_state,
    )


def test_a_group_wins_over_settings_and_settings_over_defaults() -> None:
    values = resolve(
        SizingInputs(page_tokens=16), settings=SizingInputs(page_tokens=32, chunk_tokens=512)
    )
    assert (values.page_tokens, values.chunk_tokens, values.draft_tokens) == (16, 512, 0)


def test_the_models_context_applies_unless_one_is_given() -> None:
    assert resolve(SizingInputs()).context_tokens == 4096
    assert resolve(SizingInputs(context_tokens=100)).context_tokens == 100


def test_a_context_that_nobody_says_is_refused() -> None:
    with pytest.raises(SizeError, match="context_tokens is missing"):
        resolve(SizingInputs(), model_context_tokens=0)


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (SizingInputs(budget_bytes=0), "budget_bytes is 0"),
        (SizingInputs(page_tokens=0), "page_tokens is 0"),
        (SizingInputs(page_tokens=1 << 17), "page_tokens is 131072"),
        (SizingInputs(context_tokens=-5), "context_tokens is -5"),
        (SizingInputs(running_requests_count=0), "running_requests_count is 0"),
        (SizingInputs(state_slots=0), "state_slots is 0"),
        (SizingInputs(chunk_tokens=0), "chunk_tokens is 0"),
        (SizingInputs(draft_tokens=-1), "draft_tokens is -1"),
        (SizingInputs(cached_slots=-1), "cached_slots is -1"),
        (SizingInputs(tracking_slots=-1), "tracking_slots is -1"),
        (SizingInputs(checkpoint_tokens=-1), "checkpoint_tokens is -1"),
        (SizingInputs(state_share=0.0), "state_share is 0.0"),
        (SizingInputs(state_share=float("nan")), "state_share is nan"),
        (SizingInputs(state_share=float("inf")), "state_share is inf"),
        (SizingInputs(state_share=1e9), "state_share is 1000000000.0: expected a ratio from 0.001"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(inputs: SizingInputs, name: str) -> None:
    with pytest.raises(SizeError, match=name):
        resolve(inputs)


def test_slots_and_share_together_are_refused() -> None:
    with pytest.raises(SizeError, match=r"state_slots is 8 and state_share is 0\.5"):
        resolve(SizingInputs(state_slots=8, state_share=0.5))


def test_slots_for_a_model_without_states_are_refused() -> None:
    with pytest.raises(SizeError, match="state_slots is 8, but the model has no layer"):
        resolve(SizingInputs(state_slots=8), has_state=False)


def test_slots_of_the_settings_are_advice_that_a_model_without_states_ignores() -> None:
    values = resolve(SizingInputs(), settings=SizingInputs(state_slots=8), has_state=False)
    assert values.state_slots is None


def test_a_groups_share_wins_over_slots_of_the_settings() -> None:
    values = resolve(SizingInputs(state_share=0.5), settings=SizingInputs(state_slots=8))
    assert (values.state_slots, values.state_share) == (None, 0.5)


@pytest.mark.parametrize(
    ("inputs", "grid"),
    [
        (SizingInputs(page_tokens=64, chunk_tokens=63), 64),
        (SizingInputs(page_tokens=64, chunk_tokens=100, checkpoint_tokens=48), 192),
    ],
)
def test_a_chunk_below_the_cutting_grid_is_refused(inputs: SizingInputs, grid: int) -> None:
    with pytest.raises(SizeError, match=f"expected at least {grid}, the grid"):
        resolve(inputs)


def test_a_chunk_that_holds_every_prompt_needs_no_grid() -> None:
    inputs = SizingInputs(page_tokens=64, chunk_tokens=32, context_tokens=32)
    assert resolve(inputs).chunk_tokens == 32


def test_a_request_takes_working_cached_and_tracking_slots() -> None:
    assert resolve(SizingInputs()).slots_per_request_slots == 3
    assert resolve(SizingInputs(tracking_slots=2)).slots_per_request_slots == 5


@pytest.mark.parametrize(
    ("page_tokens", "draft_tokens", "row_pages"),
    [
        (1, 0, 131_076),
        (64, 0, 2049),
        (1, 4, 131_080),
        (64, 4, 2050),  # 131,072 + 2 * 4 + 63 tokens
    ],
)
def test_a_row_names_the_context_and_some_headroom(
    page_tokens: int, draft_tokens: int, row_pages: int
) -> None:
    values = resolve(
        SizingInputs(page_tokens=page_tokens, draft_tokens=draft_tokens, context_tokens=131_072)
    )
    assert values.row_pages == row_pages


def test_the_cache_type_comes_from_the_nearest_that_says_it() -> None:
    settings = SizingInputs(kv_dtype="fp8")
    assert kv_dtype_name(SizingInputs(), settings=settings) == "fp8"
    assert kv_dtype_name(SizingInputs(kv_dtype="bf16"), settings=settings) == "bf16"
    assert kv_dtype_name(SizingInputs(), settings=SizingInputs()) == "bf16"
