"""The same events give the same decisions: in any process, on any processor, on any machine.

Whoever runs these tests elsewhere compares with what was committed here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.traces.golden import ALL_NAMES, FILE, outcome

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads(FILE.read_text())
FEATURES: list[str] = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
"""What numpy would use here beyond its baseline."""


def test_every_program_and_scenario_has_its_digests() -> None:
    assert list(GOLDEN) == list(ALL_NAMES)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_decisions_and_state_are_the_committed_ones(name: str) -> None:
    remedy = "a decision changed; if on purpose: python -m tests.traces.golden"
    assert outcome(name) == GOLDEN[name], remedy


def test_programs_differ_from_one_another() -> None:
    assert len({entry["digest"] for entry in GOLDEN.values()}) == len(GOLDEN)


@pytest.mark.slow
def test_another_hash_seed_and_a_plain_processor_decide_the_same() -> None:
    environment = {"PYTHONHASHSEED": "4242", "NPY_DISABLE_CPU_FEATURES": " ".join(FEATURES)}
    printed = subprocess.run(
        (sys.executable, "-m", "tests.traces.golden", "--print"),
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "error" not in printed.stderr
    assert printed.stdout == FILE.read_text()
