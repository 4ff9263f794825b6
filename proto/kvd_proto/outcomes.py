"""Outcomes: what an entry of the log decided, as a logical result and as effects for the device.

Ids travel once, as columns: little-endian int32 arrays laid end to end in ``Outcome.columns`` with
their lengths in ``Outcome.lengths``. A result or an effect names a column by its place in that
list, so effects refer to what the result granted instead of repeating it; ``NO_COLUMN`` is none.
"""

from enum import IntEnum, StrEnum
from typing import NewType, TypeAlias

import msgspec

Column = NewType("Column", int)
"""Index of a column in ``Outcome.columns``."""

NO_COLUMN = Column(-1)


class Verdict(IntEnum):
    """Answer to one admitted request."""

    FITS = 0
    """The whole demand is promised: its takes succeed."""
    WAIT = 1
    """It does not fit now, and something outstanding will give memory back."""
    UNSCHEDULABLE = 2
    """It fits no empty arena, or nothing outstanding could ever make it fit."""


class Reason(StrEnum):
    """Why a demand was refused."""

    NO_BYTES = "NO_BYTES"
    """No layout of the arena holds what is live, promised and asked."""
    TRANSFERS = "TRANSFERS"
    """A layout exists, but only once transfers have let go of the pages they read or write."""
    NO_IDS = "NO_IDS"
    """The owner's virtual pages, or the state band's slots, are all in use or promised."""
    NO_ROWS = "NO_ROWS"
    """Every request row is in use."""
    TOO_LONG = "TOO_LONG"
    """The request is longer than the context length that the stage was sized for."""


# ---- effects --------------------------------------------------------------------------------


class Effect(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all effects: one thing that the rank's device must do, in order."""


class Zero(Effect, frozen=True, array_like=True, tag="zero"):
    """Fill whole units of a band with zero bytes; ``units`` is a column of physical units."""

    band: int
    units: Column


class WriteMap(Effect, frozen=True, array_like=True, tag="write_map"):
    """Write a band's virtual-to-physical map; without a ``physical`` column: the sink."""

    band: int
    virtual: Column
    physical: Column = NO_COLUMN


class WriteRows(Effect, frozen=True, array_like=True, tag="write_rows"):
    """Write virtual pages into the request table at (row, place), column by column."""

    rows: Column
    places: Column
    virtual: Column


class WriteSlots(Effect, frozen=True, array_like=True, tag="write_slots"):
    """Write the virtual state slots of request rows."""

    rows: Column
    virtual: Column


class Move(Effect, frozen=True, array_like=True, tag="move"):
    """Copy whole units of a band; sources and destinations are disjoint columns."""

    band: int
    sources: Column
    destinations: Column


class Wait(Effect, frozen=True, array_like=True, tag="wait"):
    """Make the allocator stream wait for a step of this rank, or for one of its copies.

    One of the two numbers is 0, which names nothing.
    """

    step: int = 0
    copy: int = 0


class ResetRows(Effect, frozen=True, array_like=True, tag="reset_rows"):
    """Have the next launch reset the request-scoped device state of rows, on its own stream."""

    rows: Column


class ClearSlots(Effect, frozen=True, array_like=True, tag="clear_slots"):
    """Have the next launch clear state slots before its kernels, on its own stream.

    A slot that moves before is cleared where it went; one whose bytes are zeroed, loaded or moved
    over before is left alone.
    """

    units: Column


class CopyStream(StrEnum):
    """Streams that copy between arena and host pools, beside the allocator's and the forward's."""

    LOAD = "load"
    """Host to device."""
    BACKUP = "backup"
    """Device to host."""


class Copy(Effect, frozen=True, array_like=True, tag="copy"):
    """Copy units between the arena and a host pool on a stream of its own.

    It runs behind all forwards launched and all effects before it. Effects with the same number are
    one copy, whose end the rank reports. A copy is never redone.
    """

    copy: int
    stream: CopyStream
    band: int
    units: Column
    host_units: Column


class ZeroSink(Effect, frozen=True, array_like=True, tag="zero_sink"):
    """Fill the sink with zero bytes."""


AnyEffect: TypeAlias = (
    Zero
    | WriteMap
    | WriteRows
    | WriteSlots
    | Move
    | Wait
    | ResetRows
    | ClearSlots
    | Copy
    | ZeroSink
)
EFFECT_TYPES: tuple[type[Effect], ...] = (
    Zero,
    WriteMap,
    WriteRows,
    WriteSlots,
    Move,
    Wait,
    ResetRows,
    ClearSlots,
    Copy,
    ZeroSink,
)
Segment: TypeAlias = tuple[AnyEffect, ...]


# ---- results --------------------------------------------------------------------------------


class Result(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all results: the logical answer to one entry."""


class Done(Result, frozen=True, array_like=True, tag="done"):
    """The entry took effect and there is nothing to say about it."""


class Refusal(Result, frozen=True, array_like=True, tag="refusal"):
    """An expected no: nothing was changed, and this is why.

    ``request`` is the request it is about (0: the operation as a whole). ``short_units`` and
    ``short_bytes`` are what the named band lacks (0 where a number would mislead). ``obstacle``
    says what is in the way and ``remover`` who could remove it.
    """

    reason: Reason
    stage: int
    band: str = ""
    request: int = 0
    short_units: int = 0
    short_bytes: int = 0
    obstacle: str = ""
    remover: str = ""
    waiting_helps: bool = False


class AdmitResult(Result, frozen=True, array_like=True, tag="admitted"):
    """Verdicts, one each in the order asked, and a refusal for each that is not FITS.

    ``verdicts`` and ``rows`` are columns; the row of a request that does not fit is 0. So are
    ``new_tokens``, what memory can ever grant each request beside its prompt, and ``chunk_tokens``,
    the most that it may take at once. The other columns are those of a take, for the chunks granted
    with the verdict. ``retracted`` are the rows that victims lost, in the order in which they were
    retracted; a row among them may have been given to a request that fits.
    """

    verdicts: Column
    rows: Column
    new_tokens: Column
    chunk_tokens: Column
    refusals: tuple[Refusal, ...] = ()
    page_rows: Column = NO_COLUMN
    page_places: Column = NO_COLUMN
    virtual: Column = NO_COLUMN
    physical: tuple[Column, ...] = ()
    retracted: Column = NO_COLUMN


class TakeResult(Result, frozen=True, array_like=True, tag="taken"):
    """The pages granted: for each its row, its place in the row and its virtual page.

    ``physical`` holds one column per band in chain order; a state band's column lists slots, a band
    without new units has ``NO_COLUMN``. All are ``NO_COLUMN`` when no request crossed a page.
    ``retracted`` are the rows that victims lost, in the order in which they were retracted.
    """

    page_rows: Column = NO_COLUMN
    page_places: Column = NO_COLUMN
    virtual: Column = NO_COLUMN
    physical: tuple[Column, ...] = ()
    retracted: Column = NO_COLUMN


class Freed(Result, frozen=True, array_like=True, tag="freed"):
    """Units that came back per band, chain order."""

    units: tuple[int, ...]


class Resolved(Result, frozen=True, array_like=True, tag="resolved"):
    """Where units lie now: one column per band in chain order, ``NO_COLUMN`` for none.

    The ids may leave the process when every rank whose memory they name has confirmed this entry's
    position. ``move_epoch`` tells later whether anything moved since.
    """

    physical: tuple[Column, ...]
    move_epoch: int


class Pump(Result, frozen=True, array_like=True, tag="pump"):
    """Nothing was changed: these transfers are in the way and have to end first.

    The caller lets them make progress and asks again; their ends arrive as facts.
    """

    transfers: tuple[int, ...]


class ReleasedResult(Result, frozen=True, array_like=True, tag="released"):
    """What the daemon's entry of the same name says, told to ranks: what is over on all of them.

    Those in ``quarantined`` are not over: they failed without proof that their peer let go.
    """

    copies: tuple[int, ...] = ()
    failed_copies: tuple[int, ...] = ()
    transfers: tuple[int, ...] = ()
    quarantined: tuple[int, ...] = ()


class Skipped(Result, frozen=True, array_like=True, tag="skipped"):
    """Not decided, because it names a request whose admission in this batch was refused."""

    request: int


class NotRun(Result, frozen=True, array_like=True, tag="not_run"):
    """Not decided, because an earlier operation of the batch was wrong use."""


class Failed(Result, frozen=True, array_like=True, tag="failed"):
    """Wrong use: nothing was changed, and the rest of the batch was not run."""

    code: str
    message: str


AnyResult: TypeAlias = (
    Done
    | Refusal
    | AdmitResult
    | TakeResult
    | Freed
    | Resolved
    | Pump
    | ReleasedResult
    | Skipped
    | NotRun
    | Failed
)
RESULT_TYPES: tuple[type[Result], ...] = (
    Done,
    Refusal,
    AdmitResult,
    TakeResult,
    Freed,
    Resolved,
    Pump,
    ReleasedResult,
    Skipped,
    NotRun,
    Failed,
)


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """One entry's result and effects, with the columns they refer to.

    The effects of a segment can be redone together harmlessly: none of them writes bytes that an
    earlier one of the same segment reads.
    """

    result: AnyResult
    segments: tuple[Segment, ...] = ()
    lengths: tuple[int, ...] = ()
    columns: bytes = b""


FACT_PROGRAM = -1
"""Stands where an entry's program would stand, for a fact."""

OWN_PROGRAM = -2
"""Stands where an entry's program would stand, for the daemon's own entries."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the log as ranks receive it.

    ``digest`` is that of the decided body, so that a mirrored rank compares it with the operation
    it sent before it applies anything.
    """

    program: int
    index: int
    digest: int
    outcome: Outcome


class BatchReply(msgspec.Struct, frozen=True, array_like=True):
    """All entries behind the rank's cursor, oldest first; the first stands at ``position``."""

    position: int
    entries: tuple[Entry, ...]
