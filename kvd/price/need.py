"""One band's need of a place, and the first, last and nearest place that meets it.

These lines run several times for every capacity question. That is why rounding is spelled out
(``-(-a // b)`` rounds up), and why members of enumerations have names of their own: looking one up
on its class costs more than all arithmetic of a band.
"""

from typing import NamedTuple

from kvd.price.geometry import BandKind
from kvd.price.search import Span, Units
from kvd.price.snapshot import BandSnapshot, ChainSnapshot, Interval, Tier

GROW_UP, FLOAT, GROW_DOWN = BandKind
STREAM = Tier.STREAM


class Need(NamedTuple):
    """What any span of a band must do; units are indices on the band's own grid."""

    kind: BandKind
    unit_bytes: int
    unit_index_min: int
    unit_index_end_count: int
    width_units: int
    """Units the span must hold at least; 0 means that a float may park."""
    keep_start_index: int
    """The span begins here or below; the end of the grid where nothing is fixed."""
    keep_end_index: int
    """The span ends here or above; 0 where nothing is fixed."""
    now_start_index: int
    now_end_index: int
    foreign: tuple[Interval, ...]
    """Blocked bytes outside the present span: the new one must not meet them.

    Those inside are the band's own vacated units. They are no obstacle to it, yet they take room,
    wherever they lie; so the width counts them.
    """


def needs_of(snapshot: ChainSnapshot, demand_units: Units, tier: Tier) -> list[Need]:
    """Return every band's need, low to high."""
    is_stream = tier is STREAM
    blocked = snapshot.blocked if is_stream else snapshot.quarantined
    needs: list[Need] = []
    for band, demand in zip(snapshot.bands, demand_units, strict=True):
        geometry, start, end, live, holes, promised, pending, forward, network, *_ = band
        assert end - start == live + holes + pending + forward + network
        width = live + promised + demand
        if network and width and is_stream:
            width += network
        keep = _keep(band) if is_stream else band.hard_fixed
        if live and not band.movable:
            keep = (start, end)
        needs.append(
            Need(
                geometry.kind,
                geometry.unit_bytes,
                geometry.unit_index_min,
                geometry.unit_index_end_count,
                width,
                geometry.unit_index_end_count if keep is None else keep[0],
                0 if keep is None else keep[1],
                start,
                end,
                foreign_bytes(band, blocked) if blocked else (),
            )
        )
    return needs


def _keep(band: BandSnapshot) -> Span | None:
    """Return the extent of all units that stay while transfers run."""
    hard, soft = band.hard_fixed, band.soft_fixed
    if hard is None or soft is None:
        return hard or soft
    return min(hard[0], soft[0]), max(hard[1], soft[1])


def foreign_bytes(band: BandSnapshot, blocked: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """Return the blocked bytes that lie outside the band's present span."""
    unit_bytes = band.geometry.unit_bytes
    own_low, own_high = band.start_index * unit_bytes, band.end_index * unit_bytes
    pieces: list[Interval] = []
    for low, high in blocked:
        if own_low == own_high or high <= own_low or low >= own_high:
            pieces.append((low, high))
            continue
        if low < own_low:
            pieces.append((low, own_low))
        if high > own_high:
            pieces.append((own_high, high))
    return tuple(pieces)


def meets(foreign: tuple[Interval, ...], low_bytes: int, high_bytes: int) -> bool:
    """Return whether the bytes ``[low_bytes, high_bytes)`` meet one of the intervals."""
    for low, high in foreign:
        if low < high_bytes and low_bytes < high:
            return low_bytes < high_bytes
    return False


def end_span(need: Need, *, in_present: bool) -> Span | None:
    """Return the least span of an end, or None if its grid or blocked bytes do not allow it.

    With ``in_present`` the span contains the present one, so nothing moves. Without, it holds the
    units and what is fixed and no more; every unit outside has a free one inside to move to.
    """
    if need.kind is GROW_UP:
        start = need.unit_index_min
        end = max(start + need.width_units, need.keep_end_index)
        if in_present:
            end = max(end, need.now_end_index)
    else:
        end = need.unit_index_end_count
        start = min(end - need.width_units, need.keep_start_index)
        if in_present:
            start = min(start, need.now_start_index)
    if start < need.unit_index_min or end > need.unit_index_end_count:
        return None
    if need.foreign and meets(need.foreign, start * need.unit_bytes, end * need.unit_bytes):
        return None
    return start, end


def flushes(needs: list[Need]) -> list[tuple[bool, bool]]:
    """Return which ends a step may flush, (low, high), least work first; only those that shrink.

    The low end comes first, for no better reason than that every rank must flush the same one.
    """
    low = needs[0].kind is GROW_UP and _shrinks(needs[0])
    high = needs[-1].kind is GROW_DOWN and _shrinks(needs[-1])
    choices = [(True, False)] if low else []
    if high:
        choices.append((False, True))
        if low:
            choices.append((True, True))
    return choices


def _shrinks(need: Need) -> bool:
    return end_span(need, in_present=False) != end_span(need, in_present=True)


def first_start(need: Need, ground_bytes: int) -> int | None:
    """Return the lowest start of a float's span that begins at or above the ground."""
    unit_bytes, keep_start = need.unit_bytes, need.keep_start_index
    start = max(need.unit_index_min, -(-ground_bytes // unit_bytes))
    end = max(start + need.width_units, need.keep_end_index)
    for low, high in need.foreign:
        if low >= end * unit_bytes:
            break
        if high > start * unit_bytes:
            start = -(-high // unit_bytes)
            end = max(start + need.width_units, need.keep_end_index)
    if start > keep_start or end > need.unit_index_end_count:
        return None
    return start


def last_start(need: Need, ceiling_bytes: int, start_index_max: int) -> int | None:
    """Return the highest start, at most the given one, of a span that ends below the ceiling."""
    unit_bytes, width, keep_end = need.unit_bytes, need.width_units, need.keep_end_index
    end = min(need.unit_index_end_count, ceiling_bytes // unit_bytes)
    start = min(end - width, need.keep_start_index, start_index_max)
    for low, high in reversed(need.foreign):
        if high <= start * unit_bytes:
            break
        if low < max(start + width, keep_end) * unit_bytes:
            end = low // unit_bytes
            start = min(start, end - width)
    if start < need.unit_index_min or keep_end > end:
        return None
    return start


def nearest_start(need: Need, ground_bytes: int, ceiling_bytes: int, latest_index: int) -> int:
    """Return the start nearest to the present one, or to the middle for a float that is parked.

    ``latest_index`` is ``last_start`` under the ceiling, and begins at or above the ground. The
    middle, because then both neighbours can grow before this float has to move.
    """
    first = first_start(need, ground_bytes)
    assert first is not None
    wish = need.now_start_index
    if wish == need.now_end_index:
        wish = (first + latest_index) // 2
    wish = min(max(wish, first), latest_index)
    if not need.foreign:
        return wish
    above = first_start(need, wish * need.unit_bytes)
    below = last_start(need, ceiling_bytes, wish)
    assert below is not None
    if above is not None and above <= latest_index and above - wish < wish - below:
        return above
    return below
