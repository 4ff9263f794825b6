"""Whether the tables in a rank's memory are what the daemon's books say.

The daemon answers with digests for the end of its log, the rank digests what lies in its memory
once all effects have run. Only where the two differ is the host's copy asked, which knows every
entry and so shows which one is wrong.

The rank has to stand where the books do. A rank that decides does so after each of its batches,
unless another one is ahead; a follower does when it followed up to the log's end. Entries without
effects change no table and do not count. While a flow of this module runs no entry with effects is
applied: that takes the client's turn, or lies in the launch queue, and then the books are ahead.

Invariants:
    tables.match_books: band maps, live rows with their lengths, and state slots of a rank's memory
        equal the daemon's books
"""

from collections.abc import Generator
from functools import partial
from typing import Final

import numpy as np

from kvd_client.calls import Batch
from kvd_client.device.port import Memory, Stream
from kvd_client.errors import ReplyError, TablesError, UsageError
from kvd_client.flow import Exchange, Flow, HostWait
from kvd_client.results import Int32s, Int64s
from kvd_client.session import Session
from kvd_proto.codec import digest_of
from kvd_proto.control import BooksReply

_INT32: Final = np.dtype("<i4")
_UNFIT: Final = "the books that came do not fit this rank's plan"


class TableCheck:
    """Compares one rank's tables: when asked, and with check level ``strict`` at idle and leave."""

    def __init__(self, session: Session, memory: Memory, stream: Stream) -> None:
        """``stream`` is the one that all tables are written on."""
        self._session = session
        self._memory = memory
        self._stream = stream
        self._strict = session.welcome.check_level == "strict"
        self.tables_count = 0
        """Tables that the last comparison covered."""

    def asked(self) -> Flow:
        """Compare; raises TablesError, and UsageError where this rank is behind the books."""
        books = yield from self._books()
        session = self._session
        if session.applied < books.position_min:
            raise UsageError(
                f"check_tables: this rank has applied position {session.applied}, and the entry at "
                f"{books.position_min} has effects; the books are those of position "
                f"{books.position}, so apply the log up to there first"
            )
        yield HostWait(partial(self._compare, books))

    def sending(self, batch: Batch) -> Flow:
        """Send a batch; with level ``strict`` compare what it left, if it ended with idle."""
        yield from self._session.send_batch(batch)
        if batch.idles:
            yield from self._by_itself()

    def leaving(self) -> Flow:
        """Say goodbye; with level ``strict`` compare before."""
        yield from self._by_itself()
        yield from self._session.say_bye()

    def _by_itself(self) -> Flow:
        """Compare where that can be done: another rank of the program may be ahead."""
        if self._strict:
            books = yield from self._books()
            if self._session.applied >= books.position_min:
                yield HostWait(partial(self._compare, books))

    def _books(self) -> Generator[Exchange | HostWait, None, BooksReply]:
        yield from self._session.books()
        books = self._session.books_reply
        assert books is not None
        return books

    def _compare(self, books: BooksReply) -> None:
        """Wait for the effects and compare; a difference poisons, whoever sees the error."""
        session = self._session
        self._stream.synchronize(session.deadline_ms)
        try:
            self.tables_count = _Comparison(session, self._memory, books).run()
        except (ReplyError, TablesError) as error:
            session.poison(error.message)
            raise


class _Comparison:
    """Tables in memory, the books' digests, and the host's copy to find a difference with."""

    def __init__(self, session: Session, memory: Memory, books: BooksReply) -> None:
        self._plan = session.welcome.plan
        self._mirror = session.mirror
        self._memory = memory
        self._books = books
        self._rows = _numbers(books.rows)
        self._counts = _numbers(books.page_counts)
        self._check_answer()

    def run(self) -> int:
        """Return how many tables are as they should be; raises TablesError for the first other."""
        plan = self._plan
        for table, digest in zip(plan.region.band_maps, self._books.map_digests, strict=True):
            held = self._read(table.offset_bytes, table.entry_count)
            if digest_of(held.tobytes()) != digest:
                expected = self._mirror.virtual_to_physical(table.band)
                raise self._differs(f"map of band {table.band!r}", "entry", held, expected)
        self._compare_lengths()
        self._compare_rows()
        return len(plan.region.band_maps) + 2 + self._compare_slots()

    def _compare_lengths(self) -> None:
        table = self._plan.region.row_lengths
        held = self._read(table.offset_bytes, table.row_count)[self._rows]
        expected = self._counts * self._plan.page_tokens
        wrong = (held != expected).nonzero()[0]
        if len(wrong):
            first = wrong[0]
            raise self._error(
                f"row {self._rows[first]} has length {held[first]}, the books say "
                f"{expected[first]} tokens"
            )

    def _compare_rows(self) -> None:
        plan = self._plan
        counts, digests = self._counts.tolist(), self._books.row_digests
        for row, count, digest in zip(self._rows.tolist(), counts, digests, strict=True):
            start_bytes = plan.region.request_table.offset_bytes + row * plan.row_pages * 4
            held = self._read(start_bytes, count)
            if digest_of(held.tobytes()) != digest:
                expected = self._mirror.request_row(row)[:count]
                raise self._differs(f"row {row} of the request table", "place", held, expected)

    def _compare_slots(self) -> int:
        table = self._plan.region.state_table
        if table is None:
            return 0
        cells = self._read(table.offset_bytes, table.row_count * table.column_count)
        held = cells[self._rows * table.column_count]
        if digest_of(held.tobytes()) != self._books.slots_digest:
            expected = self._mirror.virtual_slots(self._rows)
            raise self._differs("state table", "row", held, expected, self._rows)
        return 1

    def _read(self, offset_bytes: int, entry_count: int) -> Int32s:
        """Return a table, or part of it, as it lies in memory."""
        if not entry_count:
            return np.zeros(0, dtype=_INT32)  # a request that took nothing yet
        end_bytes = offset_bytes + entry_count * _INT32.itemsize
        return np.frombuffer(self._memory.read_bytes(offset_bytes, end_bytes), dtype=_INT32)

    def _differs(
        self,
        what: str,
        place_word: str,
        held: Int32s,
        expected: Int32s | Int64s,
        places: Int64s | None = None,
    ) -> TablesError:
        """Return the error for a table whose digest is wrong, with the first difference found."""
        wrong = (held != expected).nonzero()[0]
        if not len(wrong):
            return self._error(
                f"{what} is not what the books say, and the host's copy of it is the same: "
                "other effects came than were decided"
            )
        first = int(wrong[0])
        place = first if places is None else int(places[first])
        return self._error(
            f"{what} is not what the books say: {place_word} {place} holds {held[first]}, "
            f"by the host's copy {expected[first]}; {len(wrong)} of {len(held)} differ"
        )

    def _error(self, text: str) -> TablesError:
        return TablesError(f"tables.match_books: at position {self._books.position}, {text}")

    def _check_answer(self) -> None:
        """Raise ReplyError for books of another plan."""
        plan, rows, counts = self._plan, self._rows, self._counts
        if (
            len(self._books.map_digests) != len(plan.bands)
            or not len(rows) == len(counts) == len(self._books.row_digests)
            or not _within(rows, 1, plan.row_count)
            or not _within(counts, 0, plan.row_pages + 1)
        ):
            raise ReplyError(_UNFIT)


def _numbers(encoded: bytes) -> Int64s:
    if len(encoded) % _INT32.itemsize:
        raise ReplyError(_UNFIT)
    return np.frombuffer(encoded, dtype=_INT32).astype(np.int64)


def _within(numbers: Int64s, start: int, end: int) -> bool:
    return not len(numbers) or (int(numbers.min()) >= start and int(numbers.max()) < end)
