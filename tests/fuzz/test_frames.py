"""Damaged frames against the daemon's dispatcher: a slice of what ``make fuzz`` sends."""

import pytest

from tests.fuzz.run import fuzz


@pytest.mark.slow
def test_damaged_frames_are_refused_by_name_and_leave_no_trace() -> None:
    report = fuzz(4_000, seed=1)

    print("\n".join(report.lines()))
    assert report.outcomes["accepted"] > 400
    assert report.outcomes["answered"] > 1_500
    assert {"BAD_FRAME", "FENCED", "BAD_ARGUMENT", "BAD_INDEX", "BAD_NUMBER"} <= set(report.errors)
    assert report.served >= 16
