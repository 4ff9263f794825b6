"""Layouts in which every band but the fixed units may move: the step RELAYOUT.

Ends are compacted to their anchors and floats placed between them, in chain order, each on its own
grid. Placing them from the top, each as high as it goes, is exact: a span that ends lower never
helps the bands below it less. A second pass from below then moves every float no further than it
has to.
"""

from kvd.price.need import FLOAT, GROW_UP, Need, end_span, flushes, last_start, meets, nearest_start
from kvd.price.search import Span, Spans


def packs(needs: list[Need], sink_bytes: int, arena_bytes: int) -> bool:
    """Return whether any layout meets all needs."""
    ends = _ends(needs, sink_bytes, arena_bytes, flush_low=True, flush_high=True)
    return ends is not None and _latest(needs, ends[1], ends[2]) is not None


def relayout(needs: list[Need], sink_bytes: int, arena_bytes: int) -> Spans | None:
    """Return spans that meet all needs, or None; ends are flushed only where that is needed."""
    spans = _between_ends(needs, sink_bytes, arena_bytes, flush_low=False, flush_high=False)
    if spans is not None or not packs(needs, sink_bytes, arena_bytes):
        return spans
    for flush_low, flush_high in flushes(needs):
        spans = _between_ends(
            needs, sink_bytes, arena_bytes, flush_low=flush_low, flush_high=flush_high
        )
        if spans is not None:
            return spans
    raise AssertionError("needs pack only when nothing is compacted")


def _between_ends(
    needs: list[Need], sink_bytes: int, arena_bytes: int, *, flush_low: bool, flush_high: bool
) -> Spans | None:
    """Return spans with the ends where they are or flushed, or None."""
    ends = _ends(needs, sink_bytes, arena_bytes, flush_low=flush_low, flush_high=flush_high)
    if ends is None:
        return None
    spans, ground_bytes, ceiling_bytes = ends
    latest = _latest(needs, ground_bytes, ceiling_bytes)
    if latest is None:
        return None
    _place(needs, spans, latest, ground_bytes)
    return tuple(spans)


def _ends(
    needs: list[Need], sink_bytes: int, arena_bytes: int, *, flush_low: bool, flush_high: bool
) -> tuple[list[Span], int, int] | None:
    """Return the spans with the ends placed and the floats parked, and the bytes left between."""
    spans: list[Span] = []
    ground_bytes, ceiling_bytes = sink_bytes, arena_bytes
    for need in needs:
        if need.kind is FLOAT:
            spans.append((need.now_start_index, need.now_start_index))
            continue
        is_low = need.kind is GROW_UP
        span = end_span(need, in_present=not (flush_low if is_low else flush_high))
        if span is None:
            return None
        spans.append(span)
        if is_low:
            ground_bytes = span[1] * need.unit_bytes
        else:
            ceiling_bytes = span[0] * need.unit_bytes
    return (spans, ground_bytes, ceiling_bytes) if ground_bytes <= ceiling_bytes else None


def _latest(
    needs: list[Need], ground_bytes: int, ceiling_bytes: int
) -> list[tuple[int, int, int]] | None:
    """Return (index, ceiling bytes, latest start) of the floats with units, high to low, or None.

    A float's ceiling is where the one above begins at the latest.
    """
    latest: list[tuple[int, int, int]] = []
    for index in range(len(needs) - 1, -1, -1):
        need = needs[index]
        if need.kind is not FLOAT or not need.width_units:
            continue
        start = last_start(need, ceiling_bytes, need.unit_index_end_count)
        if start is None:
            return None
        latest.append((index, ceiling_bytes, start))
        ceiling_bytes = start * need.unit_bytes
    return latest if ground_bytes <= ceiling_bytes else None


def _place(
    needs: list[Need], spans: list[Span], latest: list[tuple[int, int, int]], ground_bytes: int
) -> None:
    """Place the floats from below, each as near to its present place as the others allow."""
    for index, ceiling_bytes, latest_start in reversed(latest):
        need = needs[index]
        start = nearest_start(need, ground_bytes, ceiling_bytes, latest_start)
        end = _kept_end(need, start, ceiling_bytes)
        spans[index] = start, end
        ground_bytes = end * need.unit_bytes


def _kept_end(need: Need, start: int, ceiling_bytes: int) -> int:
    """Return where the span ends: at its present end where that costs the floats above nothing.

    A narrower span would have units moved down although nobody needs the bytes they leave.
    """
    end = max(start + need.width_units, need.keep_end_index)
    kept_end = min(need.now_end_index, ceiling_bytes // need.unit_bytes)
    if need.now_start_index <= end < kept_end and not meets(
        need.foreign, end * need.unit_bytes, kept_end * need.unit_bytes
    ):
        return kept_end
    return end
