"""The checks of a chain: what holds between its bands, and between them and what is remembered.

The cheap ones compare counters, the deep ones go through the maps of every band.
"""

from typing import TYPE_CHECKING

import numpy as np

from kvd.alloc.band import Freed, Units
from kvd.price.plans import feasible
from kvd.price.snapshot import ChainSnapshot
from kvd_proto.memory import Lifetime

if TYPE_CHECKING:
    from kvd.alloc.chain import ChainAllocator


def check_chain(chain: "ChainAllocator", *, deep: bool) -> None:
    """Check a chain; if ``deep`` also every band from its maps.

    Invariants: chain.spans_ordered, chain.promises_covered, chain.snapshot_fresh, those of bands,
    chain.windows_on_owner.
    """
    _check_spans(chain)
    _check_promises(chain)
    check_snapshot(chain, chain.snapshot())
    chain.order.check()
    for band in chain.bands:
        band.check_counts()
    if not deep:
        return
    for band in chain.bands:
        band.check()
    for index in chain.window_indices:
        ids = chain.bands[index].bound_ids()
        if np.count_nonzero(chain.owner.physical(ids)) != ids.size:
            chain.monitor.fail(
                "chain.windows_on_owner",
                f"band {chain.bands[index].geometry.name} binds a page without owner",
            )


def check_snapshot(chain: "ChainAllocator", kept: ChainSnapshot) -> None:
    """Check that a snapshot says what one built anew does: chain.snapshot_fresh."""
    if kept != chain.build_snapshot(kept.epoch_count):
        chain.monitor.fail(
            "chain.snapshot_fresh", f"the snapshot of epoch {kept.epoch_count} is stale"
        )


def check_released(chain: "ChainAllocator", freed: list[Freed]) -> None:
    """Check that pages which their owner gave up are bound in no window.

    Invariants:
        window.segment_released: a page that is freed in the owner's band reads as the sink in every
            window
    """
    for index, virtual in freed:
        if index != chain.owner_index:
            continue
        for window_index in chain.window_indices:
            window = chain.bands[window_index]
            bound = window.physical(virtual)
            if np.count_nonzero(bound):
                chain.monitor.fail(
                    "window.segment_released",
                    f"virtual page {virtual[bound.nonzero()[0][0]]} has no owner any more and is "
                    f"still bound in band {window.geometry.name}",
                )


def misfreed_name(lifetime: Lifetime, virtual: Units) -> str:
    """Return the invariant that is broken where the books free ids that cannot be freed.

    Invariants:
        window.segment_bound: pages that slide out of a window, or end with their holder, are bound
            in it
        state.slot_sentinel: ids of slots that are freed are positive
    """
    if lifetime is Lifetime.WINDOW:
        return "window.segment_bound"
    if lifetime is Lifetime.STATE and bool((virtual <= 0).any()):
        return "state.slot_sentinel"
    return "band.free_of_bound_page"


def _check_spans(chain: "ChainAllocator") -> None:
    cursor_bytes = chain.geometry.sink_bytes
    for band in chain.bands:
        start, end = band.span
        if start == end:
            continue
        unit_bytes = band.geometry.unit_bytes
        if start * unit_bytes < cursor_bytes or end * unit_bytes > chain.geometry.arena_bytes:
            chain.monitor.fail(
                "chain.spans_ordered",
                f"band {band.geometry.name} spans bytes [{start * unit_bytes}, "
                f"{end * unit_bytes}) below {cursor_bytes} or past the arena",
            )
        cursor_bytes = end * unit_bytes


def _check_promises(chain: "ChainAllocator") -> None:
    negative = any(band.promised_units < 0 for band in chain.bands)
    # A load that is about to be named, or a transfer gone astray, takes room from promises that
    # were given before it; such a take is refused and the refusal names them.
    snapshot = chain.snapshot()
    lost = any(band.hard_fixed for band in snapshot.bands) or snapshot.quarantined
    if negative or not (lost or feasible(snapshot, chain.promised_units)):
        chain.monitor.fail(
            "chain.promises_covered",
            f"no layout holds what is live and the promised {chain.promised_units} units",
        )
