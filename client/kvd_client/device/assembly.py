"""From effects to commands: every number of an effect is checked here, before anything is enqueued.

A wrong unit would be written over memory of somebody else, so an assembly trusts no column: units
lie on their band's grid and outside the sink, places within their table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from kvd_client.device.columns import ANY_NUMBER, NO_COLUMNS, NOTHING, Columns
from kvd_client.device.copies import CopyWork, WaitForCopy
from kvd_client.device.places import BandPlaces, PlanPlaces
from kvd_client.device.port import (
    Commands,
    Device,
    Event,
    IntArray,
    Memory,
)
from kvd_client.device.recipes import Later, Recipe, Recipes
from kvd_client.errors import ReplyError
from kvd_proto.outcomes import (
    NO_COLUMN,
    AnyEffect,
    ClearSlots,
    Copy,
    CopyStream,
    Move,
    ResetRows,
    Segment,
    Wait,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
    ZeroSink,
)

MaskArray: TypeAlias = npt.NDArray[np.bool_]


_ZEROES: Final = np.zeros(1024, dtype=np.int64)
_ZEROES.flags.writeable = False


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Between two pieces of commands: the stream waits for an event."""

    event: Event


Piece: TypeAlias = Commands | WaitFor | CopyWork | WaitForCopy
"""What a stream is given in order, or waits for in between."""


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """What effects asked of the next launch, to be done on its stream ahead of its kernels."""

    clear_slots: IntArray
    """Physical slots of the state band to fill with zero."""
    reset_rows: IntArray
    """Request rows whose request-scoped device state belongs to an earlier request."""

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to do."""
        return not len(self.clear_slots) and not len(self.reset_rows)


NO_LAUNCH_WORK: Final = LaunchWork(NOTHING, NOTHING)
"""What most replies leave to the next launch."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """What all replies of an applier are assembled with."""

    device: Device
    memory: Memory
    places: PlanPlaces
    recipes: Recipes
    check_copy: Callable[[CopyWork], None]
    """Raises ReplyError for a copy that cannot be carried out."""


class Assembly:
    """Commands and waits of one reply, in order, and what it leaves to the next launch.

    A decode step passes here with some nine effects and has microseconds for all of them. So what
    effects ask of the plan is worked out before (`PlanPlaces`), segments that come again and again
    are known (`Recipes`), and nothing is done for a rare case, such as slots to be cleared, where
    there is none.
    """

    __slots__ = (
        "_clear_slots",
        "_columns",
        "_commands",
        "_has_moved",
        "_piece_empty",
        "_places",
        "_progress",
        "_reset_rows",
        "_wait_for_step",
        "_workplace",
        "pieces",
    )

    def __init__(
        self,
        workplace: Workplace,
        launch_work: LaunchWork,
        wait_for_step: Callable[["Assembly", int], None],
    ) -> None:
        """Start empty; ``launch_work`` is what earlier replies left to the next launch.

        ``wait_for_step`` adds the wait for a step of this rank that an effect asks for.
        """
        self._wait_for_step = wait_for_step
        self._workplace = workplace
        self._places = workplace.places
        self._columns = NO_COLUMNS
        self._clear_slots: list[IntArray] = []
        """Without empty arrays among them: mostly there is nothing to clear."""
        self._reset_rows: list[IntArray] = []
        if launch_work is not NO_LAUNCH_WORK:
            if len(launch_work.clear_slots):
                self._clear_slots.append(launch_work.clear_slots)
            if len(launch_work.reset_rows):
                self._reset_rows.append(launch_work.reset_rows)
        self._piece_empty = True
        self._has_moved = False
        """Whether the segment that is being added holds a move."""
        self._progress: tuple[int, int] | None = None
        """What is done with what is added so far, to be written behind it.

        It replaces what was said before, as long as no move lies between: without moves nothing is
        read that a redo of several segments would miss. Behind a move it is written before anything
        of the next segment.
        """
        self._commands = workplace.device.commands(workplace.memory)
        self.pieces: list[Piece] = [self._commands]

    def launch_work(self) -> LaunchWork:
        """Return what is left to the next launch: the earlier work and this reply's."""
        if not self._clear_slots and not self._reset_rows:
            return NO_LAUNCH_WORK
        return LaunchWork(_joined(self._clear_slots), _joined(self._reset_rows))

    def add_entry(
        self, position: int, segments: Sequence[Segment], columns: Columns, start_index: int = 0
    ) -> None:
        """Add segments from one on; raises ReplyError if an effect does not fit the plan.

        Effects of a segment of known shape (`Recipes`) are added as a whole, if the device takes
        that.
        """
        self._columns = columns
        recipes, takes_recipes = self._workplace.recipes, self._workplace.device.takes_recipes
        for index in range(start_index, len(segments)):
            segment = segments[index]
            recipe = recipes.of(segment) if takes_recipes else None
            if (
                recipe is not None
                and columns.fit(recipe)
                and self._commands.add_recipe(recipe, columns.lists, columns.first_list)
            ):
                self._piece_empty = False
                if recipe.leaves_work or self._clear_slots:
                    self._note_later(recipe)
            else:
                for effect in segment:
                    self.add(effect)
            self._progress = (position, index)
            if self._has_moved:
                self._has_moved = False
                self._write_progress()

    def end_entry(self, position: int) -> None:
        """Say that an entry is done that asks for nothing, once everything before it is."""
        self._progress = (position, 0)

    def finish(self) -> None:
        """Add what was held back; nothing may be added afterwards."""
        if self._progress is not None:
            self._write_progress()

    def add_wait(self, event: Event) -> None:
        """Add a wait for an event: what is added later runs behind it."""
        self._add_between(WaitFor(event))

    def add_copy_wait(self, copy: int) -> None:
        """Add a wait for a copy, which may start with an earlier piece of this reply."""
        self._add_between(WaitForCopy(copy))

    def _add_between(self, piece: "WaitFor | CopyWork | WaitForCopy") -> None:
        """Add what is no command: what is added later runs behind it, or behind what it says."""
        if self._piece_empty:
            self.pieces.insert(-1, piece)
            return
        self.finish()
        self._piece_empty = True
        self.pieces.append(piece)
        self._commands = self._workplace.device.commands(self._workplace.memory)
        self.pieces.append(self._commands)

    def _note_later(self, recipe: Recipe) -> None:
        """Bring the work of the next launch in line with a segment."""
        for kind, column, band in recipe.notes:
            numbers = self._columns[column]
            if not len(numbers):
                continue
            if kind is Later.CLEAR:
                self._clear_slots.append(numbers)
            elif kind is Later.RESET:
                self._reset_rows.append(numbers)
            elif band is not None and self._clear_slots:
                self._forget_clears(band, numbers)

    def add(self, effect: AnyEffect) -> None:
        """Add one effect; raises ReplyError if it does not fit the plan."""
        # The most frequent first: each case asks for one type after the other.
        match effect:
            case WriteMap():
                self._write_map(effect)
            case Zero():
                self._zero(effect)
            case WriteRows():
                self._write_rows(effect)
            case Wait():
                if effect.copy:
                    self.add_copy_wait(effect.copy)
                else:
                    self._wait_for_step(self, effect.step)
                return
            case Copy():
                self._add_between(self._copy_work(effect))
                return
            case WriteSlots():
                self._write_slots(effect)
            case ClearSlots():
                self._clear_later(effect)
            case ResetRows():
                self._reset_row(effect)
            case Move():
                self._move(effect)
            case ZeroSink():
                self._commands.zero_bytes(start_bytes=0, end_bytes=self._places.plan.sink_bytes)
            case _:
                assert_never(effect)
        self._piece_empty = False

    def _copy_work(self, effect: Copy) -> CopyWork:
        band = self._band(effect.band)
        work = CopyWork(
            effect.copy,
            effect.stream,
            effect.band,
            self._units(band, effect.units),
            self._columns.within(effect.host_units, 0, ANY_NUMBER, "place in a host pool"),
        )
        self._workplace.check_copy(work)
        if work.stream is CopyStream.LOAD and self._clear_slots:
            self._forget_clears(band, work.units)
        return work

    def _write_progress(self) -> None:
        assert self._progress is not None
        self._piece_empty = False
        self._commands.write_words(
            offset_bytes=self._places.progress_offset_bytes, values=self._progress
        )
        self._progress = None

    def _zero(self, effect: Zero) -> None:
        band = self._band(effect.band)
        units = self._units(band, effect.units)
        self._commands.zero_units(base_bytes=0, unit_bytes=band.unit_bytes, units=units)
        if self._clear_slots:
            self._forget_clears(band, units)

    def _write_map(self, effect: WriteMap) -> None:
        band, columns = self._band(effect.band), self._columns
        # Entry 0 is the sink's and never changes.
        virtual = columns.within(effect.virtual, 1, band.map_entry_count, "virtual id")
        count = len(virtual)
        if effect.physical == NO_COLUMN:
            physical = _ZEROES[:count] if count <= len(_ZEROES) else np.zeros_like(virtual)
        else:
            physical = self._units(band, effect.physical)
            if count != len(physical):
                raise _unpaired(virtual, physical)
        self._commands.write_int32(
            offset_bytes=band.map_offset_bytes,
            entry_count=band.map_entry_count,
            indices=virtual,
            values=physical,
        )

    def _write_rows(self, effect: WriteRows) -> None:
        places, columns = self._places, self._columns
        rows = self._rows(effect.rows)
        cells = columns.within(effect.places, 0, places.row_pages, "place in a row")
        pages = columns.within(effect.virtual, 0, places.virtual_page_count, "virtual page")
        if not len(rows) == len(cells) == len(pages):
            raise ReplyError(
                f"{len(rows)} rows and {len(cells)} places do not pair up with {len(pages)} pages"
            )
        self._commands.write_rows(table=places.row_table, rows=rows, places=cells, pages=pages)

    def _write_slots(self, effect: WriteSlots) -> None:
        plan = self._places.plan
        table = plan.region.state_table
        if table is None:
            raise ReplyError("a write of state slots, but the plan has no state band")
        rows = self._rows(effect.rows)
        slots = self._columns.within(effect.virtual, 0, plan.virtual_slot_count, "state slot id")
        if len(rows) != len(slots):
            raise _unpaired(rows, slots)
        self._commands.write_int32(
            offset_bytes=table.offset_bytes,
            entry_count=table.row_count * table.column_count,
            indices=rows * table.column_count,
            values=slots,
        )

    def _clear_later(self, effect: ClearSlots) -> None:
        """Leave the clearing to the next launch."""
        band = self._state_band()
        slots = self._units(band, effect.units)
        if len(slots):
            self._clear_slots.append(slots)

    def _reset_row(self, effect: ResetRows) -> None:
        """Leave the reset to the next launch; the row names no pages from here on."""
        rows = self._rows(effect.rows)
        if len(rows):
            self._reset_rows.append(rows)
        lengths = self._places.plan.region.row_lengths
        self._commands.write_int32(
            offset_bytes=lengths.offset_bytes,
            entry_count=lengths.row_count,
            indices=rows,
            values=np.zeros_like(rows),
        )

    def _move(self, effect: Move) -> None:
        band = self._band(effect.band)
        sources = self._units(band, effect.sources)
        destinations = self._units(band, effect.destinations)
        if len(sources) != len(destinations):
            raise ReplyError(f"{len(sources)} units cannot move to {len(destinations)} places")
        if np.intersect1d(sources, destinations).size:
            raise ReplyError(f"a move of band {band.name} has units that are source and target")
        self._has_moved = True
        self._commands.move_units(
            base_bytes=0, unit_bytes=band.unit_bytes, sources=sources, destinations=destinations
        )
        if self._clear_slots and len(sources):
            self._let_clears_follow(band, sources, destinations)

    def _let_clears_follow(
        self, band: BandPlaces, sources: IntArray, destinations: IntArray
    ) -> None:
        """Bring what the next launch is to clear in line with a move.

        A slot that moves is cleared where it went.
        """
        slots = _joined(self._clear_slots)
        overwritten = self._overwritten(slots, band, destinations)
        if band is not self._places.state:
            self._keep_clears(slots[~overwritten])
            return
        order = np.argsort(sources, kind="stable")
        places = np.minimum(np.searchsorted(sources[order], slots), len(sources) - 1)
        moved = sources[order][places] == slots
        followed = np.where(moved, destinations[order][places], slots)
        self._keep_clears(followed[moved | ~overwritten])

    def _forget_clears(self, band: BandPlaces, units: IntArray) -> None:
        """Have the next launch leave alone what is written now.

        Its slot was freed before any launch and the bytes are somebody else's, or it is to hold
        what arrives from elsewhere.
        """
        slots = _joined(self._clear_slots)
        self._keep_clears(slots[~self._overwritten(slots, band, units)])

    def _keep_clears(self, slots: IntArray) -> None:
        self._clear_slots = [slots] if len(slots) else []

    def _overwritten(self, slots: IntArray, band: BandPlaces, units: IntArray) -> MaskArray:
        """Return which state slots share bytes with some units of a band."""
        slot_bytes, unit_bytes = self._state_band().unit_bytes, band.unit_bytes
        starts, unit_starts = slots[:, None] * slot_bytes, units[None, :] * unit_bytes
        shared = (starts < unit_starts + unit_bytes) & (unit_starts < starts + slot_bytes)
        return np.asarray(shared.any(axis=1))

    def _units(self, band: BandPlaces, index: int) -> IntArray:
        return self._columns.within(index, band.unit_index_min, band.unit_index_end_count, "unit")

    def _rows(self, index: int) -> IntArray:
        # Row 0 is the padding row and never changes.
        return self._columns.within(index, 1, self._places.row_count, "request row")

    def _band(self, index: int) -> BandPlaces:
        bands = self._places.bands
        if not 0 <= index < len(bands):
            raise ReplyError(f"an effect names band {index} of {len(bands)}")
        return bands[index]

    def _state_band(self) -> BandPlaces:
        band = self._places.state
        if band is None:
            raise ReplyError("slots are to be cleared, but the plan has no state band")
        return band


def _joined(arrays: Sequence[IntArray]) -> IntArray:
    return np.concatenate(arrays) if arrays else NOTHING


def _unpaired(indices: IntArray, values: IntArray) -> ReplyError:
    return ReplyError(f"{len(indices)} places in a table and {len(values)} values for them")
