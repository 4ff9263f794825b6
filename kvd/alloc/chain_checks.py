"""The checks of a chain: what holds between its bands, and between them and what is remembered.

The cheap ones compare counters, the deep ones go through the maps of every band.
"""

from collections.abc import Sequence

import numpy as np

from kvd.alloc.band import Band, Units
from kvd.alloc.checks import CheckMonitor
from kvd.price.geometry import ChainGeometry
from kvd.price.plans import feasible
from kvd.price.snapshot import ChainSnapshot
from kvd_proto.memory import Lifetime


def check_spans(bands: Sequence[Band], geometry: ChainGeometry, monitor: CheckMonitor) -> None:
    """Check that spans follow each other between sink and arena end: chain.spans_ordered."""
    cursor_bytes = geometry.sink_bytes
    for band in bands:
        start, end = band.span
        if start == end:
            continue
        unit_bytes = band.geometry.unit_bytes
        if start * unit_bytes < cursor_bytes or end * unit_bytes > geometry.arena_bytes:
            monitor.fail(
                "chain.spans_ordered",
                f"band {band.geometry.name} spans bytes [{start * unit_bytes}, "
                f"{end * unit_bytes}) below {cursor_bytes} or past the arena",
            )
        cursor_bytes = end * unit_bytes


def check_answers(
    bands: Sequence[Band], kept: ChainSnapshot, fresh: ChainSnapshot, monitor: CheckMonitor
) -> None:
    """Check what answers rest on: promises, the snapshot, given one built anew, and all counts.

    No map is looked at. Invariants: chain.promises_covered, chain.snapshot_fresh, those of
    `Band.check_counts`.
    """
    _check_promises(kept, tuple(band.promised_units for band in bands), monitor)
    check_snapshot(kept, fresh, monitor)
    for band in bands:
        band.check_counts()


def check_maps(
    bands: Sequence[Band], owner: Band, windows: Sequence[Band], monitor: CheckMonitor
) -> None:
    """Check every band from its maps, and that windows lie on the owner's pages.

    Invariants: those of bands, chain.windows_on_owner.
    """
    for band in bands:
        band.check()
    for window in windows:
        ids = window.bound_ids()
        if np.count_nonzero(owner.physical(ids)) != ids.size:
            monitor.fail(
                "chain.windows_on_owner",
                f"band {window.geometry.name} binds a page without owner",
            )


def check_snapshot(kept: ChainSnapshot, fresh: ChainSnapshot, monitor: CheckMonitor) -> None:
    """Check that a snapshot says what one built anew does: chain.snapshot_fresh."""
    if kept != fresh:
        monitor.fail("chain.snapshot_fresh", f"the snapshot of epoch {kept.epoch_count} is stale")


def check_released(virtual: Units, windows: Sequence[Band], monitor: CheckMonitor) -> None:
    """Check that pages which their owner gave up are bound in no window.

    Invariants:
        window.segment_released: a page that is freed in the owner's band reads as the sink in every
            window
    """
    for window in windows:
        bound = window.physical(virtual)
        if np.count_nonzero(bound):
            monitor.fail(
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


def _check_promises(
    snapshot: ChainSnapshot, promised_units: tuple[int, ...], monitor: CheckMonitor
) -> None:
    """Check that some layout holds what is live and promised: chain.promises_covered.

    A load that is about to be named, or a transfer gone astray, takes room from promises that were
    given before it; such a take is refused and the refusal names them.
    """
    lost = any(band.hard_fixed for band in snapshot.bands) or snapshot.quarantined
    if min(promised_units) < 0 or not (lost or feasible(snapshot, promised_units)):
        monitor.fail(
            "chain.promises_covered",
            f"no layout holds what is live and the promised {promised_units} units",
        )
