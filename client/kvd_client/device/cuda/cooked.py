"""Recipes as the kernel takes them: the items of a segment, made once for a memory."""

from collections.abc import Sequence
from typing import Final

from kvd_client.device.cuda.submission import (
    ENTRIES,
    ITEM,
    NO_LIST,
    NOWHERE,
    ROWS,
    ItemWords,
    RowPlace,
    Span,
    zero_item,
)
from kvd_client.device.recipes import Recipe, WriteCells, WriteEntries, ZeroUnits

PLACES_MAX: Final = 64
"""At so many lists a recipe keeps its items; in the replies of decode steps it is two or three."""


class CookedRecipe:
    """The items of a segment for a memory at an address, ready but for where its columns stand."""

    __slots__ = (
        "_at",
        "_ordered",
        "_spread",
        "base_address",
        "fits",
        "ordered",
        "tables",
        "units",
        "zeroes",
    )

    def __init__(
        self,
        base_address: int,
        ordered: Sequence[ItemWords],
        spread: Sequence[ItemWords],
        tables: Span,
        units: Span,
    ) -> None:
        """Take items whose lists are columns of the segment, and the bytes that they lie within."""
        self.base_address = base_address
        self.tables = tables
        self.units = units
        self.fits = not (tables[0] < units[1] and units[0] < tables[1])
        """Whether one launch may hold all items: tables lie apart from what may be zeroed."""
        self.ordered = tuple(item[1] for item in ordered)
        """The column of each ordered item that says how many entries it writes."""
        self.zeroes = tuple((item[1], item[7]) for item in spread)
        """The column of units of each other item, and into how many tiles each unit is cut."""
        self._ordered = ordered
        self._spread = spread
        self._at: dict[int, tuple[bytes, bytes]] = {}

    def at(self, first_list: int) -> tuple[bytes, bytes]:
        """Return ordered and spread items for columns that are the lists from a number on."""
        known = self._at.get(first_list)
        if known is None:
            if len(self._at) >= PLACES_MAX:
                self._at.clear()
            known = self._at[first_list] = (
                b"".join([_encoded(item, first_list) for item in self._ordered]),
                b"".join([_encoded(item, first_list) for item in self._spread]),
            )
        return known


def cook(recipe: Recipe, base_address: int, row_place: RowPlace | None) -> CookedRecipe:
    """Return the items of a recipe for a memory at an address.

    ``row_place`` is where the request table lies that its pieces write to, if one does.
    """
    ordered: list[ItemWords] = []
    spread: list[ItemWords] = []
    tables, units = NOWHERE, NOWHERE
    for piece in recipe.pieces:
        match piece:
            case ZeroUnits():
                spread.append(zero_item(piece.units, base_address, piece.unit_bytes))
                units = _around(units, (0, piece.unit_index_end_count * piece.unit_bytes))
            case WriteEntries():
                start = piece.offset_bytes
                address = base_address + start
                ordered.append(
                    (
                        ENTRIES,
                        piece.indices,
                        piece.values,
                        NO_LIST,
                        address,
                        piece.stride_count,
                        0,
                        0,
                    )
                )
                tables = _around(tables, (start, start + 4 * piece.entry_count))
            case WriteCells():
                assert row_place is not None
                ordered.append((ROWS, piece.rows, piece.places, piece.pages, *row_place.words))
                tables = _around(tables, row_place.span)
    return CookedRecipe(base_address, ordered, spread, tables, units)


def _around(one: Span, other: Span) -> Span:
    return min(one[0], other[0]), max(one[1], other[1])


def _encoded(item: ItemWords, first_list: int) -> bytes:
    kind, *columns = item[:4]
    numbers = [column if column == NO_LIST else first_list + column for column in columns]
    return ITEM.pack(kind, *numbers, *item[4:])
