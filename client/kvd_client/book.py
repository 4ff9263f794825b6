"""What a client knows of its requests: the row of each, its tokens, and the standing set.

The daemon names requests by row; engines name them by id. The book follows the operations that were
decided, in position order, so it says what the daemon's books say at the applied position.

Requests belong to the group, not to a program: another program may retract, free or insert those of
this one. Of its operations the log tells the outcome alone, so an end shows by what follows from
it: a retracted row, pages that are gone, or a row that another request has. Who held no page, or
whose pages became a value, keeps a row here until then; the daemon refuses its id meanwhile.

Invariants:
    book.rows_match: `_rows[id] = row` exactly if `_ids[row] = id`, for every row > 0
    book.standing_known: every id of the standing set has a row
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvd_client.arrays import id_array
from kvd_client.calls import Call, Ids, StandingSet
from kvd_client.errors import KvdClientError, ReplyError, UnknownRequestError
from kvd_client.results import NONE, Columns, Int64s, column
from kvd_proto.operations import Free, Insert, Standing
from kvd_proto.outcomes import AdmitResult, AnyResult, Done, Freed, TakeResult

LOOKUPS_MAX: Final = 64
"""Id lists whose rows are remembered; the list is emptied when it is full."""


class RequestBook:
    """Rows, token counts and the standing set of one program's requests."""

    def __init__(self, row_count: int) -> None:
        self._rows: dict[int, int] = {}
        self._ids = np.zeros(row_count, dtype=np.int64)
        self._lengths = np.zeros(row_count, dtype=np.int64)
        self._starts = np.zeros(row_count, dtype=np.int64)
        self._standing: Int64s = NONE
        self._standing_rows: Int64s | None = NONE
        # Rows by the bytes of the id list. Whoever binds or frees a row empties it: the same bytes
        # may then mean other rows.
        self._lookups: dict[bytes, Int64s] = {}
        self._others_end = False
        """Whether another program may have ended requests that have a row here."""
        self._notes: dict[type[AnyResult], Callable[[Call, AnyResult, Columns], None]] = {
            TakeResult: self._note_take,
            AdmitResult: self._note_admit,
            Freed: self._note_freed,
            Done: self._note_done,
        }

    @property
    def standing(self) -> Int64s:
        """Return the ids of the standing set in the order in which they joined it."""
        return self._standing

    @property
    def requests_count(self) -> int:
        """Return how many requests have a row."""
        return len(self._rows)

    def rows(self, ids: Ids) -> Int64s:
        """Return the row of each request; raises UnknownRequestError naming the first without."""
        if isinstance(ids, StandingSet):
            rows = self._standing_rows
            if rows is None:
                rows = self._standing_rows = self._look_up(self._standing)
            return rows
        array = id_array(ids)
        key = array.tobytes()
        rows = self._lookups.get(key)
        if rows is None:
            rows = self._look_up(array)
            if len(self._lookups) >= LOOKUPS_MAX:
                self._lookups.clear()
            self._lookups[key] = rows
        return rows

    def lengths(self, rows: Int64s) -> Int64s:
        """Return the tokens that each row's request holds pages for."""
        return self._lengths[rows]

    def starts(self, rows: Int64s) -> Int64s:
        """Return the tokens that each row's request held before its last take."""
        return self._starts[rows]

    def note(self, call: Call, result: AnyResult, columns: Columns) -> None:
        """Take in one decided operation; what was refused, skipped or failed changes nothing."""
        note = self._notes.get(type(result))
        if note is not None:
            note(call, result, columns)

    def note_other(
        self, result: AnyResult, columns: Columns, without_pages: Callable[[Int64s], Int64s]
    ) -> None:
        """Take in what was decided for another program: whom it ended, and whose rows it has.

        ``without_pages`` returns those of rows that hold tokens whose pages are gone by now.
        """
        if isinstance(result, AdmitResult):
            self._end_rows(column(columns, result.retracted))
            rows = column(columns, result.rows)
            self._end_rows(rows[rows.nonzero()[0]])
        elif isinstance(result, TakeResult):
            self._end_rows(column(columns, result.retracted))
        elif isinstance(result, (Freed, Done)):
            self._others_end = True
            if isinstance(result, Freed):
                self._end_rows(without_pages(self._lengths.nonzero()[0]))

    def check(self) -> None:
        """Raise KvdClientError naming the first invariant that does not hold."""
        bound = self._ids.nonzero()[0]
        named = {int(self._ids[row]): int(row) for row in bound}
        # Two rows of one request collapse in the dictionary; their number tells.
        if named != self._rows or len(bound) != len(named):
            raise KvdClientError("book.rows_match: rows and ids do not name each other")
        for request in self._standing.tolist():
            if request not in self._rows:
                raise KvdClientError(f"book.standing_known: request {request} stands without a row")

    def _note_take(self, call: Call, result: AnyResult, columns: Columns) -> None:
        assert isinstance(result, TakeResult)
        retracted = column(columns, result.retracted)
        try:
            rows = self.rows(StandingSet.STANDING if call.ids is None else call.ids)
            tokens = call.tokens
        except UnknownRequestError:
            rows, tokens = self._own_growth(call)
        if len(retracted):
            staying = ~np.isin(rows, retracted)
            rows = rows[staying]
            tokens = tokens if isinstance(tokens, int) else tokens[staying]
            self._end_rows(retracted)
        starts = self._lengths[rows]
        self._starts[rows] = starts
        self._lengths[rows] = starts + tokens

    def _own_growth(self, call: Call) -> tuple[Int64s, Int64s | int]:
        """Return rows and tokens of a take, without those of requests of another program."""
        assert call.ids is not None
        known = self._is_known(call.ids)
        tokens = call.tokens
        return self.rows(call.ids[known]), tokens if isinstance(tokens, int) else tokens[known]

    def _note_admit(self, call: Call, result: AnyResult, columns: Columns) -> None:
        assert isinstance(result, AdmitResult)
        rows = column(columns, result.rows)
        ids = NONE if call.ids is None else call.ids
        if len(rows) != len(ids):
            raise ReplyError(f"admit of {len(ids)} requests answered with {len(rows)} rows")
        retracted = column(columns, result.retracted)
        self._end_rows(retracted)  # first: their rows may be given to the admitted
        fits = rows.nonzero()[0]
        if not len(fits):
            return
        granted = rows[fits]
        if self._others_end and len(np.unique(granted)) == len(granted):
            self._end_rows(granted)  # of whoever had one another program has ended
        for request, row in zip(ids[fits].tolist(), granted.tolist(), strict=True):
            if not 0 < row < len(self._ids) or self._ids[row]:
                raise ReplyError(f"request {request} was given row {row}, which is not free here")
            self._rows[request] = row
            self._ids[row] = request
        self._starts[granted] = 0
        tokens = call.tokens
        if isinstance(tokens, int) or not len(tokens):
            self._lengths[granted] = 0
        else:
            chunks = column(columns, result.chunk_tokens)
            self._lengths[granted] = np.minimum(tokens[fits], chunks[fits])
        self._forget_lookups()

    def _note_freed(self, call: Call, _result: AnyResult, _columns: Columns) -> None:
        # An advance gives units back too, but ends nobody.
        if isinstance(call.operation, Free):
            self._end(NONE if call.ids is None else call.ids)

    def _end_rows(self, rows: Int64s) -> None:
        """End whoever has these rows; those of another program's requests have nobody here."""
        if not len(rows):
            return
        if rows.min() < 0 or rows.max() >= len(self._ids):
            raise ReplyError(f"rows {rows.tolist()!r:.80} are not all among the {len(self._ids)}")
        self._end(self._ids[rows])

    def _end(self, ids: Int64s) -> None:
        """End requests; one that has no row here was waiting, or is another program's."""
        ids = ids[self._is_known(ids)]
        if not len(ids):
            return
        rows = self.rows(ids)
        for request in ids.tolist():
            del self._rows[request]
        self._ids[rows] = 0
        self._lengths[rows] = 0
        self._starts[rows] = 0
        self._standing = self._without(ids)
        self._forget_lookups()

    def _is_known(self, ids: Int64s) -> NDArray[np.bool_]:
        """Return which requests have a row."""
        return np.array([request in self._rows for request in ids.tolist()], dtype=bool)

    def _note_done(self, call: Call, _result: AnyResult, _columns: Columns) -> None:
        if isinstance(call.operation, Insert):
            self._end(np.array([call.operation.request], dtype=np.int64))
            return
        if not isinstance(call.operation, Standing):
            return
        standing = self._without(call.removed)
        self._standing = standing if call.ids is None else np.concatenate((standing, call.ids))
        self._standing_rows = None

    def _without(self, leaving: Int64s | None) -> Int64s:
        """Return the standing set without some requests; the others keep their order."""
        if leaving is None or not len(self._standing):
            return self._standing
        return self._standing[~np.isin(self._standing, leaving)]

    def _forget_lookups(self) -> None:
        self._lookups.clear()
        self._standing_rows = None

    def _look_up(self, ids: Int64s) -> Int64s:
        known = self._rows
        try:
            return np.array([known[request] for request in ids.tolist()], dtype=np.int64)
        except KeyError as error:
            raise UnknownRequestError(
                f"request {error.args[0]} has no row here: no operation that this client sent, or "
                "has the record of, admitted it, or it ended since"
            ) from None
