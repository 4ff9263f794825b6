"""Operations that open and close uses of pages: values, copies and transfers.

Beside the operations on requests, of which `kvd.engine.stage` has one method each, these are the
ones whose ends the program does not state itself: the ranks tell of them, and the daemon's own
entry `Released` closes what the last of them has told of.

Invariants:
    ledger.uses_owned: whatever a ledger, a fence or a wait names beside steps is a copy or transfer
        that is not over.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from kvd.alloc.band import Units
from kvd.alloc.chain import Shortage
from kvd.alloc.copies import Copies
from kvd.alloc.requests import RequestTable
from kvd.alloc.signals import Signal, SignalKind
from kvd.alloc.transfers import RECEIVES, Transfers
from kvd.engine.arguments import (
    check_units,
    read_host_units,
    read_numbers,
    read_pages,
    read_virtual,
)
from kvd.engine.outcome import OutcomeBuilder
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import (
    BackupSubmit,
    CancelHold,
    Evict,
    Hold,
    Insert,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Operation,
    Post,
    Publish,
    Released,
    ResetSink,
)
from kvd_proto.outcomes import CopyStream, Done, Outcome, Pump, ReleasedResult, ZeroSink

PROCESSED_KEPT_COUNT = 1024
"""Far more steps than ranks lag behind."""

Decide = Callable[[int, Any], Outcome]


class PageUses:
    """Values, copies and transfers of one stage."""

    def __init__(
        self, requests: RequestTable, *, refused: Callable[[Shortage, int], Outcome]
    ) -> None:
        """Start with none; ``refused`` makes the outcome of a shortage about a request, or 0."""
        self.chain = requests.chain
        self.requests = requests
        self.values = requests.values
        self.copies = Copies(self.chain, self.values)
        self.transfers = Transfers(self.chain, self.copies)
        self.unknown_step = 0
        """The newest step that may write any live page, values included."""
        self._processed: deque[tuple[int, int]] = deque(maxlen=PROCESSED_KEPT_COUNT)
        """Newest steps that were processed, and where; those before them count as the oldest."""
        self._refused = refused

    def operations(self) -> dict[type[Operation], Decide]:
        """Return the method of each operation."""
        return {
            ResetSink: self._reset_sink,
            Evict: self._evict,
            LoadReserve: self._load_reserve,
            LoadName: self._load_name,
            LoadSubmit: self._load_submit,
            LoadCancel: self._load_cancel,
            BackupSubmit: self._backup_submit,
            Hold: self._hold,
            Publish: self._publish,
            Post: self._post,
            CancelHold: self._cancel_hold,
        }

    def release(self, entry: Released) -> Outcome:
        """Take in what is over on every rank."""
        for number in entry.copies:
            self.copies.end(number, failed=number in entry.failed_copies)
        for number in entry.transfers:
            self.transfers.end(number)
        for number in entry.quarantined:
            self.transfers.quarantine(number)
        return Outcome(
            ReleasedResult(entry.copies, entry.failed_copies, entry.transfers, entry.quarantined)
        )

    def check_received(self, rows: Units) -> None:
        """Raise OperationError if a peer is to write pages of requests that end or advance."""
        self._check(rows, self.transfers.check_may_end)

    def check_may_retract(self, rows: Units) -> None:
        """Raise OperationError if peers are at work on pages of victims, whose end frees none."""
        self._check(rows, self.transfers.check_untouched)

    def note_processed(self, step: int, position: int) -> None:
        """Take in where in the log a step was processed: behind it, every rank has waited it."""
        self._processed.append((step, position))

    def sealed_values(self, confirmed_position: int) -> tuple[int, ...]:
        """Return the values whose bytes are what they should be on every rank.

        On all ranks the effects up to ``confirmed_position`` have run. By then every step that may
        have written such a value was waited for, and nothing that writes it, or reads it for a
        copy, is open.
        """
        step_max = 0 if self._processed else self.chain.steps.processed_count
        for step, position in self._processed:
            if position <= confirmed_position:
                step_max = step
        clearings = self.chain.steps.clearings
        return tuple(
            [
                number
                for number, value in self.values.of_number.items()
                if not value.spoiled
                and value.position <= confirmed_position
                and max(value.written_step, self.unknown_step) <= step_max
                and not clearings.is_due(value.slot)
                and clearings.step_of(value.slot) <= step_max
                and not self.copies.touches(number)
                and not self._is_received(number)
            ]
        )

    def check(self) -> None:
        """Check copies, transfers, and that uses of units are theirs: ledger.uses_owned."""
        self.copies.check()
        self.transfers.check()
        for band in self.chain.bands:
            for _, signal, _ in band.usage.records():
                self._check_owned(signal, f"a ledger of band {band.geometry.name}")
        for _, signal, _ in self.chain.order.fences.records():
            self._check_owned(signal, "a fence")
        for signal in self.chain.order.waited:
            self._check_owned(signal, "a wait")

    def _check_owned(self, signal: Signal, where: str) -> None:
        if signal.kind is SignalKind.COPY:
            is_open = signal.number in self.copies.loads or signal.number in self.copies.backups
        elif signal.kind is SignalKind.TRANSFER:
            is_open = signal.number in self.transfers.open
        else:
            return
        if not is_open:
            self.chain.monitor.fail(
                "ledger.uses_owned", f"{where} names {signal.kind} {signal.number}, which is over"
            )

    # ---- values ---------------------------------------------------------------------------------

    def _reset_sink(self, program: int, operation: ResetSink) -> Outcome:
        steps, order = self.chain.steps, self.chain.order
        if steps.launched_count:
            order.wait_step(steps.launched_count)
        builder = OutcomeBuilder(self.chain)
        builder.waits()
        builder.add(ZeroSink())
        return builder.build(Done())

    def insert(self, operation: Insert) -> Outcome:
        """Make a value of a request; raises OperationError, with nothing changed."""
        self.values.numbers.check_new(operation.value_id)
        rows = self.requests.names.rows_of([operation.request])
        self.requests.insert(operation.value_id, int(rows[0]))
        builder = OutcomeBuilder(self.chain)
        builder.ended(rows, [])
        return builder.build(Done())

    def _evict(self, program: int, operation: Evict) -> Outcome:
        numbers = read_numbers(operation.values, what="evict.values")
        seen: dict[int, None] = {}
        for number in numbers:
            value = self.values.get(number)
            if number in seen:
                raise OperationError(f"evict.values names value {number} twice")
            seen[number] = None
            load = self.copies.open_load(number)
            if load:
                raise OperationError(
                    f"value {number} cannot be evicted: load {load} into it is neither submitted "
                    f"nor cancelled",
                    code=ErrorCode.IN_USE,
                )
            ids = [self.values.ids_of(value, index) for index in range(len(self.chain.bands))]
            self.transfers.check_may_end(ids, what=f"the eviction of value {number}")
        builder = OutcomeBuilder(self.chain)
        return builder.build(builder.freed(self.values.evict(numbers)))

    # ---- copies ---------------------------------------------------------------------------------

    def _load_reserve(self, program: int, operation: LoadReserve) -> Outcome:
        units = operation.units
        check_units(units, self.chain.geometry.bands, what="load_reserve.units", within_room=True)
        moves = self.copies.reserve(operation.load, operation.value_id, units)
        if isinstance(moves, Shortage):
            return self._refused(moves, 0)
        builder = OutcomeBuilder(self.chain)
        builder.moves(moves)
        return builder.build(Done())

    def _load_name(self, program: int, operation: LoadName) -> Outcome:
        band_count = len(self.chain.bands)
        if not 0 <= operation.band < band_count:
            raise OperationError(f"load_name.band is {operation.band}; there are {band_count}")
        virtual = read_pages(operation.virtual, what="load_name.virtual")
        physical = self.copies.name(operation.load, operation.band, virtual)
        builder = OutcomeBuilder(self.chain)
        builder.bound(operation.band, virtual, physical)
        return builder.build(Done())

    def _load_submit(self, program: int, operation: LoadSubmit) -> Outcome:
        named = self.copies.check_named(operation.load)
        counts = [named[index].size if index in named else 0 for index in self._band_indices]
        host = read_host_units(operation.host_units, counts, what="load_submit.host_units")
        builder = OutcomeBuilder(self.chain)
        for index, units in self.copies.submit(operation.load).items():
            builder.copy(operation.load, CopyStream.LOAD, index, units, host[index])
        return builder.build(Done())

    def _load_cancel(self, program: int, operation: LoadCancel) -> Outcome:
        builder = OutcomeBuilder(self.chain)
        return builder.build(builder.freed(self.copies.cancel(operation.load)))

    def _backup_submit(self, program: int, operation: BackupSubmit) -> Outcome:
        virtual = self._virtual(operation.virtual, what="backup_submit.virtual")
        counts = [ids.size for ids in virtual]
        host = read_host_units(operation.host_units, counts, what="backup_submit.host_units")
        units = self.copies.back_up(operation.backup, virtual)
        builder = OutcomeBuilder(self.chain)
        builder.waits()
        for index, places in enumerate(units):
            if places.size:
                builder.copy(operation.backup, CopyStream.BACKUP, index, places, host[index])
        return builder.build(Done())

    # ---- transfers ------------------------------------------------------------------------------

    def _hold(self, program: int, operation: Hold) -> Outcome:
        virtual = self._virtual(operation.virtual, what="hold.virtual")
        self.transfers.hold(operation.transfer, virtual)
        return Outcome(Done())

    def _publish(self, program: int, operation: Publish) -> Outcome:
        units = self.transfers.publish(operation.transfer)
        if isinstance(units, tuple):
            return Outcome(Pump(units))
        builder = OutcomeBuilder(self.chain)
        builder.waits()
        index = self.chain.state_index
        if index is not None and units[index].size:
            # A launch may yet have to clear slots that were handed out, but not what a peer wrote.
            builder.zeroed(index, units[index])
            slots = self.transfers.open[operation.transfer].virtual[index]
            self.chain.steps.clearings.zero(slots)
        return builder.build(builder.resolved(units))

    def _post(self, program: int, operation: Post) -> Outcome:
        virtual = self._virtual(operation.virtual, what="post.virtual")
        units = self.transfers.post(operation.transfer, virtual)
        builder = OutcomeBuilder(self.chain)
        return builder.build(builder.resolved(units))

    def _cancel_hold(self, program: int, operation: CancelHold) -> Outcome:
        self.transfers.cancel(operation.transfer)
        return Outcome(Done())

    # ---- inside ---------------------------------------------------------------------------------

    @property
    def _band_indices(self) -> range:
        return range(len(self.chain.bands))

    def _virtual(self, encoded: tuple[bytes, ...], *, what: str) -> list[Units]:
        return read_virtual(encoded, len(self.chain.bands), what=what)

    def _check(self, rows: Units, check: Callable[..., None]) -> None:
        if not self.transfers.open:
            return
        request_id, holdings = self.requests.rows.request_id, self.requests.holdings
        for row in rows.tolist():
            ids = [holdings.ids(index, rows[rows == row]) for index in self._band_indices]
            check(ids, what=f"request {request_id[row]}")

    def _is_received(self, number: int) -> bool:
        """Return whether a peer writes or will write a value; one that may go on for ever too."""
        value = self.values.get(number)
        return any(
            band.usage.first_use(band.physical(self.values.ids_of(value, index)), RECEIVES)
            for index, band in enumerate(self.chain.bands)
        )
