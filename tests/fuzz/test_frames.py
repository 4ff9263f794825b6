"""Damaged frames against the daemon's dispatcher: a slice of what ``make fuzz`` sends."""

from typing import Any

import pytest

from kvd.serve import dispatch
from kvd.serve.dispatch import Dispatcher
from tests.fuzz.run import Fuzzer, fuzz


@pytest.mark.slow
def test_damaged_frames_are_refused_by_name_and_leave_no_trace() -> None:
    report = fuzz(4_000, seed=1)

    print("\n".join(report.lines()))
    assert report.outcomes["accepted"] > 400
    assert report.outcomes["answered"] > 1_500
    assert {"BAD_FRAME", "FENCED", "BAD_ARGUMENT", "BAD_INDEX", "BAD_NUMBER"} <= set(report.errors)
    assert report.served >= 16


def _remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = Dispatcher.refuse

    def remember(self: Dispatcher, *arguments: Any, **named: Any) -> None:
        refuse(self, *arguments, **named)
        self.lobby.groups[f"ghost {len(self.lobby.groups)}"] = next(
            iter(self.lobby.groups.values())
        )

    monkeypatch.setattr(Dispatcher, "refuse", remember)


def _counts(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = Dispatcher.refuse

    def count(self: Dispatcher, *arguments: Any, **named: Any) -> None:
        refuse(self, *arguments, **named)
        for group in self.lobby.groups.values():
            if group.running is not None:
                group.running.stages[0].engine.counters["lapsed"] += 1

    monkeypatch.setattr(Dispatcher, "refuse", count)


def _crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(frames: list[bytes]) -> list[bytes]:
        return [frames[1000]]

    monkeypatch.setattr(dispatch, "_without_torn_headers", crash)


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (_remembers, "a refused frame changed something"),
        (_counts, "a refused frame changed something"),
        (_crashes, "the daemon had a fault of its own"),
    ],
)
def test_a_daemon_that_breaks_its_word_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Any, problem: str
) -> None:
    fuzzer = Fuzzer(1)
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=problem):
        fuzzer.run(600)
