"""How much of a request fits: how many new tokens it may have, and how long a chunk may be.

Both ask the one demand model at several lengths. More tokens never ask for fewer units, so a
bisection finds the largest length.
"""

from collections.abc import Callable
from dataclasses import replace

from kvd.alloc.demand import DemandShape, RequestShape, cut_grid_tokens, request_demand
from kvd.alloc.purpose import DemandPurpose
from kvd.alloc.window import WindowMode
from kvd.units import floor_div


def memory_clip(
    shape: DemandShape,
    request: RequestShape,
    *,
    mode: WindowMode,
    chunk_tokens: int,
    fits_empty: Callable[[tuple[int, ...]], bool],
) -> int | None:
    """Return the most new tokens, up to those asked, with which a request fits an empty arena.

    None: not even the prompt fits, so the request can never run. ``fits_empty`` answers for units
    per band, chain order, and never says yes to more after saying no to less.
    """

    def fits(new_tokens: int) -> bool:
        demand = request_demand(
            shape,
            replace(request, new_tokens=new_tokens),
            purpose=DemandPurpose.CEILING,
            mode=mode,
            chunk_tokens=chunk_tokens,
        )
        return fits_empty(demand.units)

    return _largest(0, request.new_tokens, fits)


def chunk_search(
    shape: DemandShape,
    request: RequestShape,
    *,
    mode: WindowMode,
    chunk_tokens: int,
    holds: Callable[[int], bool],
) -> int | None:
    """Return the longest chunk, up to ``chunk_tokens``, for which a predicate holds.

    A chunk ends on the cut grid, counted from the first token of the request, or ends the prompt.
    None: no chunk will do. A predicate that fails for a chunk must fail for every longer one.
    """
    assert chunk_tokens > 0
    start_tokens = request.resident_tokens + request.host_tokens
    extend_tokens = request.prompt_tokens - start_tokens
    if 0 < extend_tokens <= chunk_tokens and holds(extend_tokens):
        return extend_tokens
    grid_tokens = cut_grid_tokens(shape, mode)
    # The chunk that ends the prompt was tried; all others end before its last token.
    end_tokens = start_tokens + min(chunk_tokens, max(0, extend_tokens - 1))
    first_index = floor_div(start_tokens, grid_tokens) + 1
    cut_index = _largest(
        first_index,
        floor_div(end_tokens, grid_tokens),
        lambda index: holds(index * grid_tokens - start_tokens),
    )
    return None if cut_index is None else cut_index * grid_tokens - start_tokens


def _largest(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """Return the largest number in ``[low, high]`` for which a falling predicate holds."""
    if low > high or not holds(low):
        return None
    if holds(high):
        return high
    # holds(low) and not holds(high): the answer is in [low, high).
    while high - low > 1:
        middle = floor_div(low + high, 2)
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
