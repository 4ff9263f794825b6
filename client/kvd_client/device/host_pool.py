"""A host pool: units of one band in host memory, for loads and backups.

What lies in which place is its program's business; the daemon knows places by number alone.
"""

import mmap

import numpy as np
import numpy.typing as npt

from kvd_client.errors import UsageError


class HostPool:
    """Places for ``units_count`` units of one band, laid out as in the arena."""

    def __init__(self, *, unit_bytes: int, units_count: int) -> None:
        """Get the memory, zeroed; raises UsageError for no place at all."""
        if units_count < 1:
            raise UsageError(f"a host pool of {units_count} units holds nothing")
        self.unit_bytes = unit_bytes
        self.units_count = units_count
        # Anonymous memory of the process starts on a page and may be locked for a device.
        self._buffer = mmap.mmap(-1, unit_bytes * units_count)
        self.units: npt.NDArray[np.uint8] = np.frombuffer(self._buffer, dtype=np.uint8).reshape(
            units_count, unit_bytes
        )
        """The bytes of every place, one in a row. A copy in flight may be at work on them."""

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all places."""
        return self.unit_bytes * self.units_count
