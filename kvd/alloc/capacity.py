"""Names for the one capacity question, one per asker.

Each says what is asked, what is credited and what is held back, and hands that to
`ChainAllocator.fits`, so that no two askers can get different answers about the same bytes. None of
them changes anything.
"""

from kvd.alloc.chain import ChainAllocator, Shortage, UnitCounts
from kvd.alloc.demand import RequestShape, request_demand
from kvd.alloc.purpose import DemandPurpose
from kvd.alloc.requests import RequestTable


def units_fit(chain: ChainAllocator, demand_units: UnitCounts) -> bool:
    """Return whether a take of these units succeeds now, promises left alone."""
    return chain.fits(demand_units)


def ensure_capacity(chain: ChainAllocator, demand_units: UnitCounts) -> Shortage | None:
    """Return None where `units_fit` says yes, else what is short and who could remove it."""
    return None if units_fit(chain, demand_units) else chain.explain(demand_units)


def admits(chain: ChainAllocator, demand_units: UnitCounts, *, evictable_units: UnitCounts) -> bool:
    """Return whether the demand fits once everything evictable is gone.

    ``evictable_units`` are counted by whoever caches, cascades included; of a band no more is
    credited than lives.
    """
    credit = [
        min(band.live_units, units)
        for band, units in zip(chain.bands, evictable_units, strict=True)
    ]
    return fits_after_frees(chain, demand_units, freed_units=tuple(credit))


def fits_after_frees(
    chain: ChainAllocator,
    demand_units: UnitCounts,
    *,
    freed_units: UnitCounts,
    released_units: UnitCounts | None = None,
) -> bool:
    """Return whether the demand fits once live units are freed and promises are over.

    It is asked after each victim of an eviction or retraction, so that none goes for nothing.
    """
    return chain.fits(demand_units, freed_units=freed_units, released_units=released_units)


def prealloc_fits(
    table: RequestTable,
    request: RequestShape,
    *,
    held_back_units: UnitCounts,
    evictable_units: UnitCounts,
) -> bool:
    """Return whether a decoding node has room for a prompt that was computed elsewhere.

    ``held_back_units`` are what the node keeps for work that it accepted before.
    """
    demand = _demand(table, request, DemandPurpose.DECODE_PREALLOC, table.chunk_tokens)
    beside = [units + held for units, held in zip(demand, held_back_units, strict=True)]
    return admits(table.chain, tuple(beside), evictable_units=evictable_units)


def load_back_fits(
    table: RequestTable,
    request: RequestShape,
    *,
    evictable_units: UnitCounts,
    chunk_tokens: int = 0,
    held_back_units: UnitCounts | None = None,
) -> bool:
    """Return whether rows loaded from the host fit together with the chunk that follows them.

    ``chunk_tokens`` 0 is the chunk that the stage was sized with; ``held_back_units`` are what
    others that were let in before in the same pass are still to take.
    """
    demand = _demand(table, request, DemandPurpose.LOAD_BACK, chunk_tokens or table.chunk_tokens)
    if held_back_units is not None:
        demand = tuple([a + b for a, b in zip(demand, held_back_units, strict=True)])
    return admits(table.chain, demand, evictable_units=evictable_units)


def _demand(
    table: RequestTable, request: RequestShape, purpose: DemandPurpose, chunk_tokens: int
) -> UnitCounts:
    return request_demand(
        table.shape, request, purpose=purpose, mode=table.shape.mode, chunk_tokens=chunk_tokens
    ).units
