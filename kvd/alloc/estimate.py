"""Approximations for people: how many more units a band could take, roughly.

They divide free bytes by unit sizes and so ignore how the bands' grids meet, what is fixed in place
and what is pending. That is good enough for a gauge and wrong as an input: a decision resting on it
would promise what no layout holds. Estimates therefore have a type of their own that neither
computes nor compares, and their number is only given out between decisions.

Invariants:
    chain.estimate_in_decision: no estimate is read while an operation is decided;
"""

from dataclasses import dataclass

from kvd.alloc.chain import ChainAllocator
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.units import floor_div


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Estimate:
    """An approximate number of units of one band.

    It is no number: it has no order, no arithmetic and no equality, and shows its value to `read`
    alone.
    """

    band: str
    _units: int
    _monitor: CheckMonitor

    def read(self) -> int:
        """Return the number of units, for people.

        Inside a decision that breaks chain.estimate_in_decision: InvariantError at level strict,
        counted at level warn.
        """
        monitor = self._monitor
        if monitor.deciding and monitor.level >= CheckLevel.WARN:
            monitor.fail(
                "chain.estimate_in_decision",
                f"the estimated {self._units} units of band {self.band} are read by a decision",
            )
        return self._units


def estimate_available(chain: ChainAllocator) -> tuple[Estimate, ...]:
    """Return how many more units each band could take if it got everything that is free.

    Of the bytes, places and ids that nobody holds and nobody is promised, the scarcest counts. The
    bands share the bytes, so the numbers of two bands cannot be added.
    """
    claimed_bytes = sum(
        (band.live_units + band.promised_units) * band.geometry.unit_bytes for band in chain.bands
    )
    free_bytes = chain.geometry.arena_bytes - chain.geometry.sink_bytes - claimed_bytes
    estimates: list[Estimate] = []
    for band in chain.bands:
        geometry = band.geometry
        units = min(
            floor_div(max(0, free_bytes), geometry.unit_bytes),
            geometry.room_units - band.live_units - band.promised_units,
        )
        if band.free_ids is not None:
            units = min(units, len(band.free_ids) - band.promised_units)
        estimates.append(Estimate(geometry.name, max(0, units), chain.monitor))
    return tuple(estimates)
