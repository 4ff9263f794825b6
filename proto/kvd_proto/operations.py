"""Operations: what a program asks of its stage, each logged, numbered and compared singly.

Lists of request ids are raw little-endian int64 arrays, token counts raw little-endian int32 ones.
An operation whose ``requests`` is empty means the program's standing set: the requests that its
``standing`` operations put there and that are not freed. Nothing in a body names a process, a
rank, a clock or a host.
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


AnyOperation: TypeAlias = (
    Admit | Standing | Take | Advance | Free | Relief | Launch | Processed | Idle | BatchEnd
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
)


class Fact(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all facts: one-way, idempotent statements of one rank, never compared."""


class StepAborted(Fact, frozen=True, array_like=True, tag="step_aborted"):
    """The rank left this step's launch by an exception; what the step wrote is unknown."""

    step: int


class RankFailed(Fact, frozen=True, array_like=True, tag="rank_failed"):
    """The rank cannot go on; its incarnation ends."""

    reason: str


AnyFact: TypeAlias = StepAborted | RankFailed
FACT_TYPES: tuple[type[Fact], ...] = (StepAborted, RankFailed)


class OwnEntry(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of the daemon's own entries, which enter the log at a gate."""


class IncarnationEnd(OwnEntry, frozen=True, array_like=True, tag="incarnation_end"):
    """The incarnation is over: nothing behind this entry is decided."""

    cause: str


class TablesRewritten(OwnEntry, frozen=True, array_like=True, tag="tables_rewritten"):
    """First entry of an incarnation in which values survive: its effects write all bindings."""


AnyOwnEntry: TypeAlias = IncarnationEnd | TablesRewritten
OWN_ENTRY_TYPES: tuple[type[OwnEntry], ...] = (IncarnationEnd, TablesRewritten)
