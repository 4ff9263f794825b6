"""Damaged frames through the sockets of a daemon process: a slice of what ``make fuzz`` sends."""

import pytest

from tests.e2e.daemon_process import serving
from tests.fuzz.served import SETTINGS, fuzz_served


@pytest.mark.slow
def test_a_daemon_answers_damaged_frames_and_serves_others_meanwhile(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with serving(tmp_path_factory.mktemp("r") / "run", *SETTINGS) as daemon:
        report = fuzz_served(daemon, 1_000, seed=1)

        print("\n".join(report.lines()))
        assert daemon.lives()
        assert "internal_error" not in daemon.log()
        assert daemon.stop() == 0
    assert report.answers["error"] > 500
    assert report.answers["reply"] > 100
    assert {"BAD_FRAME", "FENCED"} <= set(report.errors)
    assert report.lifelines["ErrorReply"] > 25
