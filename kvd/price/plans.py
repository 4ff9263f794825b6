"""The one capacity question and its answer: does a demand fit, and with the least rearrangement.

A yes and the layout that proves it come from the same search over the same snapshot, and the take
carries out the layout it was given, so a yes is a take that succeeds.
"""

from kvd.price.in_place import in_place
from kvd.price.layout import Layout, Step, layout_of
from kvd.price.need import Need, needs_of
from kvd.price.relayout import packs, relayout
from kvd.price.search import Spans, Units
from kvd.price.snapshot import ChainSnapshot, Tier, within_ids

_FLUSHES = ((True, False), (False, True), (True, True))
"""(low end, high end), least work first; the low end first, so that all ranks flush the same."""


def feasible(snapshot: ChainSnapshot, demand_units: Units) -> bool:
    """Return whether any layout serves the demand beyond all promises, transfers ended.

    This is RELAYOUT with TRANSFERS: whatever another step or tier can serve, it can.
    """
    if not within_ids(snapshot, demand_units):
        return False
    needs = needs_of(snapshot, demand_units, Tier.TRANSFERS)
    return packs(needs, snapshot.sink_bytes, snapshot.arena_bytes)


def first_plan(snapshot: ChainSnapshot, demand_units: Units) -> Layout | None:
    """Return the layout that rearranges least; only if there is none, one that waits for transfers.

    None exactly where ``feasible`` says no.
    """
    layout = plan(snapshot, demand_units, Step.NO_MOVE, Tier.STREAM)
    if layout is not None:
        return layout
    if not feasible(snapshot, demand_units):
        return None
    for tier in Tier:
        for step in Step:
            layout = plan(snapshot, demand_units, step, tier)
            if layout is not None:
                return layout
    raise AssertionError("a feasible demand has a layout")


def plan(snapshot: ChainSnapshot, demand_units: Units, step: Step, tier: Tier) -> Layout | None:
    """Return a layout that serves the demand beyond all promises with this step, or None."""
    assert len(demand_units) == len(snapshot.bands)
    if not within_ids(snapshot, demand_units):
        return None
    if step is Step.NO_MOVE and _fits_spans(snapshot, demand_units, tier):
        spans: Spans | None = tuple([(band.start_index, band.end_index) for band in snapshot.bands])
    else:
        needs = needs_of(snapshot, demand_units, tier)
        spans = _search(needs, snapshot, step)
    return None if spans is None else layout_of(snapshot, step, tier, spans)


def _fits_spans(snapshot: ChainSnapshot, demand_units: Units, tier: Tier) -> bool:
    """Return whether every band has room inside its span."""
    for band, demand in zip(snapshot.bands, demand_units, strict=True):
        room = band.hole_units + band.pending_units + band.vacated_forward_units
        if tier is Tier.TRANSFERS:
            room += band.vacated_network_units
        if band.promised_units + demand > room:
            return False
    return True


def _search(needs: list[Need], snapshot: ChainSnapshot, step: Step) -> Spans | None:
    sink_bytes, arena_bytes = snapshot.sink_bytes, snapshot.arena_bytes
    if step is Step.RELAYOUT:
        return relayout(needs, sink_bytes, arena_bytes)
    if step is Step.NO_MOVE:
        return in_place(needs, sink_bytes, arena_bytes, flush_low=False, flush_high=False)
    for flush_low, flush_high in _FLUSHES:
        spans = in_place(needs, sink_bytes, arena_bytes, flush_low=flush_low, flush_high=flush_high)
        if spans is not None:
            return spans
    return None
