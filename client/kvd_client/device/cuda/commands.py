"""Commands on CUDA memory: collected as launches, enqueued as they are.

Everything that can share a launch does: table writes run one after the other in one block while the
other blocks zero pages, and the words that say how far work is are written by whichever block ends
last. So a decode step is one launch, however many effects it has.
"""

from typing import Final, TypeAlias

import numpy as np

from kvd_client.device.cuda.cooked import CookedRecipe, cook
from kvd_client.device.cuda.launch import Launch
from kvd_client.device.cuda.memory import CudaMemory
from kvd_client.device.cuda.submission import (
    ORDERED_ENTRIES_MAX,
    RowPlace,
    Span,
    last_of_each,
)
from kvd_client.device.places import RowTable
from kvd_client.device.port import IntArray, NumberLists
from kvd_client.device.recipes import Recipe, WriteCells, WriteEntries
from kvd_client.errors import DeviceError

LIST_ENTRIES_MAX: Final = 1 << 15
"""Entries of one spread item; longer lists become several items."""
SHORT_COUNT: Final = 32
"""The greatest of so few units is found faster among plain integers."""
WORDS_BYTES: Final = 16
SHARED_NUMBERS_MAX: Final = 1 << 13
"""Longer replies are not copied whole: much of them is for the engine alone."""

SoleRecipe: TypeAlias = tuple[CookedRecipe, NumberLists, int]
"""A recipe, the lists of a reply, and the first of them that is a column of it."""

_CLOSED: Final = Launch()
_CLOSED.sealed = True
_FIRST: Final = np.zeros(1, dtype=np.int64)


class CudaCommands:
    """Commands on one CUDA memory, in the order in which they were added."""

    __slots__ = (
        "_address",
        "_last",
        "_size_bytes",
        "base_address",
        "launches",
        "memory",
        "sole",
        "sole_words",
    )

    def __init__(self, memory: CudaMemory) -> None:
        if not memory.writable:
            raise DeviceError("commands need a writable mapping, and this one is read-only")
        mapping = memory.mapping()
        self.memory = memory
        self.launches: list[Launch] = []
        """What to enqueue in this order, if there is no sole recipe."""
        self.sole: SoleRecipe | None = None
        """All there is beside words to write at its end: most decode steps come to that."""
        self.sole_words: tuple[int, tuple[int, int]] | None = None
        """Where those words lie in the memory, and their values."""
        # Takes nothing: the first command opens the first launch.
        self._last = _CLOSED
        self.base_address = self._address = mapping.address
        self._size_bytes = mapping.size_bytes

    def zero_bytes(self, *, start_bytes: int, end_bytes: int) -> None:
        """Fill ``[start_bytes, end_bytes)`` with zero."""
        if not 0 <= start_bytes <= end_bytes <= self._size_bytes:
            raise DeviceError(
                f"bytes [{start_bytes}, {end_bytes}) are not within the {self._size_bytes} mapped"
            )
        if end_bytes > start_bytes:
            address, size_bytes = self._address + start_bytes, end_bytes - start_bytes
            item = (address, start_bytes, end_bytes, size_bytes, _FIRST)
            if not self._open().try_zero(*item):
                self._new().try_zero(*item)

    def zero_units(self, *, base_bytes: int, unit_bytes: int, units: IntArray) -> None:
        """Fill units with zero."""
        self._check_units(base_bytes, unit_bytes)
        count = len(units)
        if count > LIST_ENTRIES_MAX:
            for start in range(0, count, LIST_ENTRIES_MAX):
                part = units[start : start + LIST_ENTRIES_MAX]
                self.zero_units(base_bytes=base_bytes, unit_bytes=unit_bytes, units=part)
        elif count:
            greatest = max(units.tolist()) if count <= SHORT_COUNT else np.maximum.reduce(units)
            # Where they start makes no difference: tables lie behind all units.
            end_bytes = base_bytes + (int(greatest) + 1) * unit_bytes
            address = self._address + base_bytes
            if not self._open().try_zero(address, base_bytes, end_bytes, unit_bytes, units):
                self._new().try_zero(address, base_bytes, end_bytes, unit_bytes, units)

    def move_units(
        self, *, base_bytes: int, unit_bytes: int, sources: IntArray, destinations: IntArray
    ) -> None:
        """Copy units to others, or onto themselves; the two lists are equally long."""
        self._check_units(base_bytes, unit_bytes)
        if len(sources) != len(destinations):
            raise DeviceError(f"{len(sources)} units cannot move to {len(destinations)} places")
        self._open()
        for start in range(0, len(sources), LIST_ENTRIES_MAX):
            end = start + LIST_ENTRIES_MAX
            address = self._address + base_bytes
            self._new().add_move(address, unit_bytes, sources[start:end], destinations[start:end])
            self.memory.unconfirmed_moves = True

    def write_int32(
        self, *, offset_bytes: int, entry_count: int, indices: IntArray, values: IntArray
    ) -> None:
        """Write entries of a table of int32; an index that occurs twice gets the last value."""
        start, end = self._table(offset_bytes, entry_count)
        count = len(indices)
        if count != len(values):
            raise DeviceError(f"{count} table entries cannot hold {len(values)} values")
        if count > ORDERED_ENTRIES_MAX:
            self._write_many(start, end, indices, values)
        elif count:
            address = self._address + start
            if not self._open().try_entries(address, start, end, indices, values):
                self._new().try_entries(address, start, end, indices, values)

    def write_rows(
        self, *, table: RowTable, rows: IntArray, places: IntArray, pages: IntArray
    ) -> None:
        """Write pages into rows of a request table, and how many tokens each row now reaches."""
        place = self._row_place(table)
        if not len(rows) == len(places) == len(pages):
            raise DeviceError(
                f"{len(rows)} rows and {len(places)} places cannot hold {len(pages)} pages"
            )
        if len(rows) > ORDERED_ENTRIES_MAX:
            self._write_many(*place.pages, rows * table.row_pages + places, pages)
            self._write_many(*place.lengths, rows, (places + 1) * table.page_tokens)
        elif len(rows) and not self._open().try_rows(place, rows, places, pages):
            self._new().try_rows(place, rows, places, pages)

    def write_words(self, *, offset_bytes: int, values: tuple[int, int]) -> None:
        """Write two uint64 words in one store of 16 bytes, behind everything collected so far.

        Words for the same place replace those before them as long as no move lies between: without
        moves nothing that a later segment writes is read when an earlier one is redone. The first
        words behind a move are out before anything of the next segment begins.
        """
        end_bytes = offset_bytes + WORDS_BYTES
        if offset_bytes & 15 or not 0 <= offset_bytes < end_bytes <= self._size_bytes:
            raise DeviceError(f"no pair of words can lie at byte {offset_bytes}")
        if (
            self.sole is not None
            and (self.sole_words is None or self.sole_words[0] == offset_bytes)
            and not self.memory.unconfirmed_moves
        ):
            self.sole_words = offset_bytes, values
            return
        if not self._open().try_words(offset_bytes, end_bytes, values):
            self._new().try_words(offset_bytes, end_bytes, values)
        if self.memory.unconfirmed_moves:
            self._last.sealed = True
            self.memory.unconfirmed_moves = False

    def add_recipe(self, recipe: Recipe, lists: NumberLists, first_list: int) -> bool:
        """Add all pieces of a recipe to one launch, or none and return False."""
        cooked = recipe.made
        if not isinstance(cooked, CookedRecipe) or cooked.base_address != self.base_address:
            cooked = recipe.made = self._cook(recipe)
        if not cooked.fits or not self._may_share(cooked, lists, first_list):
            return False
        if self.sole is None and not self.launches:
            self.sole = cooked, lists, first_list
        elif not self._open().try_recipe(cooked, lists, first_list):
            self._new().try_recipe(cooked, lists, first_list)
        return True

    # ---- inside ---------------------------------------------------------------------------------

    def _cook(self, recipe: Recipe) -> CookedRecipe:
        """Return the items of a recipe; raises DeviceError for a table outside of the memory."""
        row_place: RowPlace | None = None
        for piece in recipe.pieces:
            if isinstance(piece, WriteEntries):
                self._table(piece.offset_bytes, piece.entry_count)
            elif isinstance(piece, WriteCells):
                row_place = self._row_place(piece.table)
        return cook(recipe, self.base_address, row_place)

    def _may_share(self, cooked: CookedRecipe, lists: NumberLists, first_list: int) -> bool:
        """Return whether lists may be copied whole, and block 0 write what they hold in order."""
        number_count = len(lists.numbers)
        if number_count <= ORDERED_ENTRIES_MAX:
            return True
        lengths = lists.lengths
        return number_count <= SHARED_NUMBERS_MAX and all(
            lengths[first_list + column] <= ORDERED_ENTRIES_MAX for column in cooked.ordered
        )

    def _row_place(self, table: RowTable) -> RowPlace:
        place = self.memory.row_place
        if place is None or place.table is not table:
            place = self.memory.row_place = self._place_rows(table)
        return place

    def _table(self, offset_bytes: int, entry_count: int) -> Span:
        """Return the bytes of a table of int32; raises DeviceError if none can lie there."""
        end_bytes = offset_bytes + 4 * entry_count
        if offset_bytes & 3 or not 0 <= offset_bytes <= end_bytes <= self._size_bytes:
            raise DeviceError(
                f"no table of {entry_count} int32 can lie at byte {offset_bytes} of "
                f"{self._size_bytes}"
            )
        return offset_bytes, end_bytes

    def _write_many(self, start: int, end: int, indices: IntArray, values: IntArray) -> None:
        """Write more entries than one block should, with nothing that their order could change."""
        indices, values = last_of_each(indices, values)
        for first in range(0, len(indices), LIST_ENTRIES_MAX):
            some = slice(first, first + LIST_ENTRIES_MAX)
            item = (self._address + start, start, end, indices[some], values[some])
            if not self._open().try_many_entries(*item):
                self._new().try_many_entries(*item)

    def _open(self) -> Launch:
        """Return the launch that takes what comes next, if it can."""
        if self.sole is not None:
            (cooked, lists, first_list), self.sole = self.sole, None
            self._new().try_recipe(cooked, lists, first_list)
            if self.sole_words is not None:
                offset_bytes, values = self.sole_words
                self._last.try_words(offset_bytes, offset_bytes + WORDS_BYTES, values)
        return self._last

    def _new(self) -> Launch:
        self._last = Launch()
        self.launches.append(self._last)
        return self._last

    def _place_rows(self, table: RowTable) -> RowPlace:
        """Return where two tables lie that belong together; raises DeviceError if they cannot."""
        pages = self._table(table.pages_offset_bytes, table.row_count * table.row_pages)
        lengths = self._table(table.lengths_offset_bytes, table.row_count)
        return RowPlace(table, self._address, pages, lengths)

    def _check_units(self, base_bytes: int, unit_bytes: int) -> None:
        if unit_bytes <= 0 or not 0 <= base_bytes <= self._size_bytes:
            raise DeviceError(
                f"no units of {unit_bytes} bytes can start at byte {base_bytes} "
                f"of {self._size_bytes}"
            )
