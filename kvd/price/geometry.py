"""Where units can lie: the fixed shape of a chain, before anything is handed out.

Byte 0 is the low end of the arena. Every band's grid starts there: unit ``k`` of a band with
``unit_bytes`` u occupies bytes ``[k*u, (k+1)*u)``. Bytes ``[0, sink_bytes)`` belong to no band; all
bands' unit 0 overlap there on purpose.
"""

from dataclasses import dataclass
from enum import StrEnum

from kvd.units import ceil_div, floor_div


class BandKind(StrEnum):
    """How a band's span may grow."""

    GROW_UP = "grow_up"
    """Anchored at the low end of the arena; its high frontier moves."""
    FLOAT = "float"
    """Anchored nowhere; grows on either side, may be relocated whole."""
    GROW_DOWN = "grow_down"
    """Anchored at the high end of the arena; its low frontier moves."""


@dataclass(frozen=True, slots=True)
class BandGeometry:
    """One band's grid: units ``[unit_index_min, unit_index_end)`` can be handed out."""

    name: str
    kind: BandKind
    unit_bytes: int
    unit_index_min: int
    unit_index_end_count: int

    @property
    def room_units(self) -> int:
        """Return how many units the band could hold if it had the arena alone."""
        return max(0, self.unit_index_end_count - self.unit_index_min)


@dataclass(frozen=True, slots=True)
class ChainGeometry:
    """All bands of an arena, low to high, and the bytes they share."""

    arena_bytes: int
    sink_bytes: int
    bands: tuple[BandGeometry, ...]


def chain_geometry(
    *, arena_bytes: int, sink_bytes: int, bands: tuple[tuple[str, BandKind, int], ...]
) -> ChainGeometry:
    """Return the grids of bands given as (name, kind, unit bytes), low to high."""
    assert 0 <= sink_bytes <= arena_bytes
    kinds = [kind for _, kind, _ in bands]
    assert kinds[1:-1] == [BandKind.FLOAT] * len(kinds[1:-1])
    return ChainGeometry(
        arena_bytes=arena_bytes,
        sink_bytes=sink_bytes,
        bands=tuple(
            BandGeometry(
                name=name,
                kind=kind,
                unit_bytes=unit_bytes,
                unit_index_min=ceil_div(sink_bytes, unit_bytes),
                unit_index_end_count=floor_div(arena_bytes, unit_bytes),
            )
            for name, kind, unit_bytes in bands
        ),
    )
