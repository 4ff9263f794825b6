"""Spans, and the one layout of a chain that holds nothing else: everything packed at its anchors.

Sizing asks it thousands of times; whatever lies in an arena already is priced by `kvd.price.plans`.
Free bytes are never divided by a unit size: frontiers of different grids do not align, so such a
quotient says yes where no layout exists.

A span is a pair (start, end) of unit indices on the band's own grid. A float whose span is empty is
parked: it is transparent, and where it was parked is never used in arithmetic.
"""

from typing import TypeAlias

from kvd.price.geometry import BandKind, ChainGeometry

Span: TypeAlias = tuple[int, int]
Spans: TypeAlias = tuple[Span, ...]
Units: TypeAlias = tuple[int, ...]


def empty_spans(geometry: ChainGeometry) -> Spans:
    """Return the spans of a chain that holds nothing: ends at their anchors, floats parked."""
    return tuple(
        (band.unit_index_end_count, band.unit_index_end_count)
        if band.kind is BandKind.GROW_DOWN
        else (band.unit_index_min, band.unit_index_min)
        for band in geometry.bands
    )


def fits_empty(geometry: ChainGeometry, demand_units: Units) -> bool:
    """Return whether the demand fits when nothing else is in the arena.

    The ends are packed at their anchors and the floats from low to high behind them, each at the
    earliest start on its own grid; no other order of placement reaches further, so it is exact.
    """
    assert len(demand_units) == len(geometry.bands)
    cursor_bytes = geometry.sink_bytes
    for band, width in zip(geometry.bands, demand_units, strict=True):
        if width > band.room_units:
            return False
        if band.kind is BandKind.GROW_DOWN:
            return (band.unit_index_end_count - width) * band.unit_bytes >= cursor_bytes
        if width == 0 and band.kind is BandKind.FLOAT:
            continue  # parked, so transparent; an empty end stands at its anchor all the same
        start = max(band.unit_index_min, -(-cursor_bytes // band.unit_bytes))
        end = start + width
        if end > band.unit_index_end_count:
            return False
        cursor_bytes = end * band.unit_bytes
    return cursor_bytes <= geometry.arena_bytes
