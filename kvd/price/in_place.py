"""Layouts that copy no float: the steps NO_MOVE and FLUSH_ENDS.

Every band keeps its present span and grows on one side; in FLUSH_ENDS an end may be compacted
first. A float has two sides, yet no search over combinations is needed. Seen from below, all that
a float leaves to the bands above it is the byte where it ends; so one pass from the top finds how
far up each band may end, and one pass from below takes the side it prefers unless that passes the
bound. What comes out is the first layout a search through all combinations would find.
"""

from kvd.price.need import FLOAT, GROW_UP, Need, end_span, last_start, meets, nearest_start
from kvd.price.search import Span, Spans

_NO_BOUND = -1


def in_place(
    needs: list[Need], sink_bytes: int, arena_bytes: int, *, flush_low: bool, flush_high: bool
) -> Spans | None:
    """Return spans that contain the present ones, those of flushed ends apart, or None."""
    spans: list[Span] = [(need.now_start_index, need.now_end_index) for need in needs]
    ground_bytes, ceiling_bytes = sink_bytes, arena_bytes
    for index, need in enumerate(needs):
        if need.kind is FLOAT:
            continue
        is_low = need.kind is GROW_UP
        span = end_span(need, in_present=not (flush_low if is_low else flush_high))
        if span is None:
            return None
        spans[index] = span
        if is_low:
            ground_bytes = span[1] * need.unit_bytes
        else:
            ceiling_bytes = span[0] * need.unit_bytes
    bounds_bytes = _bounds(needs, ground_bytes, ceiling_bytes)
    if bounds_bytes is None:
        return None
    for index, need in enumerate(needs):
        if bounds_bytes[index] != _NO_BOUND:
            spans[index] = _grown(need, ground_bytes, bounds_bytes[index])
            ground_bytes = spans[index][1] * need.unit_bytes
    return tuple(spans)


def _bounds(needs: list[Need], ground_bytes: int, ceiling_bytes: int) -> list[int] | None:
    """Return the byte below which each float must end for those above to fit.

    Ends and parked floats that stay parked have none. The result is None if nothing fits.
    """
    bounds_bytes = [_NO_BOUND] * len(needs)
    for index in range(len(needs) - 1, -1, -1):
        need = needs[index]
        start, end, unit_bytes = need.now_start_index, need.now_end_index, need.unit_bytes
        if need.kind is not FLOAT or (start == end and not need.width_units):
            continue
        bounds_bytes[index] = ceiling_bytes
        if start == end:
            latest = last_start(need, ceiling_bytes, need.unit_index_end_count)
            if latest is None:
                return None
            ceiling_bytes = latest * unit_bytes
            continue
        if end * unit_bytes > ceiling_bytes:
            return None
        extension = need.width_units - (end - start)
        if extension > 0 and not _may_grow_up(need, extension, ceiling_bytes):
            if not _may_grow_down(need, extension):
                return None
            start -= extension
        ceiling_bytes = start * unit_bytes
    return bounds_bytes if ground_bytes <= ceiling_bytes else None


def _may_grow_up(need: Need, extension: int, ceiling_bytes: int) -> bool:
    end = need.now_end_index
    if end + extension > need.unit_index_end_count:
        return False
    low_bytes, high_bytes = end * need.unit_bytes, (end + extension) * need.unit_bytes
    return high_bytes <= ceiling_bytes and not meets(need.foreign, low_bytes, high_bytes)


def _may_grow_down(need: Need, extension: int) -> bool:
    start = need.now_start_index
    if start - extension < need.unit_index_min:
        return False
    low_bytes, high_bytes = (start - extension) * need.unit_bytes, start * need.unit_bytes
    return not meets(need.foreign, low_bytes, high_bytes)


def _grown(need: Need, ground_bytes: int, bound_bytes: int) -> Span:
    """Return a float's span between ground and bound, grown into its larger gap if it can be.

    Gaps are what the other bands leave once they are served. A parked float is placed in the
    middle.
    """
    start, end = need.now_start_index, need.now_end_index
    if start == end:
        latest = last_start(need, bound_bytes, need.unit_index_end_count)
        assert latest is not None
        start = nearest_start(need, ground_bytes, bound_bytes, latest)
        return start, start + need.width_units
    extension = need.width_units - (end - start)
    if extension <= 0:
        return start, end
    gap_low = start - max(need.unit_index_min, -(-ground_bytes // need.unit_bytes))
    gap_high = min(need.unit_index_end_count, bound_bytes // need.unit_bytes) - end
    low = gap_low >= extension and _may_grow_down(need, extension)
    high = _may_grow_up(need, extension, bound_bytes)
    assert low or high
    if low and (not high or gap_low > gap_high):
        return start - extension, end
    return start, end + extension
