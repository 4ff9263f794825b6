"""Entries that are here and not applied yet, and operations that a leader recorded.

Two things make entries wait: a follower applies no further than the position its leader launched
at, and nobody applies anything behind the position of a step whose launch is open.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, TypeAlias

from kvd_client.calls import Call, read_record
from kvd_client.errors import UsageError
from kvd_proto.outcomes import Entry

ENTRIES_MAX: Final = 65_536
"""Entries that wait to be applied; more than a leader, or the daemon, may be ahead."""
RECORDS_MAX: Final = 65_536
"""Recorded operations that wait for their entries."""

Held: TypeAlias = tuple[Entry, Call | None]
"""An entry, and its operation where it is known here."""


class Backlog:
    """Entries not applied yet, oldest first, and recorded operations by program and index."""

    def __init__(self) -> None:
        self._held: deque[Held] = deque()
        self._records: dict[tuple[int, int], Call] = {}

    def __len__(self) -> int:
        return len(self._held)

    def keep_records(self, records: Sequence[bytes]) -> None:
        """Keep the operations of a leader's records; raises UsageError for garbage or too many."""
        for record in records:
            for recorded in read_record(record):
                self._records[recorded.program, recorded.index] = recorded.call
        if len(self._records) > RECORDS_MAX:
            raise UsageError(f"more than {RECORDS_MAX} recorded operations wait for the log")

    def keep(self, entries: Sequence[Entry], calls: Sequence[Call | None] | None = None) -> None:
        """Keep entries that follow those held, with this rank's own operations where it has any.

        Raises UsageError, with nothing kept, if they are too many.
        """
        self.check_room(len(entries))
        own = (None,) * len(entries) if calls is None else calls
        self._held.extend(zip(entries, own, strict=True))

    def check_room(self, count: int) -> None:
        """Raise UsageError if so many more entries are too many."""
        if len(self._held) + count > ENTRIES_MAX:
            raise UsageError(f"more than {ENTRIES_MAX} entries wait to be applied")

    def oldest(self, count: int) -> list[Held]:
        """Return up to ``count`` entries with their operations, own or recorded, and keep them."""
        return [
            (entry, call or self._records.get((entry.program, entry.index)))
            for entry, call in islice(self._held, max(0, count))
        ]

    def drop(self, count: int) -> None:
        """Forget entries that were applied, and their records."""
        for _ in range(count):
            entry, _call = self._held.popleft()
            self._records.pop((entry.program, entry.index), None)
