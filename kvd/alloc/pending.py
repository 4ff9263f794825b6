"""Units of one band that were freed while a forward in flight may still touch them.

They stand in batches, one per step: a batch comes back as a whole, because what it waits for is the
end of that step. Batches are ordered by step, so the oldest come back first.

Invariants:
    step.pending_keyed: every batch has a key of a step in flight, and keys ascend.
"""

from collections import deque
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvd.alloc.checks import CheckMonitor
from kvd.alloc.forward_steps import ForwardSteps

Units: TypeAlias = NDArray[np.int64]

NO_KEY = 1 << 62
"""Stands for the oldest key where nothing pends: greater than every step."""


class PendingBatch(NamedTuple):
    """Units freed under one and the same newest step, as they were freed."""

    step_index: int
    parts: list[Units]


class PendingPages:
    """The pending batches of one band, oldest first."""

    def __init__(self) -> None:
        self.unit_count = 0
        self.oldest_key = NO_KEY
        self._batches: deque[PendingBatch] = deque()

    def add(self, key: int, units: Units) -> None:
        """Add units freed under step ``key``, the newest in flight."""
        batches = self._batches
        if batches and batches[-1].step_index == key:
            batches[-1].parts.append(units)
        else:
            batches.append(PendingBatch(key, [units]))
            self.oldest_key = batches[0].step_index
        self.unit_count += units.size

    def release_through(self, step: int) -> list[Units]:
        """Remove and return the batches of all steps up to this one, oldest first."""
        released: list[Units] = []
        while self.oldest_key <= step:
            released += self._pop()
        return released

    def settle(self, units_min: int) -> tuple[int, list[Units]]:
        """Remove the oldest batches until they hold ``units_min`` units; return the last key too.

        No more than there is pends, and at least one unit is asked for.
        """
        assert 0 < units_min <= self.unit_count
        key, settled, wanted = 0, list[Units](), self.unit_count - units_min
        while self.unit_count > wanted:
            key = self.oldest_key
            settled += self._pop()
        return key, settled

    def check(
        self, monitor: CheckMonitor, band: str, pending: NDArray[np.bool_], steps: ForwardSteps
    ) -> None:
        """Check that the batches hold exactly the units marked so, under steps in flight.

        Invariants: step.pending_keyed, band.conservation.
        """
        keys = [batch.step_index for batch in self._batches]
        units = [part for batch in self._batches for part in batch.parts]
        held = np.sort(np.concatenate(units)) if units else np.zeros(0, dtype=np.int64)
        in_flight = range(steps.processed_count + 1, steps.launched_count + 1)
        if keys != sorted(set(keys)) or any(key not in in_flight for key in keys):
            monitor.fail(
                "step.pending_keyed",
                f"band {band} has units pending under steps {keys}, in flight are "
                f"{list(in_flight)}",
            )
        if not np.array_equal(held, pending.nonzero()[0]) or held.size != self.unit_count:
            monitor.fail(
                "band.conservation", f"band {band}: pending batches disagree with the unit map"
            )

    def check_keys(self, monitor: CheckMonitor, band: str, steps: ForwardSteps) -> None:
        """Check in constant time that what pends does so under steps in flight, nothing if none is.

        Invariants: step.pending_keyed.
        """
        newest = self._batches[-1].step_index if self._batches else NO_KEY
        in_flight = steps.processed_count < self.oldest_key <= newest <= steps.launched_count
        if not in_flight if self._batches else self.unit_count or self.oldest_key != NO_KEY:
            monitor.fail(
                "step.pending_keyed",
                f"band {band} has {self.unit_count} units pending under steps from "
                f"{self.oldest_key} to {newest}, processed are {steps.processed_count} of "
                f"{steps.launched_count}",
            )

    def _pop(self) -> list[Units]:
        """Remove the oldest batch and return its parts."""
        batch = self._batches.popleft()
        self.oldest_key = self._batches[0].step_index if self._batches else NO_KEY
        self.unit_count -= sum([part.size for part in batch.parts])
        return batch.parts
