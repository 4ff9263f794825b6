"""Ids and token counts as they travel in operations, and back."""

import numpy as np

_IDS = "<i8"
_COUNTS = "<i4"


def packed_ids(*ids: int) -> bytes:
    """Return ids of requests or values as an operation has them."""
    return np.array(ids, dtype=_IDS).tobytes()


def packed_counts(*counts: int) -> bytes:
    """Return token counts as an operation has them."""
    return np.array(counts, dtype=_COUNTS).tobytes()


def int64s(encoded: bytes) -> list[int]:
    """Return the ids of an operation."""
    ids: list[int] = np.frombuffer(encoded, dtype=_IDS).tolist()
    return ids


def int32s(encoded: bytes) -> list[int]:
    """Return the token counts of an operation."""
    counts: list[int] = np.frombuffer(encoded, dtype=_COUNTS).tolist()
    return counts
