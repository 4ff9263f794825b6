"""The order of effects in one outcome: waits in front, and segments that may be redone.

What an outcome has to be behind stands in front of all that touches the arena, and no effect of a
segment writes bytes that an earlier one of the same segment reads: redone from its beginning after
a death, the segment would read what was written meanwhile.
"""

from collections.abc import Sequence

from kvd.errors import StressFailure
from kvd.price.geometry import ChainGeometry
from kvd.testing.stress.contents import Indices
from kvd.testing.stress.failure import CheckName
from kvd_proto.outcomes import Copy, Move, Outcome, Wait, Zero, ZeroSink

_Bytes = list[tuple[int, int]]


def check_effect_order(
    geometry: ChainGeometry, outcome: Outcome, columns: Sequence[Indices]
) -> None:
    """Raise StressFailure unless effects stand in an order in which they may run, and run again."""
    has_touched = False
    for segment in outcome.segments:
        read: _Bytes = []
        for effect in segment:
            match effect:
                case Wait():
                    if has_touched:
                        raise StressFailure(
                            CheckName.EFFECTS, f"{effect} stands behind what it has to be before"
                        )
                case Zero():
                    written = _extents(geometry, effect.band, columns[effect.units])
                    _check_unread(read, written, "zeroed")
                case Move():
                    written = _extents(geometry, effect.band, columns[effect.destinations])
                    _check_unread(read, written, "moved into")
                    read += _extents(geometry, effect.band, columns[effect.sources])
                case _:
                    pass
            has_touched = has_touched or isinstance(effect, Copy | Move | Zero | ZeroSink)


def _extents(geometry: ChainGeometry, band: int, units: Indices) -> _Bytes:
    unit_bytes = geometry.bands[band].unit_bytes
    return [(unit * unit_bytes, (unit + 1) * unit_bytes) for unit in units.tolist()]


def _check_unread(read: _Bytes, written: _Bytes, what: str) -> None:
    for start, end in written:
        for read_start, read_end in read:
            if start < read_end and read_start < end:
                raise StressFailure(
                    CheckName.EFFECTS,
                    f"bytes [{start}, {end}) are {what} in a segment that moves them away",
                )
