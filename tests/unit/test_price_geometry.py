"""Grids: which units a band can hand out."""

import pytest

from kvd.price.geometry import BandGeometry, BandKind, chain_geometry


@pytest.mark.parametrize(
    ("unit_bytes", "index_min", "index_end"),
    [(8, 1, 15), (6, 2, 20), (4, 2, 30), (7, 2, 17), (120, 1, 1), (121, 1, 0)],
)
def test_a_band_starts_behind_the_sink_and_ends_inside_the_arena(
    unit_bytes: int, index_min: int, index_end: int
) -> None:
    geometry = chain_geometry(
        arena_bytes=120, sink_bytes=8, bands=(("full", BandKind.GROW_DOWN, unit_bytes),)
    )
    band = geometry.bands[0]
    assert (band.unit_index_min, band.unit_index_end_count) == (index_min, index_end)
    assert band.unit_index_min * unit_bytes >= 8
    assert band.unit_index_end_count * unit_bytes <= 120


@pytest.mark.parametrize(("index_min", "index_end", "room"), [(1, 15, 14), (1, 1, 0), (2, 1, 0)])
def test_room_is_never_negative(index_min: int, index_end: int, room: int) -> None:
    band = BandGeometry("full", BandKind.GROW_DOWN, 8, index_min, index_end)
    assert band.room_units == room


def test_only_ends_are_anchored() -> None:
    with pytest.raises(AssertionError):
        chain_geometry(
            arena_bytes=100,
            sink_bytes=8,
            bands=(
                ("a", BandKind.GROW_UP, 8),
                ("b", BandKind.GROW_UP, 8),
                ("c", BandKind.GROW_DOWN, 8),
            ),
        )


def test_a_sink_fits_the_arena() -> None:
    with pytest.raises(AssertionError):
        chain_geometry(arena_bytes=7, sink_bytes=8, bands=(("full", BandKind.GROW_DOWN, 8),))
