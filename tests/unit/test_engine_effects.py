"""Effects cut into segments: whatever part of one was done, doing it again gives the same bytes."""

from random import Random

import numpy as np
import pytest

from kvd.alloc.band import Moves, Units
from kvd.engine.columns import ColumnBuilder
from kvd.engine.effects import EffectBuilder
from kvd.price.geometry import BandKind, ChainGeometry, chain_geometry
from kvd_proto.outcomes import Column, Move, Segment, WriteMap, WriteRows, Zero

GEOMETRY: ChainGeometry = chain_geometry(
    arena_bytes=48,
    sink_bytes=3,
    bands=(("low", BandKind.GROW_UP, 2), ("high", BandKind.GROW_DOWN, 3)),
)


def _array(*values: int) -> Units:
    return np.array(values, dtype=np.int64)


def _moves(*pairs: tuple[int, int]) -> Moves:
    """Return moves of (source, destination); ids do not matter here."""
    return Moves(
        _array(*range(1, len(pairs) + 1)),
        _array(*[source for source, _ in pairs]),
        _array(*[destination for _, destination in pairs]),
    )


def _builder() -> EffectBuilder:
    return EffectBuilder(GEOMETRY, ColumnBuilder())


def _zero(effects: EffectBuilder, index: int, *units: int) -> None:
    array = _array(*units)
    effects.zero(index, effects.columns.add(array), array)


def _kinds(effects: EffectBuilder) -> list[list[type]]:
    return [[type(effect) for effect in segment] for segment in effects.segments()]


class Bytes:
    """The arena of one rank; every byte starts with a value of its own."""

    def __init__(self, effects: EffectBuilder) -> None:
        self.cells = np.arange(100, 100 + GEOMETRY.arena_bytes)
        values = np.frombuffer(effects.columns.encode(), dtype="<i4")
        ends = np.cumsum(effects.columns.lengths).tolist()
        starts = [0, *ends][: len(ends)]
        self._columns = [
            values[start:end].tolist() for start, end in zip(starts, ends, strict=True)
        ]

    def copies(self, segment: Segment) -> list[tuple[int, int, int]]:
        """Return what a segment does to bytes, unit by unit: band, source (-1: zero), target."""
        done: list[tuple[int, int, int]] = []
        for effect in segment:
            if isinstance(effect, Zero):
                done += [(effect.band, -1, unit) for unit in self._columns[effect.units]]
            elif isinstance(effect, Move):
                sources = self._columns[effect.sources]
                targets = self._columns[effect.destinations]
                done += [(effect.band, *pair) for pair in zip(sources, targets, strict=True)]
        return done

    def run(self, copies: list[tuple[int, int, int]]) -> None:
        """Do these copies in order."""
        for index, source, target in copies:
            size = GEOMETRY.bands[index].unit_bytes
            found = self.cells[source * size : (source + 1) * size] if source >= 0 else 0
            self.cells[target * size : (target + 1) * size] = found


def _assert_redoable(effects: EffectBuilder) -> None:
    """Stop a rank behind every prefix of every segment, redo that segment, and compare bytes."""
    right = Bytes(effects)
    for segment in effects.segments():
        copies = right.copies(segment)
        before = right.cells.copy()
        right.run(copies)
        for done_count in range(len(copies) + 1):
            again = Bytes(effects)
            again.cells = before.copy()
            again.run(copies[:done_count])
            again.run(copies)
            assert again.cells.tolist() == right.cells.tolist(), f"{copies}, stopped {done_count}"


# ---- by example ----------------------------------------------------------------------------------


def test_an_operation_without_effects_has_no_segment() -> None:
    assert _builder().segments() == ()


def test_what_touches_no_units_shares_the_segment() -> None:
    effects = _builder()
    effects.move(0, _moves((9, 2)))
    column = effects.columns.add(_array(1))
    effects.add(WriteRows(column, column, column))
    effects.map_units(0, column, column)
    effects.unmap_units(0, Column(0))
    assert _kinds(effects) == [[Move, WriteMap, WriteRows, WriteMap, WriteMap]]


def test_a_zero_of_units_that_were_moved_away_begins_a_segment() -> None:
    effects = _builder()
    effects.move(0, _moves((9, 2)))
    _zero(effects, 1, 6)  # bytes 18 to 20, where unit 9 of the other band was
    assert _kinds(effects) == [[Move, WriteMap], [Zero]]
    _assert_redoable(effects)


def test_a_zero_elsewhere_begins_none() -> None:
    effects = _builder()
    effects.move(0, _moves((9, 2)))
    _zero(effects, 1, 7)  # bytes 21 to 23
    _zero(effects, 1, 5)  # bytes 15 to 17
    assert _kinds(effects) == [[Move, WriteMap, Zero, Zero]]
    _assert_redoable(effects)


def test_a_move_onto_bytes_that_an_earlier_one_reads_begins_a_segment() -> None:
    effects = _builder()
    effects.move(1, _moves((6, 12)))
    effects.move(0, _moves((4, 10)))  # bytes 20 and 21, of which unit 6 of the other had 20
    assert _kinds(effects) == [[Move, WriteMap], [Move, WriteMap]]
    _assert_redoable(effects)


def test_a_batch_whose_sources_surround_its_destinations_stays_whole() -> None:
    effects = _builder()
    effects.move(0, _moves((2, 5), (9, 6)))
    assert _kinds(effects) == [[Move, WriteMap]]
    _assert_redoable(effects)


def test_a_zero_between_the_sources_of_a_batch_is_cut_off_though_it_need_not_be() -> None:
    effects = _builder()
    effects.move(0, _moves((4, 20), (9, 21)))
    _zero(effects, 0, 6)
    assert _kinds(effects) == [[Move, WriteMap], [Zero]]


def test_a_cut_forgets_what_was_read_before_it() -> None:
    effects = _builder()
    effects.move(0, _moves((9, 2)))
    _zero(effects, 0, 9)
    _zero(effects, 0, 9)
    assert _kinds(effects) == [[Move, WriteMap], [Zero, Zero]]


def test_zeroes_alone_are_one_segment() -> None:
    effects = _builder()
    _zero(effects, 0, 4)
    _zero(effects, 0, 4)
    assert _kinds(effects) == [[Zero, Zero]]


def test_the_checker_finds_effects_that_cannot_be_redone() -> None:
    effects = _builder()
    effects.move(0, _moves((9, 2)))
    effects._reads.clear()  # pyright: ignore[reportPrivateUsage]
    _zero(effects, 0, 9)
    with pytest.raises(AssertionError, match="stopped"):
        _assert_redoable(effects)


# ---- every small program -------------------------------------------------------------------------


def _small_effects() -> list[tuple[int, int, int]]:
    """Return every zero and every move of one unit in the middle of the arena, both bands."""
    choices: list[tuple[int, int, int]] = []
    for index, units in ((0, range(3, 7)), (1, range(2, 5))):
        choices += [(index, -1, unit) for unit in units]
        choices += [(index, a, b) for a in units for b in units if a != b]
    return choices


def _built(program: list[tuple[int, int, int]]) -> EffectBuilder:
    effects = _builder()
    for index, source, target in program:
        if source < 0:
            _zero(effects, index, target)
        else:
            effects.move(index, _moves((source, target)))
    return effects


def test_every_program_of_two_effects_can_be_redone_from_any_point() -> None:
    choices = _small_effects()
    for first in choices:
        for second in choices:
            _assert_redoable(_built([first, second]))


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_of_batches_can_be_redone_from_any_point(seed: int) -> None:
    print("seed", seed)
    random = Random(seed)
    for _ in range(150):
        effects = _builder()
        for _ in range(random.randint(2, 5)):
            index = random.randint(0, 1)
            band = GEOMETRY.bands[index]
            units = random.sample(range(band.unit_index_min, band.unit_index_end_count), 6)
            count = random.randint(1, 3)
            if random.random() < 0.4:
                _zero(effects, index, *units[:count])
            else:
                pairs = list(zip(units[:count], units[3:], strict=False))
                effects.move(index, _moves(*pairs))
        _assert_redoable(effects)
