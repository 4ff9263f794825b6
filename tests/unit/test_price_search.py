"""The layout search against a search that tries everything."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.price.geometry import BandKind, ChainGeometry, chain_geometry
from kvd.price.search import Units, empty_spans, fits_empty
from tests.stateful.chains import geometries


def _anywhere(geometry: ChainGeometry, widths: Units) -> bool:
    """Try every place of every float; ends stand at their anchors even when they are empty."""

    def place(index: int, cursor_bytes: int) -> bool:
        if index == len(geometry.bands):
            return True
        band, width = geometry.bands[index], widths[index]
        if width > band.room_units:
            return False
        starts = range(band.unit_index_min, band.unit_index_end_count - width + 1)
        if band.kind is BandKind.GROW_UP:
            starts = range(band.unit_index_min, band.unit_index_min + 1)
        if band.kind is BandKind.GROW_DOWN:
            starts = range(band.unit_index_end_count - width, band.unit_index_end_count - width + 1)
        if band.kind is BandKind.FLOAT and width == 0:
            return place(index + 1, cursor_bytes)
        return any(
            place(index + 1, (start + width) * band.unit_bytes)
            for start in starts
            if start * band.unit_bytes >= cursor_bytes
        )

    return place(0, geometry.sink_bytes)


@st.composite
def _priced(draw: st.DrawFn) -> tuple[ChainGeometry, Units]:
    geometry = draw(geometries())
    return geometry, draw(st.tuples(*[st.integers(0, 12)] * len(geometry.bands)))


@settings(max_examples=150, deadline=None)
@given(_priced())
def test_an_empty_arena_agrees_with_trying_every_layout(case: tuple[ChainGeometry, Units]) -> None:
    geometry, demand = case
    assert fits_empty(geometry, demand) == _anywhere(geometry, demand)


def test_bytes_that_add_up_are_no_layout() -> None:
    geometry = chain_geometry(
        arena_bytes=60,
        sink_bytes=12,
        bands=(
            ("state", BandKind.GROW_UP, 5),
            ("window", BandKind.FLOAT, 12),
            ("full", BandKind.GROW_DOWN, 7),
        ),
    )
    assert geometry.arena_bytes - geometry.sink_bytes >= 2 * 12 + 3 * 7
    assert not fits_empty(geometry, (0, 2, 3))


def test_an_empty_end_keeps_its_anchor_from_the_floats() -> None:
    geometry = chain_geometry(
        arena_bytes=100,
        sink_bytes=10,
        bands=(
            ("state", BandKind.GROW_UP, 8),
            ("window", BandKind.FLOAT, 5),
            ("full", BandKind.GROW_DOWN, 10),
        ),
    )
    assert fits_empty(geometry, (0, 16, 0))
    assert not fits_empty(geometry, (0, 17, 0))  # it would need the bytes [15, 16)


@given(geometries())
def test_an_empty_chain_has_empty_spans_at_its_anchors(geometry: ChainGeometry) -> None:
    for band, (start, end) in zip(geometry.bands, empty_spans(geometry), strict=True):
        down = band.kind is BandKind.GROW_DOWN
        assert start == end == (band.unit_index_end_count if down else band.unit_index_min)
