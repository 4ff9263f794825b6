"""Id lists on the wire: arrays out of operations, columns into outcomes."""

import numpy as np
from numpy.typing import NDArray

from kvd.alloc.band import Units
from kvd.errors import OperationError
from kvd_proto.outcomes import NO_COLUMN

REQUEST_BYTES = 8
TOKEN_BYTES = 4


class ColumnBuilder:
    """Collects arrays and lays them end to end as little-endian int32."""

    def __init__(self) -> None:
        self._parts: list[Units] = []

    def add(self, values: Units) -> int:
        """Add a column and return the index that results and effects name it by."""
        self._parts.append(values)
        return len(self._parts) - 1

    def add_if_any(self, values: Units) -> int:
        """Add a column unless it is empty; return its index or NO_COLUMN."""
        return self.add(values) if values.size else NO_COLUMN

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the columns' lengths in entries."""
        return tuple([part.size for part in self._parts])

    def encode(self) -> bytes:
        """Return the columns' bytes. Ids fit 31 bits: sizing refuses an arena with more units."""
        parts = self._parts
        if not parts:
            return b""
        return np.concatenate(parts, dtype="<i4", casting="unsafe").tobytes()


def read_request_ids(encoded: bytes, *, what: str) -> list[int]:
    """Return the request ids of an operation; raises OperationError for a ragged array."""
    if len(encoded) % REQUEST_BYTES or not encoded:
        raise OperationError(
            f"{what} of {len(encoded)} bytes is not a non-empty array of 8-byte request ids"
        )
    ids: list[int] = np.frombuffer(encoded, dtype="<i8").tolist()
    return ids


def read_tokens(encoded: bytes, *, count: int, what: str, tokens_min: int) -> NDArray[np.int64]:
    """Return token counts, one per request; raises OperationError naming the first bad one."""
    if len(encoded) != count * TOKEN_BYTES:
        raise OperationError(
            f"{what} has {len(encoded)} bytes, {count} requests need {count * TOKEN_BYTES}"
        )
    tokens = np.frombuffer(encoded, dtype="<i4").astype(np.int64)
    if count and int(tokens.min()) < tokens_min:
        raise OperationError(f"{what} has {int(tokens.min())}, at least {tokens_min} is needed")
    return tokens
