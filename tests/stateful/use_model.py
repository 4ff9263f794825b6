"""A stage with values, copies and transfers over a model of its bytes.

Operations go to the engine; their effects are carried out on the bytes in order. Every access is
checked against all others that may still run, and what the books say is compared with the bytes.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable

import numpy as np

from kvd.alloc.band import Moves, Units
from kvd.alloc.chain import BandMoves
from kvd.alloc.checks import CheckLevel
from kvd.alloc.signals import copy_signal, transfer_signal
from kvd.engine.endings import Endings
from kvd.engine.stage import StageEngine
from kvd.errors import OperationError
from kvd_proto.operations import (
    CopyEnded,
    Evict,
    Free,
    Launch,
    LoadName,
    LoadSubmit,
    Operation,
    Post,
    Processed,
    Publish,
    TransferEnded,
    WriteSet,
)
from kvd_proto.outcomes import (
    NO_COLUMN,
    AnyEffect,
    AnyResult,
    Copy,
    CopyStream,
    Move,
    Outcome,
    Pump,
    Refusal,
    Resolved,
    Wait,
    WriteMap,
    Zero,
)
from tests.stateful.arena_bytes import ArenaBytes
from tests.stateful.chains import Picture, picture
from tests.stateful.ranks import columns_of, int64s, stage

RANKS = (0, 1)
STORAGE = stage(rows=7, spare_bytes=1 << 12)


class UseModel:
    """One engine, the bytes of its arena, and what its ranks have said."""

    def __init__(self) -> None:
        self.engine = StageEngine(STORAGE, level=CheckLevel.STRICT, idle_moves_max=4)
        self.chain = self.engine.chain
        self.requests = self.engine.requests
        self.copies, self.transfers = self.engine.uses.copies, self.engine.uses.transfers
        self.memory = ArenaBytes(self.chain)
        self.endings = Endings(RANKS, self.copies, self.transfers)
        self.unfilled: dict[tuple[int, int], None] = {}
        """Names of loaded units that no copy has filled yet."""
        self.counts: dict[str, int] = {}

    @property
    def live(self) -> list[int]:
        """Return the live requests."""
        return sorted(self.requests.names.row_of)

    @property
    def values(self) -> list[int]:
        """Return the values that are there."""
        return list(self.requests.values.of_number)

    # ---- operations -----------------------------------------------------------------------------

    def decide(self, operation: Operation) -> AnyResult | None:
        """Decide an operation and carry out its effects; None for wrong use.

        Wrong use and a no have to change nothing; whether they may be asked is not for the model.
        """
        self.chain.settle_freed()
        self.memory.remember()
        before = self.books()
        name = type(operation).__name__
        try:
            outcome = self.engine.decide(0, operation)
        except OperationError:
            assert self.books() == before, f"wrong use of {name} changed something"
            self._count(f"{name} wrong")
            return None
        self._count(f"{name} {type(outcome.result).__name__}")
        if isinstance(outcome.result, Refusal | Pump):
            assert outcome.segments == ()
            assert self.books() == before, f"a refused {name} changed something"
        self._note(operation)
        self._carry_out(outcome)
        self._note_resolved(operation, outcome)
        return outcome.result

    def books(self) -> Picture:
        """Return everything that later decisions may depend on."""
        bands = [
            (
                band.span,
                band.promised_units,
                band.usage.records(),
                picture((band._physical_of, band._owner_of, band._pending, band.free_ids)),
            )
            for band in self.chain.bands
        ]
        rows, values = self.requests.rows, self.requests.values
        copies, transfers = self.copies, self.transfers
        return bands, picture(
            (
                rows,
                self.requests.names,
                (values.of_number, values.numbers),
                (copies.loads, copies.backups, copies.numbers),
                (transfers.open, transfers.numbers),
                self.chain.order.fences.records(),
            )
        )

    def say(self, rank: int, fact: CopyEnded | TransferEnded) -> None:
        """Let a rank say that a copy or a transfer is over, rightly or not."""
        try:
            if isinstance(fact, CopyEnded):
                self.endings.copy_ended(rank, fact)
            else:
                self.endings.transfer_ended(rank, fact)
        except OperationError:
            self._count(f"{type(fact).__name__} wrong")

    def pass_gate(self) -> None:
        """Let the daemon's own entry enter, if one is due."""
        released = self.endings.take_due()
        if released is None:
            return
        self._count("released")
        self.engine.release(released)
        for copy in released.copies:
            self.memory.over(copy_signal(copy))
        for transfer in released.transfers:
            self.memory.over(transfer_signal(transfer))
        self._count("quarantined", len(released.quarantined))
        self.requests.holdings.check()

    def check(self) -> None:
        """Compare the bytes of every live unit with its name; units that wait for a load aside."""
        for index in range(len(self.chain.bands)):
            band = self.chain.bands[index]
            ids = band.bound_ids()
            unfilled = [name for place, name in self.unfilled if place == index]
            filled = ids[np.isin(ids, unfilled, invert=True)]
            self.memory.verify_units(index, filled)

    def end(self) -> None:
        """End everything; nothing may stay behind."""
        while self.chain.steps.in_flight_count:
            self.decide(Processed(self.chain.steps.processed_count + 1))
        for number in list(self.copies.loads):
            if not self.copies.loads[number].submitted:
                self.engine.uses.copies.cancel(number)
        for number in list(self.transfers.open):
            if not self.transfers.is_running(number):
                self.transfers.cancel(number)
        for rank in RANKS:
            for number in [*self.copies.loads, *self.copies.backups]:
                self.say(rank, CopyEnded(number))
            for number in list(self.transfers.open):
                self.say(rank, TransferEnded(number, failed=True))
        self.pass_gate()
        assert not self.copies.loads
        assert not self.copies.backups
        assert not self.transfers.open
        if self.live:
            self.decide(Free(int64s(self.live)))
        if self.values:
            self.decide(Evict(int64s(self.values)))
        self.chain.settle_freed()
        self.requests.holdings.check()
        assert self.chain.order.fences.is_empty
        for band in self.chain.bands:
            assert band.usage.is_empty
            assert (band.live_units, band.hole_units, band.pending_units) == (0, 0, 0)

    # ---- effects --------------------------------------------------------------------------------

    def _note(self, operation: Operation) -> None:
        """Note what an operation that was decided says about forwards."""
        if isinstance(operation, Processed):
            self.memory.wait(operation.step)
        elif isinstance(operation, Launch):
            writes = None
            if operation.writes is WriteSet.REQUESTS:
                ids = np.frombuffer(operation.requests, dtype="<i8").tolist()
                writes = self.requests.written_ids(self.requests.names.rows_of(ids))
            self.memory.launch(writes)

    def _carry_out(self, outcome: Outcome) -> None:
        columns = [np.array(column, dtype=np.int64) for column in columns_of(outcome)]
        effects = [effect for segment in outcome.segments for effect in segment]
        follows_move = False
        fresh: list[tuple[int, Units, Units]] = []
        for place, effect in enumerate(effects):
            if isinstance(effect, Wait):
                if effect.copy:
                    self.memory.over(copy_signal(effect.copy))
                else:
                    self.memory.wait(effect.step)
            elif isinstance(effect, Move):
                self._move(effect, effects[place + 1], columns)
            elif isinstance(effect, Zero):
                self.memory.clear(effect.band, columns[effect.units])
                if effect.band == self.chain.state_index:
                    # Only slots that a peer is about to fill are cleared so; here it does at once.
                    units = columns[effect.units]
                    virtual = self.chain.bands[effect.band]._owner_of[units]
                    self.memory.fill(effect.band, virtual, units)
            elif isinstance(effect, WriteMap) and not follows_move:
                virtual = columns[effect.virtual]
                if effect.physical == NO_COLUMN:
                    self._unmap(effect.band, virtual)
                else:
                    fresh.append((effect.band, virtual, columns[effect.physical]))
            elif isinstance(effect, Copy):
                self._copy(effect, columns)
            follows_move = isinstance(effect, Move)
        for index, virtual, physical in fresh:
            if (index, int(virtual[0])) not in self.unfilled:
                self.memory.write(index, virtual, physical)

    def _move(self, effect: Move, mapped: AnyEffect, columns: list[Units]) -> None:
        assert isinstance(mapped, WriteMap)
        assert mapped.physical == effect.destinations
        moves = Moves(
            columns[mapped.virtual], columns[effect.sources], columns[effect.destinations]
        )
        self.memory.move([BandMoves(effect.band, moves)])

    def _unmap(self, index: int, virtual: Units) -> None:
        for name in virtual.tolist():
            self.unfilled.pop((index, name), None)
        self.memory.freed(index, virtual.tolist())

    def _copy(self, effect: Copy, columns: list[Units]) -> None:
        units = columns[effect.units]
        loads = effect.stream is CopyStream.LOAD
        self.memory.access(copy_signal(effect.copy), effect.band, units, writes=loads)
        virtual = (
            self.copies.loads[effect.copy].named[effect.band]
            if loads
            else self.copies.backups[effect.copy][effect.band]
        )
        assert self.chain.bands[effect.band].physical(virtual).tolist() == units.tolist()
        if loads:
            self.memory.fill(effect.band, virtual, units)
            for name in virtual.tolist():
                del self.unfilled[effect.band, name]
        else:
            self.memory.verify_units(effect.band, virtual)

    def _note_resolved(self, operation: Operation, outcome: Outcome) -> None:
        if not isinstance(outcome.result, Resolved):
            return
        assert isinstance(operation, Post | Publish)
        columns, number = columns_of(outcome), operation.transfer
        writes = isinstance(operation, Publish)
        virtual = self.transfers.open[number].virtual
        for index, column in enumerate(outcome.result.physical):
            if column == NO_COLUMN:
                continue
            units = np.array(columns[column], dtype=np.int64)
            assert self.chain.bands[index].physical(virtual[index]).tolist() == units.tolist()
            # What a receive is taken for no forward touches, whatever that does not say it writes.
            self.memory.require_over(index, virtual[index], unknown=not writes)
            self.memory.access(transfer_signal(number), index, units, writes=writes)

    def name(self, load: int, index: int, virtual: list[int]) -> None:
        """Name units of a load, which hold nothing until it is submitted."""
        for page in virtual:
            self.unfilled[index, page] = None
        if self.decide(LoadName(load, index, int64s(virtual))) is None:
            for page in virtual:
                if page not in self._waiting(index):
                    self.unfilled.pop((index, page), None)

    def _waiting(self, index: int) -> list[int]:
        """Return the pages that loads which are not submitted have named in a band."""
        return [
            page
            for load in self.copies.loads.values()
            if not load.submitted and index in load.named
            for page in load.named[index].tolist()
        ]

    def submit(self, load: int, host_units: Callable[[int], bytes]) -> None:
        """Submit a load with places in the host pools that are all right."""
        item = self.copies.loads.get(load)
        counts = [
            item.named[index].size if item is not None and index in item.named else 0
            for index in range(len(self.chain.bands))
        ]
        self.decide(LoadSubmit(load, tuple(host_units(count) for count in counts)))

    def _count(self, what: str, count: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + count
