"""What a client knows of its requests: the row of each, its tokens, and the standing set.

The daemon names requests by row; engines name them by id. The book follows the operations that were
decided, in position order, so it says what the daemon's books say at the applied position.

Invariants:
    book.rows_match: `_rows[id] = row` exactly if `_ids[row] = id`, for every row > 0
    book.standing_known: every id of the standing set has a row
"""

from typing import TYPE_CHECKING, Final

import numpy as np

from kvd_client.arrays import id_array
from kvd_client.calls import Call, Ids, StandingSet
from kvd_client.errors import KvdClientError, ReplyError, UnknownRequestError
from kvd_client.results import NONE, Columns, Int64s, column
from kvd_proto.operations import Free, Insert, Standing
from kvd_proto.outcomes import AdmitResult, AnyResult, Done, Freed, TakeResult

if TYPE_CHECKING:
    from collections.abc import Callable

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
        rows = self.rows(StandingSet.STANDING if call.ids is None else call.ids)
        tokens = call.tokens
        if len(retracted):
            staying = ~np.isin(rows, retracted)
            rows = rows[staying]
            tokens = tokens if isinstance(tokens, int) else tokens[staying]
            self._end(self._ids[retracted])
        starts = self._lengths[rows]
        self._starts[rows] = starts
        self._lengths[rows] = starts + tokens

    def _note_admit(self, call: Call, result: AnyResult, columns: Columns) -> None:
        assert isinstance(result, AdmitResult)
        rows = column(columns, result.rows)
        ids = NONE if call.ids is None else call.ids
        if len(rows) != len(ids):
            raise ReplyError(f"admit of {len(ids)} requests answered with {len(rows)} rows")
        retracted = column(columns, result.retracted)
        if len(retracted):
            self._end(self._ids[retracted])  # first: their rows may be given to the admitted
        fits = rows.nonzero()[0]
        if not len(fits):
            return
        granted = rows[fits]
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
            ids = NONE if call.ids is None else call.ids
            known = [request in self._rows for request in ids.tolist()]
            self._end(ids[known])  # the others were waiting and never had a row

    def _end(self, ids: Int64s) -> None:
        rows = self.rows(ids)
        for request in ids.tolist():
            del self._rows[request]
        self._ids[rows] = 0
        self._lengths[rows] = 0
        self._starts[rows] = 0
        self._standing = self._without(ids)
        self._forget_lookups()

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
                "has the record of, admitted it, or it was freed since"
            ) from None
