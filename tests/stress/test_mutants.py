"""Some planted faults, noticed again by the same check after the same number of operations."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvd.testing.mutants.hunt import OPERATIONS_MAX
from kvd.testing.mutants.registry import FAULTS
from kvd.testing.mutants.table import read_table

TABLE = Path(__file__).with_name("MUTANTS.md")
SLICE_COUNT = 10


def test_every_fault_stands_in_the_table_as_noticed_within_what_it_is_given() -> None:
    recorded = read_table(TABLE)

    assert set(recorded) == set(FAULTS)
    assert len(recorded) >= 300
    assert max(row.operations_count for row in recorded.values()) <= OPERATIONS_MAX


@pytest.mark.slow
def test_the_fastest_faults_are_noticed_as_the_table_says() -> None:
    recorded = read_table(TABLE)
    names = sorted(recorded, key=lambda name: (recorded[name].operations_count, name))[:SLICE_COUNT]
    # In a process without threads, because it forks for each of them.
    ran = subprocess.run(
        [
            sys.executable,
            *("-c", "from kvd.cli.main import main; main()", "stress", "--mutants"),
            *("--recorded", "--table", str(TABLE), *names),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{SLICE_COUNT} faults, 0 otherwise" in ran.stdout
