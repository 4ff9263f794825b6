"""Effects in order, cut into segments that can be redone.

A rank that dies in the middle of an operation leaves an unknown part of it done, and the next
applier redoes the first unconfirmed segment. That is harmless as long as no effect of a segment
writes bytes that an earlier one of the same segment reads: redone, it would read what was written
meanwhile. Only moves read arena bytes.
"""

from kvd.alloc.band import Moves, Units
from kvd.alloc.signals import Signal, SignalKind
from kvd.engine.columns import ColumnBuilder
from kvd.price.geometry import ChainGeometry
from kvd_proto.outcomes import NO_COLUMN, AnyEffect, Column, Move, Segment, Wait, WriteMap, Zero

ByteRange = tuple[int, int]


class EffectBuilder:
    """Collects the effects of one operation over its columns."""

    def __init__(self, geometry: ChainGeometry, columns: ColumnBuilder) -> None:
        self.columns = columns
        self._geometry = geometry
        self._segments: list[Segment] = []
        self._current: list[AnyEffect] = []
        self._reads: list[ByteRange] = []

    def add(self, effect: AnyEffect) -> None:
        """Add an effect that neither reads nor writes arena units."""
        self._current.append(effect)

    def wait(self, signal: Signal) -> None:
        """Have what follows run behind the end of a step or of a copy."""
        if signal.kind is SignalKind.STEP:
            self._current.append(Wait(signal.number))
        else:
            assert signal.kind is SignalKind.COPY, "no stream waits for a transfer"
            self._current.append(Wait(copy=signal.number))

    def zero(self, band_index: int, units_column: Column, units: Units) -> None:
        """Add the zeroing of whole units."""
        if self._reads:
            self._cut_before_write(band_index, units)
        self._current.append(Zero(band_index, units_column))

    def move(self, band_index: int, moves: Moves) -> None:
        """Add a batch of copies and the map entries that follow them."""
        if self._reads:
            self._cut_before_write(band_index, moves.destinations)
        columns = self.columns
        destinations = columns.add(moves.destinations)
        self._current.append(Move(band_index, columns.add(moves.sources), destinations))
        self._current.append(WriteMap(band_index, columns.add(moves.virtual), destinations))
        self._reads.append(self._hull(band_index, moves.sources))

    def map_units(self, band_index: int, virtual_column: Column, physical_column: Column) -> None:
        """Add map entries; without a physical column they read as the sink."""
        self._current.append(WriteMap(band_index, virtual_column, physical_column))

    def unmap_units(self, band_index: int, virtual_column: Column) -> None:
        """Add map entries that read as the sink from now on."""
        self._current.append(WriteMap(band_index, virtual_column, NO_COLUMN))

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments in order."""
        if not self._segments:
            return (tuple(self._current),) if self._current else ()
        return (*self._segments, tuple(self._current))

    def _cut_before_write(self, band_index: int, units: Units) -> None:
        """Start a new segment if these units may lie where this segment read.

        Hulls are compared, not units: a needless cut costs one more progress write, nothing else.
        """
        start, end = self._hull(band_index, units)
        if any(start < read_end and read_start < end for read_start, read_end in self._reads):
            self._segments.append(tuple(self._current))
            self._current = []
            self._reads = []

    def _hull(self, band_index: int, units: Units) -> ByteRange:
        unit_bytes = self._geometry.bands[band_index].unit_bytes
        return int(units.min()) * unit_bytes, (int(units.max()) + 1) * unit_bytes
