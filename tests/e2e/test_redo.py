"""Survivors: whatever an applier had done when it was killed, the next one finds every page."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.daemon_process import environment

pytestmark = pytest.mark.slow


def redo_report(*arguments: str) -> dict[str, Any]:
    """Kill an applier after every action of a rearrangement; returns what was found."""
    done = subprocess.run(
        (sys.executable, "-m", "tests.e2e.redo_program", str(os.getpid()), *arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    print({key: report[key] for key in ("actions", "segments", "own_units")})
    return report


def test_a_rearrangement_that_was_killed_anywhere_is_redone_without_losing_a_page() -> None:
    report = redo_report("0")

    assert report["wrong"] == {}
    assert report["segments"] >= 3
    assert report["actions"] > 20
    assert report["own_units"] > 10


@pytest.mark.parametrize(
    "left_out",
    [
        "--one-segment",
        pytest.param("--progress-per-entry", marks=pytest.mark.sweep),
        pytest.param("--no-redo", marks=pytest.mark.sweep),
    ],
)
def test_without_one_of_its_rules_some_page_is_lost(left_out: str) -> None:
    report = redo_report("0", left_out)

    assert report["wrong"]
