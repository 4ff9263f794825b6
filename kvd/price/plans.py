"""The one capacity question and its answer: does a demand fit, and with the least rearrangement.

A yes and the layout that proves it come from the same search over the same snapshot, and the take
carries out the layout it was given, so a yes is a take that succeeds.
"""

from kvd.price.in_place import in_place
from kvd.price.layout import Layout, Step, layout_of
from kvd.price.need import Need, flushes, needs_of
from kvd.price.relayout import packs, relayout
from kvd.price.search import Spans, Units
from kvd.price.snapshot import ChainSnapshot, Tier, within_ids

_NO_MOVE, _FLUSH_ENDS, _RELAYOUT = Step
_STREAM, _TRANSFERS = Tier


def feasible(snapshot: ChainSnapshot, demand_units: Units) -> bool:
    """Return whether any layout serves the demand beyond all promises, transfers ended.

    This is RELAYOUT with TRANSFERS: whatever another step or tier can serve, it can.
    """
    if not within_ids(snapshot, demand_units):
        return False
    needs = needs_of(snapshot, demand_units, _TRANSFERS)
    return packs(needs, snapshot.sink_bytes, snapshot.arena_bytes)


def first_plan(snapshot: ChainSnapshot, demand_units: Units) -> Layout | None:
    """Return the layout that rearranges least; only if there is none, one that waits for transfers.

    None exactly where ``feasible`` says no.
    """
    if not within_ids(snapshot, demand_units):
        return None
    if _fits_spans(snapshot, demand_units, _STREAM):
        return _as_it_is(snapshot, _STREAM)
    needs = needs_of(snapshot, demand_units, _STREAM)
    spans = _search(needs, snapshot, _NO_MOVE)
    if spans is not None:
        return layout_of(snapshot, _NO_MOVE, _STREAM, spans)
    needs_later = needs_of(snapshot, demand_units, _TRANSFERS)
    if not packs(needs_later, snapshot.sink_bytes, snapshot.arena_bytes):
        return None
    for step in (_FLUSH_ENDS, _RELAYOUT):
        spans = _search(needs, snapshot, step)
        if spans is not None:
            return layout_of(snapshot, step, _STREAM, spans)
    for step in (_NO_MOVE, _FLUSH_ENDS, _RELAYOUT):
        spans = _search(needs_later, snapshot, step)
        if spans is not None:
            return layout_of(snapshot, step, _TRANSFERS, spans)
    raise AssertionError("a demand that packs has a layout")


def plan(snapshot: ChainSnapshot, demand_units: Units, step: Step, tier: Tier) -> Layout | None:
    """Return a layout that serves the demand beyond all promises with this step, or None.

    What a step can serve, the steps after it can, and what STREAM can serve, TRANSFERS can.
    """
    if not within_ids(snapshot, demand_units):
        return None
    if step is _NO_MOVE and _fits_spans(snapshot, demand_units, tier):
        return _as_it_is(snapshot, tier)
    spans = _search(needs_of(snapshot, demand_units, tier), snapshot, step)
    return None if spans is None else layout_of(snapshot, step, tier, spans)


def _as_it_is(snapshot: ChainSnapshot, tier: Tier) -> Layout:
    """Return the layout in which every band keeps its present span."""
    spans = tuple([(band.start_index, band.end_index) for band in snapshot.bands])
    return Layout(_NO_MOVE, tier, spans, (), (), snapshot.epoch_count)


def _fits_spans(snapshot: ChainSnapshot, demand_units: Units, tier: Tier) -> bool:
    """Return whether every band has room inside its span."""
    for band, demand in zip(snapshot.bands, demand_units, strict=True):
        room = band.hole_units + band.pending_units + band.vacated_forward_units
        if tier is _TRANSFERS:
            room += band.vacated_network_units
        if band.promised_units + demand > room:
            return False
    return True


def _search(needs: list[Need], snapshot: ChainSnapshot, step: Step) -> Spans | None:
    sink_bytes, arena_bytes = snapshot.sink_bytes, snapshot.arena_bytes
    if step is _RELAYOUT:
        return relayout(needs, sink_bytes, arena_bytes)
    no_flush = (False, False)
    choices = [no_flush] if step is _NO_MOVE else flushes(needs) or [no_flush]
    for flush_low, flush_high in choices:
        spans = in_place(needs, sink_bytes, arena_bytes, flush_low=flush_low, flush_high=flush_high)
        if spans is not None:
            return spans
    return None
