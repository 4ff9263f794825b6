"""Request rows as a struct of arrays, and the index arithmetic over them.

One row per request, numbered from 1; row 0 is the padding row of the request table. There is no
object per request: a decode step works on all of its rows at once.
"""

import numpy as np
from numpy.typing import NDArray

from kvd.alloc.band import IOTA, Units
from kvd.alloc.ids import FreeIds


class RequestRows:
    """Columns of the request table that stay on the host, one entry per row."""

    def __init__(self, *, row_count: int, row_pages: int, band_count: int) -> None:
        self.free = FreeIds(row_count)
        self.request_id = np.zeros(row_count, dtype=np.int64)
        self.opened_count = np.zeros(row_count, dtype=np.int64)
        """A number no two openings of a row share: a request that was retracted and came back, to
        the same row even, has another one. 0 while the row is free."""
        self.tokens = np.zeros(row_count, dtype=np.int64)
        """Tokens that have a place."""
        self.capacity_tokens = np.zeros(row_count, dtype=np.int64)
        """Tokens that the row's pages can hold."""
        self.computed_tokens = np.zeros(row_count, dtype=np.int64)
        """Tokens whose entries the model has written."""
        self.prompt_tokens = np.zeros(row_count, dtype=np.int64)
        self.total_tokens = np.zeros(row_count, dtype=np.int64)
        """Tokens that the demand was priced for: the prompt and all that may still come."""
        self.limit_tokens = np.zeros(row_count, dtype=np.int64)
        """Tokens up to which a take may keep the promise: the prompt, then everything."""
        self.reach_tokens = np.zeros(row_count, dtype=np.int64)
        """Tokens beyond the computed ones up to which it may: a chunk, then a decode step."""
        self.prefilling = np.zeros(row_count, dtype=np.int64)
        """1 until the whole prompt is computed."""
        self.page_count = np.zeros(row_count, dtype=np.int64)
        self.slot = np.zeros(row_count, dtype=np.int64)
        """Virtual state slot; 0 for none."""
        # One array per band, not one with two dimensions: cutting a row out of it costs as much as
        # the work on it.
        self.dropped_pages = [np.zeros(row_count, dtype=np.int64) for _ in range(band_count)]
        """Per window band: pages at the row's start that slid out."""
        self.slides_at_tokens = [np.zeros(row_count, dtype=np.int64) for _ in range(band_count)]
        """Per window band: the computed length at which the next page slides out."""
        self.peak_units = [np.zeros(row_count, dtype=np.int64) for _ in range(band_count)]
        """Per band: the most units the request was priced to hold at once."""
        self.promised = np.zeros(row_count, dtype=np.int64)
        """1 while what is missing to the peak is held back for the row, 0 once that lapsed."""
        self.uneven = np.zeros(row_count, dtype=np.int64)
        """1 for rows whose takes and slides do not change promises one for one: their promise
        lapsed, or they once held more than their peak in some band."""
        self.pages = np.zeros((row_count, row_pages), dtype=np.int64)
        """Virtual page of each place; entries past ``page_count`` mean nothing."""

    def clear(self, rows: Units) -> None:
        """Forget everything about rows that ended."""
        for column in self._cleared:
            column[rows] = 0

    def left_over(self, rows: Units) -> NDArray[np.bool_]:
        """Return which rows are not as `clear` leaves them; for checks."""
        dirty = np.zeros(rows.size, dtype=np.bool_)
        for column in self._cleared:
            dirty |= column[rows] != 0
        return dirty

    @property
    def _cleared(self) -> list[Units]:
        """Return the columns that are zero in free rows."""
        return [
            self.request_id,
            self.opened_count,
            self.tokens,
            self.capacity_tokens,
            self.computed_tokens,
            self.prompt_tokens,
            self.total_tokens,
            self.limit_tokens,
            self.reach_tokens,
            self.prefilling,
            self.page_count,
            self.slot,
            self.promised,
            self.uneven,
            *self.dropped_pages,
            *self.slides_at_tokens,
            *self.peak_units,
        ]

    def held_units(self, band_index: int, rows: Units, *, is_window: bool) -> Units:
        """Return the units of a token band that rows hold."""
        held: Units = self.page_count[rows]
        return held - self.dropped_pages[band_index][rows] if is_window else held


def ragged(starts: Units, counts: Units) -> tuple[Units, Units]:
    """Return, for runs ``[start, start + count)``, the run of each element and its value."""
    total = int(counts.sum())
    run = np.repeat(iota(counts.size), counts)
    ends = np.cumsum(counts)
    return run, starts[run] + (iota(total) - (ends - counts)[run])


def iota(count: int) -> Units:
    """Return ``0, 1, 2, ...``; read only."""
    return IOTA[:count] if count <= IOTA.size else np.arange(count, dtype=np.int64)
