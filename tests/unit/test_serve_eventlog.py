"""The daemon's log: in order, and never in the way."""

import io
import os
import threading

import pytest

from kvd.serve import eventlog
from kvd.serve.eventlog import EventLog


def test_lines_arrive_in_order() -> None:
    stream = io.StringIO()
    log = EventLog(stream)
    for number in range(100):
        log.write(f"event={number}")
    log.close()
    assert stream.getvalue().splitlines() == [f"event={number}" for number in range(100)]


def test_a_stream_whose_reader_is_gone_costs_lines_and_nothing_else() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        log = EventLog(stream)
        log.write("event=1")
        log.write("event=2")
        log.close()
        assert log.lost_count == 2
        with pytest.raises(BrokenPipeError):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_a_stream_that_nobody_reads_never_blocks_the_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eventlog, "LINES_MAX", 4)
    monkeypatch.setattr(eventlog, "FAREWELL_S", 0.01)
    entered, release = threading.Event(), threading.Event()

    class Stuck(io.StringIO):
        def write(self, line: str) -> int:
            entered.set()
            release.wait(10)
            return super().write(line)

    log = EventLog(Stuck())
    log.write("event=0")
    assert entered.wait(10)
    for number in range(10):
        log.write(f"event={number}")
    assert log.lost_count == 6
    log.close()
    release.set()
