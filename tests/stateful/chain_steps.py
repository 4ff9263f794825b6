"""Steps of tests over a chain that nobody's requests hold."""

import numpy as np

from kvd.alloc.band import Units
from kvd.alloc.chain import BandMoves, ChainAllocator, Shortage, UnitCounts
from kvd_proto.memory import Lifetime
from tests.stateful.chains import Picture, picture


def array(*values: int) -> Units:
    """Return ids or units as bands take them."""
    return np.array(values, dtype=np.int64)


def make_room(chain: ChainAllocator, demand: UnitCounts) -> list[BandMoves]:
    """Make room that the chain says there is."""
    assert chain.fits(demand)
    moved = chain.make_room(demand)
    assert not isinstance(moved, Shortage)
    assert all(band.hole_units >= units for band, units in zip(chain.bands, demand, strict=True))
    return moved


def take_pages(chain: ChainAllocator, *, pages: int, slots: int = 0) -> list[BandMoves]:
    """Take pages in every token band, and slots, where there is room."""
    demand = tuple(slots if lifetime is Lifetime.STATE else pages for lifetime in chain.lifetimes)
    moved = make_room(chain, demand)
    chain.take_pages(pages)
    if slots:
        chain.take_slots(slots)
    chain.check()
    return moved


def free_pages(chain: ChainAllocator, *pages: int) -> None:
    """Free pages in every token band."""
    for index in chain.token_indices:
        chain.bands[index].release(array(*pages))


def settled(chain: ChainAllocator) -> Picture:
    """Return a picture of the chain with everything freed settled, as a refusal leaves it."""
    chain.settle_freed()
    return picture(chain)
