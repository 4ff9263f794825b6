"""Some planted faults, noticed again by the same check after the same number of operations."""

import subprocess
import sys
from multiprocessing import active_children
from pathlib import Path
from time import monotonic

import pytest

from kvd.errors import WorkloadError
from kvd.testing.mutants.hunt import OPERATIONS_MAX, Survival
from kvd.testing.mutants.registry import FAULTS
from kvd.testing.mutants.table import read_table, render
from kvd.testing.stress.sweep import SeedJob, play_all

TABLE = Path(__file__).with_name("MUTANTS.md")
SLICE_COUNT = 10


def test_every_fault_stands_in_the_table_as_noticed_within_what_it_is_given() -> None:
    recorded = read_table(TABLE)

    assert set(recorded) == set(FAULTS)
    assert all(row.attempt is not None for row in recorded.values())
    assert len(recorded) >= 300
    assert max(row.operations_count for row in recorded.values()) <= OPERATIONS_MAX


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (slice(0, 0), "begins with nothing"),
        (slice(0, 13), "has 0 rows and tells of"),
        (slice(0, 20), "rows and tells of"),
        (slice(9, None), "is no table of planted faults"),
    ],
)
def test_a_table_that_was_cut_is_refused(tmp_path: Path, lines: slice, said: str) -> None:
    cut = tmp_path / "cut.md"
    cut.write_text("\n".join(TABLE.read_text().splitlines()[lines]))
    with pytest.raises(WorkloadError, match=said):
        read_table(cut)


def test_a_row_of_no_fault_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.md"
    damaged.write_text(TABLE.read_text().replace("| c2-h1 |", "| c2-h1x |"))
    with pytest.raises(WorkloadError, match="c2-h1x"):
        read_table(damaged)


def test_a_fault_that_was_not_noticed_stays_in_the_table(tmp_path: Path) -> None:
    outcomes = [Survival("c2-h1", 20_000), read_table(TABLE)["c2-h4"].as_outcome()]
    written = tmp_path / "table.md"
    written.write_text(render(outcomes))
    assert [row.as_outcome() for row in read_table(written).values()] == outcomes


@pytest.mark.slow
def test_whoever_stops_listening_waits_for_no_seed() -> None:
    quick, *endless = [
        SeedJob(shape="full", seed_index=seed, operations_count=count)
        for seed, count in ((0, 5), (1, 1_000_000), (2, 1_000_000), (3, 1_000_000))
    ]
    reports = play_all([quick, *endless], processes_count=2)
    assert next(reports).seed_index == 0
    workers = [Path(f"/proc/{child.pid}") for child in active_children()]
    assert workers
    began_s = monotonic()
    reports.close()  # type: ignore[attr-defined]
    assert monotonic() - began_s < 5
    assert not [worker for worker in workers if worker.exists()]


def _hunt(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Hunt in a process without threads, because it forks for each fault."""
    code = "from kvd.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "stress", "--mutants", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_rows_of_faults_that_are_not_hunted_stay_when_others_are_hunted_afresh(
    tmp_path: Path,
) -> None:
    table = tmp_path / "table.md"
    table.write_text(TABLE.read_text())

    ran = _hunt("clearing-is-sent", "--afresh", "--table", str(table))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert set(read_table(table)) == set(FAULTS)


@pytest.mark.slow
def test_the_fastest_faults_are_noticed_as_the_table_says() -> None:
    recorded = read_table(TABLE)
    names = sorted(recorded, key=lambda name: (recorded[name].operations_count, name))[:SLICE_COUNT]

    ran = _hunt("--recorded", "--table", str(TABLE), *names)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{SLICE_COUNT} faults, 0 otherwise" in ran.stdout
