"""Adapters that run in processes of their own: another source tree of kvd, or another allocator."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from select import select
from time import monotonic
from typing import Final

import msgspec

from kvd.engine.snap import StageSnap
from kvd.errors import FileError, OperationError, WorkloadError
from kvd.testing.processes import end_process, ending_of, tail_of
from kvd.trace.adapter import Decision, Event
from kvd.trace.process import Answer, Ask, FeedAsk, FitsAsk, SnapAsk, StartAsk, encode_line
from kvd.trace.records import Head
from kvd_proto.errors import ErrorCode

ANSWER_WAIT_S: Final = 60.0
"""How long an answer may take: an event is decided in milliseconds, a start in a second."""
CHUNK_BYTES: Final = 1 << 16
SOURCE_ROOTS: Final = ("", "client", "proto")
"""Folders of a source tree that modules are imported from."""


class ProcessAdapter:
    """Plays events by asking a process; it is started when the first one is asked."""

    def __init__(
        self, command: Sequence[str], *, name: str, environment: Mapping[str, str]
    ) -> None:
        """Remember what to run, with which environment."""
        self.name = name
        self._command = tuple(command)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 closed in close
        self._buffered = b""

    def start(self, head: Head) -> Sequence[Decision]:
        """Begin; raises WorkloadError if the process cannot be started or does not answer."""
        return self._decided(StartAsk(head=head))

    def feed(self, event: Event) -> Sequence[Decision]:
        """Return what the process decides; raises WorkloadError."""
        return self._decided(FeedAsk(event=event))

    def snap(self) -> StageSnap | None:
        """Return where the process says that the stage stands."""
        return self._ask(SnapAsk()).snap

    def fits(self, units: tuple[int, ...]) -> bool | None:
        """Return what the process says."""
        return self._ask(FitsAsk(units=units)).fits

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with process.stdin, process.stdout:
                end_process(process, kill=True)
        self._complaints.close()

    def _decided(self, ask: Ask) -> Sequence[Decision]:
        answer = self._ask(ask)
        if answer.error is not None:
            known = answer.error.code in ErrorCode.__members__
            code = ErrorCode[answer.error.code] if known else ErrorCode.INTERNAL
            raise OperationError(answer.error.message, code=code)
        return answer.decisions

    def _ask(self, ask: Ask) -> Answer:
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(encode_line(ask))
            process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        line = self._line(process)
        try:
            return msgspec.json.decode(line, type=Answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _unreachable(
                f"{self.name} answered {line[:80]!r}, which is no answer: {error}"
            ) from error

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._complaints,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise _unreachable(f"{self.name} cannot be started: {error.strerror}") from error
        return self._process

    def _line(self, process: "subprocess.Popen[bytes]") -> bytes:
        assert process.stdout is not None
        deadline_s = monotonic() + ANSWER_WAIT_S
        while b"\n" not in self._buffered:
            wait_s = max(0.0, deadline_s - monotonic())
            if not select([process.stdout], [], [], wait_s)[0]:
                raise _unreachable(f"{self.name} did not answer within {ANSWER_WAIT_S:.0f} s")
            chunk = os.read(process.stdout.fileno(), CHUNK_BYTES)
            if not chunk:
                raise self._ended()
            self._buffered += chunk
        line, _, self._buffered = self._buffered.partition(b"\n")
        return line

    def _ended(self) -> WorkloadError:
        assert self._process is not None
        end_process(self._process, kill=False)
        ending = ending_of(self._process.returncode)
        return _unreachable(f"{self.name} {ending}: {tail_of(self._complaints)}")


def _unreachable(message: str) -> WorkloadError:
    return WorkloadError(message, code=ErrorCode.UNREACHABLE)


def tree_adapter(tree: Path, *, environment: Mapping[str, str]) -> ProcessAdapter:
    """Return another source tree of kvd as an adapter; raises FileError if it is none."""
    if not (tree / "kvd" / "trace" / "process.py").is_file():
        raise FileError(f"{tree} is no source tree of kvd that can replay traces")
    roots = os.pathsep.join(str((tree / root).resolve()) for root in SOURCE_ROOTS)
    return ProcessAdapter(
        (sys.executable, "-P", "-m", "kvd.trace.process"),
        name=str(tree),
        environment={**environment, "PYTHONPATH": roots},
    )
