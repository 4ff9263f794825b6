"""Records what every incarnation decides, one trace per stage, when the settings ask for it.

Entries are written on the daemon's own thread once their reply has been sent: a thread beside it
would hold the interpreter while the next batch comes in, and a snap has to be taken between batches
anyway. Each batch is one write to the file, so a daemon that is killed leaves a readable prefix.
A trace that cannot be written ends; the incarnation goes on.
"""

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from kvd.engine.incarnation import Incarnation
from kvd.errors import ServeError
from kvd.trace.writer import TracedIncarnation

FILE_MODE = 0o600
SUFFIX = ".trace.jsonl"


class Recorder(Protocol):
    """Is told of incarnations, and when there may be something new in one."""

    def begin(self, group: str, incarnation: Incarnation) -> None:
        """Take in an incarnation that has decided nothing yet."""
        ...

    def look(self, incarnation: Incarnation) -> None:
        """Take in what is new; called between batches, before the log is trimmed."""
        ...

    def end(self, incarnation: Incarnation) -> None:
        """Take in that an incarnation has ended."""
        ...


class TraceFile:
    """A file that takes all it is given in one write each, with nothing held back."""

    def __init__(self, path: Path) -> None:
        """Create it; raises OSError, for one that is there already too."""
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, FILE_MODE)

    def write(self, data: bytes) -> None:
        """Write all of it; raises OSError."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


class TraceRecorder:
    """Writes traces into a folder."""

    def __init__(
        self, folder: Path, *, bytes_max: int, epoch: int, log: Callable[[str], None]
    ) -> None:
        """Make the folder if it is missing; raises ServeError if nothing can be written there."""
        self._folder = folder
        self._bytes_max = bytes_max
        self._epoch = epoch
        self._log = log
        self._traces: dict[Incarnation, tuple[TracedIncarnation, TraceFile]] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = TraceFile(folder / f".{os.getpid()}-{epoch:016x}")
            probe.path.unlink()
            probe.close()
        except OSError as error:
            raise ServeError(
                f"trace_dir = {str(folder)!r} cannot be written: {error.strerror}"
            ) from error

    def begin(self, group: str, incarnation: Incarnation) -> None:
        """Start a trace; a file that cannot be made is logged, and nothing is recorded."""
        stage = incarnation.start.shape.stage_index
        name = f"{group}-{self._epoch:016x}-{incarnation.number}-stage{stage}{SUFFIX}"
        try:
            file = TraceFile(self._folder / name)
        except OSError as error:
            self._log(f"event=trace_failed path={name!r} reason={error.strerror!r}")
            return
        try:
            traced = TracedIncarnation(file, incarnation, group=group, bytes_max=self._bytes_max)
        except OSError as error:
            file.close()
            self._log(f"event=trace_failed path={name!r} reason={error.strerror!r}")
            return
        self._traces[incarnation] = traced, file
        self._log(f"event=trace_start group={group} path={str(file.path)!r}")

    def look(self, incarnation: Incarnation) -> None:
        """Write what is new."""
        found = self._traces.get(incarnation)
        if found is None:
            return
        traced, file = found
        try:
            traced.look()
        except OSError as error:
            self._drop(incarnation, file, str(error.strerror))
        except Exception:  # rim: whoever watches must not stop what is watched
            self._drop(incarnation, file, traceback.format_exc())
        else:
            if traced.writer.ended:
                self._drop(incarnation, file, "the trace is full")

    def end(self, incarnation: Incarnation) -> None:
        """Write the end, and close the file."""
        self.look(incarnation)
        found = self._traces.pop(incarnation, None)
        if found is None:
            return
        traced, file = found
        try:
            traced.end()
        except OSError as error:
            self._log(f"event=trace_failed path={str(file.path)!r} reason={error.strerror!r}")
        except Exception:  # rim: whoever watches must not stop what is watched
            self._log(
                f"event=trace_failed path={str(file.path)!r} reason={traceback.format_exc()!r}"
            )
        file.close()

    def _drop(self, incarnation: Incarnation, file: TraceFile, reason: str) -> None:
        del self._traces[incarnation]
        file.close()
        self._log(f"event=trace_stopped path={str(file.path)!r} reason={reason!r}")
