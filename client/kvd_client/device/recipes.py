"""Recipes: what a segment of zeroing and table writes comes to under one plan, worked out once.

A segment names bands and columns and no numbers, so decode steps bring the same few segments over
and over. Their recipe holds the checks of all columns, merged, and the work with every place in
memory. A device that can takes the whole of it at once; otherwise, and wherever numbers do not fit,
the effects are added one by one, which is what names a wrong one.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from kvd_client.device.places import BandPlaces, PlanPlaces, RowTable
from kvd_proto.outcomes import (
    NO_COLUMN,
    AnyEffect,
    ClearSlots,
    Column,
    ResetRows,
    Segment,
    Wait,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
)

RECIPES_MAX: Final = 256
"""So many are kept; a log has a few dozen kinds of segments."""


@dataclass(frozen=True, slots=True)
class ZeroUnits:
    """Units of a column are zeroed."""

    unit_bytes: int
    unit_index_end_count: int
    """No unit is as great."""
    units: Column

    def moved(self, first: int) -> "ZeroUnits":
        """Return the piece for columns that are counted from one on."""
        return replace(self, units=_moved(self.units, first))


@dataclass(frozen=True, slots=True)
class WriteEntries:
    """Entries of a table of int32 are written, at ``stride_count`` times what a column holds."""

    offset_bytes: int
    entry_count: int
    indices: Column
    values: Column
    """NO_COLUMN stands for zeroes."""
    stride_count: int = 1

    def moved(self, first: int) -> "WriteEntries":
        """Return the piece for columns that are counted from one on."""
        return replace(self, indices=_moved(self.indices, first), values=_moved(self.values, first))


@dataclass(frozen=True, slots=True)
class WriteCells:
    """Pages are written into the request table, with what their rows reach."""

    table: RowTable
    rows: Column
    places: Column
    pages: Column

    def moved(self, first: int) -> "WriteCells":
        """Return the piece for columns that are counted from one on."""
        return replace(
            self,
            rows=_moved(self.rows, first),
            places=_moved(self.places, first),
            pages=_moved(self.pages, first),
        )


Piece: TypeAlias = ZeroUnits | WriteEntries | WriteCells


ColumnLimit: TypeAlias = tuple[Column, int, int, Column]
"""A column whose numbers all lie in a range ``[start, end)``, and one that it is as long as.

It is as long as itself if its length is free.
"""


class Later(IntEnum):
    """What a segment means for the work of the next launch."""

    CLEAR = 0
    """Slots of a column are to be cleared."""
    RESET = 1
    """Rows of a column are to be reset."""
    WRITTEN = 2
    """Units of a column are zeroed: slots that lie there are not to be cleared any more."""


class LaterNote(NamedTuple):
    """One thing that a segment means for the next launch, in the order of its effects."""

    kind: Later
    column: Column
    band: BandPlaces | None = None
    """The band of the units, for WRITTEN."""


class Recipe:
    """The pieces of a segment in their order, and what its columns have to be like."""

    __slots__ = ("column_end", "leaves_work", "limits", "made", "notes", "pieces")

    def __init__(
        self,
        pieces: tuple[Piece, ...],
        limits: tuple[ColumnLimit, ...],
        notes: tuple[LaterNote, ...],
    ) -> None:
        self.pieces = pieces
        self.limits = limits
        self.column_end = 1 + max(limit[0] for limit in limits)
        """So many columns there have to be."""
        self.notes = notes
        self.leaves_work = any(note.kind is not Later.WRITTEN for note in notes)
        """Whether the next launch gets something to do."""
        self.made: object = None
        """What the device made of it the last time, for itself."""


EntryShape: TypeAlias = tuple[tuple[Segment, ...], int, int]
"""What an entry of a reply has in common with others of its kind: its segments, the place of its
first column among all columns of the reply, and how many columns it has."""
ReplyShape: TypeAlias = tuple[EntryShape, ...]
"""The entries of a reply that have effects, but for those that only wait."""


class Recipes:
    """The recipes of one plan, made as segments come."""

    def __init__(self, places: PlanPlaces) -> None:
        """Start empty."""
        self._places = places
        self._known: dict[Segment, Recipe] = {}
        self._of_replies: dict[ReplyShape, Recipe] = {}

    def of(self, segment: Segment) -> Recipe | None:
        """Return a segment's recipe; None if it holds an effect that no recipe can hold."""
        recipe = self._known.get(segment)
        # Each wait is for another step: there is no end of such segments.
        if recipe is None and segment and type(segment[0]) is not Wait:
            recipe = self._write(segment)
        return recipe

    def of_reply(self, shape: ReplyShape) -> Recipe | None:
        """Return the recipe of a whole reply, with the columns of all its entries counted through.

        None if an entry holds an effect that no recipe can hold, or that leaves work to the next
        launch, or names a column that the entry does not have.
        """
        recipe = self._of_replies.get(shape)
        if recipe is None:
            recipe = self._join(shape)
            if recipe is not None:
                if len(self._of_replies) >= RECIPES_MAX:
                    self._of_replies.clear()
                self._of_replies[shape] = recipe
        return recipe

    def _join(self, shape: ReplyShape) -> Recipe | None:
        pieces: list[Piece] = []
        limits: list[ColumnLimit] = []
        for segments, first, column_count in shape:
            for segment in segments:
                recipe = self.of(segment)
                if recipe is None or recipe.leaves_work or recipe.column_end > column_count:
                    return None
                pieces += [piece.moved(first) for piece in recipe.pieces]
                limits += [
                    (_moved(column, first), start, end, _moved(like, first))
                    for column, start, end, like in recipe.limits
                ]
        return Recipe(tuple(pieces), tuple(limits), ())

    def _write(self, segment: Segment) -> Recipe | None:
        writing = _Writing(self._places)
        if not all(map(writing.add, segment)):
            return None
        recipe = writing.recipe()
        if recipe is not None:
            if len(self._known) >= RECIPES_MAX:
                self._known.clear()
            self._known[segment] = recipe
        return recipe


def _moved(column: Column, first: int) -> Column:
    return column if column == NO_COLUMN else Column(first + column)


class _Writing:
    """A recipe while its effects are read."""

    def __init__(self, places: PlanPlaces) -> None:
        self._places = places
        self._pieces: list[Piece] = []
        self._notes: list[LaterNote] = []
        self._ranges: dict[Column, tuple[int, int]] = {}
        self._like: dict[Column, Column] = {}

    def recipe(self) -> Recipe | None:
        """Return the recipe; None for effects that name nothing, or what can be no column."""
        if not self._ranges or min(self._ranges) < 0:
            return None
        limits = tuple(
            (column, start, end, self._first_like(column))
            for column, (start, end) in self._ranges.items()
        )
        return Recipe(tuple(self._pieces), limits, tuple(self._notes))

    def add(self, effect: AnyEffect) -> bool:
        """Add an effect; False if no recipe can hold it, or if it does not fit the plan."""
        places = self._places
        match effect:
            case WriteMap():
                band = self._band(effect.band)
                return band is not None and self._write_map(effect, band)
            case Zero():
                band = self._band(effect.band)
                return band is not None and self._zero(effect, band)
            case WriteRows():
                self._limit(effect.rows, 1, places.row_count)
                self._limit(effect.places, 0, places.row_pages, effect.rows)
                self._limit(effect.virtual, 0, places.virtual_page_count, effect.rows)
                self._pieces.append(
                    WriteCells(places.row_table, effect.rows, effect.places, effect.virtual)
                )
                return True
            case WriteSlots():
                return self._write_slots(effect)
            case ClearSlots():
                return self._clear_slots(effect)
            case ResetRows():
                lengths = places.plan.region.row_lengths
                self._limit(effect.rows, 1, places.row_count)
                self._pieces.append(
                    WriteEntries(lengths.offset_bytes, lengths.row_count, effect.rows, NO_COLUMN)
                )
                self._notes.append(LaterNote(Later.RESET, effect.rows))
                return True
            case _:
                return False

    def _write_map(self, effect: WriteMap, band: BandPlaces) -> bool:
        # Entry 0 is the sink's and never changes.
        self._limit(effect.virtual, 1, band.map_entry_count)
        if effect.physical != NO_COLUMN:
            self._limit(
                effect.physical, band.unit_index_min, band.unit_index_end_count, effect.virtual
            )
        self._pieces.append(
            WriteEntries(
                band.map_offset_bytes, band.map_entry_count, effect.virtual, effect.physical
            )
        )
        return True

    def _zero(self, effect: Zero, band: BandPlaces) -> bool:
        self._limit(effect.units, band.unit_index_min, band.unit_index_end_count)
        self._pieces.append(ZeroUnits(band.unit_bytes, band.unit_index_end_count, effect.units))
        self._notes.append(LaterNote(Later.WRITTEN, effect.units, band))
        return True

    def _write_slots(self, effect: WriteSlots) -> bool:
        plan = self._places.plan
        table = plan.region.state_table
        if table is None:
            return False
        self._limit(effect.rows, 1, self._places.row_count)
        self._limit(effect.virtual, 0, plan.virtual_slot_count, effect.rows)
        self._pieces.append(
            WriteEntries(
                table.offset_bytes,
                table.row_count * table.column_count,
                effect.rows,
                effect.virtual,
                table.column_count,
            )
        )
        return True

    def _clear_slots(self, effect: ClearSlots) -> bool:
        state = self._places.state
        if state is None:
            return False
        self._limit(effect.units, state.unit_index_min, state.unit_index_end_count)
        self._notes.append(LaterNote(Later.CLEAR, effect.units))
        return True

    def _band(self, index: int) -> BandPlaces | None:
        bands = self._places.bands
        return bands[index] if 0 <= index < len(bands) else None

    def _limit(self, column: Column, start: int, end: int, like: Column | None = None) -> None:
        """Have a column's numbers lie in ``[start, end)``, and it be as long as another."""
        known_start, known_end = self._ranges.get(column, (start, end))
        self._ranges[column] = max(start, known_start), min(end, known_end)
        if like is not None:
            one, other = self._first_like(column), self._first_like(like)
            self._like[max(one, other)] = min(one, other)

    def _first_like(self, column: Column) -> Column:
        """Return the first of the columns that are as long as this one."""
        while self._like.get(column, column) != column:
            column = self._like[column]
        return column
