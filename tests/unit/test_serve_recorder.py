"""The daemon's recorder: one file per incarnation, and no fault of it reaches the incarnation."""

import errno
from pathlib import Path

import pytest

from kvd.errors import ServeError
from kvd.serve.recorder import TraceFile, TraceRecorder
from kvd.trace.records import Cut, End, Gap, Head, Res, read_trace
from kvd_proto.operations import Idle
from tests.stateful.program import TIGHT, batches
from tests.stateful.ranks import Rank, lone


class Recording:
    """A rank whose incarnation is recorded."""

    def __init__(self, folder: Path, *, bytes_max: int = 1 << 30) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.recorder = TraceRecorder(
            folder, bytes_max=bytes_max, epoch=0xABC, log=self.said.append
        )
        self.rank: Rank = lone(TIGHT)

    def begin(self) -> None:
        self.recorder.begin("g.1", self.rank.world)

    def run(self, count: int = 10) -> None:
        for operations in batches(1, count):
            self.rank.send(*operations)
            self.recorder.look(self.rank.world)
            self.rank.world.settle()

    def end(self) -> None:
        self.rank.world.end("it left")
        self.recorder.end(self.rank.world)

    @property
    def path(self) -> Path:
        (path,) = self.folder.iterdir()
        return path


def test_an_incarnation_is_a_file_of_its_own_for_nobody_else(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "deep" / "traces")
    recording.begin()
    recording.run()
    recording.end()
    assert recording.path.name == "g.1-0000000000000abc-1-stage0.trace.jsonl"
    assert recording.path.stat().st_mode & 0o777 == 0o600
    first, *_, last = read_trace(recording.path)
    assert isinstance(first, Head)
    assert first.group == "g.1"
    assert isinstance(last, End)
    assert (last.position, last.cause) == (recording.rank.world.log.end_position, "it left")
    assert [line.partition(" ")[0] for line in recording.said] == ["event=trace_start"]


def test_what_was_decided_is_in_the_file_after_every_look(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.begin()
    recording.run(3)
    *_, last, cut = read_trace(recording.path)
    assert isinstance(last, Res)
    assert last.position == recording.rank.world.log.end_position
    assert cut == Cut(position=last.position)


def test_nothing_is_written_for_an_incarnation_that_nobody_told_of(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.run(2)
    recording.end()
    assert not list(tmp_path.iterdir())
    assert not recording.said


def test_a_trace_that_is_full_ends_and_the_incarnation_goes_on(tmp_path: Path) -> None:
    recording = Recording(tmp_path, bytes_max=12_000)
    recording.begin()
    recording.run(30)
    recording.end()
    *_, last = read_trace(recording.path)
    assert isinstance(last, Gap)
    assert last.reason == "the trace is full: it may have 12000 bytes"
    assert recording.path.stat().st_size <= 12_000
    assert recording.said[-1].startswith("event=trace_stopped path=")
    assert recording.rank.send(Idle()) is not None


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), AssertionError("a fault")]
)
def test_a_failure_ends_the_trace_and_nothing_else(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Recording(tmp_path)
    recording.begin()
    recording.run(2)

    def fail(self: TraceFile, data: bytes) -> None:
        raise failure

    monkeypatch.setattr(TraceFile, "write", fail)
    recording.rank.send(Idle())
    recording.recorder.look(recording.rank.world)
    recording.recorder.look(recording.rank.world)
    recording.end()
    (said,) = recording.said[1:]
    assert said.startswith("event=trace_stopped path=")
    assert str(failure.args[-1]) in said
    assert len(list(read_trace(recording.path))) > 3


def test_a_failure_at_the_end_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(tmp_path)
    recording.begin()
    recording.run(2)

    def fail(self: TraceFile, data: bytes) -> None:
        raise OSError(errno.EIO, "Input/output error")

    recording.rank.world.end("it left")
    recording.recorder.look(recording.rank.world)
    monkeypatch.setattr(TraceFile, "write", fail)
    recording.recorder.end(recording.rank.world)
    assert recording.said[-1].startswith("event=trace_failed path=")
    assert "Input/output error" in recording.said[-1]


def test_a_file_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    first, second = Recording(tmp_path), Recording(tmp_path)
    first.begin()
    before = first.path.read_bytes()
    second.begin()
    second.run(2)
    second.end()
    assert first.path.read_bytes() == before
    assert "reason='File exists'" in second.said[0]


def test_a_folder_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ServeError, match=r"trace_dir = '.*file' cannot be written: File exists"):
        Recording(file)
    with pytest.raises(ServeError, match=r"trace_dir = '/proc/traces' cannot be written"):
        Recording(Path("/proc/traces"))
