"""A submission as the kernel reads it: a header, descriptors of items, lists of ids and values.

The layout is that of ``kernels.cu``. Items name lists by number. So those of a known segment are
the same bytes whenever it comes (`kvd_client.device.cuda.cooked`), and the columns of a reply are
copied as a whole, once, however many items name them.
"""

import struct
from functools import cache
from typing import Final, TypeAlias

import numpy as np

from kvd_client.device.places import RowTable
from kvd_client.device.port import IntArray

WORD_BYTES: Final = 8
HEADER_WORDS: Final = 10
ITEM_WORDS: Final = 8
MOVE_WORDS: Final = ITEM_WORDS + 3
"""What the kernel for long moves gets as its argument: item, tiles, units, address of the lists."""
INLINE_WORDS: Final = 500
"""Words of a submission that is passed as a kernel argument: 4,000 of 4,096 bytes."""
INLINE_BYTES: Final = WORD_BYTES * INLINE_WORDS
ORDERED_ENTRIES_MAX: Final = 512
"""Longest list of one ordered table write; block 0 compares each of its keys with all later."""
ENTRIES_PER_TILE: Final = 1024
THREADS: Final = 256
MOVE_THREADS: Final = 512
TILES_BYTES: Final = {2: 32 << 10, 3: 64 << 10}
"""What a block zeroes (ZERO) or moves (MOVE) at a time: 8 words of 16 bytes per thread."""
LARGE_TILE_BYTES: Final = 32 << 10
"""Moves in tiles of this size and more have a block each; smaller ones would only be started."""

ENTRIES: Final = 0
ROWS: Final = 1
ZERO: Final = 2
MOVE: Final = 3

NO_LIST: Final = -1
"""In place of the number of a list: the values of an item are zero."""

_WIDTH_SHIFT: Final = 8
_TILE_GRAIN_BYTES: Final = 16 * THREADS

Span: TypeAlias = tuple[int, int]
"""Bytes ``[start, end)`` of a memory."""
ItemWords: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""An item: kind, numbers of up to three lists, address, and three words that the kind explains."""

NOWHERE: Final[Span] = (1 << 62, 0)
"""The span of nothing."""
ITEM: Final = struct.Struct(f"={ITEM_WORDS}q")


@cache
def unit_shape(kind: int, address: int, unit_bytes: int) -> tuple[int, int, int]:
    """Return a descriptor's kind with its width, the bytes of a tile and the tiles of a unit.

    A unit is cut as evenly as the grain allows, so that no tile is much smaller than the others.
    """
    aligned = (address | unit_bytes) & 15
    width = 16 if not aligned else 4 if not aligned & 3 else 1
    tiles_count = -(-unit_bytes // TILES_BYTES[kind])
    tile_bytes = -(-unit_bytes // tiles_count)
    tile_bytes = -(-tile_bytes // _TILE_GRAIN_BYTES) * _TILE_GRAIN_BYTES
    return kind | width << _WIDTH_SHIFT, tile_bytes, -(-unit_bytes // tile_bytes)


class RowPlace:
    """Where a request table and its lengths lie in a memory at an address."""

    __slots__ = ("lengths", "pages", "span", "table", "words")

    def __init__(self, table: RowTable, base_address: int, pages: Span, lengths: Span) -> None:
        self.table = table
        self.pages = pages
        self.lengths = lengths
        self.span = (min(pages[0], lengths[0]), max(pages[1], lengths[1]))
        self.words = (
            base_address + pages[0],
            table.row_pages,
            base_address + lengths[0],
            table.page_tokens,
        )


def zero_item(units: int, address: int, unit_bytes: int) -> ItemWords:
    """Return the item that zeroes the units of a list."""
    kind_and_width, tile_bytes, unit_tiles = unit_shape(ZERO, address, unit_bytes)
    return kind_and_width, units, NO_LIST, NO_LIST, address, unit_bytes, tile_bytes, unit_tiles


def last_of_each(keys: IntArray, values: IntArray) -> tuple[IntArray, IntArray]:
    """Return keys without repetition and what the last of each was to be set to."""
    ordered = np.sort(keys)
    if not np.count_nonzero(ordered[1:] == ordered[:-1]):
        return keys, values
    distinct, from_end = np.unique(keys[::-1], return_index=True)
    return distinct, np.ascontiguousarray(values[::-1][from_end])
