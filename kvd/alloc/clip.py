"""How much of a request fits: how many new tokens it may have, and how long a chunk may be.

Both ask the one demand model at several lengths. More tokens never ask for fewer units, so a
bisection finds the largest length. `price_request` puts the two together, for whoever admits a
request and for whoever only asks what admission would say.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from kvd.alloc.demand import DemandShape, RequestShape, cut_grid_tokens, request_demand
from kvd.alloc.purpose import DemandPurpose
from kvd.alloc.window import WindowMode
from kvd.units import floor_div


class RequestPrice(NamedTuple):
    """What a request is granted, and what it asks of every band for that."""

    new_tokens: int | None
    """New tokens that memory can ever grant it; None: not even its prompt fits an empty arena."""
    chunk_tokens: int
    """Most tokens that it may take at once; if it does not fit now, what it was priced at."""
    units: tuple[int, ...]
    fits: bool
    """Whether it fits now, for all that bytes and ids say."""


def price_request(
    shape: DemandShape,
    request: RequestShape,
    *,
    mode: WindowMode,
    chunk_tokens: int,
    may_shrink: bool,
    fits_empty: Callable[[tuple[int, ...]], bool],
    fits_now: Callable[[tuple[int, ...]], bool],
) -> RequestPrice:
    """Return what a request is granted when it asks for chunks of ``chunk_tokens``.

    The new tokens are clipped at the chunk asked, and at the shortest one only where the prompt
    fits no empty arena otherwise. ``may_shrink`` says that nobody will give memory back, so that a
    shorter chunk is sought where the one asked does not fit now.
    """

    def demand(asked: RequestShape, chunk: int) -> tuple[int, ...]:
        return request_demand(
            shape, asked, purpose=DemandPurpose.ADMIT, mode=mode, chunk_tokens=chunk
        ).units

    shortest_tokens = min(chunk_tokens, cut_grid_tokens(shape, mode))
    for chunk in (chunk_tokens, shortest_tokens):
        new_tokens = memory_clip(
            shape, request, mode=mode, chunk_tokens=chunk, fits_empty=fits_empty
        )
        if new_tokens is not None:
            break
    else:
        units = demand(replace(request, new_tokens=0), shortest_tokens)
        return RequestPrice(None, shortest_tokens, units, fits=False)
    clipped = replace(request, new_tokens=new_tokens)
    units = demand(clipped, chunk_tokens)
    if fits_now(units):
        return RequestPrice(new_tokens, chunk_tokens, units, fits=True)
    shorter = None
    if may_shrink:
        shorter = chunk_search(
            shape,
            clipped,
            mode=mode,
            chunk_tokens=chunk_tokens,
            holds=lambda chunk: fits_now(demand(clipped, chunk)),
        )
    if shorter is None:
        return RequestPrice(new_tokens, chunk_tokens, units, fits=False)
    return RequestPrice(new_tokens, shorter, demand(clipped, shorter), fits=True)


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
