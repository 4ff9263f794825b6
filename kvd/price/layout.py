"""Layouts: where every band will lie, and what must move to get there.

A layout is carried out in three passes. First the flushed ends, then the relocated floats in
``move_order``: each copies the live units outside its new span into free units inside it and takes
the new span. Last, the other bands grow into theirs. The units a band copies from lie outside its
new span and those it copies to inside, so no copy of one band depends on another.
"""

from enum import StrEnum
from typing import NamedTuple

from kvd.price.geometry import BandKind
from kvd.price.search import Spans, Units
from kvd.price.snapshot import ChainSnapshot, Tier

_FLOAT = BandKind.FLOAT


class Step(StrEnum):
    """How much a layout may rearrange, least first."""

    NO_MOVE = "no_move"
    """Nothing is copied: holes are used and spans extended."""
    FLUSH_ENDS = "flush_ends"
    """Ends are compacted towards their anchors; floats keep all they span."""
    RELAYOUT = "relayout"
    """Floats are relocated as well."""


class Layout(NamedTuple):
    """One way to serve a demand; it is void once the chain's epoch has moved."""

    step: Step
    tier: Tier
    spans: Spans
    """The span every band has afterwards; it must get exactly these."""
    flushed: tuple[int, ...]
    """Ends that give up a part of their span, by index."""
    relocated: tuple[int, ...]
    """Floats that give up a part of their span, or park where the new one is empty, low to high."""
    epoch_count: int


def layout_of(snapshot: ChainSnapshot, step: Step, tier: Tier, spans: Spans) -> Layout:
    """Return the layout with these spans; what moves follows from where the bands lie now."""
    flushed: list[int] = []
    relocated: list[int] = []
    for index, (band, (start, end)) in enumerate(zip(snapshot.bands, spans, strict=True)):
        given_up = start > band.start_index or end < band.end_index
        if given_up and band.start_index < band.end_index:
            (relocated if band.geometry.kind is _FLOAT else flushed).append(index)
    return Layout(step, tier, spans, tuple(flushed), tuple(relocated), snapshot.epoch_count)


def move_order(snapshot: ChainSnapshot, layout: Layout) -> tuple[int, ...]:
    """Return the relocated floats in an order in which none moves onto bytes another still holds.

    A float waits for those whose present span its new one overlaps. Present spans are disjoint and
    in chain order, and so are new ones, hence no cycle: take the highest band of one. It waits for
    a lower band, so it begins below where that ends, below its own present start; but a lower band
    waits for it, so that one ends above its present start, and lies below its new start.
    """
    bands, spans = snapshot.bands, layout.spans
    waiting = list(layout.relocated)
    order: list[int] = []
    while waiting:
        for index in waiting:
            unit_bytes = bands[index].geometry.unit_bytes
            low_bytes, high_bytes = spans[index][0] * unit_bytes, spans[index][1] * unit_bytes
            if not any(
                low_bytes < bands[other].end_index * bands[other].geometry.unit_bytes
                and bands[other].start_index * bands[other].geometry.unit_bytes < high_bytes
                for other in waiting
                if other != index and low_bytes < high_bytes
            ):
                break
        else:
            raise AssertionError("relocations wait for each other")
        waiting.remove(index)
        order.append(index)
    return tuple(order)


def moved_units_max(snapshot: ChainSnapshot, layout: Layout) -> Units:
    """Return how many units each band copies at most; how many exactly depends on the holes."""
    moved = [0] * len(snapshot.bands)
    for index in (*layout.flushed, *layout.relocated):
        band, (start, end) = snapshot.bands[index], layout.spans[index]
        stays = max(0, min(end, band.end_index) - max(start, band.start_index))
        moved[index] = min(band.live_units, band.end_index - band.start_index - stays)
    return tuple(moved)
