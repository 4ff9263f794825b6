"""The log of one stage: every entry in one total order, bounded in memory.

An entry is kept while some rank has not applied it or may have to redo it, and after that in a ring
of the newest ones, for whoever wants to look back.

Invariants:
    log.positions_gapless: every entry follows the one before it; the first stands at position 1;
    log.bytes_exact: what is said to be kept is the size of the entries that are.
"""

import msgspec

from kvd.alloc.checks import CheckMonitor
from kvd.errors import InvariantError, SessionError
from kvd_proto.codec import join_reply
from kvd_proto.errors import ErrorCode

TRIM_STRIDE_ENTRIES = 1024
"""Entries dropped at once: a tenth of a millisecond, every two hundred batches or so."""


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One entry: who caused it, what it said, and how ranks receive it."""

    program: int
    index: int
    """Program index; for a fact the rank that reported it."""
    body: bytes
    entry: bytes


class StageLog:
    """Entries ``(first_position, ..., end_position)`` of one incarnation of a stage."""

    def __init__(
        self,
        *,
        ring_entries_max: int,
        end_position: int = 0,
        records: list[LogRecord] | None = None,
    ) -> None:
        """Start behind ``end_position``, where ``records`` of an earlier incarnation end."""
        self._records = records or []
        self._dropped_count = end_position - len(self._records)
        self._ring_entries_max = ring_entries_max
        self.bytes_total = 0
        self.kept_bytes = sum(len(one.body) + len(one.entry) for one in self._records)

    @property
    def end_position(self) -> int:
        """Return the position of the newest entry; 0 for an empty log."""
        return self._dropped_count + len(self._records)

    @property
    def first_position(self) -> int:
        """Return the position of the oldest entry that is kept."""
        return self._dropped_count + 1

    def extend(self, records: list[LogRecord]) -> None:
        """Append entries in order."""
        self._records += records
        size = 0
        for record in records:
            size += len(record.body) + len(record.entry)
        self.bytes_total += size
        self.kept_bytes += size

    def records(self, first_position: int, end_position: int) -> list[LogRecord]:
        """Return the entries from ``first_position`` to ``end_position``, both included.

        Raises SessionError when an entry asked for is not kept any more.
        """
        start = first_position - 1 - self._dropped_count
        if start < 0:
            raise SessionError(
                f"position {first_position} is gone, the log starts at {self.first_position}",
                code=ErrorCode.FENCED,
            )
        return self._records[start : end_position - self._dropped_count]

    def reply(self, applied_position: int, end_position: int) -> bytes:
        """Return the reply body with the entries behind a rank's cursor up to ``end_position``."""
        records = self.records(applied_position + 1, end_position)
        if len(records) != end_position - applied_position:
            raise InvariantError(
                "log.positions_gapless",
                f"{len(records)} entries stand behind position {applied_position} up to "
                f"{end_position}",
            )
        return join_reply(applied_position + 1, [record.entry for record in records])

    def trim(self, needed_position: int) -> None:
        """Drop entries up to this position, behind which ranks need all, that the ring leaves."""
        surplus = len(self._records) - self._ring_entries_max
        # Dropping in strides keeps the cost of one batch flat.
        if surplus < min(TRIM_STRIDE_ENTRIES, self._ring_entries_max // 4):
            return
        surplus = min(surplus, needed_position - self._dropped_count)
        if surplus > 0:
            self.kept_bytes -= sum(
                len(record.body) + len(record.entry) for record in self._records[:surplus]
            )
            del self._records[:surplus]
            self._dropped_count += surplus

    def check(self, monitor: CheckMonitor) -> None:
        """Check what is said about the log: log.bytes_exact; linear in its entries."""
        kept_bytes = sum(len(record.body) + len(record.entry) for record in self._records)
        if kept_bytes != self.kept_bytes:
            monitor.fail(
                "log.bytes_exact",
                f"{len(self._records)} entries are {kept_bytes} bytes, {self.kept_bytes} are "
                f"said to be kept",
            )
