"""Writing a trace: entries of a log in, lines out, and honest about what is missing."""

from typing import BinaryIO, Final

from kvd import __version__
from kvd.engine.incarnation import Incarnation
from kvd.engine.log import LogRecord
from kvd.engine.snap import StageSnap, take_snap
from kvd.engine.start import IncarnationStart
from kvd.trace.records import End, Gap, Head, Snap, records_of, write_record

SNAP_ENTRIES: Final = 1024
"""Entries between two snaps: some 200 batches of a decoding engine."""


class TraceWriter:
    """One trace. What comes after its end, or after a gap, is not written."""

    def __init__(self, stream: BinaryIO, start: IncarnationStart, *, group: str = "") -> None:
        """Write the head; the first entry stands behind ``start.position``."""
        self.position = start.position
        """Of the newest entry that was written."""
        self.ended = False
        self._stream = stream
        write_record(stream, Head(build=__version__, group=group, start=start))

    def add(self, first_position: int, logged: list[LogRecord]) -> None:
        """Write entries; a hole in front of them ends the trace with a gap."""
        if self.ended or not logged:
            return
        if first_position != self.position + 1:
            self.gap(f"entries {self.position + 1} to {first_position - 1} were not seen")
            return
        for position, record in enumerate(logged, first_position):
            entered, res = records_of(position, record)
            write_record(self._stream, entered)
            write_record(self._stream, res)
        self.position += len(logged)

    def snap(self, position: int, snap: StageSnap) -> None:
        """Write where the stage stands behind the newest entry; another position is passed over."""
        if not self.ended and position == self.position:
            write_record(self._stream, Snap(i=position, snap=snap))

    def end(self, cause: str) -> None:
        """End the trace: nothing is missing."""
        self._close(End(i=self.position, cause=cause))

    def gap(self, reason: str) -> None:
        """End the trace: the log went on without it."""
        self._close(Gap(i=self.position, reason=reason))

    def _close(self, record: End | Gap) -> None:
        if not self.ended:
            self.ended = True
            write_record(self._stream, record)


class TracedIncarnation:
    """Writes what an incarnation in this process decides, when it is told to look."""

    def __init__(
        self, stream: BinaryIO, incarnation: Incarnation, *, snap_entries: int = SNAP_ENTRIES
    ) -> None:
        """Begin with what the log holds; it has to hold everything from the start."""
        self.writer = TraceWriter(stream, incarnation.start)
        self._incarnation = incarnation
        self._snap_entries = snap_entries
        self._snapped = incarnation.start.position
        self.look()

    def look(self) -> None:
        """Write what is new; called between batches."""
        log, writer = self._incarnation.log, self.writer
        if log.end_position > writer.position:
            first = writer.position + 1
            writer.add(first, log.records(first, log.end_position))
        if writer.position - self._snapped >= self._snap_entries:
            self._snapped = writer.position
            writer.snap(writer.position, take_snap(self._incarnation.engine))
