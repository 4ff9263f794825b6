"""Who is there: requests, values, copies and transfers as a scheduler knows them, by the log.

Everything here follows from operations and their outcomes, in the order in which they were decided.
"""

from dataclasses import dataclass, field

import numpy as np

from kvd.testing.stress.contents import Contents, Indices, Tags
from kvd_proto.operations import (
    Admit,
    Advance,
    BackupSubmit,
    CancelHold,
    Evict,
    Free,
    Hold,
    Insert,
    Launch,
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


def int64s(encoded: bytes) -> list[int]:
    """Return the ids of an operation."""
    ids: list[int] = np.frombuffer(encoded, dtype="<i8").tolist()
    return ids


def int32s(encoded: bytes) -> list[int]:
    """Return the token counts of an operation."""
    counts: list[int] = np.frombuffer(encoded, dtype="<i4").tolist()
    return counts


@dataclass(slots=True)
class Request:
    """A request that holds a row."""

    number: int
    row_index: int
    prompt_tokens: int
    new_tokens: int
    """The most that memory grants it beside its prompt."""
    chunk_tokens: int
    """The most that it may take at once."""
    lapses: bool
    """Whether its promise may lapse."""
    tokens: int = 0
    computed_tokens: int = 0
    step: int = 0
    """The newest step that it ran in."""
    transfers: dict[int, bool] = field(default_factory=dict[int, bool])
    """Open transfers of its pages; True for those that a peer writes, or is to write."""

    @property
    def held(self) -> bool:
        """Return whether a peer writes it, or is to."""
        return any(self.transfers.values())


@dataclass(slots=True)
class Waiting:
    """A request that was told to wait, or was retracted."""

    number: int
    prompt_tokens: int
    new_tokens: int


@dataclass(slots=True)
class Value:
    """Pages that outlived their request."""

    number: int
    pages: Indices
    slot: int
    step: int
    """The newest step that reads or writes it."""
    transfers: dict[int, bool] = field(default_factory=dict[int, bool])
    load: int = 0
    """The load into it that is not submitted."""
    filling: dict[int, dict[int, Indices]] = field(default_factory=dict[int, dict[int, Indices]])
    """By load and band: pages that are named for it and not over."""
    spoiled: bool = False

    @property
    def held(self) -> bool:
        """Return whether a peer writes it, or is to."""
        return any(self.transfers.values())


@dataclass(slots=True)
class Copy:
    """A load or a backup that is open."""

    number: int
    value: int
    loads: bool
    units: tuple[int, ...] = ()
    """Units that a load reserved, per band."""
    named: dict[int, Indices] = field(default_factory=dict[int, Indices])
    """Per band: the virtual ids that it writes or reads."""
    places: dict[int, Indices] = field(default_factory=dict[int, Indices])
    """Per band: places of the host pool."""
    words: dict[int, Tags] = field(default_factory=dict[int, Tags])
    """Per band: words that are copied, a unit per row; tags of entries for a load."""
    submitted: bool = False


@dataclass(slots=True)
class Transfer:
    """A transfer that is not over."""

    number: int
    owner: Request | Value
    virtual: list[Indices]
    writes: bool
    published: bool
    tags: list[Tags] = field(default_factory=list[Tags])
    """Per band: tags of the entries that a peer writes."""
    failed: bool = False
    quarantined: bool = False


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
        self.launched_count = 0
        """Steps whose notices were decided."""
        self.processed_count = 0
        self.next_number = {"request": 1, "value": 1, "copy": 1, "transfer": 1}
        self.released: list[tuple[Copy | Transfer, bool]] = []
        """What the log said to be over since it was looked at last; True where it failed."""
        self.retracted_count = 0

    def take_number(self, kind: str) -> int:
        """Return the next number of a kind."""
        number = self.next_number[kind]
        self.next_number[kind] = number + 1
        return number

    def note(self, operation: Operation, outcome: Outcome, columns: list[Indices]) -> None:
        """Take in what was decided; what was refused changes nothing but who waits."""
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
                for number in int64s(operation.remove):
                    self.standing.pop(number, None)
                self.standing.update(dict.fromkeys(int64s(operation.add)))
            case Free():
                if isinstance(result, Freed):
                    for number in int64s(operation.requests):
                        self.waiting.pop(number, None)
                        self._gone(number)
            case Launch():
                self.launched_count = operation.step
            case Processed():
                self.processed_count = operation.step
            case _:
                self._note_uses(operation, outcome)

    def note_released(self, result: ReleasedResult) -> None:
        """Take in what is over on every rank."""
        for number in result.copies:
            copy = self.copies.pop(number)
            self.released.append((copy, number in result.failed_copies))
            value = self.values.get(copy.value)
            if copy.loads and value is not None:
                value.filling.pop(number, None)
        for number in result.transfers:
            transfer = self.transfers.pop(number)
            transfer.owner.transfers.pop(number, None)
            self.released.append((transfer, transfer.failed))
        for number in result.quarantined:
            self.transfers[number].quarantined = True

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
                    number=number,
                    row_index=rows[place],
                    prompt_tokens=prompts[place],
                    new_tokens=granted[place],
                    chunk_tokens=chunks[place],
                    lapses=operation.reserve_batches > 0,
                    tokens=min(takes[place], chunks[place]),
                )
            elif verdicts[place] == Verdict.WAIT:
                self.waiting[number] = Waiting(number, prompts[place], news[place])

    def _retract(self, victims: list[int], column: int, columns: list[Indices]) -> None:
        if column == NO_COLUMN:
            return
        for number in victims[: columns[column].size]:
            request = self.requests[number]
            self._gone(number)
            self.waiting[number] = Waiting(number, request.prompt_tokens, request.new_tokens)
            self.retracted_count += 1

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

    def _note_uses(self, operation: Operation, outcome: Outcome) -> None:
        if not isinstance(outcome.result, Done | Freed | Resolved):
            return
        match operation:
            case Evict():
                for number in int64s(operation.values):
                    del self.values[number]
            case LoadReserve():
                copy = Copy(operation.load, operation.value_id, loads=True, units=operation.units)
                self.copies[operation.load] = copy
                self.values[operation.value_id].load = operation.load
            case LoadName():
                copy = self.copies[operation.load]
                virtual = np.frombuffer(operation.virtual, dtype="<i8").astype(np.int64)
                before = copy.named.get(operation.band, _NONE)
                copy.named[operation.band] = np.concatenate((before, virtual))
                self.values[copy.value].filling[operation.load] = copy.named
            case LoadSubmit():
                copy = self.copies[operation.load]
                copy.submitted = True
                self.values[copy.value].load = 0
            case LoadCancel():
                copy = self.copies.pop(operation.load)
                self.values[copy.value].load = 0
                self.values[copy.value].filling.pop(operation.load, None)
            case BackupSubmit():
                self.copies[operation.backup].submitted = True
            case Hold() | Post():
                transfer = self.transfers[operation.transfer]
                transfer.owner.transfers[operation.transfer] = transfer.writes
                transfer.published = not transfer.writes
            case Publish():
                self.transfers[operation.transfer].published = isinstance(outcome.result, Resolved)
            case CancelHold():
                transfer = self.transfers.pop(operation.transfer)
                transfer.owner.transfers.pop(operation.transfer, None)
            case _:
                pass

    def note_insert(self, operation: Insert, pages: Indices, slot: int, step: int) -> None:
        """Make a value of a request, whose pages were looked up before its end."""
        request = self.requests[operation.request]
        self._gone(operation.request)
        value = Value(operation.value_id, pages, slot, step)
        value.transfers = request.transfers
        for number in request.transfers:
            self.transfers[number].owner = value
        self.values[operation.value_id] = value
