"""The stress programs through a real daemon, with faults: a slice of what the sweep plays."""

import json
import subprocess
import sys

import pytest

from kvd.testing.faults import Fault

PLAY = """
import json, sys
from kvd.testing.stress.daemon_run import run_on_daemon
result = run_on_daemon(sys.argv[1], int(sys.argv[2]), operations_max=int(sys.argv[3]))
failure = result.failure and f"{result.failure.check}: {result.failure.message}"
print(json.dumps([result.operations_count, failure, result.counts]))
"""
"""In a process without threads, since it forks."""


def play(shape: str, seed: int, operations: int) -> tuple[int, str | None, dict[str, int]]:
    process = subprocess.run(
        (sys.executable, "-c", PLAY, shape, str(seed), str(operations)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    count, failure, counts = json.loads(process.stdout)
    return count, failure, counts


@pytest.mark.slow
def test_a_slice_runs_clean_and_meets_every_fault_of_messages() -> None:
    count, failure, counts = play("state-window-full", 0, 300)
    assert failure is None
    assert count == 300
    assert all(counts[f"fault {fault}"] for fault in Fault)
    assert counts["fault batch_aborted"]
    assert counts["rank done"] == 2
    assert counts["word checked"] > 10_000


@pytest.mark.slow
def test_ranks_are_killed_and_the_next_incarnation_goes_on() -> None:
    count, failure, counts = play("two-windows-full", 11, 300)
    assert failure is None
    assert count >= 300
    assert counts["rank dying"]
    assert counts["incarnation"] > 1
