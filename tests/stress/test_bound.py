"""A step that goes on for ever is found by the harness, which goes on itself."""

import signal

import pytest

from kvd.errors import StressFailure
from kvd.testing.stress.bound import bounded
from kvd.testing.stress.failure import CheckName


def _go_round_in_circles() -> None:
    while True:
        pass


def test_what_never_ends_is_a_finding() -> None:
    with pytest.raises(StressFailure, match="_go_round_in_circles") as found, bounded(0.05):
        _go_round_in_circles()

    assert found.value.check == CheckName.ENDS


def test_nothing_is_bounded_afterwards() -> None:
    with bounded(0.05):
        pass

    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL


def test_a_signal_that_somebody_else_has_is_left_alone() -> None:
    before = signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
    try:
        with bounded(0.05):
            assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGVTALRM, before)
