"""Why no layout serves a demand: what is short, by how much, and what stands in the way.

The numbers explain, they decide nothing: freeing exactly the bytes named here may not be enough,
because what comes free lies on another grid than what is asked.
"""

from enum import StrEnum
from typing import NamedTuple

from kvd.price.need import FLOAT, GROW_UP, Need, first_start, needs_of
from kvd.price.plans import feasible
from kvd.price.search import Units
from kvd.price.snapshot import ChainSnapshot, Tier
from kvd.units import ceil_div

_NO_INDEX = 1 << 62
"""Behind the end of every grid."""


class ObstacleKind(StrEnum):
    """What keeps a demand out."""

    IDS = "ids"
    """No free virtual ids, whatever the bytes."""
    INDEX_ROOM = "index_room"
    """The band could not hold that many units if it had the arena alone."""
    BYTES = "bytes"
    """Live, promised and asked units are more bytes than there are."""
    PADDING = "padding"
    """The bytes add up, but bands with different units cannot share the last of them."""
    FIXED = "fixed"
    """Units that never move stand in the way."""
    BLOCKED = "blocked"
    """Bytes of a transfer that is not known to end stand in the way."""


class Obstacle(NamedTuple):
    """What is short and why."""

    kind: ObstacleKind
    band_index: int
    """The band that is short: of those that lack room, the one that lacks most bytes."""
    units_short_units: int
    bytes_short_bytes: int
    """0 for ids, which cost no bytes."""
    obstacle_index: int
    """The band at which packing from below ends; for FIXED, the one whose fixed units stop it."""


def why_not(snapshot: ChainSnapshot, demand_units: Units) -> Obstacle | None:
    """Return why no layout serves the demand, transfers ended; None if one does."""
    if feasible(snapshot, demand_units):
        return None
    bands = snapshot.bands
    for index, (band, demand) in enumerate(zip(bands, demand_units, strict=True)):
        room = band.id_room_count
        if room is not None and demand and band.promised_units + demand > room:
            short = band.promised_units + demand - room
            return Obstacle(ObstacleKind.IDS, index, short, 0, index)
    needs = needs_of(snapshot, demand_units, Tier.TRANSFERS)
    for index, need in enumerate(needs):
        short = need.width_units - need.unit_index_end_count + need.unit_index_min
        if short > 0:
            short_bytes = short * need.unit_bytes
            return Obstacle(ObstacleKind.INDEX_ROOM, index, short, short_bytes, index)
    return _of_bytes(snapshot, needs)


def obstacle_text(snapshot: ChainSnapshot, obstacle: Obstacle, *, promised_units: Units) -> str:
    """Return the obstacle as a phrase; the snapshot holds no promises, they are given beside it."""
    band = snapshot.bands[obstacle.band_index]
    name = band.geometry.name
    in_the_way = snapshot.bands[obstacle.obstacle_index].geometry.name
    promised = promised_units[obstacle.band_index]
    texts = {
        ObstacleKind.IDS: f"{band.live_units} ids of {name} in use, {promised} promised",
        ObstacleKind.INDEX_ROOM: f"the arena has {band.geometry.room_units} places for {name}",
        ObstacleKind.BYTES: "live and promised units fill the arena",
        ObstacleKind.PADDING: f"the grids of {name} and {in_the_way} do not align",
        ObstacleKind.FIXED: f"fixed pages of {in_the_way}",
        ObstacleKind.BLOCKED: f"bytes beside {in_the_way} that a transfer still touches",
    }
    return texts[obstacle.kind]


def never_fits(empty: ChainSnapshot, demand_units: Units) -> tuple[Obstacle, str] | None:
    """Return why not even an empty arena holds the demand, and a phrase for it; None if one does.

    Where both bytes and ids are short it is the bytes: ids are as many as bytes could ever use.
    """
    bands = tuple([band._replace(id_room_count=None) for band in empty.bands])
    obstacle = why_not(empty._replace(bands=bands), demand_units) or why_not(empty, demand_units)
    if obstacle is None:
        return None
    band, asked = empty.bands[obstacle.band_index], demand_units[obstacle.band_index]
    name = band.geometry.name
    if obstacle.kind is ObstacleKind.IDS:
        return obstacle, f"{asked} ids of {name} asked, there are {band.id_room_count} in all"
    if obstacle.kind is ObstacleKind.INDEX_ROOM:
        return obstacle, f"{asked} units of {name} asked, the arena has {band.geometry.room_units}"
    if obstacle.kind is ObstacleKind.BYTES:
        needed = sum(
            units * band.geometry.unit_bytes
            for units, band in zip(demand_units, empty.bands, strict=True)
        )
        usable = empty.arena_bytes - empty.sink_bytes
        return obstacle, f"{needed} bytes asked of an arena that holds {usable} when empty"
    text = obstacle_text(empty, obstacle, promised_units=(0,) * len(empty.bands))
    return obstacle, f"{text}, even when empty"


def _of_bytes(snapshot: ChainSnapshot, needs: list[Need]) -> Obstacle:
    asked_bytes = sum(need.width_units * need.unit_bytes for need in needs)
    short_bytes = asked_bytes - (snapshot.arena_bytes - snapshot.sink_bytes)
    stop_index, overlap_bytes = _stop(needs, snapshot.sink_bytes)
    kind = ObstacleKind.BYTES
    if short_bytes <= 0:
        short_bytes, kind = overlap_bytes, _kind(needs, snapshot.sink_bytes)
    index = max(range(len(needs)), key=lambda place: _lacking_bytes(needs[place]))
    units = ceil_div(short_bytes, needs[index].unit_bytes)
    return Obstacle(kind, index, units, short_bytes, stop_index)


def _lacking_bytes(need: Need) -> int:
    span = need.now_end_index - need.now_start_index
    return max(0, need.width_units - span) * need.unit_bytes


def _kind(needs: list[Need], sink_bytes: int) -> ObstacleKind:
    """Return whose removal would let the demand in, if anything's would."""
    loose = [
        need._replace(keep_start_index=need.unit_index_end_count, keep_end_index=0)
        for need in needs
    ]
    clear = [need._replace(foreign=()) for need in needs]
    if not _stop(loose, sink_bytes)[1]:
        return ObstacleKind.FIXED
    if not _stop(clear, sink_bytes)[1]:
        return ObstacleKind.BLOCKED
    nothing = [need._replace(foreign=()) for need in loose]
    return ObstacleKind.PADDING if _stop(nothing, sink_bytes)[1] else ObstacleKind.FIXED


def _stop(needs: list[Need], sink_bytes: int) -> tuple[int, int]:
    """Pack from below; return the band that has no place and how many bytes it lies too high.

    (last band, 0) if all have one.
    """
    cursor_bytes = sink_bytes
    for index, need in enumerate(needs):
        if need.kind is FLOAT and not need.width_units:
            continue
        start, end, overlap_units = _placed(need, cursor_bytes)
        low_bytes, high_bytes = start * need.unit_bytes, end * need.unit_bytes
        overlap_bytes = max(cursor_bytes - low_bytes, overlap_units * need.unit_bytes)
        if need.kind is not FLOAT and low_bytes < high_bytes:
            met = [
                piece for piece in need.foreign if piece[0] < high_bytes and piece[1] > low_bytes
            ]
            if met and need.kind is GROW_UP:
                overlap_bytes = max(overlap_bytes, high_bytes - met[0][0])
            elif met:
                overlap_bytes = max(overlap_bytes, met[-1][1] - low_bytes)
        if overlap_bytes > 0:
            return index, overlap_bytes
        cursor_bytes = high_bytes
    return len(needs) - 1, 0


def _placed(need: Need, ground_bytes: int) -> tuple[int, int, int]:
    """Return the lowest span above the ground, and how many units it lies too high.

    A grow-down end has but one place, which may begin below the ground.
    """
    end_count, width = need.unit_index_end_count, need.width_units
    if need.kind is GROW_UP:
        end = max(need.unit_index_min + width, need.keep_end_index)
        return need.unit_index_min, end, end - end_count
    if need.kind is not FLOAT:
        return min(end_count - width, need.keep_start_index), end_count, 0
    start = first_start(
        need._replace(keep_start_index=_NO_INDEX, unit_index_end_count=_NO_INDEX), ground_bytes
    )
    assert start is not None
    end = max(start + width, need.keep_end_index)
    return start, end, max(end - end_count, start - need.keep_start_index)
