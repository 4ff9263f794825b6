"""Operations: what a program asks of its stage, each logged, numbered and compared singly.

Lists of request ids are raw little-endian int64 arrays, token counts raw little-endian int32 ones.
An operation whose ``requests`` is empty means the program's standing set: the requests that its
``standing`` operations put there and that are not freed. Nothing in a body names a process, a
rank, a clock or a host.

Values, copies and transfers are named by numbers that the program chooses: positive, and each
higher than all of its kind before it, so that no number means two things in an incarnation. Loads
and backups are both copies. Lists per band stand in chain order, with an empty entry for a band
that has no part in it; virtual ids are pages, or slots in a state band, as raw little-endian int64
arrays.
"""

from enum import IntEnum
from typing import TypeAlias

import msgspec


class Operation(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all operations."""


class Admit(Operation, frozen=True, array_like=True, tag="admit"):
    """Introduce requests and ask for their whole demand; each gets a verdict of its own.

    ``take_tokens`` names the first chunk that a request which fits is granted at once; empty for
    none. ``chunk_tokens`` bounds every later take of these requests and so prices their windows;
    0 means the chunk that the stage was sized with.

    What is promised is held back for ``reserve_batches`` batches of the program, and then only what
    was taken stays; 0 means until the request is freed. ``growth_permille`` adds that share of what
    the live requests of lapsed promises may still grow to the question.

    A request that does not fit now ends the fewest of ``victims``, first one first, whose end makes
    room for its whole demand; if nobody's end does, nobody ends. Victims are used up across the
    requests of one admit. A retracted request has ended and may be admitted again.
    """

    requests: bytes
    prompt_tokens: bytes
    new_tokens_max: bytes
    take_tokens: bytes = b""
    chunk_tokens: int = 0
    reserve_batches: int = 0
    growth_permille: int = 0
    victims: bytes = b""


class Standing(Operation, frozen=True, array_like=True, tag="standing"):
    """Change the program's standing set; freed requests leave it by themselves."""

    add: bytes = b""
    remove: bytes = b""


class Take(Operation, frozen=True, array_like=True, tag="take"):
    """Grow requests by tokens, all or nothing; pages and slots come ready to be written.

    Every request grows by ``tokens``, or by its own entry of ``tokens_each``. Where there is no
    room, the requests of ``victims`` are retracted one after the other, first one first, until
    there is; if there still is none, nobody is. A retracted request has ended and may be admitted
    again.
    """

    requests: bytes = b""
    tokens: int = 1
    tokens_each: bytes = b""
    victims: bytes = b""


class Advance(Operation, frozen=True, array_like=True, tag="advance"):
    """State that requests have computed more tokens; rows that left their windows are freed."""

    requests: bytes = b""
    tokens: int = 1
    tokens_each: bytes = b""


class Free(Operation, frozen=True, array_like=True, tag="free"):
    """End requests: their pages, slots, rows and promises come back.

    A request that was told to wait, or that was retracted, is given up and may not be asked again.
    """

    requests: bytes


class Relief(Operation, frozen=True, array_like=True, tag="relief"):
    """Make room for a demand in units per band, chain order, without taking it."""

    demand_units: tuple[int, ...]


class WriteSet(IntEnum):
    """What a forward may write."""

    UNKNOWN = 0
    """Any live unit of any band: speculation, writes decided on the device, or nothing stated."""
    REQUESTS = 1
    """The pages of some requests from their first token that is not computed, and their slots."""


class Launch(Operation, frozen=True, array_like=True, tag="launch"):
    """Notice that a forward was launched after the effects up to ``position``.

    ``requests`` are those whose pages a write set of REQUESTS names; empty means the standing set.
    """

    step: int
    position: int
    writes: WriteSet = WriteSet.UNKNOWN
    requests: bytes = b""


class Processed(Operation, frozen=True, array_like=True, tag="processed"):
    """Notice that a forward is over and its result was handled."""

    step: int


class Idle(Operation, frozen=True, array_like=True, tag="idle"):
    """Notice that the program launches nothing before its next batch."""


class BatchEnd(Operation, frozen=True, array_like=True, tag="batch_end"):
    """End of a batch: merges what it freed, and gates the daemon's own entries."""


class ResetSink(Operation, frozen=True, array_like=True, tag="reset_sink"):
    """Fill the sink with zero, after whatever may have left something there: a graph's capture."""


# ---- values, copies and transfers -----------------------------------------------------------


class Insert(Operation, frozen=True, array_like=True, tag="insert"):
    """End a request, but keep its pages and its slot as a value; what was promised comes back.

    Pages keep their virtual ids. Those that slid out of a window are no part of the value there.
    """

    value_id: int
    request: int


class Evict(Operation, frozen=True, array_like=True, tag="evict"):
    """Give up values: their pages and slots come back.

    Copies of them that run, and peers that read them, do so undisturbed. A value with a load that
    is not submitted, or with pages that a peer may write, stays.
    """

    values: bytes


class LoadReserve(Operation, frozen=True, array_like=True, tag="load_reserve"):
    """Take units of window bands for a load into a value, without names, fixed where they lie.

    ``units`` are counts per band, 0 but for windows: no more than the value has pages without a
    unit there. A load that is refused, or that has to wait for transfers, does not exist.
    """

    load: int
    value_id: int
    units: tuple[int, ...]


class LoadName(Operation, frozen=True, array_like=True, tag="load_name"):
    """Bind a load's next units of one band to pages of its value that have none there.

    Once the last one of the band is bound, its units may move.
    """

    load: int
    band: int
    virtual: bytes


class LoadSubmit(Operation, frozen=True, array_like=True, tag="load_submit"):
    """Start a load's copy: the pages of each band are written from ``host_units``.

    ``host_units`` are raw little-endian int32 arrays per band, in the order in which the pages were
    named. Every unit is named before.
    """

    load: int
    host_units: tuple[bytes, ...]


class LoadCancel(Operation, frozen=True, array_like=True, tag="load_cancel"):
    """Give up a load that was not submitted; its units come back."""

    load: int


class BackupSubmit(Operation, frozen=True, array_like=True, tag="backup_submit"):
    """Start a copy of units to ``host_units``; where they lie is resolved now.

    ``host_units`` are raw little-endian int32 arrays, one place of the band's host pool per unit.
    """

    backup: int
    virtual: tuple[bytes, ...]
    host_units: tuple[bytes, ...]


class Hold(Operation, frozen=True, array_like=True, tag="hold"):
    """Announce a transfer into units: until it is published they stay put if that can be done.

    Whoever holds them neither ends nor advances before the transfer is over or given up.
    """

    transfer: int
    virtual: tuple[bytes, ...]


class Publish(Operation, frozen=True, array_like=True, tag="publish"):
    """Resolve the units of a held transfer for the peer that writes them, in the order of Hold."""

    transfer: int


class Post(Operation, frozen=True, array_like=True, tag="post"):
    """Resolve units for a peer that reads them; no step in flight and no load may write them."""

    transfer: int
    virtual: tuple[bytes, ...]


class CancelHold(Operation, frozen=True, array_like=True, tag="cancel_hold"):
    """Give up a held transfer that was not published."""

    transfer: int


AnyOperation: TypeAlias = (
    Admit
    | Standing
    | Take
    | Advance
    | Free
    | Relief
    | Launch
    | Processed
    | Idle
    | BatchEnd
    | ResetSink
    | Insert
    | Evict
    | LoadReserve
    | LoadName
    | LoadSubmit
    | LoadCancel
    | BackupSubmit
    | Hold
    | Publish
    | Post
    | CancelHold
)
OPERATION_TYPES: tuple[type[Operation], ...] = (
    Admit,
    Standing,
    Take,
    Advance,
    Free,
    Relief,
    Launch,
    Processed,
    Idle,
    BatchEnd,
    ResetSink,
    Insert,
    Evict,
    LoadReserve,
    LoadName,
    LoadSubmit,
    LoadCancel,
    BackupSubmit,
    Hold,
    Publish,
    Post,
    CancelHold,
)


class Fact(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all facts: one-way, idempotent statements of one rank, never compared."""


class StepAborted(Fact, frozen=True, array_like=True, tag="step_aborted"):
    """The rank left this step's launch by an exception; what the step wrote is unknown."""

    step: int


class RankFailed(Fact, frozen=True, array_like=True, tag="rank_failed"):
    """The rank cannot go on; its incarnation ends."""

    reason: str


class CopyEnded(Fact, frozen=True, array_like=True, tag="copy_ended"):
    """The copy of a load or a backup is over on this rank; if it failed, its bytes are void."""

    copy: int
    failed: bool = False


class TransferEnded(Fact, frozen=True, array_like=True, tag="transfer_ended"):
    """A network transfer is over on this rank.

    A transfer that failed without proof that the peer stopped touching the units leaves them in
    quarantine; a later statement with proof lets them go.
    """

    transfer: int
    failed: bool = False
    proven: bool = True


AnyFact: TypeAlias = StepAborted | RankFailed | CopyEnded | TransferEnded
FACT_TYPES: tuple[type[Fact], ...] = (StepAborted, RankFailed, CopyEnded, TransferEnded)


class OwnEntry(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of the daemon's own entries, which enter the log at a gate."""


class IncarnationEnd(OwnEntry, frozen=True, array_like=True, tag="incarnation_end"):
    """The incarnation is over: nothing behind this entry is decided."""

    cause: str


class TablesRewritten(OwnEntry, frozen=True, array_like=True, tag="tables_rewritten"):
    """First entry of an incarnation in which values survive: its effects write all bindings."""


class Released(OwnEntry, frozen=True, array_like=True, tag="released"):
    """Copies and transfers are over, now that the last rank has said so."""

    copies: tuple[int, ...] = ()
    failed_copies: tuple[int, ...] = ()
    """Those of them that failed on some rank."""
    transfers: tuple[int, ...] = ()
    quarantined: tuple[int, ...] = ()
    """Transfers that failed while the peer may go on: what they touch is neither moved nor reused
    until they are released."""


AnyOwnEntry: TypeAlias = IncarnationEnd | TablesRewritten | Released
OWN_ENTRY_TYPES: tuple[type[OwnEntry], ...] = (IncarnationEnd, TablesRewritten, Released)
