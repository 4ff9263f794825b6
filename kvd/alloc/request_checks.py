"""The checks of a request table: rows and names, and what the columns of a row say of each other.

What rows hold is compared with the bands by `kvd.alloc.holdings`.
"""

import numpy as np

from kvd.alloc.band import Units
from kvd.alloc.holdings import Holdings
from kvd.alloc.names import RequestNames


def check_requests(
    names: RequestNames, holdings: Holdings, *, context_tokens: int, slotless_count: int
) -> None:
    """Check rows, names and columns, in time linear in the rows.

    Invariants:
        request.names_match_rows: `row_of[id] = row` exactly if `request_id[row] = id`, ids that
            wait have no row, and none is above the highest
        request.rows_partition: a row is free or a live request's, and a free one is clean
        request.columns_exact: computed <= tokens <= capacity, capacity is that of the pages,
            windows slid as far as computed tokens let them, and the counts are those of the rows
    """
    _check_names(names, holdings)
    _check_partition(holdings)
    rows = holdings.rows.request_id.nonzero()[0]
    _check_lengths(holdings, rows, context_tokens)
    _check_counts(holdings, rows, slotless_count)


def _check_names(names: RequestNames, holdings: Holdings) -> None:
    column = holdings.rows.request_id
    bound = {int(column[row]): int(row) for row in column.nonzero()[0]}
    problem = ""
    if bound != names.row_of or len(bound) != np.count_nonzero(column):
        problem = f"{len(names.row_of)} names and {np.count_nonzero(column)} rows disagree"
    elif any(names.waits(request) for request in bound):
        problem = "a request that has a row waits for one"
    elif max([names.highest_waiting_id, *bound], default=0) > names.highest_id:
        problem = f"an id is above {names.highest_id}, the highest"
    if problem:
        holdings.chain.monitor.fail("request.names_match_rows", problem)


def _check_partition(holdings: Holdings) -> None:
    columns = holdings.rows
    free = columns.free.ids()
    used = columns.request_id.nonzero()[0]
    everything = np.sort(np.concatenate((free, used)))
    if not np.array_equal(everything, np.arange(1, columns.request_id.size)):
        holdings.chain.monitor.fail(
            "request.rows_partition",
            f"{free.size} rows are free and {used.size} in use, of {columns.request_id.size - 1}",
        )
    dirty = free[columns.left_over(free)]
    if dirty.size:
        holdings.chain.monitor.fail(
            "request.rows_partition", f"row {dirty[0]} is free and keeps what its request left"
        )


def _check_lengths(holdings: Holdings, rows: Units, context_tokens: int) -> None:
    columns, shape = holdings.rows, holdings.shape
    pages, computed = columns.page_count[rows], columns.computed_tokens[rows]
    capacity = np.minimum(pages * shape.page_tokens, context_tokens)
    tokens = columns.tokens[rows]
    wrong = (
        (computed > tokens)
        | (tokens > columns.capacity_tokens[rows])
        | (columns.capacity_tokens[rows] != capacity)
        | (columns.opened_count[rows] < 1)
    )
    for index in holdings.chain.window_indices:
        dropped = columns.dropped_pages[index][rows]
        slides_at = (dropped + 1) * shape.page_tokens + shape.window_tokens[index]
        wrong |= (columns.slides_at_tokens[index][rows] != slides_at) | (computed >= slides_at)
        wrong |= dropped > pages
    if np.count_nonzero(wrong):
        row = int(rows[wrong][0])
        holdings.chain.monitor.fail(
            "request.columns_exact",
            f"request {columns.request_id[row]} has computed {columns.computed_tokens[row]} of "
            f"{columns.tokens[row]} tokens on {columns.page_count[row]} pages",
        )


def _check_counts(holdings: Holdings, rows: Units, slotless_count: int) -> None:
    columns = holdings.rows
    has_states = holdings.chain.state_index is not None
    slotless = int(np.count_nonzero(columns.slot[rows] == 0)) if has_states else 0
    counted = (
        slotless,
        int(columns.prefilling[rows].sum()),
        int(columns.uneven[rows].sum()),
    )
    books = (slotless_count, holdings.prefilling_count, holdings.uneven_count)
    if counted != books:
        holdings.chain.monitor.fail(
            "request.columns_exact",
            f"rows without slot, in their prompt and uneven are {counted}, the books say {books}",
        )
