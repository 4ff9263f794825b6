"""Request rows as a struct of arrays, and the index arithmetic over them.

One row per request, numbered from 1; row 0 is the padding row of the request table. There is no
object per request: a decode step works on all of its rows at once.
"""

import numpy as np

from kvd.alloc.band import IOTA, Units
from kvd.alloc.ids import FreeIds


class RequestRows:
    """Columns of the request table that stay on the host, one entry per row."""

    def __init__(self, *, row_count: int, row_pages: int, band_count: int) -> None:
        self.free = FreeIds(row_count)
        self.request_id = np.zeros(row_count, dtype=np.int64)
        self.tokens = np.zeros(row_count, dtype=np.int64)
        """Tokens that have a place."""
        self.capacity_tokens = np.zeros(row_count, dtype=np.int64)
        """Tokens that the row's pages can hold, at most the context length."""
        self.computed_tokens = np.zeros(row_count, dtype=np.int64)
        """Tokens whose entries the model has written."""
        self.total_tokens = np.zeros(row_count, dtype=np.int64)
        """Tokens that were promised: the prompt and all that may still come."""
        self.chunk_tokens = np.zeros(row_count, dtype=np.int64)
        """Tokens that may be taken before the computed ones are stated."""
        self.page_count = np.zeros(row_count, dtype=np.int64)
        self.slot = np.zeros(row_count, dtype=np.int64)
        """Virtual state slot; 0 for none."""
        self.dropped_pages = np.zeros((band_count, row_count), dtype=np.int64)
        """Per window band: pages at the row's start that slid out."""
        self.slides_at_tokens = np.zeros((band_count, row_count), dtype=np.int64)
        """Per window band: the computed length at which the next page slides out."""
        self.promise_units = np.zeros((band_count, row_count), dtype=np.int64)
        """Per band: units the request was promised to hold at once."""
        self.pages = np.zeros((row_count, row_pages), dtype=np.int64)
        """Virtual page of each place; entries past ``page_count`` mean nothing."""

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
