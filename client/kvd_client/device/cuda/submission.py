"""A submission as the kernel reads it: a header, descriptors of items, lists of ids and values.

The layout is that of ``kernels.cu``. A launch collects items that commute, or that block 0 carries
out in order; what does neither has to go into a later one.
"""

import struct
from functools import cache
from typing import Final, TypeAlias

import numpy as np

from kvd_client.device.port import IntArray, RowTable
from kvd_client.errors import DeviceError

WORD_BYTES: Final = 8
HEADER_WORDS: Final = 10
ITEM_WORDS: Final = 8
MOVE_WORDS: Final = ITEM_WORDS + 2
"""What the kernel for long moves gets as its argument: item, tiles, address of the lists."""
INLINE_WORDS: Final = 500
"""Words of a submission that is passed as a kernel argument: 4,000 of 4,096 bytes."""
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

LAUNCH_WORDS_MAX: Final = 1 << 16
"""A launch with lists of so many words takes no more; one item brings at most as many again."""

_WIDTH_SHIFT: Final = 8
_NOWHERE: Final = 1 << 62
_TILE_GRAIN_BYTES: Final = 16 * THREADS

Span: TypeAlias = tuple[int, int]
"""Bytes ``[start, end)`` of a memory."""


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


class Launch:
    """The items of one launch, in the words of their descriptors, and what of memory they touch.

    What they touch is kept as one span for tables and one for everything else: too much rather than
    too little, which costs a launch where both lie apart in no simple way. Each ``try_`` method
    adds an item, or returns False if it has to go into a later launch.

    A decode step passes here nine times, so there are few calls, and attributes are read directly.
    """

    __slots__ = (
        "_list_words",
        "_lists",
        "_ordered",
        "_spread",
        "_spread_end",
        "_spread_start",
        "_tables_end",
        "_tables_start",
        "_words_end",
        "_words_start",
        "_zeroes_only",
        "is_move",
        "sealed",
        "tile_bytes",
        "tiles_count",
        "words",
    )

    def __init__(self) -> None:
        self.tiles_count = 0
        self.tile_bytes = 0
        """Bytes of a tile of a move."""
        self.is_move = False
        """Whether this launch moves units, and does nothing else."""
        self.sealed = False
        """Whether nothing may be added any more."""
        self.words: tuple[int, int] | None = None
        self._words_start = self._words_end = 0
        self._ordered: list[int] = []
        self._spread: list[int] = []
        self._lists: list[bytes] = []
        """Joining bytes is what Python does fastest with many short lists."""
        self._list_words = 0
        self._tables_start = self._spread_start = _NOWHERE
        self._tables_end = self._spread_end = 0
        self._zeroes_only = True

    @property
    def word_count(self) -> int:
        """Return how long the submission is."""
        return HEADER_WORDS + len(self._ordered) + len(self._spread) + self._list_words

    @property
    def needs_own_block(self) -> bool:
        """Return whether block 0 has something to do beside tiles."""
        return bool(self._ordered or not self.tiles_count)

    def try_entries(
        self, address: int, start: int, end: int, indices: IntArray, values: IntArray
    ) -> bool:
        """Add ordered writes of int32 entries to the table at bytes ``[start, end)``."""
        if (
            self.sealed
            or (start < self._spread_end and self._spread_start < end)
            or (start < self._words_end and self._words_start < end)
        ):
            return False
        count, place = len(indices), self._list_words
        self._ordered += (ENTRIES, count, place, address, 0, 0, 0, 0)
        self._lists += (indices.tobytes(), values.tobytes())
        self._list_words = place + 2 * count
        if start < self._tables_start:
            self._tables_start = start
        if end > self._tables_end:
            self._tables_end = end
        return True

    def try_rows(self, place: RowPlace, rows: IntArray, places: IntArray, pages: IntArray) -> bool:
        """Add ordered writes of (row, place, page), and of what the rows reach."""
        start, end = place.span
        if (
            self.sealed
            or (start < self._spread_end and self._spread_start < end)
            or (start < self._words_end and self._words_start < end)
        ):
            return False
        count, first = len(rows), self._list_words
        pages_address, row_pages, lengths_address, page_tokens = place.words
        self._ordered += (
            ROWS,
            count,
            first,
            pages_address,
            row_pages,
            lengths_address,
            page_tokens,
            0,
        )
        self._lists += (rows.tobytes(), places.tobytes(), pages.tobytes())
        self._list_words = first + 3 * count
        if start < self._tables_start:
            self._tables_start = start
        if end > self._tables_end:
            self._tables_end = end
        return True

    def try_many_entries(
        self, address: int, start: int, end: int, indices: IntArray, values: IntArray
    ) -> bool:
        """Add writes of entries that all blocks share; no index may occur twice."""
        if not self._takes_spread(start, end, zeroes=False):
            return False
        count, place = len(indices), self._list_words
        self.tiles_count += -(-count // ENTRIES_PER_TILE)
        self._spread += (ENTRIES, count, place, address, 0, 0, 0, self.tiles_count)
        self._lists += (indices.tobytes(), values.tobytes())
        self._list_words = place + 2 * count
        return True

    def try_zero(
        self, address: int, start: int, end: int, unit_bytes: int, units: IntArray
    ) -> bool:
        """Add zeroing of units, all of which lie in bytes ``[start, end)``."""
        if not self._takes_spread(start, end, zeroes=True):
            return False
        kind_and_width, tile_bytes, unit_tiles = unit_shape(ZERO, address, unit_bytes)
        count, place = len(units), self._list_words
        self.tiles_count += count * unit_tiles
        self._spread += (
            kind_and_width,
            count,
            place,
            address,
            unit_bytes,
            tile_bytes,
            unit_tiles,
            self.tiles_count,
        )
        self._lists.append(units.tobytes())
        self._list_words = place + count
        return True

    def add_move(
        self, address: int, unit_bytes: int, sources: IntArray, destinations: IntArray
    ) -> None:
        """Make this the launch of a move, which takes nothing else."""
        kind_and_width, self.tile_bytes, unit_tiles = unit_shape(MOVE, address, unit_bytes)
        count = len(sources)
        self.sealed = self.is_move = True
        self.tiles_count = count * unit_tiles
        self._spread += (
            kind_and_width,
            count,
            0,
            address,
            unit_bytes,
            self.tile_bytes,
            unit_tiles,
            self.tiles_count,
        )
        self._lists += (sources.tobytes(), destinations.tobytes())
        self._list_words = 2 * count

    def try_words(self, start: int, end: int, values: tuple[int, int]) -> bool:
        """Set the pair of words to write at the end; those for the same place are replaced."""
        if self.sealed or (self.words is not None and start != self._words_start):
            return False
        self.words = values
        self._words_start, self._words_end = start, end
        return True

    def encode(
        self,
        target: memoryview,
        *,
        base_address: int,
        counter_address: int,
        done_address: int,
        done_number: int,
    ) -> None:
        """Write the submission to the first ``word_count`` words of some bytes.

        Raises DeviceError for lists that are not of 64-bit numbers.
        """
        words_address, first, second = 0, 0, 0
        if self.words is not None:
            words_address = base_address + self._words_start
            first, second = self.words
        ordered, spread = self._ordered, self._spread
        head_words = HEADER_WORDS + len(ordered) + len(spread)
        _packer(head_words).pack_into(
            target,
            0,
            len(ordered) // ITEM_WORDS,
            len(spread) // ITEM_WORDS,
            self.tiles_count,
            words_address,
            first,
            second,
            counter_address,
            done_address,
            done_number,
            0,
            *ordered,
            *spread,
        )
        lists = b"".join(self._lists)
        if len(lists) != WORD_BYTES * self._list_words:
            raise DeviceError(
                f"lists of {self._list_words} numbers have {len(lists)} bytes; each takes "
                f"{WORD_BYTES}"
            )
        start = WORD_BYTES * head_words
        target[start : start + len(lists)] = lists

    def encode_move(self, target: memoryview, address: int) -> None:
        """Write the argument of this move, whose submission lies at an address."""
        lists_address = address + WORD_BYTES * (HEADER_WORDS + ITEM_WORDS)
        _packer(MOVE_WORDS).pack_into(target, 0, *self._spread, self.tiles_count, lists_address)

    def _takes_spread(self, start: int, end: int, *, zeroes: bool) -> bool:
        """Return whether a spread item may be added; if so, its span is noted.

        A launch does not order its spread items; zeroing meets zeroing freely.
        """
        if (
            self.sealed
            or (start < self._tables_end and self._tables_start < end)
            or (start < self._words_end and self._words_start < end)
            or self._list_words >= LAUNCH_WORDS_MAX
        ):
            return False
        if (
            not (zeroes and self._zeroes_only)
            and start < self._spread_end
            and self._spread_start < end
        ):
            return False
        self._zeroes_only = zeroes and self._zeroes_only
        if start < self._spread_start:
            self._spread_start = start
        if end > self._spread_end:
            self._spread_end = end
        return True


@cache
def _packer(word_count: int) -> struct.Struct:
    return struct.Struct(f"={word_count}q")


def last_of_each(keys: IntArray, values: IntArray) -> tuple[IntArray, IntArray]:
    """Return keys without repetition and what the last of each was to be set to."""
    ordered = np.sort(keys)
    if not np.count_nonzero(ordered[1:] == ordered[:-1]):
        return keys, values
    distinct, from_end = np.unique(keys[::-1], return_index=True)
    return distinct, np.ascontiguousarray(values[::-1][from_end])
