"""Names of units: which virtual id means which physical unit, and which names are free.

Invariants:
    virtual id 0 and physical unit 0 are the sink, bound to each other for ever;
    an unbound virtual id maps to 0, so it reads as the sink;
    free ids are handed out first in, first out, so that a name is not reused at once.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = NDArray[np.int64]


class FreeIds:
    """A first-in, first-out ring of the virtual ids ``[1, id_count)``."""

    def __init__(self, id_count: int) -> None:
        assert id_count >= 1
        self._ring: Ids = np.arange(1, id_count + 1, dtype=np.int64)
        self._head = 0
        self._count = id_count - 1

    def __len__(self) -> int:
        return self._count

    def take(self, count: int) -> Ids:
        """Remove and return the ``count`` ids that have been free longest."""
        assert count <= self._count
        head, size = self._head, self._ring.size
        end = head + count
        if end <= size:
            taken = self._ring[head:end].copy()
        else:
            taken = np.concatenate((self._ring[head:], self._ring[: end - size]))
        self._head = end if end < size else end - size
        self._count -= count
        return taken

    def give(self, ids: Ids) -> None:
        """Append ids that are no longer bound."""
        size = self._ring.size
        assert self._count + ids.size < size
        tail = self._head + self._count
        if tail >= size:
            tail -= size
        end = tail + ids.size
        if end <= size:
            self._ring[tail:end] = ids
        else:
            split = size - tail
            self._ring[tail:] = ids[:split]
            self._ring[: end - size] = ids[split:]
        self._count += ids.size

    def remove(self, ids: Ids) -> None:
        """Take ids that are free out of the ring; the others keep their order."""
        kept = self.ids()
        kept = kept[np.isin(kept, ids, invert=True)]
        assert kept.size == self._count - ids.size
        self._count = 0
        self.give(kept)

    def ids(self, count_max: int | None = None) -> Ids:
        """Return the free ids, or the next ``count_max``, in hand-out order; for checks."""
        count = self._count if count_max is None else min(count_max, self._count)
        order = (self._head + np.arange(count)) % self._ring.size
        return self._ring[order]
