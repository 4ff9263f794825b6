"""Snapshots: canonical ones, and those of a chain after something was freed."""

import pytest

from kvd.price.geometry import BandKind, chain_geometry
from kvd.price.snapshot import chain_snapshot, empty_snapshot, reclaimed, within_ids
from tests.stateful.price_model import chain_of, changed

GEOMETRY = chain_geometry(
    arena_bytes=120,
    sink_bytes=8,
    bands=(
        ("state", BandKind.GROW_UP, 8),
        ("window", BandKind.FLOAT, 6),
        ("full", BandKind.GROW_DOWN, 4),
    ),
)
CHAIN = chain_of((8, 1, 5, 3), (6, 9, 13, 3), (4, 24, 30, 5), arena_bytes=120, sink_bytes=8)


def test_an_empty_chain_holds_nothing_and_has_all_its_ids() -> None:
    snapshot = empty_snapshot(GEOMETRY, (4, None, 9))
    assert [(band.start_index, band.end_index) for band in snapshot.bands] == [
        (1, 1),
        (2, 2),
        (30, 30),
    ]
    assert [band.id_room_count for band in snapshot.bands] == [4, None, 9]
    assert (snapshot.arena_bytes, snapshot.sink_bytes) == (120, 8)
    assert within_ids(snapshot, (4, 100, 9))
    assert not within_ids(snapshot, (0, 0, 10))


def test_a_canonical_chain_is_dense_and_packed_from_below() -> None:
    snapshot = chain_snapshot(GEOMETRY, (3, 4, 5))
    assert [(band.start_index, band.end_index) for band in snapshot.bands] == [
        (1, 4),  # bytes [8, 32)
        (6, 10),  # [36, 60), since 32 is no multiple of 6
        (25, 30),
    ]
    assert [band.live_units for band in snapshot.bands] == [3, 4, 5]
    assert [band.hole_units for band in snapshot.bands] == [0, 0, 0]


def test_a_canonical_chain_parks_an_empty_float() -> None:
    state, window, full = chain_snapshot(GEOMETRY, (3, 0, 5)).bands
    assert (state.start_index, state.end_index) == (1, 4)
    assert window.start_index == window.end_index
    assert (full.start_index, full.end_index) == (25, 30)


def test_a_canonical_chain_must_hold_its_units() -> None:
    with pytest.raises(AssertionError):
        chain_snapshot(GEOMETRY, (10, 5, 5))


def test_freed_units_become_holes_and_give_their_ids_back() -> None:
    before = changed(changed(CHAIN, 2, id_room_count=4), 0, hard_fixed=(3, 4))
    after = reclaimed(before, (1, 2, 3))
    assert [band.live_units for band in after.bands] == [2, 1, 2]
    assert [band.hole_units for band in after.bands] == [2, 3, 4]
    assert [band.id_room_count for band in after.bands] == [None, None, 7]
    assert after.bands[0].hard_fixed == (3, 4)
    assert [(band.start_index, band.end_index) for band in after.bands] == [
        (band.start_index, band.end_index) for band in before.bands
    ]


@pytest.mark.parametrize("evictable", [(4, 0, 0), (0, -1, 0)])
def test_no_more_is_freed_than_is_live(evictable: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        reclaimed(CHAIN, evictable)


@pytest.mark.parametrize(
    ("demand", "fits"), [((0, 9, 3), True), ((0, 0, 4), False), ((9, 9, 0), True)]
)
def test_ids_are_counted_beyond_promises_and_only_where_they_are_minted(
    demand: tuple[int, ...], fits: bool
) -> None:
    snapshot = changed(CHAIN, 2, id_room_count=4, promised_units=1)
    assert within_ids(snapshot, demand) is fits
