"""A program's standing set: the running requests, named once and then by their absence.

A steady decode step names no ids at all; the set changes only when requests come or go.

Invariants:
    standing.rows_live: the rows of a set are distinct, and once looked at those of live requests.
"""

import numpy as np

from kvd.alloc.band import Units
from kvd.alloc.requests import RequestTable
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode


class StandingSet:
    """Rows in the order in which their requests were added; requests that end drop out.

    One that is retracted and comes back is no member, whichever row it gets.
    """

    def __init__(self) -> None:
        self._opened: Units = np.zeros(0, dtype=np.int64)
        self._rows: Units = np.zeros(0, dtype=np.int64)
        self._epoch_count = -1

    def rows(self, table: RequestTable) -> Units:
        """Return the rows of the requests that are still live."""
        if self._epoch_count != table.names.epoch_count:
            alive = table.rows.opened_count[self._rows] == self._opened
            if np.count_nonzero(alive) != alive.size:
                self._opened, self._rows = self._opened[alive], self._rows[alive]
            self._epoch_count = table.names.epoch_count
        return self._rows

    def change(self, table: RequestTable, *, add: list[int], remove: list[int]) -> None:
        """Remove and then add requests; raises OperationError and changes nothing on wrong use."""
        rows = self.rows(table)
        member = np.zeros(table.rows.request_id.size, dtype=bool)
        member[rows] = True
        leaving = table.names.rows_of(remove)
        for request, row in zip(remove, leaving.tolist(), strict=True):
            if not member[row]:
                raise OperationError(
                    f"request {request} is not in the standing set",
                    code=ErrorCode.BAD_REQUEST_ID,
                )
        member[leaving] = False
        joining = table.names.rows_of(add)
        for request, row in zip(add, joining.tolist(), strict=True):
            if member[row]:
                raise OperationError(
                    f"request {request} is in the standing set already",
                    code=ErrorCode.BAD_REQUEST_ID,
                )
        kept = rows[member[rows]]
        self._rows = np.concatenate((kept, joining))
        self._opened = table.rows.opened_count[self._rows]

    def check(self, table: RequestTable) -> None:
        """Check the rows of the set: standing.rows_live."""
        alive = table.rows.opened_count[self._rows] == self._opened
        is_fresh = self._epoch_count == table.names.epoch_count
        if np.unique(self._rows).size != self._rows.size or (is_fresh and not alive.all()):
            table.chain.monitor.fail(
                "standing.rows_live",
                f"the standing set has rows {self._rows.tolist()!r:.80}, of which "
                f"{np.count_nonzero(alive)} are of live requests",
            )
