"""Traces of drawn programs: every incarnation is one, and each replays to the same decisions."""

from pathlib import Path

import pytest

from kvd.testing.stress.failure import CheckName, StressFailure
from kvd.testing.stress.program import AnyStep, Die, Program
from kvd.testing.stress.run import StressRun
from kvd.testing.trace_seeds import TracedRun, record_seed
from kvd.trace.adapter import RecordedAdapter, Script
from kvd.trace.compare import Comparison, compare
from kvd.trace.records import read_trace
from kvd.trace.stage import StageAdapter

SHAPE = "state-window-full"


def replayed(path: Path) -> Comparison:
    def script() -> Script:
        return Script(read_trace(path), name=str(path))

    return compare(script, lambda: RecordedAdapter(script(), name="then"), StageAdapter)


@pytest.mark.slow
def test_a_drawn_program_is_a_trace_that_replays_bit_for_bit(tmp_path: Path) -> None:
    (path,) = record_seed(SHAPE, 1, step_count=120, folder=tmp_path)
    result = replayed(path)
    assert result.divergence is None
    assert result.decision_count > 20
    assert result.ending == "the steps are over"


def test_every_incarnation_has_a_trace_of_its_own(tmp_path: Path) -> None:
    run = TracedRun(Program(shape=SHAPE, seed_index=1, ranks_count=2), tmp_path)
    try:
        run.play(Die())
        run.end_trace("enough")
    finally:
        run.close()
    first, second = (replayed(path) for path in run.paths)
    assert first.divergence is None
    assert second.divergence is None
    assert first.ending != "enough"
    assert second.ending == "enough"


def test_a_run_that_a_check_ends_is_recorded_up_to_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: StressRun, step: AnyStep) -> bool:
        raise StressFailure(CheckName.PAYLOAD, "a byte is wrong")

    monkeypatch.setattr(StressRun, "play", fail)
    (path,) = record_seed(SHAPE, 1, step_count=9, folder=tmp_path)
    assert replayed(path).ending == "stress.payload: a byte is wrong"
