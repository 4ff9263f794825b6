"""What a follower holds: entries behind the position it was told, operations its leader recorded.

A follower pulls whole replies, but applies no further than the position its leader launched at: the
step has to see the tables of that position. The rest waits here.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from kvd_client.calls import Call, read_record
from kvd_client.errors import UsageError
from kvd_proto.outcomes import Entry

ENTRIES_MAX: Final = 65_536
"""Entries that wait for the leader's word; more than a leader may be ahead."""
RECORDS_MAX: Final = 65_536
"""Recorded operations that wait for their entries."""


class Backlog:
    """Entries not applied yet, oldest first, and recorded operations by program and index."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._records: dict[tuple[int, int], Call] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def keep_records(self, records: Sequence[bytes]) -> None:
        """Keep the operations of a leader's records; raises UsageError for garbage or too many."""
        for record in records:
            for recorded in read_record(record):
                self._records[recorded.program, recorded.index] = recorded.call
        if len(self._records) > RECORDS_MAX:
            raise UsageError(f"more than {RECORDS_MAX} recorded operations wait for the log")

    def keep(self, entries: Sequence[Entry]) -> None:
        """Keep entries that follow those held; raises UsageError if they are too many."""
        if len(self._entries) + len(entries) > ENTRIES_MAX:
            raise UsageError(f"more than {ENTRIES_MAX} entries wait for the leader's word")
        self._entries.extend(entries)

    def oldest(self, count: int) -> list[tuple[Entry, Call | None]]:
        """Return up to ``count`` entries with their recorded operations, and keep them."""
        return [
            (entry, self._records.get((entry.program, entry.index)))
            for entry in islice(self._entries, count)
        ]

    def drop(self, count: int) -> None:
        """Forget entries that were applied, and their records."""
        for _ in range(count):
            entry = self._entries.popleft()
            self._records.pop((entry.program, entry.index), None)
