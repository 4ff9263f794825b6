"""One band rearranged: which units move, where to, and what their bytes are afterwards."""

# pyright: reportPrivateUsage=false

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.alloc.band import Band, Moves, Units
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.signals import transfer_signal
from kvd.alloc.uses import UseKind
from kvd.price.geometry import BandGeometry, BandKind
from kvd.price.search import Span
from tests.stateful.arena_bytes import assert_disjoint
from tests.stateful.chains import fix, picture

UNITS = 42
"""Places 2 to 41, so that a grow-down band's mirror of unit 2 is unit 41."""
ENDS = pytest.mark.parametrize("kind", [BandKind.GROW_UP, BandKind.GROW_DOWN])


@dataclass(slots=True)
class Filled:
    """A band and one cell per unit that says which id wrote it last."""

    band: Band
    cells: Units

    def carry(self, moves: Moves | None) -> int:
        """Copy what moved, one unit after the other; return how many units did."""
        if moves is None:
            return 0
        assert_disjoint(moves)
        for source, destination in zip(
            moves.sources.tolist(), moves.destinations.tolist(), strict=True
        ):
            self.cells[destination] = self.cells[source]
        return moves.sources.size

    def verify(self) -> None:
        """Assert that every id finds its own cell where the map says."""
        ids = self.band.bound_ids()
        assert self.cells[self.band.physical(ids)].tolist() == ids.tolist()
        self.band.check()

    def live(self) -> list[int]:
        """Return the live units, ascending."""
        return sorted(self.band.physical(self.band.bound_ids()).tolist())


def _filled(kind: BandKind, live: list[int], span: Span) -> Filled:
    """Return a band with exactly these units live."""
    geometry = BandGeometry("band", kind, 10, 2, UNITS)
    band = Band(geometry, id_count=UNITS, mints=True, monitor=CheckMonitor(CheckLevel.STRICT))
    assert band.free_ids is not None
    band.grow(span)
    virtual = band.free_ids.take(span[1] - span[0])
    band.bind(virtual, band.acquire(virtual.size))
    leaving = virtual[np.isin(band.physical(virtual), live, invert=True)]
    band.release(leaving)
    cells = np.zeros(UNITS, dtype=np.int64)
    filled = Filled(band, cells)
    ids = band.bound_ids()
    cells[band.physical(ids)] = ids
    assert filled.live() == sorted(live)
    return filled


def _mirrored(kind: BandKind, units: list[int]) -> list[int]:
    """Return the units of a band that grows up, or their mirror images in one that grows down."""
    return units if kind is BandKind.GROW_UP else [UNITS + 1 - unit for unit in units]


def _span(kind: BandKind, start: int, end: int) -> Span:
    return (start, end) if kind is BandKind.GROW_UP else (UNITS + 2 - end, UNITS + 2 - start)


# ---- rearrange -----------------------------------------------------------------------------------


@ENDS
def test_units_beyond_the_new_span_move_to_the_lowest_free_places(kind: BandKind) -> None:
    filled = _filled(kind, _mirrored(kind, [2, 5, 9, 11]), _span(kind, 2, 12))
    moves = filled.band.rearrange(_span(kind, 2, 7))
    assert moves is not None
    assert sorted(moves.sources.tolist()) == sorted(_mirrored(kind, [9, 11]))
    assert sorted(moves.destinations.tolist()) == sorted(_mirrored(kind, [3, 4]))
    filled.carry(moves)
    filled.verify()
    assert (filled.band.live_units, filled.band.hole_units) == (4, 1)


@ENDS
def test_a_span_that_keeps_all_units_moves_nothing(kind: BandKind) -> None:
    filled = _filled(kind, _mirrored(kind, [2, 5]), _span(kind, 2, 12))
    assert filled.band.rearrange(_span(kind, 2, 6)) is None
    filled.verify()
    assert filled.band.span == _span(kind, 2, 6)
    assert filled.band.moved_units_total == filled.band.move_batches_total == 0


@pytest.mark.parametrize("span", [(24, 30), (3, 9), (14, 20), (8, 14), (10, 26), (12, 18)])
def test_a_float_moves_inside_across_and_past_its_old_span(span: Span) -> None:
    filled = _filled(BandKind.FLOAT, [10, 13, 15, 19], (10, 20))
    stays = [unit for unit in (10, 13, 15, 19) if span[0] <= unit < span[1]]
    moves = filled.band.rearrange(span)
    assert filled.carry(moves) == 4 - len(stays)
    filled.verify()
    free = [unit for unit in range(*span) if unit not in stays]
    assert filled.live() == sorted(stays + free[: 4 - len(stays)])
    assert filled.band.hole_units == span[1] - span[0] - 4


def test_a_float_without_units_is_placed_anew_without_a_copy() -> None:
    filled = _filled(BandKind.FLOAT, [], (10, 20))
    assert filled.band.rearrange((30, 33)) is None
    assert (filled.band.span, filled.band.hole_units) == ((30, 33), 3)
    filled.verify()
    assert filled.band.rearrange((30, 30)) is None
    assert filled.band.hole_units == 0
    filled.verify()


def test_freed_units_that_were_not_merged_are_free_places_too() -> None:
    filled = _filled(BandKind.GROW_UP, [2, 9], (2, 10))
    filled.band.merge_freed()
    filled.band.release(filled.band.bound_ids()[:1].copy())
    moves = filled.band.rearrange((2, 3))
    assert moves is not None
    assert moves.destinations.tolist() == [2]


def test_moves_are_counted() -> None:
    filled = _filled(BandKind.GROW_UP, [5, 8, 9], (2, 10))
    filled.band.rearrange((2, 6))
    filled.band.rearrange((2, 5))
    counts = filled.band.statistics()
    assert (counts.moved_units_total, counts.move_batches_total) == (3, 2)


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(list(BandKind)),
    st.lists(st.integers(2, UNITS - 1), unique=True, max_size=12),
    st.data(),
)
def test_any_rearrangement_keeps_every_byte(
    kind: BandKind, live: list[int], data: st.DataObject
) -> None:
    low, high = min(live, default=20), max(live, default=20) + 1
    start = data.draw(st.integers(2, low)) if kind is not BandKind.GROW_UP else 2
    end = data.draw(st.integers(high, UNITS)) if kind is not BandKind.GROW_DOWN else UNITS
    filled = _filled(kind, live, (start, end))
    for _ in range(2):
        width = data.draw(st.integers(len(live), UNITS - 2))
        place = data.draw(st.integers(2, UNITS - width))
        new = {
            BandKind.GROW_UP: (2, 2 + width),
            BandKind.FLOAT: (place, place + width),
            BandKind.GROW_DOWN: (UNITS - width, UNITS),
        }[kind]
        stays = [unit for unit in filled.live() if new[0] <= unit < new[1]]
        moved = filled.carry(filled.band.rearrange(new))
        filled.verify()
        assert moved == len(live) - len(stays)
        assert filled.band.span == new
        assert set(stays) <= set(filled.live())


# ---- compact -------------------------------------------------------------------------------------


@ENDS
@pytest.mark.parametrize(
    ("units_max", "live"),
    [
        (0, [2, 5, 9, 11]),
        (1, [2, 3, 5, 9]),
        (2, [2, 3, 4, 5]),
        (9, [2, 3, 4, 5]),
    ],
)
def test_compaction_moves_the_farthest_units_first_and_no_more_than_allowed(
    kind: BandKind, units_max: int, live: list[int]
) -> None:
    filled = _filled(kind, _mirrored(kind, [2, 5, 9, 11]), _span(kind, 2, 12))
    filled.carry(filled.band.compact(units_max))
    filled.verify()
    assert filled.live() == sorted(_mirrored(kind, live))
    filled.band.merge_freed()
    filled.band.absorb()
    assert filled.band.span == _span(kind, 2, max(live) + 1)


@ENDS
@pytest.mark.parametrize("which", ["hard", "soft"])
def test_fixed_units_and_what_lies_below_them_stay(kind: BandKind, which: str) -> None:
    filled = _filled(kind, _mirrored(kind, [4, 7, 9, 11]), _span(kind, 2, 12))
    fixed = _span(kind, 7, 8)
    fix(
        filled.band,
        hard=fixed if which == "hard" else None,
        soft=fixed if which == "soft" else None,
    )
    filled.carry(filled.band.compact(9))
    filled.verify()
    assert filled.live() == sorted(_mirrored(kind, [2, 3, 4, 7]))
    assert filled.band.span == _span(kind, 2, 8)


@ENDS
@pytest.mark.parametrize("kept_back", ["pending", "vacated"])
def test_freed_units_that_are_no_holes_yet_take_places_too(kind: BandKind, kept_back: str) -> None:
    filled = _filled(kind, _mirrored(kind, [2, 3, 5, 6, 7]), _span(kind, 2, 8))
    band = filled.band
    (first,) = _mirrored(kind, [2])
    (virtual,) = band.bound_ids()[band.physical(band.bound_ids()) == first].tolist()
    if kept_back == "pending":
        band._steps.launch(1, 0)
    else:
        band.usage.open(UseKind.NETWORK_SEND, transfer_signal(1), np.array([first]))
    band.release(np.array([virtual]))
    filled.carry(band.compact(9))
    filled.verify()
    assert filled.live() == sorted(_mirrored(kind, [3, 4, 5, 6]))
    assert band.span == _span(kind, 2, 7)


@ENDS
def test_what_a_peer_still_reads_takes_no_unit_in(kind: BandKind) -> None:
    filled = _filled(kind, _mirrored(kind, [2, 5, 9, 11]), _span(kind, 2, 12))
    band = filled.band
    (left,) = _mirrored(kind, [2])
    band.usage.open(UseKind.NETWORK_SEND, transfer_signal(3), np.array([left]))
    band.release(np.array([one for one in band.bound_ids() if band.physical(one) == left]))

    filled.carry(band.compact(9))

    filled.verify()
    assert filled.live() == sorted(_mirrored(kind, [3, 4, 5]))


def test_a_float_is_never_compacted_unasked() -> None:
    filled = _filled(BandKind.FLOAT, [10, 19], (10, 20))
    before = picture(filled.band)
    assert filled.band.compact(9) is None
    assert picture(filled.band) == before


@ENDS
def test_a_band_without_holes_is_left_alone(kind: BandKind) -> None:
    filled = _filled(kind, _mirrored(kind, [2, 3, 4]), _span(kind, 2, 5))
    before = picture(filled.band)
    assert filled.band.compact(9) is None
    assert picture(filled.band) == before


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from((BandKind.GROW_UP, BandKind.GROW_DOWN)),
    st.lists(st.integers(2, UNITS - 1), unique=True, min_size=1, max_size=20),
    st.integers(0, 12),
)
def test_compaction_in_small_steps_packs_what_one_pass_packs(
    kind: BandKind, live: list[int], units_max: int
) -> None:
    span = (2, max(live) + 1) if kind is BandKind.GROW_UP else (min(live), UNITS)
    filled, whole = _filled(kind, live, span), _filled(kind, live, span)
    moved = whole.carry(whole.band.compact(UNITS))
    whole.verify()
    packed = (
        range(2, 2 + len(live)) if kind is BandKind.GROW_UP else range(UNITS - len(live), UNITS)
    )
    assert whole.live() == list(packed)
    steps = 0
    while units_max and filled.live() != whole.live():
        step = filled.carry(filled.band.compact(units_max))
        assert 0 < step <= units_max
        steps += step
        filled.verify()
    assert steps == moved * bool(units_max)
