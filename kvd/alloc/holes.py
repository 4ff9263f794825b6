"""The free places inside a band's span, handed out lowest first.

Order is what keeps a band short: low places fill up, high ones empty out and are absorbed at the
frontier without a copy. A sorted front answers hand-outs; a byte map behind it remembers the rest,
so neither taking nor adding depends on how many places the band has.

Places count from the band's anchor: a grow-down band mirrors its unit indices, so that one code
path serves every kind of band.

Invariants:
    every hole is marked in the map, and the map holds nothing else;
    every hole below ``_front_end`` stands in the sorted front, and no other;
    no hole lies at ``_end`` or above, so that nothing beyond the band's span is ever scanned.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Places: TypeAlias = NDArray[np.int64]

FRONT_COUNT = 2048
"""Holes the front is refilled to: large enough for a step at page size 1, small enough to sort."""

FRONT_COUNT_MAX = 4 * FRONT_COUNT
"""A front that grows past this by additions is cut back; what is cut stays in the map."""

_EMPTY: Places = np.zeros(0, dtype=np.int64)


class HoleSet:
    """An ordered set of places in ``[0, place_count)``."""

    def __init__(self, place_count: int) -> None:
        self._map = np.zeros(place_count, dtype=np.uint8)
        self._map[:] = 0  # touched now, so that no step pays for the first touch of a page
        self._front: Places = _EMPTY
        self._head = 0
        self._front_end = place_count
        self._end = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, places: Places) -> None:
        """Add places that are not holes yet; any order."""
        if not places.size:
            return
        self._map[places] = 1
        self._count += places.size
        self._end = max(self._end, int(places.max()) + 1)
        low = places if self._front_end >= self._map.size else places[places < self._front_end]
        if low.size:
            merged = np.concatenate((self._front[self._head :], low))
            merged.sort(kind="stable")
            self._front, self._head = merged, 0
            if merged.size > FRONT_COUNT_MAX:
                self._front_end = int(merged[FRONT_COUNT])
                self._front = merged[:FRONT_COUNT]

    def add_range(self, start: int, end: int) -> None:
        """Add the places ``[start, end)``, none of which is a hole yet."""
        self._map[start:end] = 1
        self._count += end - start
        if start >= self._end and end <= self._front_end and end - start <= FRONT_COUNT:
            # The usual growth: a few places above all others join the front as they are.
            fresh = np.arange(start, end, dtype=np.int64)
            self._front, self._head = np.concatenate((self._front[self._head :], fresh)), 0
            self._end = end
            return
        self._end = max(self._end, end)
        if start < self._front_end:
            self._front = self._front[self._head :]
            self._head = 0
            self._front = self._front[: int(np.searchsorted(self._front, start))]
            self._front_end = start

    def take(self, count: int) -> Places:
        """Remove and return the ``count`` lowest holes in ascending order."""
        assert count <= self._count
        head = self._head + count
        if head > self._front.size:
            self._refill(count)
            head = self._head + count
        taken = self._front[self._head : head]
        self._head = head
        self._map[taken] = 0
        self._count -= count
        return taken

    def remove_range(self, start: int, end: int) -> None:
        """Remove the holes among the places ``[start, end)``."""
        self._count -= int(np.count_nonzero(self._map[start:end]))
        self._map[start:end] = 0
        if end >= self._end:
            self._end = min(self._end, start)
        front = self._front[self._head :]
        first, last = np.searchsorted(front, (start, end)).tolist()
        if last > first:
            front = np.concatenate((front[:first], front[last:]))
        self._front, self._head = front, 0

    def contains(self, place: int) -> bool:
        """Return whether a place is a hole."""
        return bool(self._map[place])

    def places(self) -> Places:
        """Return all holes in ascending order; for checks, linear in the band's places."""
        return self._map.nonzero()[0].astype(np.int64, copy=False)

    def front_is_exact(self) -> bool:
        """Return whether the front holds exactly the holes below its end; for checks."""
        expected = self._map[: self._front_end].nonzero()[0]
        front = self._front[self._head :]
        return bool(np.array_equal(front, expected))

    def _refill(self, count: int) -> None:
        """Extend the front from the map until it serves ``count``, or holds all there is."""
        parts = [self._front[self._head :]]
        have = parts[0].size
        wanted = max(count, FRONT_COUNT)
        scan = 16 * FRONT_COUNT if self._count > wanted else self._end
        while have < wanted and self._front_end < self._end:
            scan_end = min(self._end, self._front_end + scan)
            found = self._map[self._front_end : scan_end].nonzero()[0] + self._front_end
            self._front_end = scan_end
            parts.append(found)
            have += found.size
        if self._front_end >= self._end:
            self._front_end = self._map.size  # all there is stands in the front
        self._front, self._head = np.concatenate(parts), 0
