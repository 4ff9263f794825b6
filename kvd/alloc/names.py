"""Request ids: which row a live request has, and which ids may still be introduced.

Ids are chosen by the program and ascend, so that an id that was used tells itself from one that
never was. A request that was told to wait, or that was retracted, may be asked for again.
"""

from itertools import islice
from typing import NamedTuple

import numpy as np

from kvd.alloc.band import Units
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode

REQUEST_ID_MAX = (1 << 63) - 1

WAITING_COUNT_MAX = 1 << 20
"""Requests that may wait at once: enough for any queue, small enough to bound memory."""


class Asked(NamedTuple):
    """What a request asked for when it was told to wait."""

    prompt_tokens: int
    new_tokens_max: int
    chunk_tokens: int


class RequestNames:
    """Rows by request id."""

    def __init__(self) -> None:
        self.row_of: dict[int, int] = {}
        self.highest_id = 0
        self.epoch_count = 0
        """Moves whenever a request comes or goes, so that memos of row sets can be keyed by it."""
        self._waiting: dict[int, Asked | None] = {}

    def rows_of(self, request_ids: list[int]) -> Units:
        """Return the rows of live requests, in order.

        Raises OperationError for an id that is unknown, has ended or is named twice.
        """
        row_of = self.row_of
        try:
            rows = [row_of[request] for request in request_ids]
        except KeyError as error:
            raise self._unknown(int(error.args[0])) from None
        if len(set(rows)) != len(rows):
            seen: dict[int, None] = {}
            for request in request_ids:
                if request in seen:
                    raise OperationError(
                        f"request {request} is named twice; name each request once",
                        code=ErrorCode.BAD_REQUEST_ID,
                    )
                seen[request] = None
        return np.array(rows, dtype=np.int64)

    def check_new(self, request: int) -> None:
        """Raise OperationError unless the id may be introduced now."""
        if not 0 < request <= REQUEST_ID_MAX:
            raise OperationError(
                f"request id {request} is not a positive 64-bit integer",
                code=ErrorCode.BAD_REQUEST_ID,
            )
        if request in self.row_of:
            raise OperationError(
                f"request {request} is admitted already", code=ErrorCode.BAD_REQUEST_ID
            )
        if request <= self.highest_id and request not in self._waiting:
            raise OperationError(
                f"request id {request} was used before; new ids ascend, the highest so far is "
                f"{self.highest_id}",
                code=ErrorCode.BAD_REQUEST_ID,
            )

    def check_waiting_room(self, request_ids: list[int]) -> None:
        """Raise OperationError unless all of these may be told to wait."""
        joining_count = sum(request not in self._waiting for request in request_ids)
        if len(self._waiting) + joining_count > WAITING_COUNT_MAX:
            raise OperationError(
                f"{len(self._waiting)} requests wait already and {joining_count} more may have to; "
                f"at most {WAITING_COUNT_MAX} can"
            )

    def open(self, request: int, row: int) -> None:
        """Let an id name a row."""
        self.highest_id = max(self.highest_id, request)
        self._waiting.pop(request, None)
        self.row_of[request] = row
        self.epoch_count += 1

    def wait(self, request: int, asked: Asked | None = None) -> None:
        """Let an id be asked for again; ``asked`` is what it was told to wait for."""
        self.highest_id = max(self.highest_id, request)
        self._waiting[request] = asked

    @property
    def waiting_count(self) -> int:
        """Return how many requests were told to wait, or were retracted, and did not come back."""
        return len(self._waiting)

    @property
    def highest_waiting_id(self) -> int:
        """Return the highest id that waits, 0 if none does; for checks."""
        return max(self._waiting, default=0)

    def asked(self, count_max: int) -> list[tuple[int, Asked]]:
        """Return the first requests that were told to wait, with what they asked for; for checks.

        Those that were retracted are not among them: they had their place once.
        """
        found = ((request, asked) for request, asked in self._waiting.items() if asked is not None)
        return list(islice(found, count_max))

    def waits(self, request: int) -> bool:
        """Return whether a request was told to wait, or was retracted, and did not come back."""
        return request in self._waiting

    def drop_waiting(self, request_ids: list[int]) -> None:
        """Let those of the requests that wait never be used."""
        for request in request_ids:
            self._waiting.pop(request, None)

    def refuse(self, request: int) -> None:
        """Let an id never be used."""
        self.highest_id = max(self.highest_id, request)
        self._waiting.pop(request, None)

    def close(self, request_ids: list[int]) -> None:
        """Let ids of requests that ended name nothing any more."""
        for request in request_ids:
            del self.row_of[request]
        self.epoch_count += 1

    def _unknown(self, request: int) -> OperationError:
        if not 0 < request <= REQUEST_ID_MAX:
            return OperationError(
                f"request id {request} is not a positive 64-bit integer",
                code=ErrorCode.BAD_REQUEST_ID,
            )
        if request in self._waiting or request > self.highest_id:
            problem = "is not admitted"
        else:
            problem = "has ended or never fitted"
        return OperationError(f"request {request} {problem}", code=ErrorCode.UNKNOWN_REQUEST)
