"""What the tables in every rank's memory hold by the daemon's books, as digests.

It is asked for by checks, at idle or by hand, and reads all maps and live rows.
"""

import numpy as np

from kvd.alloc.band import Units
from kvd.alloc.requests import RequestTable
from kvd_proto.codec import digest_of
from kvd_proto.control import BooksReply

_INT32 = np.dtype("<i4")


def books(table: RequestTable, *, position_min: int, position: int) -> BooksReply:
    """Return the books of a stage, which hold for these positions."""
    chain, columns = table.chain, table.rows
    rows = columns.opened_count.nonzero()[0]
    counts = columns.page_count[rows]
    has_states = chain.state_index is not None
    return BooksReply(
        position_min=position_min,
        position=position,
        map_digests=tuple(digest_of(_int32(band.physical_map())) for band in chain.bands),
        rows=_int32(rows),
        page_counts=_int32(counts),
        row_digests=tuple(
            digest_of(_int32(columns.pages[row, :count]))
            for row, count in zip(rows.tolist(), counts.tolist(), strict=True)
        ),
        slots_digest=digest_of(_int32(columns.slot[rows])) if has_states else 0,
    )


def _int32(numbers: Units) -> bytes:
    return numbers.astype(_INT32).tobytes()
