"""Who is there: requests, values, copies and transfers as a scheduler knows them, by the log.

Everything here follows from operations and their outcomes, in the order in which they were decided.
"""

import numpy as np

from kvd.errors import StressFailure
from kvd.testing.packed import int32s, int64s
from kvd.testing.stress.contents import UNKNOWN, Contents, Indices, Tags, columns_of
from kvd.testing.stress.failure import CheckName
from kvd.testing.stress.plans import PeerPlan, TransferNumber
from kvd_proto.operations import (
    Admit,
    Advance,
    BackupSubmit,
    CancelHold,
    Evict,
    Free,
    Hold,
    Insert,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Operation,
    Post,
    Processed,
    Publish,
    Standing,
    Take,
)
from kvd_proto.outcomes import (
    NO_COLUMN,
    AdmitResult,
    Done,
    Freed,
    Outcome,
    ReleasedResult,
    Resolved,
    TakeResult,
    Verdict,
)

_NONE: Indices = np.zeros(0, dtype=np.int64)


class Request:
    """A request that holds a row."""

    def __init__(
        self,
        number: int,
        *,
        row_index: int,
        prompt_tokens: int,
        new_tokens: int,
        chunk_tokens: int,
        tokens: int,
    ) -> None:
        self.number = number
        self.row_index = row_index
        self.prompt_tokens = prompt_tokens
        self.new_tokens = new_tokens
        """The most that memory grants it beside its prompt."""
        self.chunk_tokens = chunk_tokens
        """The most that it may take at once."""
        self.tokens = tokens
        self.written_tokens = 0
        """Tokens whose forward was launched."""
        self.computed_tokens = 0
        self.step = 0
        """The newest step that it ran in."""
        self.transfers: dict[int, Transfer] = {}
        """Open transfers of its pages."""
        self.is_others = False
        """Another program admitted it: ranks do not know its row, so they run it nowhere."""


class Waiting:
    """A request that was told to wait, or was retracted."""

    def __init__(self, number: int, *, prompt_tokens: int, new_tokens: int) -> None:
        self.number = number
        self.prompt_tokens = prompt_tokens
        self.new_tokens = new_tokens


class Value:
    """Pages that outlived their request."""

    def __init__(self, number: int, pages: Indices, slot: int, *, step: int) -> None:
        self.number = number
        self.pages = pages
        self.slot = slot
        self.step = step
        """The newest step that reads or writes it."""
        self.transfers: dict[int, Transfer] = {}
        self.loads: dict[int, Copy] = {}
        """Open loads into it."""

    @property
    def loading(self) -> bool:
        """Return whether a load into it is not submitted."""
        return any(not load.submitted for load in self.loads.values())


class Copy:
    """A load or a backup that is open."""

    def __init__(
        self, number: int, value: int, *, loads: bool, units: tuple[int, ...] = ()
    ) -> None:
        self.number = number
        self.value = value
        self.loads = loads
        self.units = units
        """Units that a load reserved, per band."""
        self.named: dict[int, Indices] = {}
        """Per band: the virtual ids that it writes or reads."""
        self.places: dict[int, Indices] = {}
        """Per band: places of the host pool."""
        self.words: dict[int, Tags] = {}
        """Per band: words that a backup ships, a unit per row."""
        self.tags: dict[int, Tags] = {}
        """Per band: tags of the entries that a load writes, a unit per row."""
        self.submitted = False


class Transfer:
    """A transfer that is not over."""

    def __init__(
        self, number: int, owner: Request | Value, virtual: list[Indices], *, writes: bool
    ) -> None:
        self.number = number
        self.owner = owner
        self.virtual = virtual
        self.writes = writes
        self.published = False
        self.tags: list[Tags] = []
        """Per band: tags of the entries that a peer writes."""
        self.failed = False
        self.quarantined = False

    @property
    def receives(self) -> bool:
        """Return whether a peer writes its units or is to, for all that anybody knows."""
        return self.writes and not self.quarantined


class Model:
    """Everybody who is there, in one incarnation.

    Numbers go on over incarnations.
    """

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.requests: dict[int, Request] = {}
        self.waiting: dict[int, Waiting] = {}
        self.standing: dict[int, None] = {}
        self.values: dict[int, Value] = {}
        self.copies: dict[int, Copy] = {}
        self.transfers: dict[int, Transfer] = {}
        self.proposed_copies: dict[int, Copy] = {}
        """Backups that are asked for and not decided."""
        self.proposed_transfers: dict[int, Transfer] = {}
        self.processed_count = 0
        self.unknown_step = 0
        """The newest step that may write whatever is live."""
        self.next_number = {"request": 1, "value": 1, "copy": 1, "transfer": 1}
        self.peers: list[PeerPlan] = []
        """Transfers whose places were resolved since somebody looked last."""
        self.ended_backups: list[Copy] = []
        """Backups that are over since somebody looked last."""

    @classmethod
    def after(cls, before: "Model", contents: Contents, survivors: tuple[int, ...]) -> "Model":
        """Return what is there once an incarnation has ended and these values survived it.

        Raises StressFailure for a value that was not there.
        """
        model = cls(contents)
        model.next_number = before.next_number
        for number in survivors:
            value = before.values.get(number)
            if value is None:
                raise StressFailure(CheckName.MAPS, f"value {number} survived and was not there")
            model.values[number] = Value(number, value.pages, value.slot, step=0)
        return model

    def take_number(self, kind: str) -> int:
        """Return the next number of a kind."""
        number = self.next_number[kind]
        self.next_number[kind] = number + 1
        return number

    def note(self, operation: Operation, outcome: Outcome) -> None:
        """Take in what was decided; raises StressFailure.

        What was refused changes nothing but who waits.
        """
        columns = columns_of(outcome)
        pages, slot = _NONE, 0
        if isinstance(operation, Insert) and operation.request in self.requests:
            request = self.requests[operation.request]
            pages, slot = self.pages_of(request).copy(), self.slot_of(request)
        self.contents.apply(outcome, columns)
        result = outcome.result
        match operation:
            case Admit():
                if isinstance(result, AdmitResult):
                    self._admitted(operation, result, columns)
            case Take():
                if isinstance(result, TakeResult):
                    self._taken(operation, result, columns)
            case Advance():
                if isinstance(result, Done | Freed):
                    self._advanced(operation)
            case Standing():
                if isinstance(result, Done):
                    for number in int64s(operation.remove):
                        self.standing.pop(number, None)
                    self.standing.update(dict.fromkeys(int64s(operation.add)))
            case Free():
                if isinstance(result, Freed):
                    for number in int64s(operation.requests):
                        self.waiting.pop(number, None)
                        self._gone(number)
            case Processed():
                if isinstance(result, Done):
                    self.processed_count = operation.step
            case Insert():
                if isinstance(result, Done):
                    self._insert(operation, pages, slot)
            case _:
                self._note_uses(operation, outcome, columns)

    def note_own(self, outcome: Outcome) -> None:
        """Take in an entry of the daemon's own; raises StressFailure."""
        self.contents.apply(outcome, columns_of(outcome))
        if isinstance(outcome.result, ReleasedResult):
            self.note_released(outcome.result)

    def note_released(self, result: ReleasedResult) -> None:
        """Take in what is over on every rank."""
        for number in result.copies:
            self._copy_ended(self.copies.pop(number), failed=number in result.failed_copies)
        for number in result.transfers:
            self._transfer_ended(self.transfers.pop(number))
        for number in result.quarantined:
            self.transfers[number].quarantined = self.transfers[number].failed = True

    def _copy_ended(self, copy: Copy, *, failed: bool) -> None:
        if not copy.loads:
            self.ended_backups.append(copy)
            return
        value = self.values.get(copy.value)
        if value is not None:
            value.loads.pop(copy.number, None)
            if failed:
                for index, virtual in copy.named.items():
                    self.contents.forget(index, virtual)

    def _transfer_ended(self, transfer: Transfer) -> None:
        owner = transfer.owner
        owner.transfers.pop(transfer.number, None)
        if not transfer.writes:
            return
        arrived = not transfer.failed and self._is_there(owner)
        bands = self.contents.bands
        for band, ids, tags in zip(bands, transfer.virtual, transfer.tags, strict=True):
            self.contents.unpin(band, ids)
            if arrived:
                bound = band.places[ids] > 0
                band.tags[ids[bound]] = tags[bound]

    def _is_there(self, owner: Request | Value) -> bool:
        holders = self.requests if isinstance(owner, Request) else self.values
        return holders.get(owner.number) is owner

    # ---- requests -------------------------------------------------------------------------------

    def _admitted(self, operation: Admit, result: AdmitResult, columns: list[Indices]) -> None:
        ids, prompts = int64s(operation.requests), int32s(operation.prompt_tokens)
        news = int32s(operation.new_tokens_max)
        takes = int32s(operation.take_tokens) or [0] * len(ids)
        self._retract(int64s(operation.victims), result.retracted, columns)
        verdicts, rows = columns[result.verdicts].tolist(), columns[result.rows].tolist()
        granted, chunks = columns[result.new_tokens].tolist(), columns[result.chunk_tokens].tolist()
        for place, number in enumerate(ids):
            self.waiting.pop(number, None)
            if verdicts[place] == Verdict.FITS:
                self.requests[number] = Request(
                    number,
                    row_index=rows[place],
                    prompt_tokens=prompts[place],
                    new_tokens=granted[place],
                    chunk_tokens=chunks[place],
                    tokens=min(takes[place], chunks[place]),
                )
            elif verdicts[place] == Verdict.WAIT:
                self.waiting[number] = Waiting(
                    number, prompt_tokens=prompts[place], new_tokens=news[place]
                )

    def _retract(self, victims: list[int], column: int, columns: list[Indices]) -> None:
        if column == NO_COLUMN:
            return
        for number in victims[: columns[column].size]:
            request = self.requests[number]
            self._gone(number)
            self.waiting[number] = Waiting(
                number, prompt_tokens=request.prompt_tokens, new_tokens=request.new_tokens
            )

    def _gone(self, number: int) -> None:
        self.standing.pop(number, None)
        self.requests.pop(number, None)

    def _named(self, operation: Take | Advance) -> list[int]:
        return int64s(operation.requests) if operation.requests else list(self.standing)

    def _taken(self, operation: Take, result: TakeResult, columns: list[Indices]) -> None:
        ids = self._named(operation)
        each = int32s(operation.tokens_each) or [operation.tokens] * len(ids)
        self._retract(int64s(operation.victims), result.retracted, columns)
        for number, tokens in zip(ids, each, strict=True):
            if number in self.requests:
                self.requests[number].tokens += tokens

    def _advanced(self, operation: Advance) -> None:
        ids = self._named(operation)
        each = int32s(operation.tokens_each) or [operation.tokens] * len(ids)
        for number, tokens in zip(ids, each, strict=True):
            self.requests[number].computed_tokens += tokens

    def readable_ids_of(
        self, owner: Request | Value, *, processed_count: int | None = None
    ) -> list[Indices]:
        """Return the virtual ids of somebody that hold something to copy or to send.

        A copy is behind whatever was launched; a peer reads what steps that are processed cleared.
        """
        ids, state = self.ids_of(owner), self.contents.state
        if state is not None and not all(
            self._is_cleared(slot, processed_count) for slot in ids[state.index].tolist()
        ):
            ids[state.index] = _NONE
        return ids

    def _is_cleared(self, slot: int, processed_count: int | None) -> bool:
        contents = self.contents
        if slot in contents.uncleared:
            return False
        return processed_count is None or contents.clearing_step.get(slot, 0) <= processed_count

    def has_uncleared(self, owner: Request | Value) -> bool:
        """Return whether a slot of somebody is to be cleared, or a step in flight clears it."""
        state = self.contents.state
        return state is not None and not all(
            self._is_cleared(slot, self.processed_count)
            for slot in self.ids_of(owner)[state.index].tolist()
        )

    # ---- values, copies, transfers --------------------------------------------------------------

    def pages_of(self, request: Request) -> Indices:
        """Return the virtual pages of a request, in the order of its tokens."""
        row = request.row_index
        count = -(-request.tokens // self.contents.plan.page_tokens)
        return self.contents.row_pages[row, :count]

    def slot_of(self, request: Request) -> int:
        """Return the state slot of a request; 0 for none."""
        return int(self.contents.row_slots[request.row_index])

    def ids_of(self, owner: Request | Value) -> list[Indices]:
        """Return the virtual ids that a request or a value holds, per band."""
        if isinstance(owner, Request):
            pages, slot = self.pages_of(owner), self.slot_of(owner)
        else:
            pages, slot = owner.pages, owner.slot
        ids: list[Indices] = []
        for band in self.contents.bands:
            if band is self.contents.state:
                ids.append(np.array([slot] if slot else [], dtype=np.int64))
            else:
                ids.append(pages[band.places[pages] > 0])
        return ids

    def _note_uses(self, operation: Operation, outcome: Outcome, columns: list[Indices]) -> None:
        result = outcome.result
        if not isinstance(result, Done | Freed | Resolved):
            return
        match operation:
            case Evict():
                for number in int64s(operation.values):
                    del self.values[number]
            case LoadReserve():
                copy = Copy(operation.load, operation.value_id, loads=True, units=operation.units)
                self.copies[operation.load] = copy
                self.values[operation.value_id].loads[operation.load] = copy
            case LoadName():
                copy = self.copies[operation.load]
                virtual = np.frombuffer(operation.virtual, dtype="<i8").astype(np.int64)
                before = copy.named.get(operation.band, _NONE)
                copy.named[operation.band] = np.concatenate((before, virtual))
            case LoadSubmit():
                copy = self.copies[operation.load]
                copy.submitted = True
                for band, virtual in copy.named.items():
                    self.contents.bands[band].tags[virtual] = copy.tags[band]
            case LoadCancel():
                copy = self.copies.pop(operation.load)
                self.values[copy.value].loads.pop(operation.load)
            case BackupSubmit():
                self._backup(self.proposed_copies.pop(operation.backup))
            case Hold():
                self._transfer(self.proposed_transfers.pop(operation.transfer))
            case Post():
                assert isinstance(result, Resolved)
                transfer = self.proposed_transfers.pop(operation.transfer)
                self._transfer(transfer)
                self._tell_peer(transfer, result, columns)
            case Publish():
                if isinstance(result, Resolved):
                    self._tell_peer(self.transfers[operation.transfer], result, columns)
            case CancelHold():
                transfer = self.transfers.pop(operation.transfer)
                transfer.owner.transfers.pop(operation.transfer)
            case _:
                pass

    def _backup(self, copy: Copy) -> None:
        copy.submitted = True
        self.copies[copy.number] = copy
        for index, virtual in copy.named.items():
            band = self.contents.bands[index]
            copy.words[index] = band.expected_words(virtual).reshape(virtual.size, -1)

    def _transfer(self, transfer: Transfer) -> None:
        self.transfers[transfer.number] = transfer
        transfer.owner.transfers[transfer.number] = transfer

    def _tell_peer(self, transfer: Transfer, result: Resolved, columns: list[Indices]) -> None:
        """Let a peer know where units lie; raises StressFailure if that is not where they are."""
        transfer.published = True
        starts: list[tuple[Indices, int]] = []
        words: list[Tags] = []
        for band, ids, column in zip(
            self.contents.bands, transfer.virtual, result.physical, strict=True
        ):
            units = _NONE if column == NO_COLUMN else columns[column]
            if not np.array_equal(units, band.places[ids]):
                raise StressFailure(
                    CheckName.MAPS,
                    f"transfer {transfer.number} was told units {units.tolist()} of band "
                    f"{band.name}; its ids lie in {band.places[ids].tolist()}",
                )
            tags = np.zeros((ids.size, band.entries_count), dtype=np.int64)
            if transfer.writes:
                tags = self.contents.new_tags(tags.size).reshape(tags.shape)
                transfer.tags.append(tags)
                why = f"transfer {transfer.number} told a peer where it lies"
                self.contents.pin(band, ids, why)
            if not ids.size:
                continue
            starts.append((units * band.unit_bytes, band.unit_bytes))
            if transfer.writes:
                words.append(np.repeat(tags, band.entry_words_count, axis=1))
                band.tags[ids] = UNKNOWN
            else:
                words.append(band.expected_words(ids).reshape(ids.size, band.words.size))
        self.peers.append(PeerPlan(TransferNumber(transfer.number), starts, words, transfer.writes))

    def _insert(self, operation: Insert, pages: Indices, slot: int) -> None:
        """Make a value of a request, whose pages were looked up before its end."""
        request = self.requests[operation.request]
        self._gone(operation.request)
        value = Value(operation.value_id, pages, slot, step=request.step)
        value.transfers = request.transfers
        for transfer in value.transfers.values():
            transfer.owner = value
        self.values[operation.value_id] = value
