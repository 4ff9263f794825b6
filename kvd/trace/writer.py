"""Writing a trace: entries of a log in, lines out, and honest about what is missing."""

from collections.abc import Sequence
from typing import Final, Protocol

from kvd import __version__
from kvd.engine.incarnation import Incarnation
from kvd.engine.log import LogRecord
from kvd.engine.snap import StageSnap, take_snap
from kvd.engine.start import IncarnationStart
from kvd.trace.records import FORMAT, End, Gap, Head, Record, Snap, encode_record, records_of

SNAP_ENTRIES: Final = 1024
"""Entries between two snaps: some 200 batches of a decoding engine."""
LAST_RECORD_BYTES: Final = 4096
"""Kept free under a bound, for the record that says why a trace ends."""
REASON_CHARACTERS_MAX: Final = 600
"""Of what a last record says: it fits there though each is escaped to six bytes."""


class Sink(Protocol):
    """What lines go into: a binary file, or anything that takes all it is given."""

    def write(self, data: bytes, /) -> object:
        """Take all of it, or raise OSError."""
        ...


class TraceWriter:
    """One trace. What comes after its end, or after a gap, is not written.

    Each call writes whole records with one write, so a process that dies leaves a trace that is
    complete but for what it was writing.
    """

    def __init__(
        self, sink: Sink, start: IncarnationStart, *, group: str = "", bytes_max: int = 0
    ) -> None:
        """Write the head; the first entry stands behind ``start.position``.

        ``bytes_max`` bounds the whole trace, which ends with a gap before it would be longer; 0
        is no bound. Raises OSError, as every call here that writes.
        """
        self.position = start.position
        """Of the newest entry that was written."""
        self.ended = False
        self._start_position = start.position
        self.bytes_total = 0
        self._sink = sink
        self._bytes_max = bytes_max
        self._write([Head(format=FORMAT, build=__version__, group=group, start=start)])

    def add(self, first_position: int, logged: list[LogRecord]) -> None:
        """Write entries; a hole in front of them ends the trace with a gap."""
        if self.ended or not logged:
            return
        if first_position != self.position + 1:
            self.gap(f"entries {self.position + 1} to {first_position - 1} were not seen")
            return
        if self._write(
            [
                item
                for position, record in enumerate(logged, first_position)
                for item in records_of(position, record)
            ]
        ):
            self.position += len(logged)

    def snap(self, position: int, snap: StageSnap) -> None:
        """Write where the stage stands behind the newest entry.

        Another position is passed over; so is a stage that has decided nothing, which the head
        says.
        """
        if not self.ended and self._start_position < position == self.position:
            self._write([Snap(position=position, snap=snap)])

    def end(self, cause: str) -> None:
        """End the trace: nothing is missing."""
        self._close(End(position=self.position, cause=cause[:REASON_CHARACTERS_MAX]))

    def gap(self, reason: str) -> None:
        """End the trace: the log went on without it."""
        self._close(Gap(position=self.position, reason=reason[:REASON_CHARACTERS_MAX]))

    def _write(self, records: Sequence[Record]) -> bool:
        """Write records if they fit under the bound; if not, end the trace instead."""
        lines = b"".join(map(encode_record, records))
        if self._bytes_max and self.bytes_total + len(lines) > self._bytes_max - LAST_RECORD_BYTES:
            self.gap(f"the trace is full: it may have {self._bytes_max} bytes")
            return False
        self._sink.write(lines)
        self.bytes_total += len(lines)
        return True

    def _close(self, record: End | Gap) -> None:
        if not self.ended:
            self.ended = True
            line = encode_record(record)
            self._sink.write(line)
            self.bytes_total += len(line)


class TracedIncarnation:
    """Writes what an incarnation in this process decides, when it is told to look."""

    def __init__(
        self,
        sink: Sink,
        incarnation: Incarnation,
        *,
        group: str = "",
        bytes_max: int = 0,
        snap_entries: int = SNAP_ENTRIES,
    ) -> None:
        """Begin with what the log holds; it has to hold everything from the start."""
        self.writer = TraceWriter(sink, incarnation.start, group=group, bytes_max=bytes_max)
        self._incarnation = incarnation
        self._snap_entries = snap_entries
        self._snapped = incarnation.start.position
        self.look()

    def look(self) -> None:
        """Write what is new; called between batches, before the log is trimmed."""
        log, writer = self._incarnation.log, self.writer
        if writer.ended:
            return
        if log.end_position > writer.position:
            first = writer.position + 1
            writer.add(first, log.records(first, log.end_position))
        if writer.position - self._snapped >= self._snap_entries:
            self._snapped = writer.position
            writer.snap(writer.position, take_snap(self._incarnation.engine))

    def end(self, cause: str = "") -> None:
        """Write the rest, where the stage stands, and how the incarnation ended.

        Where it goes on, ``cause`` says why its trace does not.
        """
        self.look()
        self.writer.snap(self.writer.position, take_snap(self._incarnation.engine))
        self.writer.end(self._incarnation.ended or cause or "recording was stopped")
