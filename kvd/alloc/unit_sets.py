"""Sets of units as ascending arrays without repetition.

Ledger records are such sets: few of them, each with up to thousands of units, asked about small
arrays of units in any order.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Units: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

NONE: Units = np.zeros(0, dtype=np.int64)
NONE.setflags(write=False)


def unit_set(units: Units) -> Units:
    """Return units as a set of its own memory; any order, repetition allowed."""
    if units.size > 1 and not bool((units[1:] > units[:-1]).all()):
        return np.unique(units)
    return units.astype(np.int64)


def union(sets: Sequence[Units]) -> Units:
    """Return the units that are in any of the sets."""
    if len(sets) <= 1:
        return sets[0] if sets else NONE
    return np.unique(np.concatenate(sets))


def found_in(units: Units, members: Units) -> Mask:
    """Return for each unit, in any order, whether it is in the set ``members``."""
    if members.size == 0:
        return np.zeros(units.size, dtype=np.bool_)
    places = members.searchsorted(units)
    places[places == members.size] = 0  # beyond all members: compare with one it is not
    mask: Mask = members[places] == units
    return mask


def touches(units: Units, members: Units) -> bool:
    """Return whether any of the units is in the set ``members``."""
    return bool(found_in(units, members).any())


def without(units: Units, members: Units) -> Units:
    """Return the units that are not in the set ``members``, in their order."""
    return units[~found_in(units, members)] if members.size else units


def within(members: Units, low: int, high: int) -> slice:
    """Return where the units ``[low, high)`` stand in the set."""
    first, last = members.searchsorted((low, high)).tolist()
    return slice(first, last)
