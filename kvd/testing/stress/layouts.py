"""Every layout of a small arena, tried one by one: the slow, plain answer to a capacity question.

It reads the same counts as `kvd.price`, in a `ChainSnapshot`, and shares none of its arithmetic:
every place of every band is tried, in chain order, and every blocked byte is looked at singly. So
it is for arenas of some hundred bytes; `in_grains` makes larger ones as small as they can be.
"""

import math
from dataclasses import replace

from kvd.price.geometry import BandKind
from kvd.price.layout import Step
from kvd.price.search import Span, Units
from kvd.price.snapshot import BandSnapshot, ChainSnapshot, Interval, Tier


def _width(band: BandSnapshot, demand: int, tier: Tier) -> int:
    width = band.live_units + band.promised_units + demand
    return width + band.vacated_network_units if width and tier is Tier.STREAM else width


def _kept(band: BandSnapshot, tier: Tier) -> list[Span]:
    kept = [band.hard_fixed, band.soft_fixed if tier is Tier.STREAM else None]
    if not band.movable and band.live_units:
        kept.append((band.start_index, band.end_index))
    return [extent for extent in kept if extent is not None]


def _strange_bytes(snapshot: ChainSnapshot, tier: Tier) -> list[frozenset[int]]:
    """Return, per band, the blocked bytes outside its present span."""
    blocked = snapshot.blocked if tier is Tier.STREAM else snapshot.quarantined
    everything = {byte for low, high in blocked for byte in range(low, high)}
    return [
        frozenset(
            everything
            - set(
                range(
                    band.start_index * band.geometry.unit_bytes,
                    band.end_index * band.geometry.unit_bytes,
                )
            )
        )
        for band in snapshot.bands
    ]


def _ids_suffice(snapshot: ChainSnapshot, demand: Units) -> bool:
    return all(
        band.id_room_count is None or not more or band.promised_units + more <= band.id_room_count
        for band, more in zip(snapshot.bands, demand, strict=True)
    )


def any_layout(snapshot: ChainSnapshot, demand: Units, tier: Tier) -> bool:
    """Try every place of every band, in chain order."""
    if not _ids_suffice(snapshot, demand):
        return False
    strange = _strange_bytes(snapshot, tier)
    failed: set[tuple[int, int]] = set()

    def candidates(index: int) -> list[Span]:
        band = snapshot.bands[index]
        grid, width = band.geometry, _width(band, demand[index], tier)
        kept = _kept(band, tier)
        found: list[Span] = []
        for start in range(grid.unit_index_min, grid.unit_index_end_count + 1):
            if grid.kind is BandKind.GROW_UP and start != grid.unit_index_min:
                continue
            # The least span from here; a wider one serves nobody.
            end = max([start + width, *(high for _, high in kept)])
            if grid.kind is BandKind.GROW_DOWN:
                end = grid.unit_index_end_count
            held = range(start * grid.unit_bytes, end * grid.unit_bytes)
            if (
                end <= grid.unit_index_end_count
                and end - start >= width
                and all(start <= low for low, _ in kept)
                and (not strange[index] or strange[index].isdisjoint(held))
            ):
                found.append((start, end))
        return found

    choices = [candidates(index) for index in range(len(snapshot.bands))]

    def place(index: int, cursor_bytes: int) -> bool:
        if index == len(snapshot.bands):
            return True
        if (index, cursor_bytes) in failed:
            return False
        grid = snapshot.bands[index].geometry
        parks = grid.kind is BandKind.FLOAT and not _width(
            snapshot.bands[index], demand[index], tier
        )
        fits = (parks and place(index + 1, cursor_bytes)) or any(
            place(index + 1, end * grid.unit_bytes)
            for start, end in choices[index]
            if start * grid.unit_bytes >= cursor_bytes and not parks
        )
        if not fits:
            failed.add((index, cursor_bytes))
        return fits

    return place(0, snapshot.sink_bytes)


def any_growth(
    snapshot: ChainSnapshot, demand: Units, tier: Tier, flushed: tuple[int, ...]
) -> bool:
    """Try both sides of every float and every place of a parked one; the flushed ends shrink."""
    if not _ids_suffice(snapshot, demand):
        return False
    strange = _strange_bytes(snapshot, tier)

    def choices(index: int) -> list[Span]:
        band, grid = snapshot.bands[index], snapshot.bands[index].geometry
        start, end = band.start_index, band.end_index
        width = _width(band, demand[index], tier)
        kept = _kept(band, tier)
        more = max(0, width - (end - start))
        if grid.kind is BandKind.GROW_UP:
            if index in flushed:
                return [(start, max([start + width, *(high for _, high in kept)]))]
            return [(start, end + more)]
        if grid.kind is BandKind.GROW_DOWN:
            if index in flushed:
                return [(min([end - width, *(low for low, _ in kept)]), end)]
            return [(start - more, end)]
        if start == end and more:
            return [(at, at + more) for at in range(grid.unit_index_end_count - more + 1)]
        return [(start - more, end), (start, end + more)]

    def place(index: int, cursor_bytes: int) -> bool:
        if index == len(snapshot.bands):
            return True
        grid = snapshot.bands[index].geometry
        for start, end in choices(index):
            if grid.kind is BandKind.FLOAT and start == end:
                if place(index + 1, cursor_bytes):
                    return True
            elif (
                start >= grid.unit_index_min
                and end <= grid.unit_index_end_count
                and start * grid.unit_bytes >= cursor_bytes
                and strange[index].isdisjoint(range(start * grid.unit_bytes, end * grid.unit_bytes))
                and place(index + 1, end * grid.unit_bytes)
            ):
                return True
        return False

    return place(0, snapshot.sink_bytes)


def any_plan(snapshot: ChainSnapshot, demand: Units, step: Step, tier: Tier) -> bool:
    """Answer for one step by trying everything it may do."""
    if step is Step.RELAYOUT:
        return any_layout(snapshot, demand, tier)
    last = len(snapshot.bands) - 1
    flushes = [()] if step is Step.NO_MOVE else [(), (0,), (last,), (0, last)]
    return any(any_growth(snapshot, demand, tier, flushed) for flushed in flushes)


# ---- larger arenas ------------------------------------------------------------------------------


def grain_bytes_of(snapshot: ChainSnapshot) -> int:
    """Return the largest number of bytes that divides every unit of a chain."""
    return math.gcd(*[band.geometry.unit_bytes for band in snapshot.bands])


def in_grains(snapshot: ChainSnapshot) -> ChainSnapshot:
    """Return the same chain with as many bytes fewer as change no layout.

    Every frontier and every blocked byte range lies on a multiple of the grain, so bytes can be
    counted in grains; only the sink's end is rounded up, to where the first unit may begin.
    """
    grain = grain_bytes_of(snapshot)

    def scaled(intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
        return tuple((low // grain, -(-high // grain)) for low, high in intervals)

    bands = tuple(
        band._replace(geometry=replace(band.geometry, unit_bytes=band.geometry.unit_bytes // grain))
        for band in snapshot.bands
    )
    return snapshot._replace(
        arena_bytes=snapshot.arena_bytes // grain,
        sink_bytes=-(-snapshot.sink_bytes // grain),
        bands=bands,
        blocked=scaled(snapshot.blocked),
        quarantined=scaled(snapshot.quarantined),
    )
