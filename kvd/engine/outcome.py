"""Outcomes of operations that change what requests hold: columns, results and effects in order."""

import numpy as np

from kvd.alloc.band import Freed, Units
from kvd.alloc.chain import BandMoves, ChainAllocator, Shortage
from kvd.alloc.requests import Grant
from kvd.engine.columns import ColumnBuilder
from kvd.engine.effects import EffectBuilder
from kvd_proto.outcomes import (
    NO_COLUMN,
    AnyEffect,
    AnyResult,
    ClearSlots,
    Column,
    Copy,
    CopyStream,
    Outcome,
    Refusal,
    ResetRows,
    Resolved,
    TakeResult,
    WriteRows,
    WriteSlots,
)
from kvd_proto.outcomes import Freed as FreedResult


class OutcomeBuilder:
    """Collects one operation's outcome."""

    def __init__(self, chain: ChainAllocator) -> None:
        self.columns = ColumnBuilder()
        self._chain = chain
        self._effects = EffectBuilder(chain.geometry, self.columns)

    def build(self, result: AnyResult) -> Outcome:
        """Return the outcome with this result."""
        columns = self.columns
        return Outcome(result, self._effects.segments(), columns.lengths, columns.encode())

    def reset_rows(self, rows: Units) -> None:
        """Have the next launch reset rows that were handed out."""
        self._effects.add(ResetRows(self.columns.add(rows)))

    def add(self, effect: AnyEffect) -> None:
        """Add an effect that touches no units."""
        self._effects.add(effect)

    def waits(self) -> None:
        """Have what follows run behind everything that was found to be in its way."""
        for signal in self._chain.order.take_waits():
            self._effects.wait(signal)

    def moves(self, moved: list[BandMoves]) -> None:
        """Add the copies of a rearrangement, in order, behind what they have to wait for."""
        self.waits()
        for item in moved:
            self._effects.move(item.band_index, item.moves)

    def bound(self, band_index: int, virtual: Units, physical: Units) -> None:
        """Write where units of a band lie."""
        columns = self.columns
        self._effects.map_units(band_index, columns.add(virtual), columns.add(physical))

    def zeroed(self, band_index: int, units: Units) -> None:
        """Zero units on the allocator's stream; the next launch clears none of them."""
        self._effects.zero(band_index, self.columns.add(units), units)

    def freed(self, freed: list[Freed]) -> FreedResult:
        """Let virtual ids read as the sink; return the counts per band."""
        counts = [0] * len(self._chain.bands)
        for item in freed:
            counts[item.band_index] = item.virtual.size
            if item.virtual.size:
                self._effects.unmap_units(item.band_index, self.columns.add(item.virtual))
        return FreedResult(tuple(counts))

    def copy(
        self, copy: int, stream: CopyStream, band_index: int, units: Units, host_units: Units
    ) -> None:
        """Add a band's part of a copy."""
        add = self.columns.add
        self._effects.add(Copy(copy, stream, band_index, add(units), add(host_units)))

    def resolved(self, units: list[Units]) -> Resolved:
        """Return where units lie, as a result."""
        physical = tuple([self.columns.add_if_any(places) for places in units])
        return Resolved(physical, self._chain.move_epoch)

    def ended(self, rows: Units, freed: list[Freed]) -> FreedResult:
        """Take pages, slots and rows of requests that ended out of all tables."""
        result = self.freed(freed)
        if self._chain.state_index is not None:
            zeros = np.zeros(rows.size, dtype=np.int64)
            self._effects.add(WriteSlots(self.columns.add(rows), self.columns.add(zeros)))
        return result

    def retracted(self, rows: Units, freed: list[Freed]) -> Column:
        """Take requests that ended for others out of all tables; return the column of their rows.

        It comes before the effects of whoever they made room for: rows are handed out again.
        """
        column = self.columns.add(rows)
        self.ended(rows, freed)
        return column

    def grant(self, grant: Grant) -> TakeResult:
        """Add what a take did: retract, move, zero the new pages, then let the tables name them."""
        columns, effects = self.columns, self._effects
        physical = [NO_COLUMN] * len(self._chain.bands)
        page_rows = places = virtual = retracted = NO_COLUMN
        if grant.retracted.size:
            retracted = self.retracted(grant.retracted, grant.freed)
        self.moves(grant.moves)
        if grant.physical:
            page_rows = columns.add(grant.page_rows)
            places = columns.add(grant.page_places)
            virtual = columns.add(grant.virtual)
            for index, units in zip(self._chain.token_indices, grant.physical, strict=True):
                column: Column = columns.add(units)
                physical[index] = column
                effects.zero(index, column, units)
                effects.map_units(index, virtual, column)
            effects.add(WriteRows(page_rows, places, virtual))
        if grant.slot_rows.size and self._chain.state_index is not None:
            index = self._chain.state_index
            slots, units_column = columns.add(grant.slot_virtual), columns.add(grant.slot_physical)
            physical[index] = units_column
            effects.map_units(index, slots, units_column)
            effects.add(WriteSlots(columns.add(grant.slot_rows), slots))
            effects.add(ClearSlots(units_column))
        return TakeResult(page_rows, places, virtual, tuple(physical), retracted)


def refusal_of(shortage: Shortage, *, stage_index: int, request: int) -> Refusal:
    """Return a shortage as it travels."""
    return Refusal(
        reason=shortage.reason,
        stage=stage_index,
        band=shortage.band,
        request=request,
        short_units=shortage.short_units,
        short_bytes=shortage.short_bytes,
        obstacle=shortage.obstacle,
        remover=shortage.remover,
        waiting_helps=shortage.waiting_helps,
    )
