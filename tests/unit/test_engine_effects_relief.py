"""Takes that rearrange: their segments, stopped anywhere and redone, leave the same bytes and maps.

Effects here come from real takes, on bytes of a small arena; every cell says who wrote it last.
"""

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from kvd.alloc.band import Units
from kvd.alloc.chain import ChainAllocator
from kvd.alloc.requests import Grant, RequestTable
from kvd.engine.effects import EffectBuilder
from kvd.engine.outcome import OutcomeBuilder
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import (
    NO_COLUMN,
    AnyEffect,
    Move,
    Outcome,
    Segment,
    WriteMap,
    Zero,
)
from tests.stateful.chains import World, admit
from tests.stateful.ranks import columns_of

WORLD = World(
    arena_bytes=340,
    unit_bytes=(7, 3, 5, 2),
    lifetimes=(Lifetime.STATE, Lifetime.WINDOW, Lifetime.WINDOW, Lifetime.FULL),
    window_tokens=(0, 5, 9, 0),
    page_tokens=2,
    row_count=7,
    context_tokens=40,
    chunk_tokens=8,
)
"""Four coprime grids, two of them floats, that a handful of requests fill."""

Cells = NDArray[np.int64]


@dataclass(slots=True)
class Rank:
    """What effects write: the arena's bytes and the maps."""

    chain: ChainAllocator
    cells: Cells
    maps: list[dict[int, int]] = field(default_factory=list[dict[int, int]])

    def copy(self) -> "Rank":
        """Return a rank in the same state."""
        return Rank(self.chain, self.cells.copy(), [dict(item) for item in self.maps])

    def units(self, band: int, unit: int) -> Cells:
        """Return the bytes of a unit."""
        unit_bytes = self.chain.geometry.bands[band].unit_bytes
        return self.cells[unit * unit_bytes : (unit + 1) * unit_bytes]

    def run(self, parts: "list[Part]") -> None:
        """Carry out parts of effects in order."""
        for band, kind, one, other in parts:
            if kind is Zero:
                self.units(band, one)[:] = 0
            elif kind is Move:
                self.units(band, other)[:] = self.units(band, one)
            else:
                self.maps[band][one] = other

    def same_as(self, other: "Rank") -> bool:
        """Return whether two ranks hold the same."""
        return self.maps == other.maps and np.array_equal(self.cells, other.cells)


Part = tuple[int, type[AnyEffect], int, int]
"""A band, what is done, and with which unit or entry; the smallest thing that a rank does whole."""


def _parts(segment: Segment, columns: list[list[int]]) -> list[Part]:
    parts: list[Part] = []
    for effect in segment:
        if isinstance(effect, Zero):
            parts += [(effect.band, Zero, unit, 0) for unit in columns[effect.units]]
        elif isinstance(effect, Move):
            pairs = zip(columns[effect.sources], columns[effect.destinations], strict=True)
            parts += [(effect.band, Move, *pair) for pair in pairs]
        elif isinstance(effect, WriteMap):
            virtual = columns[effect.virtual]
            sink = [0] * len(virtual)
            physical = sink if effect.physical == NO_COLUMN else columns[effect.physical]
            pairs = zip(virtual, physical, strict=True)
            parts += [(effect.band, WriteMap, *pair) for pair in pairs]
    return parts


def _apply(rank: Rank, segments: list[list[Part]]) -> bool:
    """Carry out segments; return whether each, stopped behind any part, can be redone."""
    redoable = True
    for parts in segments:
        before = rank.copy()
        rank.run(parts)
        for done_count in range(len(parts) + 1):
            again = before.copy()
            again.run(parts[:done_count])
            again.run(parts)
            redoable = redoable and again.same_as(rank)
    return redoable


class Life:
    """Requests that come, grow, are retracted and go, and a rank that follows by effects alone."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.table: RequestTable = WORLD.table()
        chain = self.table.chain
        maps: list[dict[int, int]] = [{} for _ in chain.bands]
        self.rank = Rank(chain, np.zeros(WORLD.arena_bytes, dtype=np.int64), maps)
        self.next_id = 1
        self.cut_count = 0
        self.needed_count = 0
        """Takes whose effects could not be redone as one segment."""

    def run(self, steps: int) -> None:
        """Take so many steps."""
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """Let something happen, and check the rank against the books."""
        live = list(self.table.names.row_of)
        if len(live) < 4:
            self._admit()
        elif self.random.random() < 0.15:
            rows = self.table.names.rows_of([self.random.choice(live)])
            builder = OutcomeBuilder(self.table.chain)
            self._follow(builder.build(builder.ended(rows, self.table.free(rows))))
        else:
            self._grow(self.random.sample(live, self.random.randint(1, 3)), live)
        self.table.holdings.check()
        self._verify()

    def _admit(self) -> None:
        prompt, new = self.random.randint(1, 20), self.random.randint(0, 20)
        admit(self.table, self.next_id, prompt=prompt, new=new)
        if self.next_id in self.table.names.row_of:
            self.table.holdings.lapse(self.table.names.rows_of([self.next_id]))
        self.next_id += 1

    def _grow(self, requests: list[int], live: list[int]) -> None:
        rows = self.table.names.rows_of(requests)
        room = WORLD.context_tokens - self.table.rows.tokens[rows]
        rows, tokens = rows[room > 0], np.minimum(room, self.random.randint(1, 6))[room > 0]
        if rows.size == 0:
            return
        victims = self.table.names.rows_of(self.random.sample(live, 2))
        grant = self.table.take(rows, tokens, victims)
        if not isinstance(grant, Grant):
            return
        builder = OutcomeBuilder(self.table.chain)
        self._follow(builder.build(builder.grant(grant)))
        rows = rows[np.isin(rows, grant.retracted, invert=True)]
        behind = self.table.rows.tokens[rows] - self.table.rows.computed_tokens[rows]
        if rows.size:
            builder = OutcomeBuilder(self.table.chain)
            self._follow(builder.build(builder.freed(self.table.advance(rows, behind))))
        self._write_new(grant)

    def _write_new(self, grant: Grant) -> None:
        """Let forwards write the pages that were handed out."""
        for index, band in enumerate(self.table.chain.bands):
            names = grant.slot_virtual if index == self.table.chain.state_index else grant.virtual
            for name in names.tolist():
                unit = int(band.physical(np.array([name]))[0])
                cells = self.rank.units(index, unit)
                if unit:
                    # A slot is cleared by the launch that uses it, a page comes zeroed.
                    assert index == self.table.chain.state_index or not cells.any()
                    cells[:] = 10 * name + index

    def _verify(self) -> None:
        """Find in every live unit what was written there, wherever it was moved since."""
        for index, band in enumerate(self.table.chain.bands):
            ids = band.bound_ids()
            for name, unit in zip(ids.tolist(), band.physical(ids).tolist(), strict=True):
                assert set(self.rank.units(index, unit).tolist()) == {10 * name + index}

    def _follow(self, outcome: Outcome) -> None:
        columns = columns_of(outcome)
        segments = [_parts(segment, columns) for segment in outcome.segments]
        whole = [part for parts in segments for part in parts]
        self.cut_count += max(0, len(segments) - 1)
        self.needed_count += len(segments) > 1 and not _apply(self.rank.copy(), [whole])
        assert _apply(self.rank, segments), f"{outcome} could not be redone"
        for index, band in enumerate(self.table.chain.bands):
            bound = {name: unit for name, unit in self.rank.maps[index].items() if unit}
            ids = band.bound_ids()
            assert bound == dict(zip(ids.tolist(), band.physical(ids).tolist(), strict=True))


STEPS = 100


@pytest.mark.parametrize("seed", range(3))
def test_takes_that_rearrange_can_be_redone_from_wherever_they_stopped(seed: int) -> None:
    print("seed", seed)
    life = Life(seed)
    life.run(STEPS)
    moved = sum(band.moved_units_total for band in life.table.chain.statistics())
    print("moved", moved, "cuts", life.cut_count, "needed", life.needed_count)
    assert moved > 0
    assert life.cut_count >= life.needed_count > 0


def test_without_cuts_some_take_could_not_be_redone(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_cut(effects: EffectBuilder, band_index: int, units: Units) -> None:
        """Let every effect join the segment that is open."""

    monkeypatch.setattr(EffectBuilder, "_cut_before_write", no_cut)
    life = Life(0)
    with pytest.raises(AssertionError, match="could not be redone"):
        life.run(STEPS)
