"""Damaged configurations, declarations and settings: a plan or one clear error, and soon."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.texts import a_configuration, a_declaration, settings_of, try_many

Attempt = Callable[[Random], tuple[str, Callable[[], object]]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("attempt", [a_configuration, a_declaration])
def test_a_damaged_model_is_planned_or_refused_by_name(attempt: Attempt, seed: int) -> None:
    print("seed", seed)
    seen = try_many(seed, 150, attempt)
    assert seen["accepted"], seen
    assert seen["BAD_MODEL"], seen
    assert set(seen) <= {"accepted", "BAD_MODEL"}, seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_settings_are_taken_or_refused_by_name(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    seen = try_many(seed, 300, settings_of(tmp_path))
    assert set(seen) == {"accepted", "BAD_SETTING", "BAD_FILE"}, seen


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("attempt", [a_configuration, a_declaration])
def test_many_damaged_models(attempt: Attempt, seed: int) -> None:
    print("seed", seed)
    assert set(try_many(seed, 5_000, attempt)) <= {"accepted", "BAD_MODEL"}


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100, 104))
def test_many_damaged_settings(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    assert set(try_many(seed, 20_000, settings_of(tmp_path))) <= {
        "accepted",
        "BAD_SETTING",
        "BAD_FILE",
    }
