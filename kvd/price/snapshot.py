"""What a capacity answer depends on, taken from counters, and nothing else.

A snapshot never holds the position of a hole, so taking one costs the same at any number of pages.
Its epoch moves with every input listed here, blocked bytes and fixed extents included: an answer
remembered under an epoch that only the bands' counters move outlives a transfer that changed it.

Units of a band, by what may become of them:
    span = live + holes + pending + vacated_forward + vacated_network;
    pending and vacated_forward become holes by stream order alone, so they count as room at once;
    vacated_network become holes when a transfer ends, so they count only once that is waited for;
    promised units are no place but a claim: holes that a demand may not count on.

A unit whose transfer went astray may be written to at any time: it counts as live and hard-fixed.
"""

from enum import StrEnum
from typing import NamedTuple, TypeAlias

from kvd.price.geometry import BandGeometry, BandKind, ChainGeometry
from kvd.price.search import Span, Units, empty_spans

Interval: TypeAlias = tuple[int, int]
"""Half-open range of arena bytes."""


class Tier(StrEnum):
    """What a layout may wait for before it is carried out."""

    STREAM = "stream"
    """Stream order only: nothing that a transfer still touches is moved, taken or crossed."""
    TRANSFERS = "transfers"
    """The end of transfers: only units that never move stay where they are."""


class BandSnapshot(NamedTuple):
    """One band's counts and frontiers."""

    geometry: BandGeometry
    start_index: int
    end_index: int
    live_units: int
    hole_units: int
    promised_units: int = 0
    """Claims not taken yet; a demand is always asked beyond them."""
    pending_units: int = 0
    vacated_forward_units: int = 0
    vacated_network_units: int = 0
    fenced_units: int = 0
    """Holes whose next writer waits for a copy: usable, so they never change an answer."""
    hard_fixed: Span | None = None
    """Extent, first to behind the last, of the live units that never move."""
    soft_fixed: Span | None = None
    """Extent of the live units that move only after transfers ended."""
    movable: bool = True
    """Whether units may move at all; if not, the span stays while anything in it is live."""
    id_room_count: int | None = None
    """Free virtual ids; None where the band mints none."""


class ChainSnapshot(NamedTuple):
    """The bands of an arena, low to high, and the bytes none of them may enter."""

    arena_bytes: int
    sink_bytes: int
    bands: tuple[BandSnapshot, ...]
    blocked: tuple[Interval, ...] = ()
    """All bytes that transfers touch and no live unit holds, sorted and disjoint.

    Vacated units inside spans belong to it: another band may be about to get their bytes.
    """
    quarantined: tuple[Interval, ...] = ()
    """The blocked bytes whose transfer is not known to end: no wait clears them."""
    epoch_count: int = 0


def chain_snapshot(geometry: ChainGeometry, live_units: Units) -> ChainSnapshot:
    """Return a chain with nothing but live units, its floats parked or packed from below.

    Without fixed units an answer depends on counts alone, so this stands for every chain that
    holds as many. The units fit the chain.
    """
    bands: list[BandSnapshot] = []
    cursor_bytes = geometry.sink_bytes
    for band, live in zip(geometry.bands, live_units, strict=True):
        start = -(-cursor_bytes // band.unit_bytes)
        if band.kind is BandKind.GROW_UP:
            start = band.unit_index_min
        elif band.kind is BandKind.GROW_DOWN:
            start = band.unit_index_end_count - live
        assert start * band.unit_bytes >= cursor_bytes
        bands.append(BandSnapshot(band, start, start + live, live, 0))
        if live or band.kind is not BandKind.FLOAT:
            cursor_bytes = (start + live) * band.unit_bytes
    assert cursor_bytes <= geometry.arena_bytes
    return ChainSnapshot(geometry.arena_bytes, geometry.sink_bytes, tuple(bands))


def empty_snapshot(
    geometry: ChainGeometry, id_room_counts: tuple[int | None, ...]
) -> ChainSnapshot:
    """Return a chain that holds nothing; ``id_room_counts`` are all ids of each band that mints."""
    bands = zip(geometry.bands, empty_spans(geometry), id_room_counts, strict=True)
    return ChainSnapshot(
        geometry.arena_bytes,
        geometry.sink_bytes,
        tuple(
            BandSnapshot(band, start, end, 0, 0, id_room_count=id_room)
            for band, (start, end), id_room in bands
        ),
    )


def reclaimed(snapshot: ChainSnapshot, evictable_units: Units) -> ChainSnapshot:
    """Return the snapshot as it would be after live units were freed, their ids included.

    No unit that is fixed in place is evictable; the extents stay.
    """
    bands: list[BandSnapshot] = []
    for band, evictable in zip(snapshot.bands, evictable_units, strict=True):
        assert 0 <= evictable <= band.live_units
        id_room = band.id_room_count
        bands.append(
            band._replace(
                live_units=band.live_units - evictable,
                hole_units=band.hole_units + evictable,
                id_room_count=None if id_room is None else id_room + evictable,
            )
        )
    return snapshot._replace(bands=tuple(bands))


def within_ids(snapshot: ChainSnapshot, demand_units: Units) -> bool:
    """Return whether every band that mints ids has enough free ones for promises and demand."""
    for band, demand in zip(snapshot.bands, demand_units, strict=True):
        room = band.id_room_count
        if room is not None and demand and band.promised_units + demand > room:
            return False
    return True
