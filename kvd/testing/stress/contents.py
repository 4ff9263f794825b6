"""What every page and slot should hold and where it should lie, by the log alone.

This is the model that payload is compared with. It reads outcomes as ranks receive them and shares
nothing with the allocator: places follow from `WriteMap` and `Move`, and what an owner last wrote
is a tag per token entry. A tag is a 64-bit word that fills the entry; 0 is a zeroed entry, UNKNOWN
one that nobody may rely on, such as the target of a load that is on its way. Tags are those as of
now in the order of the log, which is the order of the forward streams too, so gathered at a launch
they are what the launched step has to see.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kvd.errors import StressFailure
from kvd.testing.stress.failure import CheckName
from kvd_proto.memory import Lifetime, StoragePlan
from kvd_proto.outcomes import (
    NO_COLUMN,
    ClearSlots,
    Move,
    Outcome,
    ResetRows,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
    ZeroSink,
)

Indices: TypeAlias = npt.NDArray[np.int64]
Tags: TypeAlias = npt.NDArray[np.int64]

UNKNOWN: Final = -1
WORD_BYTES: Final = 8
_NONE: Final[Indices] = np.zeros(0, dtype=np.int64)


def columns_of(outcome: Outcome) -> list[Indices]:
    """Return an outcome's columns."""
    if not outcome.lengths:
        return []
    values = np.frombuffer(outcome.columns, dtype="<i4").astype(np.int64)
    columns: list[Indices] = []
    start = 0
    for length in outcome.lengths:
        columns.append(values[start : start + length])
        start += length
    return columns


class BandContents:
    """Places and tags of one band."""

    def __init__(self, plan: StoragePlan, index: int, *, cell_bytes: int) -> None:
        band = plan.bands[index]
        self.index = index
        self.name = band.name
        self.lifetime = band.lifetime
        self.unit_bytes = band.unit_bytes
        self.entries_count = 1 if band.lifetime is Lifetime.STATE else plan.page_tokens
        """Entries of a unit: tokens of a page, or 1 for a slot."""
        entry_count = plan.region.band_maps[index].entry_count
        self.places: Indices = np.zeros(entry_count, dtype=np.int64)
        """Physical unit by virtual id; 0 where none is bound."""
        self.owners: Indices = np.zeros(band.unit_index_end_count, dtype=np.int64)
        """Virtual id by physical unit; 0 where none is bound."""
        self.tags: Tags = np.full((entry_count, self.entries_count), UNKNOWN, dtype=np.int64)
        self.unit_index_min = band.unit_index_min
        words_count = band.unit_bytes // WORD_BYTES
        self.words: Indices = np.arange(words_count, dtype=np.int64)
        self.entry_words_count = words_count // self.entries_count
        self.cells: Indices = np.arange(band.unit_bytes // cell_bytes, dtype=np.int64)
        self.unit_cells_count = band.unit_bytes // cell_bytes

    def words_of(self, units: Indices) -> Indices:
        """Return the places of all 8-byte words of units in the arena, unit by unit."""
        return (units[:, None] * self.words.size + self.words).reshape(-1)

    def expected_words(self, virtual: Indices) -> Tags:
        """Return what those words should be, for the units of virtual ids."""
        return np.repeat(self.tags[virtual].reshape(-1), self.entry_words_count)

    def cells_of(self, units: Indices) -> Indices:
        """Return the cells of the arena that units fill."""
        return (units[:, None] * self.unit_cells_count + self.cells).reshape(-1)


class Contents:
    """The model of one stage's memory; the same for every rank.

    Invariants, checked as outcomes come in:
        stress.maps: a unit is bound to one virtual id, a window page only to a page of the owner
        stress.disjoint: live units of all bands share no cell
        stress.pinned: what is pinned is not moved
    """

    def __init__(self, plan: StoragePlan, *, cell_bytes: int) -> None:
        self.plan = plan
        self.cell_bytes = cell_bytes
        self.bands = [
            BandContents(plan, index, cell_bytes=cell_bytes) for index in range(len(plan.bands))
        ]
        self.owner = next(band for band in self.bands if band.lifetime is Lifetime.FULL)
        self.state = next((band for band in self.bands if band.lifetime is Lifetime.STATE), None)
        self.tokens = [band for band in self.bands if band.lifetime is not Lifetime.STATE]
        self.windows = [band for band in self.bands if band.lifetime is Lifetime.WINDOW]
        self.row_pages: Indices = np.zeros((plan.row_count, plan.row_pages), dtype=np.int64)
        self.row_reaches: Indices = np.zeros(plan.row_count, dtype=np.int64)
        """Tokens that each row of the request table reaches, as the table says."""
        self.row_slots: Indices = np.zeros(plan.row_count, dtype=np.int64)
        self.uncleared: dict[int, None] = {}
        """Slots that the next launch is to clear; nobody may rely on what they hold."""
        self.clearing_step: dict[int, int] = {}
        """The step that cleared a slot, as the first thing that it did."""
        self.pinned: dict[tuple[int, int], str] = {}
        """Band and virtual id of units that must stay where they are, and why."""
        self.moved_count = 0
        """Units that were moved so far."""
        self.sink_is_zero = True
        """Whether nobody has left anything in the sink since it was filled with zero."""
        self.sink_words: Indices = np.arange(plan.sink_bytes // WORD_BYTES, dtype=np.int64)
        self.sink_starts: Indices = np.arange(0, plan.sink_bytes, cell_bytes, dtype=np.int64)
        self.newest_tag = 0
        self._used = np.zeros(plan.arena_bytes // cell_bytes, dtype=np.int8)
        self._new_in_windows: list[tuple[BandContents, Indices]] = []

    def new_tags(self, count: int) -> Tags:
        """Return tags that nothing was ever filled with."""
        self.newest_tag += count
        return np.arange(self.newest_tag - count + 1, self.newest_tag + 1, dtype=np.int64)

    def pin(self, band: BandContents, virtual: Indices, why: str) -> None:
        """Have ids stay where they lie, until they are unpinned or unbound."""
        self.pinned.update({(band.index, one): why for one in virtual.tolist()})

    def unpin(self, band: BandContents, virtual: Indices) -> None:
        """Let ids move again."""
        if self.pinned:
            for one in virtual.tolist():
                self.pinned.pop((band.index, one), None)

    def forget(self, band_index: int, virtual: Indices) -> None:
        """Let nobody rely on what units hold; those that are bound no more hold nothing anyway."""
        self.bands[band_index].tags[virtual] = UNKNOWN

    def adopt(self, outcome: Outcome, before: "Contents") -> None:
        """Take in what survived an incarnation, by the effects that bind it anew.

        Raises StressFailure if it lies where it did not lie before.
        """
        self.newest_tag = before.newest_tag
        self.apply(outcome, columns_of(outcome))
        for band, old in zip(self.bands, before.bands, strict=True):
            virtual = band.places.nonzero()[0]
            if not np.array_equal(band.places[virtual], old.places[virtual]):
                raise StressFailure(
                    CheckName.MAPS,
                    f"band {band.name}: ids {virtual.tolist()} survived, not all where they lay",
                )
            band.tags[virtual] = old.tags[virtual]

    # ---- the log --------------------------------------------------------------------------------

    def apply(self, outcome: Outcome, columns: list[Indices]) -> None:
        """Take in what an entry did; raises StressFailure."""
        if not outcome.segments:
            return
        zeroed: dict[int, list[Indices]] = {}
        for segment in outcome.segments:
            for effect in segment:
                kind = type(effect)
                if kind is WriteMap:
                    assert isinstance(effect, WriteMap)
                    self._write_map(effect, columns, zeroed)
                elif kind is Zero:
                    assert isinstance(effect, Zero)
                    zeroed.setdefault(effect.band, []).append(columns[effect.units])
                    self._zero(effect.band, columns[effect.units])
                elif kind is Move:
                    assert isinstance(effect, Move)
                    self._move(effect, columns)
                elif kind is WriteRows:
                    assert isinstance(effect, WriteRows)
                    rows, places = columns[effect.rows], columns[effect.places]
                    self.row_pages[rows, places] = columns[effect.virtual]
                    self.row_reaches[rows] = (places + 1) * self.plan.page_tokens
                elif kind is WriteSlots:
                    assert isinstance(effect, WriteSlots)
                    self.row_slots[columns[effect.rows]] = columns[effect.virtual]
                elif kind is ResetRows:
                    assert isinstance(effect, ResetRows)
                    self.row_reaches[columns[effect.rows]] = 0
                elif kind is ClearSlots:
                    assert isinstance(effect, ClearSlots)
                    self._clear(columns[effect.units])
                elif kind is ZeroSink:
                    self.sink_is_zero = True
        # Only now: an entry binds bands in the order of the chain, windows before their owner.
        while self._new_in_windows:
            band, virtual = self._new_in_windows.pop()
            if not self.owner.places[virtual].all():
                raise StressFailure(
                    CheckName.MAPS,
                    f"band {band.name}: ids {virtual.tolist()} are bound, of which the owner band "
                    "has not all",
                )

    def _write_map(
        self, effect: WriteMap, columns: list[Indices], zeroed: dict[int, list[Indices]]
    ) -> None:
        band, virtual = self.bands[effect.band], columns[effect.virtual]
        if effect.physical == NO_COLUMN:
            old = band.places[virtual]
            bound = old > 0
            if not bound.all():
                raise StressFailure(
                    CheckName.MAPS,
                    f"band {band.name}: ids {virtual[~bound].tolist()} are unbound and were not "
                    "bound",
                )
            band.owners[old] = 0
            band.places[virtual] = 0
            band.tags[virtual] = UNKNOWN
            self._cleared(band, virtual)
            self.unpin(band, virtual)
            self._used[band.cells_of(old)] = 0
            return
        physical = columns[effect.physical]
        old = band.places[virtual]
        fresh = old == 0
        if fresh.all():
            self._bind(band, virtual, physical)
            known = np.isin(physical, np.concatenate(zeroed.get(effect.band, [_NONE])))
            band.tags[virtual] = np.where(known, 0, UNKNOWN)[:, None]
            return
        # The units moved: `_move` has freed the cells of the sources.
        if fresh.any():
            raise StressFailure(
                CheckName.MAPS,
                f"band {band.name}: ids {virtual[fresh].tolist()} move and were not bound",
            )
        band.owners[old] = 0
        self._bind(band, virtual, physical)

    def _bind(self, band: BandContents, virtual: Indices, physical: Indices) -> None:
        taken = band.owners[physical]
        if taken.any() or np.unique(physical).size != physical.size:
            raise StressFailure(
                CheckName.MAPS,
                f"band {band.name}: units {physical.tolist()} are bound to ids "
                f"{virtual.tolist()} and belong to {taken.tolist()}",
            )
        low = (physical < band.unit_index_min) | (physical >= band.owners.size)
        if low.any():
            raise StressFailure(
                CheckName.DISJOINT,
                f"band {band.name}: units {physical[low].tolist()} lie outside the band's grid",
            )
        cells = band.cells_of(physical)
        if self._used[cells].any():
            raise StressFailure(
                CheckName.DISJOINT,
                f"band {band.name}: units {physical.tolist()} share bytes with live units",
            )
        if band.lifetime is Lifetime.WINDOW:
            self._new_in_windows.append((band, virtual))
        self._used[cells] = 1
        band.owners[physical] = virtual
        band.places[virtual] = physical

    def _move(self, effect: Move, columns: list[Indices]) -> None:
        band = self.bands[effect.band]
        sources = columns[effect.sources]
        virtual = band.owners[sources]
        if not virtual.all():
            raise StressFailure(
                CheckName.MAPS, f"band {band.name}: units {sources.tolist()} move, not all live"
            )
        if self.pinned:
            for one in virtual.tolist():
                why = self.pinned.get((band.index, one))
                if why is not None:
                    raise StressFailure(
                        CheckName.PINNED, f"band {band.name}: id {one} moves, but {why}"
                    )
        self.moved_count += sources.size
        self._used[band.cells_of(sources)] = 0

    def _zero(self, band_index: int, units: Indices) -> None:
        """Take in zeroing; of live units it is that of slots before they are published."""
        band = self.bands[band_index]
        virtual = band.owners[units]
        live = virtual[virtual > 0]
        if live.size:
            band.tags[live] = 0
            self._cleared(band, live)

    def _cleared(self, band: BandContents, virtual: Indices) -> None:
        if band is self.state:
            for slot in virtual.tolist():
                self.uncleared.pop(slot, None)
                self.clearing_step.pop(slot, None)

    def _clear(self, units: Indices) -> None:
        """Take in that slots were handed out which the next launch is to clear."""
        assert self.state is not None
        virtual = self.state.owners[units]
        self.uncleared.update(dict.fromkeys(virtual[virtual > 0].tolist()))

    def clear_slots(self, step: int) -> None:
        """Take in a launch, which clears all slots that are to be cleared first of all."""
        if self.uncleared:
            assert self.state is not None
            slots = np.array(list(self.uncleared), dtype=np.int64)
            self.state.tags[slots] = 0
            self.clearing_step.update(dict.fromkeys(self.uncleared, step))
            self.uncleared.clear()
