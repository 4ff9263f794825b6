"""Sizing inputs with nothing missing, and the checks that need no plan."""

import math
from dataclasses import dataclass
from typing import Final

from kvd.errors import SizeError
from kvd.limits import (
    BUDGET_BYTES_MAX,
    CHUNK_TOKENS_MAX,
    CONTEXT_TOKENS_MAX,
    DRAFT_TOKENS_MAX,
    PAGE_TOKENS_MAX,
    RUNNING_REQUESTS_COUNT_MAX,
    SLOTS_MAX,
    STATE_SHARE_MAX,
    STATE_SHARE_MIN,
)
from kvd_proto.memory import SizingInputs

GiB: Final = 1 << 30

DEFAULT_SIZING: Final = SizingInputs(
    budget_bytes=40 * GiB,
    page_tokens=64,
    state_share=0.9,
    chunk_tokens=8192,
    draft_tokens=0,
    cached_slots=2,
    tracking_slots=0,
    checkpoint_tokens=0,
    kv_dtype="bf16",
)
"""Used where neither a group nor the daemon's settings say otherwise.

The budget is half of an 80 GB card. Context and running requests have no default here: they follow
from the model and from the budget.
"""

ROW_SLACK_TOKENS: Final = 4
"""Tokens beyond the context that a row can name, for a step that allocates before it stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingValues:
    """The inputs of one group."""

    budget_bytes: int
    page_tokens: int
    context_tokens: int
    running_count_max: int | None
    """Cap on running requests; None: as many as the budget carries, within bounds."""
    state_share: float
    state_slots: int | None
    chunk_tokens: int
    draft_tokens: int
    cached_slots: int
    tracking_slots: int
    checkpoint_tokens: int
    overlap: bool = False

    @property
    def slots_per_request_slots(self) -> int:
        """Return the state slots that one request may hold: working, cached and tracking ones."""
        return 1 + self.cached_slots + self.tracking_slots

    @property
    def step_tokens(self) -> int:
        """Return the tokens that a decode step allocates for a request at most."""
        return max(1, self.draft_tokens)

    @property
    def row_pages(self) -> int:
        """Return the pages that one request row can name."""
        slack_tokens = ROW_SLACK_TOKENS + self.draft_tokens
        if self.draft_tokens > 0 and self.page_tokens > 1:
            slack_tokens = max(slack_tokens, 2 * self.step_tokens + self.page_tokens - 1)
        return -(-(self.context_tokens + slack_tokens) // self.page_tokens)


def resolve_sizing(
    inputs: SizingInputs, *, settings: SizingInputs, model_context_tokens: int, has_state: bool
) -> SizingValues:
    """Return the values that apply: a group's inputs, then settings, then defaults.

    Raises SizeError naming the input that is out of range, missing, or without meaning for the
    model.
    """
    if inputs.state_slots is not None:
        if inputs.state_share is not None:
            raise SizeError(
                f"state_slots is {inputs.state_slots} and state_share is {inputs.state_share}: "
                "expected one of them"
            )
        if not has_state:
            raise SizeError(
                f"state_slots is {inputs.state_slots}, but the model has no layer with a state"
            )
    layers = (inputs, settings, DEFAULT_SIZING)
    context_tokens = _pick("context_tokens", layers) or model_context_tokens
    if context_tokens == 0:
        raise SizeError("context_tokens is missing: the model does not say how long requests get")
    state_slots = inputs.state_slots
    if state_slots is None and inputs.state_share is None and has_state:
        state_slots = settings.state_slots
    chunk_tokens = _counted("chunk_tokens", layers, 1, CHUNK_TOKENS_MAX)
    values = SizingValues(
        budget_bytes=_counted("budget_bytes", layers, 1, BUDGET_BYTES_MAX),
        page_tokens=_counted("page_tokens", layers, 1, PAGE_TOKENS_MAX),
        context_tokens=context_tokens,
        running_count_max=_pick("running_requests_count", layers),
        state_share=_share(layers),
        state_slots=state_slots,
        chunk_tokens=chunk_tokens,
        draft_tokens=_counted("draft_tokens", layers, 0, DRAFT_TOKENS_MAX),
        cached_slots=_counted("cached_slots", layers, 0, SLOTS_MAX),
        tracking_slots=_counted("tracking_slots", layers, 0, SLOTS_MAX),
        checkpoint_tokens=_counted("checkpoint_tokens", layers, 0, CONTEXT_TOKENS_MAX),
        overlap=bool(inputs.overlap),
    )
    _check_range("context_tokens", values.context_tokens, 1, CONTEXT_TOKENS_MAX)
    if values.running_count_max is not None:
        _check_range(
            "running_requests_count", values.running_count_max, 1, RUNNING_REQUESTS_COUNT_MAX
        )
    if values.state_slots is not None:
        _check_range("state_slots", values.state_slots, 1, SLOTS_MAX)
    _check_chunk(values)
    return values


def kv_dtype_name(inputs: SizingInputs, *, settings: SizingInputs) -> str:
    """Return the name of the element type of keys and values that applies."""
    name = inputs.kv_dtype or settings.kv_dtype or DEFAULT_SIZING.kv_dtype
    assert name is not None
    return name


def _pick(name: str, layers: tuple[SizingInputs, ...]) -> int | None:
    for layer in layers:
        value: int | None = getattr(layer, name)
        if value is not None:
            return value
    return None


def _counted(name: str, layers: tuple[SizingInputs, ...], lowest: int, highest: int) -> int:
    value = _pick(name, layers)
    assert value is not None
    _check_range(name, value, lowest, highest)
    return value


def _check_range(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise SizeError(f"{name} is {value}: expected {lowest} to {highest}")


def _share(layers: tuple[SizingInputs, ...]) -> float:
    share = next(layer.state_share for layer in layers if layer.state_share is not None)
    # NaN fails both comparisons.
    if not STATE_SHARE_MIN <= share <= STATE_SHARE_MAX:
        raise SizeError(
            f"state_share is {share}: expected a ratio from {STATE_SHARE_MIN} to {STATE_SHARE_MAX}"
        )
    return share


def _check_chunk(values: SizingValues) -> None:
    """Check that chunks can be cut at all: every one but a prompt's last ends on the grid."""
    grid_tokens = values.page_tokens
    if values.checkpoint_tokens:
        grid_tokens = math.lcm(grid_tokens, values.checkpoint_tokens)
    if min(grid_tokens, values.context_tokens) > values.chunk_tokens:
        raise SizeError(
            f"chunk_tokens is {values.chunk_tokens}: expected at least {grid_tokens}, the grid on "
            "which prompts are cut, else longer ones could never be scheduled"
        )
