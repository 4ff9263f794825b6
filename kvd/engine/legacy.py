"""What an incarnation leaves to the next one that runs on the same memory.

Positions go on where the old log ended, so that a progress word left by the old applier is behind
every entry of the new log and its meaning never changes. What of the old log a rank's memory may
lack is redone by the next applier, but only if something survives that it could matter to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvd.engine.log import LogRecord
from kvd.engine.stage import StageEngine
from kvd_proto.codec import join_reply


@dataclass(frozen=True, slots=True)
class Legacy:
    """End of a stage's log, and the books of what survives."""

    end_position: int
    engine: StageEngine | None = None
    """Holds what survives; None when nothing does."""
    records: tuple[LogRecord, ...] = ()
    """The newest entries, the last at ``end_position``; empty when nothing survives."""
    confirmed: Mapping[int, int] = field(default_factory=dict[int, int])
    """Up to where effects are known to have run, by rank, where the memory does not show it."""

    @property
    def first_position(self) -> int:
        """Return the position of the oldest entry that is kept."""
        return self.end_position - len(self.records) + 1

    def reaches(self, progress_position: int) -> bool:
        """Return whether everything from the entry of a progress word on is kept.

        That entry may have run in part, so it is needed itself; position 0 stands before the first.
        A word behind the log's end is none that this log wrote.
        """
        return self.first_position <= max(1, progress_position) <= self.end_position

    def redo(self, progress_position: int) -> bytes:
        """Return the entries from that of a progress word on, as the body of a reply."""
        assert self.reaches(progress_position)
        start = max(1, progress_position)
        records = self.records[start - self.first_position :]
        return join_reply(start, [record.entry for record in records])

    def without_survivors(self) -> "Legacy":
        """Return what is left when nothing survives: where positions go on."""
        return Legacy(self.end_position)
