"""The layout search: whether, and how, a demand fits a chain, priced on the bands' own grids.

Free bytes are never divided by a unit size: frontiers of different grids do not align, so such a
quotient says yes where no layout exists. All values are plain ints and tuples, since a search is
asked on the hot path and numpy would cost ten times as much.

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
    """Return whether the demand fits when nothing else is in the arena."""
    return feasible(geometry, live_units=(0,) * len(geometry.bands), demand_units=demand_units)


def feasible(geometry: ChainGeometry, *, live_units: Units, demand_units: Units) -> bool:
    """Return whether any layout holds the live units and the demand.

    The ends are packed at their anchors and the floats from low to high behind them, each at the
    earliest start on its own grid. With nothing fixed in place no other order of placement reaches
    further, so the answer is exact; it depends on counts alone, never on where anything lies.
    """
    assert len(live_units) == len(demand_units) == len(geometry.bands)
    cursor_bytes = geometry.sink_bytes
    for band, live, demand in zip(geometry.bands, live_units, demand_units, strict=True):
        width = live + demand
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


def plan_in_place(
    geometry: ChainGeometry, *, spans: Spans, free_units: Units, demand_units: Units
) -> Spans | None:
    """Return the spans after the demand is met without moving anything, or None.

    Bands are served in chain order, as a take serves them: holes first, then one extension on one
    side. A float prefers its larger gap and an empty one the middle of its region; where that
    choice leaves a later band short the other sides are tried in a fixed order, so at most three
    to the power of the number of floats layouts are looked at. The caller must take exactly the
    spans returned.
    """
    assert len(spans) == len(free_units) == len(demand_units) == len(geometry.bands)
    shortage = tuple(
        max(0, demand - free) for demand, free in zip(demand_units, free_units, strict=True)
    )
    return _extend_from(geometry, 0, spans, shortage)


def _extend_from(
    geometry: ChainGeometry, index: int, spans: Spans, shortage: Units
) -> Spans | None:
    while index < len(shortage) and shortage[index] == 0:
        index += 1
    if index == len(shortage):
        return spans
    for span in _extensions(geometry, index, spans, shortage[index]):
        layout = _extend_from(
            geometry, index + 1, (*spans[:index], span, *spans[index + 1 :]), shortage
        )
        if layout is not None:
            return layout
    return None


def _extensions(geometry: ChainGeometry, index: int, spans: Spans, extension: int) -> list[Span]:
    """Return the spans that grow band ``index`` by ``extension`` units, the preferred one first."""
    band = geometry.bands[index]
    start, end = spans[index]
    lowest, highest = region(geometry, index, spans)
    if band.kind is BandKind.GROW_UP:
        return [(start, end + extension)] if end + extension <= highest else []
    if band.kind is BandKind.GROW_DOWN:
        return [(start - extension, end)] if start - extension >= lowest else []
    if start == end:
        room = highest - lowest
        if extension > room:
            return []
        middle = lowest + (room - extension) // 2
        starts = dict.fromkeys((middle, lowest, highest - extension))
        return [(place, place + extension) for place in starts]
    low = [(start - extension, end)] if start - extension >= lowest else []
    high = [(start, end + extension)] if end + extension <= highest else []
    return low + high if start - lowest > highest - end else high + low


def region(geometry: ChainGeometry, index: int, spans: Spans) -> Span:
    """Return the units that lie wholly between the band's opaque neighbours, its own included."""
    bands = geometry.bands
    ground_bytes, ceiling_bytes = geometry.sink_bytes, geometry.arena_bytes
    for below in range(index - 1, -1, -1):
        if bands[below].kind is not BandKind.FLOAT or spans[below][0] != spans[below][1]:
            ground_bytes = spans[below][1] * bands[below].unit_bytes
            break
    for above in range(index + 1, len(bands)):
        if bands[above].kind is not BandKind.FLOAT or spans[above][0] != spans[above][1]:
            ceiling_bytes = spans[above][0] * bands[above].unit_bytes
            break
    band = bands[index]
    lowest = max(band.unit_index_min, -(-ground_bytes // band.unit_bytes))
    highest = min(band.unit_index_end_count, ceiling_bytes // band.unit_bytes)
    return lowest, max(lowest, highest)
