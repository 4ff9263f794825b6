"""Id lists on the wire: columns of outcomes."""

import numpy as np

from kvd.alloc.band import Units
from kvd_proto.outcomes import NO_COLUMN, Column

_INT32 = np.dtype("<i4")


class ColumnBuilder:
    """Collects arrays and lays them end to end as little-endian int32."""

    def __init__(self) -> None:
        self._parts: list[Units] = []

    def add(self, values: Units) -> Column:
        """Add a column and return the index that results and effects name it by."""
        self._parts.append(values)
        return Column(len(self._parts) - 1)

    def add_if_any(self, values: Units) -> Column:
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
        return np.concatenate(parts, dtype=_INT32, casting="unsafe").tobytes()
