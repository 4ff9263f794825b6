"""A launch: items that commute, or that block 0 carries out in order, and their lists.

What does neither has to go into a later launch.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Final, TypeAlias

from kvd_client.device.cuda.cooked import CookedRecipe
from kvd_client.device.cuda.submission import (
    ENTRIES,
    ENTRIES_PER_TILE,
    HEADER_WORDS,
    ITEM,
    ITEM_WORDS,
    MOVE,
    NO_LIST,
    ROWS,
    WORD_BYTES,
    RowPlace,
    unit_shape,
    zero_item,
)
from kvd_client.device.port import IntArray, NumberLists
from kvd_client.errors import DeviceError

LAUNCH_WORDS_MAX: Final = 1 << 16
"""A launch with lists of so many words takes no more; one item brings at most as many again."""

EndWords: TypeAlias = tuple[int, int, int, int, int, int]
"""What a launch writes at its end: address of a pair of words and both of them, address of the
counter of blocks, address of the lane and its number."""

_NOWHERE: Final = 1 << 62


class Launch:
    """The items of one launch, in the words of their descriptors, and what of memory they touch.

    What they touch is kept as one span for tables and one for everything else: too much rather than
    too little, which costs a launch where both lie apart in no simple way. Each ``try_`` method
    adds an item, or returns False if it has to go into a later launch.

    A decode step passes here, so there are few calls, and attributes are read directly.
    """

    __slots__ = (
        "_list_words",
        "_lists",
        "_ordered",
        "_ordered_count",
        "_shared",
        "_shared_number",
        "_spread",
        "_spread_count",
        "_spread_end",
        "_spread_start",
        "_starts",
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
        # Joining bytes is what Python does fastest with many short pieces.
        self._ordered: list[bytes] = []
        self._ordered_count = 0
        self._spread: list[bytes] = []
        self._spread_count = 0
        self._lists: list[bytes] = []
        self._starts: list[int] = []
        self._list_words = 0
        self._shared: NumberLists | None = None
        """Lists of a reply that are in here as a whole, from a number on."""
        self._shared_number = 0
        self._tables_start = self._spread_start = _NOWHERE
        self._tables_end = self._spread_end = 0
        self._zeroes_only = True

    @property
    def needs_own_block(self) -> bool:
        """Return whether block 0 has something to do beside tiles."""
        return bool(self._ordered or not self.tiles_count)

    def try_recipe(self, cooked: CookedRecipe, lists: NumberLists, first_list: int) -> bool:
        """Add all items of a segment whose columns are lists of a reply from one on."""
        (tables_start, tables_end), (units_start, units_end) = cooked.tables, cooked.units
        if (
            self.sealed
            or (tables_start < self._spread_end and self._spread_start < tables_end)
            or (tables_start < self._words_end and self._words_start < tables_end)
            or self._list_words >= LAUNCH_WORDS_MAX
            or (cooked.zeroes and not self._takes_spread(units_start, units_end, zeroes=True))
        ):
            return False
        if self._shared is not lists:
            self._share(lists)
        ordered, spread = cooked.at(self._shared_number + first_list)
        if ordered:
            self._ordered.append(ordered)
            self._ordered_count += len(cooked.ordered)
            if tables_start < self._tables_start:
                self._tables_start = tables_start
            if tables_end > self._tables_end:
                self._tables_end = tables_end
        if spread:
            self._spread.append(spread)
            self._spread_count += len(cooked.zeroes)
            lengths = lists.lengths
            for column, unit_tiles in cooked.zeroes:
                self.tiles_count += lengths[first_list + column] * unit_tiles
        return True

    def try_entries(
        self, address: int, start: int, end: int, indices: IntArray, values: IntArray
    ) -> bool:
        """Add ordered writes of int32 entries to the table at bytes ``[start, end)``."""
        if not self._takes_ordered(start, end):
            return False
        number = self._add_lists(indices, values)
        self._ordered_count += 1
        self._ordered.append(ITEM.pack(ENTRIES, number, number + 1, NO_LIST, address, 1, 0, 0))
        return True

    def try_rows(self, place: RowPlace, rows: IntArray, places: IntArray, pages: IntArray) -> bool:
        """Add ordered writes of (row, place, page), and of what the rows reach."""
        if not self._takes_ordered(*place.span):
            return False
        number = self._add_lists(rows, places, pages)
        self._ordered_count += 1
        self._ordered.append(ITEM.pack(ROWS, number, number + 1, number + 2, *place.words))
        return True

    def try_many_entries(
        self, address: int, start: int, end: int, indices: IntArray, values: IntArray
    ) -> bool:
        """Add writes of entries that all blocks share; no index may occur twice."""
        if not self._takes_spread(start, end, zeroes=False):
            return False
        self.tiles_count += -(-len(indices) // ENTRIES_PER_TILE)
        number = self._add_lists(indices, values)
        self._spread_count += 1
        self._spread.append(ITEM.pack(ENTRIES, number, number + 1, NO_LIST, address, 1, 0, 0))
        return True

    def try_zero(
        self, address: int, start: int, end: int, unit_bytes: int, units: IntArray
    ) -> bool:
        """Add zeroing of units, all of which lie in bytes ``[start, end)``."""
        if not self._takes_spread(start, end, zeroes=True):
            return False
        item = zero_item(self._add_lists(units), address, unit_bytes)
        self.tiles_count += len(units) * item[-1]
        self._spread_count += 1
        self._spread.append(ITEM.pack(*item))
        return True

    def add_move(
        self, address: int, unit_bytes: int, sources: IntArray, destinations: IntArray
    ) -> None:
        """Make this the launch of a move, which takes nothing else."""
        kind_and_width, self.tile_bytes, unit_tiles = unit_shape(MOVE, address, unit_bytes)
        self.sealed = self.is_move = True
        self.tiles_count = len(sources) * unit_tiles
        self._add_lists(sources, destinations)
        self._spread_count += 1
        self._spread.append(
            ITEM.pack(
                kind_and_width, 0, 1, NO_LIST, address, unit_bytes, self.tile_bytes, unit_tiles
            )
        )

    def try_words(self, start: int, end: int, values: tuple[int, int]) -> bool:
        """Set the pair of words to write at the end; those for the same place are replaced."""
        if self.sealed or (self.words is not None and start != self._words_start):
            return False
        self.words = values
        self._words_start, self._words_end = start, end
        return True

    def encode(
        self, *, base_address: int, counter_address: int, done_address: int, done_number: int
    ) -> bytes:
        """Return the submission; raises DeviceError for lists that are not of 64-bit numbers."""
        words_address, first, second = 0, 0, 0
        if self.words is not None:
            words_address = base_address + self._words_start
            first, second = self.words
        ordered_count, spread_count = self._ordered_count, self._spread_count
        end = words_address, first, second, counter_address, done_address, done_number
        header = (ordered_count, spread_count, self.tiles_count, *end, len(self._starts))
        parts = (*self._ordered, *self._spread, *self._lists)
        return _encoded(header, self._starts, self._list_words, ordered_count + spread_count, parts)

    def encode_move(self, address: int) -> bytes:
        """Return the argument of this move, whose submission lies at an address."""
        unit_count = self._starts[1]
        head_words = HEADER_WORDS + len(self._starts) + 1 + ITEM_WORDS
        lists_address = address + WORD_BYTES * head_words
        return self._spread[0] + _packer(3).pack(self.tiles_count, unit_count, lists_address)

    def _add_lists(self, *lists: IntArray) -> int:
        """Add lists behind all others; returns the number of the first."""
        number = len(self._starts)
        for numbers in lists:
            self._starts.append(self._list_words)
            self._lists.append(numbers.tobytes())
            self._list_words += len(numbers)
        return number

    def _share(self, lists: NumberLists) -> None:
        """Add the lists of a reply as they are, behind all others."""
        self._shared = lists
        self._shared_number = len(self._starts)
        words = self._list_words
        self._starts += [words + start for start in lists.starts] if words else lists.starts
        self._lists.append(lists.numbers.tobytes())
        self._list_words = words + len(lists.numbers)

    def _takes_ordered(self, start: int, end: int) -> bool:
        """Return whether an ordered item may be added; if so, its span is noted."""
        if (
            self.sealed
            or (start < self._spread_end and self._spread_start < end)
            or (start < self._words_end and self._words_start < end)
        ):
            return False
        if start < self._tables_start:
            self._tables_start = start
        if end > self._tables_end:
            self._tables_end = end
        return True

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


def encode_recipe(
    cooked: CookedRecipe, lists: NumberLists, first_list: int, end: EndWords
) -> tuple[bytes, int]:
    """Return the submission of a launch that holds one recipe and nothing else, and its tiles."""
    tiles_count, lengths = 0, lists.lengths
    for column, unit_tiles in cooked.zeroes:
        tiles_count += lengths[first_list + column] * unit_tiles
    ordered, spread = cooked.at(first_list)
    ordered_count, spread_count = len(cooked.ordered), len(cooked.zeroes)
    starts, numbers = lists.starts, lists.numbers
    header = (ordered_count, spread_count, tiles_count, *end, len(starts))
    parts = (ordered, spread, numbers.tobytes())
    items_count = ordered_count + spread_count
    return _encoded(header, starts, len(numbers), items_count, parts), tiles_count


def _encoded(
    header: tuple[int, ...],
    starts: Sequence[int],
    list_words: int,
    item_count: int,
    parts: Sequence[bytes],
) -> bytes:
    """Return a submission; ``parts`` are its items and then its lists."""
    head_words = HEADER_WORDS + len(starts) + 1
    head = _packer(head_words).pack(*header, *starts, list_words)
    encoded = b"".join((head, *parts))
    head_words += ITEM_WORDS * item_count
    if len(encoded) != WORD_BYTES * (head_words + list_words):
        raise DeviceError(
            f"lists of {list_words} numbers have {len(encoded) - WORD_BYTES * head_words} bytes; "
            f"each takes {WORD_BYTES}"
        )
    return encoded


@cache
def _packer(word_count: int) -> struct.Struct:
    return struct.Struct(f"={word_count}q")
