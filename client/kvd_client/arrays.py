"""Ids and counts as arrays."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kvd_client.errors import UsageError
from kvd_client.results import NONE, Int64s

INT64_MAX: Final = 2**63 - 1


def id_array(ids: Sequence[int] | Int64s) -> Int64s:
    """Return ids or counts as an int64 array; raises UsageError naming what is not an integer."""
    try:
        array = np.asarray(ids)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{ids!r:.120} is not a list of integers: {error}") from error
    if array.ndim == 1 and array.dtype == np.int64:
        return array
    if array.size == 0:
        return NONE
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError(f"{ids!r:.120} is not a flat list of 64-bit integers")
    if array.dtype == np.uint64 and int(array.max()) > INT64_MAX:
        # As signed numbers they would be other, negative ones.
        raise UsageError(f"{int(array.max())} is over {INT64_MAX}, the largest 64-bit integer")
    return array.astype(np.int64)
