"""Byte patterns that say whose bytes they are: (request, page, band, rank), and for which token.

Each token entry of a page, and each state slot, is filled with one word. The words of two different
owners differ (up to a chance of 2^-60 or so), no word is zero, and a word is found again from its
owner alone, so nobody has to remember what was written.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
Indices: TypeAlias = npt.NDArray[np.int64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_SHIFT_1: Final = np.uint64(30)
_SHIFT_2: Final = np.uint64(27)
_SHIFT_3: Final = np.uint64(31)
_LOW_BIT: Final = np.uint64(1)

_WORD_TYPES: Final[tuple[tuple[int, type[np.unsignedinteger[Any]]], ...]] = (
    (8, np.uint64),
    (4, np.uint32),
    (2, np.uint16),
    (1, np.uint8),
)


@dataclass(frozen=True, slots=True)
class PatternOwner:
    """The part of the key that is fixed for one band of one rank."""

    band_index: int
    stage_index: int
    rank_index: int

    @property
    def seed(self) -> np.uint64:
        """Return a number of its own for every band of every rank."""
        packed = (self.stage_index << 40) | (self.rank_index << 20) | (self.band_index + 1)
        return np.uint64(packed)


def token_words(
    owner: PatternOwner, requests: Indices, positions: Indices, *, page_tokens: int
) -> npt.NDArray[np.uint64]:
    """Return the word of each token; ``positions`` are token positions in their requests."""
    pages, offsets = np.divmod(positions, page_tokens)
    keys = _page_keys(owner, requests, pages)
    return _mixed(keys + (offsets.astype(np.uint64) + _LOW_BIT) * _GOLDEN) | _LOW_BIT


def state_words(
    owner: PatternOwner, requests: Indices, versions: Indices
) -> npt.NDArray[np.uint64]:
    """Return the word of each request's state at a version, which counts its rewrites."""
    return _mixed(_page_keys(owner, requests, versions)) | _LOW_BIT


def entry_view(arena: npt.NDArray[np.uint8], *, entry_bytes: int) -> Words:
    """Return the arena as ``[entry, word]``, in the widest word that divides the entry.

    Row ``i`` is bytes ``[i * entry_bytes, (i + 1) * entry_bytes)``; a rest at the end is left out.
    """
    word_bytes, word_type = next(pair for pair in _WORD_TYPES if entry_bytes % pair[0] == 0)
    entry_count = arena.size // entry_bytes
    flat: Words = arena[: entry_count * entry_bytes].view(word_type)
    return flat.reshape(entry_count, entry_bytes // word_bytes)


def narrowed(words: npt.NDArray[np.uint64], view: Words) -> Words:
    """Return the words in the type of the view: their low bits, which are never all zero."""
    return words.astype(view.dtype)


def _page_keys(owner: PatternOwner, requests: Indices, pages: Indices) -> npt.NDArray[np.uint64]:
    keys = _mixed(requests.astype(np.uint64) * _GOLDEN + owner.seed)
    return _mixed(keys ^ ((pages.astype(np.uint64) + _LOW_BIT) * _MIX_2))


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the words with every bit depending on every other (the finaliser of splitmix64)."""
    words = (words ^ (words >> _SHIFT_1)) * _MIX_1
    words = (words ^ (words >> _SHIFT_2)) * _MIX_2
    return words ^ (words >> _SHIFT_3)
