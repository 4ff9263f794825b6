"""Settings and hellos accept the same values."""

import msgspec
import pytest

from kvd import limits
from kvd.config import load_settings
from kvd.errors import SettingError, SizeError
from kvd.size.inputs import DEFAULT_SIZING, resolve_sizing
from kvd_proto.memory import SizingInputs

UPPER = {
    "budget_bytes": limits.BUDGET_BYTES_MAX,
    "page_tokens": limits.PAGE_TOKENS_MAX,
    "context_tokens": limits.CONTEXT_TOKENS_MAX,
    "running_requests_count": limits.RUNNING_REQUESTS_COUNT_MAX,
    "state_slots": limits.SLOTS_MAX,
    "chunk_tokens": limits.CHUNK_TOKENS_MAX,
    "draft_tokens": limits.DRAFT_TOKENS_MAX,
    "state_share": limits.STATE_SHARE_MAX,
}


def hello(name: str, value: float) -> None:
    inputs = msgspec.structs.replace(
        # One chunk holds the longest page, so that only the input in question can be wrong.
        SizingInputs(chunk_tokens=limits.PAGE_TOKENS_MAX),
        **{name: value},
    )
    resolve_sizing(
        inputs, settings=DEFAULT_SIZING, model_context_tokens=limits.PAGE_TOKENS_MAX, has_state=True
    )


@pytest.mark.parametrize("name", UPPER)
def test_the_highest_value_is_allowed_in_settings_and_in_a_hello(name: str) -> None:
    settings = load_settings({name: UPPER[name]}, {}, None)

    assert getattr(settings.sizing, name) == UPPER[name]
    hello(name, UPPER[name])


@pytest.mark.parametrize("name", UPPER)
def test_one_more_is_refused_in_settings_and_in_a_hello(name: str) -> None:
    with pytest.raises(SettingError, match=f"{name} = {UPPER[name] + 1}"):
        load_settings({name: UPPER[name] + 1}, {}, None)
    with pytest.raises(SizeError, match=f"{name} is {UPPER[name] + 1}"):
        hello(name, UPPER[name] + 1)
