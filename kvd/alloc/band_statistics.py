"""What one band tells about itself: counts for people, metrics and whoever sizes."""

from dataclasses import dataclass
from typing import Final

from kvd.alloc.uses import UseRecord

OPEN_USES_SHOWN_MAX: Final = 16
"""Uses told of one by one: enough to see what does not end, few enough to publish often."""


@dataclass(frozen=True, slots=True)
class BandStatistics:
    """A band's counts at one moment."""

    name: str
    chain_kind: str
    unit_bytes: int
    unit_index_min: int
    unit_index_end_count: int
    span_start_index: int
    span_end_index: int
    live_units: int
    hole_units: int
    pending_units: int
    promised_units: int
    fixed_units: int
    """Units of the extents that may not move, or not yet."""
    virtual_free_count: int
    absorbed_units_total: int
    taken_units_total: int
    moved_units_total: int
    move_batches_total: int
    open_use_count: int
    open_uses: tuple[UseRecord, ...]
    """The oldest of what uses units, forwards first."""
