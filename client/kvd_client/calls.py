"""Building requests: id lists, the operations of a batch, messages. No I/O.

Both clients are thin shells over this module and `kvd_client.session`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec
import numpy as np

from kvd_client.arrays import id_array
from kvd_client.errors import ReplyError, StepOrderError, UsageError
from kvd_client.page_calls import CheckPlaces, PageCalls
from kvd_client.results import (
    NO_COLUMNS,
    NONE,
    Admitted,
    Columns,
    Handle,
    Int64s,
    Taken,
    column,
    granted,
)
from kvd_proto.codec import decode_operation, encode, join_batch, split_batch
from kvd_proto.errors import FrameError
from kvd_proto.operations import (
    Admit,
    Advance,
    BatchEnd,
    Free,
    Idle,
    Launch,
    Operation,
    Processed,
    Relief,
    Standing,
    Take,
)
from kvd_proto.outcomes import NO_COLUMN, AdmitResult, AnyResult, Done, Failed, Freed, TakeResult

T = TypeVar("T")
INT32_MAX = 2**31 - 1


class StandingSet(Enum):
    """Type of `STANDING`."""

    STANDING = "standing"


STANDING: Final = StandingSet.STANDING
"""Stands for the program's standing set, in the order of joining, wherever ids are asked for."""

Ids = Sequence[int] | Int64s | StandingSet
"""Request ids: a sequence, an int64 array, or `STANDING`."""

Tokens = int | Sequence[int] | Int64s
"""A token count for all requests, or one for each."""


class CheckProcessed(Protocol):
    """Raises StepOrderError unless a step may be reported as processed now."""

    def __call__(self, step: int, *, ahead: int) -> None:
        """Check ``step``, where ``ahead`` such notices are in the batch already."""


class Call(msgspec.Struct, frozen=True):
    """One operation as this client understands it, beside its encoded bytes.

    ``ids`` is None for the standing set; ``removed`` holds the ids that leave it, or the victims
    of a take or an admit.
    """

    operation: Operation
    encoded: bytes
    handle: Handle[Any] | None = None
    ids: Int64s | None = None
    tokens: Int64s | int = 0
    removed: Int64s | None = None


def _count_bytes(counts: Int64s, what: str) -> bytes:
    """Encode token counts as int32; raises UsageError naming a count out of range."""
    odd = counts[(counts < 0) | (counts > INT32_MAX)]
    if odd.size:
        raise UsageError(f"{what}: {int(odd[0])} is outside [0, {INT32_MAX}]")
    return counts.astype("<i4").tobytes()


def _each(tokens: Sequence[int] | Int64s, ids: Int64s, what: str) -> Int64s:
    """Return one count per id; raises UsageError if there are more or fewer."""
    counts = id_array(tokens)
    if len(counts) != len(ids):
        raise UsageError(f"{what}: {len(counts)} token counts for {len(ids)} requests")
    return counts


def _ascending(ids: Int64s) -> bool:
    """Tell whether ids ascend already (a repetition counts as ascending; the daemon names it)."""
    return len(ids) < 2 or not np.count_nonzero(ids[1:] < ids[:-1])


def _sort(ids: Int64s, tokens: Tokens, what: str) -> tuple[Int64s, Int64s | int]:
    """Sort ids and the counts that belong to them, so that all ranks send the same bytes."""
    counts = tokens if isinstance(tokens, int) else _each(tokens, ids, what)
    if _ascending(ids):
        return ids, counts
    order = np.argsort(ids, kind="stable")
    return ids[order], counts if isinstance(counts, int) else counts[order]


class Batch(PageCalls):
    """Operations of one scheduler pass, in the order of the calls; sent when the block ends.

    Every method returns a handle to call after the block. An empty list of requests adds no
    operation: on the wire it would mean the standing set.
    """

    def __init__(
        self,
        bands: tuple[str, ...],
        check_processed: "CheckProcessed",
        check_places: CheckPlaces,
    ) -> None:
        self._bands = bands
        self._check_processed = check_processed
        self._check_places = check_places
        self._open = True
        self._sent: tuple[int, int, bytes] | None = None
        """Program, index of the first operation and body, once the batch is on its way."""
        self.failed: Failed | None = None
        """The first of its operations that was wrong use, once the answer is applied."""
        self.notices: list[Call] = []
        self.calls: list[Call] = []
        self.processed_steps: list[int] = []
        self.idles = False

    def processed(self, step: int) -> Handle[Done]:
        """State that a step is over and its results were handled; comes before all else.

        Raises StepOrderError if it does not, or if the step is not the next one to be processed.
        """
        self._check_open("processed")
        if self.calls:
            raise StepOrderError(
                f"processed({step}) after {len(self.calls)} other operations: notices head a batch"
            )
        self._check_processed(step, ahead=len(self.processed_steps))
        self.processed_steps.append(step)
        handle = Handle("processed", _read_done)
        operation = Processed(step)
        self.notices.append(Call(operation, encode(operation), handle))
        return handle

    def free(self, ids: Sequence[int] | Int64s) -> Handle[Freed]:
        """End requests: their pages, slots, rows and reservations come back."""
        array, _ = _sort(id_array(ids), 0, "free")
        handle = Handle("free", _read_freed)
        if not len(array):
            return self._empty(handle, Freed(units=(0,) * len(self._bands)))
        return self._add(Free(array.tobytes()), handle, ids=array)

    def standing(
        self, add: Sequence[int] | Int64s = (), remove: Sequence[int] | Int64s = ()
    ) -> Handle[Done]:
        """Change the standing set; freed requests leave it by themselves."""
        added, _ = _sort(id_array(add), 0, "standing")
        removed, _ = _sort(id_array(remove), 0, "standing")
        handle = Handle("standing", _read_done)
        if not len(added) and not len(removed):
            return self._empty(handle, Done())
        operation = Standing(added.tobytes(), removed.tobytes())
        return self._add(operation, handle, ids=added, removed=removed)

    def advance(self, ids: Ids, tokens: Tokens = 1) -> Handle[Freed | Done]:
        """State that requests have computed more tokens; rows that left their windows are freed."""
        handle: Handle[Freed | Done] = Handle("advance", _read_progress)
        array, counts, each = self._growth(ids, tokens, "advance")
        if array is not None and not len(array):
            return self._empty(handle, Done())
        operation = Advance(
            requests=b"" if array is None else array.tobytes(),
            tokens=counts if isinstance(counts, int) else 1,
            tokens_each=each,
        )
        return self._add(operation, handle, ids=array, tokens=counts)

    def take(
        self, ids: Ids, tokens: Tokens = 1, *, victims: Sequence[int] | Int64s = ()
    ) -> Handle[Taken]:
        """Grow requests by tokens, all or nothing; the pages granted are ready to be written.

        Where there is no room, ``victims`` are retracted in the order given until there is. A
        retracted request has ended and takes nothing; it may be admitted again under its id.
        """
        leaving = id_array(victims)
        handle = Handle("take", partial(self._read_taken, leaving))
        array, counts, each = self._growth(ids, tokens, "take")
        if array is not None and not len(array):
            return self._empty(handle, TakeResult())
        operation = Take(
            requests=b"" if array is None else array.tobytes(),
            tokens=counts if isinstance(counts, int) else 1,
            tokens_each=each,
            victims=leaving.tobytes(),
        )
        return self._add(operation, handle, ids=array, tokens=counts, removed=leaving)

    def admit(
        self,
        ids: Sequence[int] | Int64s,
        *,
        prompt_tokens: Sequence[int] | Int64s,
        new_tokens_max: Sequence[int] | Int64s,
        take_tokens: Sequence[int] | Int64s | None = None,
        chunk_tokens: int = 0,
        reserve_batches: int = 0,
        growth_permille: int = 0,
        victims: Sequence[int] | Int64s = (),
    ) -> Handle[Admitted]:
        """Introduce requests and ask for their whole demand, in the order given.

        ``take_tokens`` names the chunk each gets at once if it fits. What is promised is held back
        for ``reserve_batches`` batches, 0: until the request is freed; ``growth_permille`` of what
        requests with lapsed promises may still grow is counted against the new ones.

        A request that does not fit now retracts the fewest ``victims``, in the order given, whose
        end makes room for its whole demand, and nobody if none does.
        """
        array = id_array(ids)
        leaving = id_array(victims)
        handle = Handle("admit", partial(self._read_admitted, leaving))
        if not len(array):
            return self._empty(handle, AdmitResult(NO_COLUMN, NO_COLUMN, NO_COLUMN, NO_COLUMN))
        taken = NONE if take_tokens is None else _each(take_tokens, array, "admit take_tokens")
        operation = Admit(
            requests=array.tobytes(),
            prompt_tokens=_count_bytes(
                _each(prompt_tokens, array, "admit prompt_tokens"), "prompt_tokens"
            ),
            new_tokens_max=_count_bytes(
                _each(new_tokens_max, array, "admit new_tokens_max"), "new_tokens_max"
            ),
            take_tokens=_count_bytes(taken, "take_tokens"),
            chunk_tokens=chunk_tokens,
            reserve_batches=reserve_batches,
            growth_permille=growth_permille,
            victims=leaving.tobytes(),
        )
        return self._add(operation, handle, ids=array, tokens=taken, removed=leaving)

    def relief(self, units: Sequence[int]) -> Handle[Freed | Done]:
        """Make room for a demand in units per band, chain order, without taking it."""
        if len(units) != len(self._bands):
            raise UsageError(f"relief: {len(units)} unit counts for bands {self._bands}")
        handle: Handle[Freed | Done] = Handle("relief", _read_progress)
        return self._add(Relief(tuple(id_array(units).tolist())), handle)

    def idle(self) -> Handle[Done]:
        """State that nothing is launched before the next batch."""
        self.idles = True
        return self._add(Idle(), Handle("idle", _read_done))

    def record(self) -> bytes:
        """Return what followers need to follow this batch; raises UsageError before it was sent."""
        if self._sent is None:
            raise UsageError("a batch has a record only after it was sent")
        return encode(self._sent)

    def close(self) -> None:
        """End the block: no operation can be added any more."""
        self._open = False

    def seal(
        self, program: int, index: int, launches: Sequence[Launch]
    ) -> tuple[list[Call], bytes]:
        """Return all operations, notices first and the end of the batch last, and their body."""
        heads = [Call(launch, encode(launch)) for launch in launches]
        calls = [*heads, *self.notices, *self.calls, _BATCH_END]
        body = join_batch([call.encoded for call in calls])
        self._sent = (program, index, body)
        return calls, body

    @property
    def handles(self) -> list[Handle[Any]]:
        """Return the handles that wait for an answer."""
        calls = [*self.notices, *self.calls]
        return [call.handle for call in calls if call.handle is not None]

    def _growth(
        self, ids: Ids, tokens: Tokens, what: str
    ) -> tuple[Int64s | None, Int64s | int, bytes]:
        """Return ids (None: the standing set), counts, and the counts encoded where they differ."""
        if isinstance(tokens, int) and not 0 <= tokens <= INT32_MAX:
            raise UsageError(f"{what}: {tokens} tokens are outside [0, {INT32_MAX}]")
        if isinstance(ids, StandingSet):
            if isinstance(tokens, int):
                return None, tokens, b""
            counts = id_array(tokens)
            return None, counts, _count_bytes(counts, what)
        array, each = _sort(id_array(ids), tokens, what)
        return array, each, b"" if isinstance(each, int) else _count_bytes(each, what)

    def _add(
        self,
        operation: Operation,
        handle: Handle[T],
        *,
        ids: Int64s | None = None,
        tokens: Int64s | int = 0,
        removed: Int64s | None = None,
    ) -> Handle[T]:
        self._check_open(handle.name)
        self.calls.append(Call(operation, encode(operation), handle, ids, tokens, removed))
        return handle

    def _empty(self, handle: Handle[T], result: AnyResult) -> Handle[T]:
        """Answer an operation about no request here: there is nothing to ask."""
        self._check_open(handle.name)
        handle.settle(result, NO_COLUMNS)
        return handle

    def _check_open(self, name: str) -> None:
        if not self._open:
            raise UsageError(f"{name}: the batch block has ended")

    def _read_taken(self, victims: Int64s, result: AnyResult, columns: Columns) -> Taken:
        if not isinstance(result, TakeResult):
            raise ReplyError(f"take answered by {type(result).__name__}")
        retracted = victims[: len(column(columns, result.retracted))]
        return replace(granted(result, columns, self._bands), retracted=retracted)

    def _read_admitted(self, victims: Int64s, result: AnyResult, columns: Columns) -> Admitted:
        if not isinstance(result, AdmitResult):
            raise ReplyError(f"admit answered by {type(result).__name__}")
        return Admitted(
            verdicts=column(columns, result.verdicts),
            rows=column(columns, result.rows),
            new_tokens=column(columns, result.new_tokens),
            chunk_tokens=column(columns, result.chunk_tokens),
            refusals=result.refusals,
            taken=granted(result, columns, self._bands),
            retracted=victims[: len(column(columns, result.retracted))],
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """One operation of a leader's record, for the follower that meets it in the log."""

    program: int
    index: int
    call: Call


class _Record(msgspec.Struct, frozen=True, array_like=True):
    program: int
    index: int
    body: bytes


_record_decoder = msgspec.msgpack.Decoder(_Record)


def read_record(record: bytes) -> list[Recorded]:
    """Read what `Batch.record` returned; raises UsageError if it is something else."""
    try:
        head = _record_decoder.decode(record)
        encoded = [bytes(raw) for raw in split_batch(head.body)]
        calls = [read_call(one) for one in encoded]
    except (msgspec.DecodeError, FrameError, ValueError) as error:
        raise UsageError(f"record of {len(record)} bytes cannot be read: {error}") from error
    return [Recorded(head.program, head.index + offset, call) for offset, call in enumerate(calls)]


def read_call(encoded: bytes) -> Call:
    """Read one encoded operation back into what the tables need to know; raises FrameError."""
    operation = decode_operation(encoded)
    if isinstance(operation, Admit):
        admitted = np.frombuffer(operation.requests, "<i8")
        return Call(operation, encoded, ids=admitted, tokens=_counts(operation.take_tokens))
    if isinstance(operation, (Take, Advance)):
        ids = np.frombuffer(operation.requests, "<i8") if operation.requests else None
        each = operation.tokens_each
        return Call(operation, encoded, ids=ids, tokens=_counts(each) if each else operation.tokens)
    if isinstance(operation, Free):
        return Call(operation, encoded, ids=np.frombuffer(operation.requests, "<i8"))
    if isinstance(operation, Standing):
        added = np.frombuffer(operation.add, "<i8")
        return Call(operation, encoded, ids=added, removed=np.frombuffer(operation.remove, "<i8"))
    return Call(operation, encoded)


def _counts(encoded: bytes) -> Int64s:
    return np.frombuffer(encoded, "<i4").astype(np.int64)


def _read_done(result: AnyResult, _columns: Columns) -> Done:
    if not isinstance(result, Done):
        raise ReplyError(f"a notice was answered by {type(result).__name__}")
    return result


def _read_freed(result: AnyResult, _columns: Columns) -> Freed:
    if not isinstance(result, Freed):
        raise ReplyError(f"free answered by {type(result).__name__}")
    return result


def _read_progress(result: AnyResult, _columns: Columns) -> Freed | Done:
    if not isinstance(result, (Freed, Done)):
        raise ReplyError(f"advance or relief answered by {type(result).__name__}")
    return result


_BATCH_END = Call(BatchEnd(), encode(BatchEnd()))
