"""Control messages: how peers meet, prove who they are, part, and look in from outside."""

from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from kvd_proto.memory import Declaration, SizingInputs, StoragePlan


class Role(StrEnum):
    """What a session may do."""

    SCHEDULER = "scheduler"
    """Sends operations, and applies effects if its process launches the rank's forwards."""
    WORKER = "worker"
    """Applies effects, sends no operations."""
    OBSERVER = "observer"
    """Reads statistics only."""
    ADMIN = "admin"
    """Reads statistics and ends incarnations."""


class Mode(StrEnum):
    """How the ranks of a stage agree; the same for all of them."""

    MIRRORED = "mirrored"
    """Every rank sends the same operations; the first to come is decided, the rest are compared."""
    LEADER = "leader"
    """One rank sends operations, the others follow the log."""
    FOLLOWER = "follower"
    """This rank sends no operations and follows the log."""


class MessageKind(StrEnum):
    """What the body frame of a message holds."""

    HELLO = "hello"
    WELCOME = "welcome"
    BATCH = "batch"
    FOLLOW = "follow"
    REPLY = "reply"
    FACT = "fact"
    ASK = "ask"
    PING = "ping"
    BYE = "bye"
    ACK = "ack"
    ERROR = "error"
    STATS = "stats"
    HEALTH = "health"


class Header(msgspec.Struct, frozen=True, array_like=True):
    """First frame of every message; the body is the second and last.

    From a client: ``epoch`` and ``token`` of its welcome (0 before it), the program index of the
    batch's first operation (in other messages a number of the sender's), the position up to which
    this rank has applied. From the daemon: its epoch, the token it answers, the end of the log, and
    as index what the answered message carried, so that a late answer is told from the one that is
    due; the reply to a batch carries the next program index instead.
    """

    kind: MessageKind
    epoch: int = 0
    token: int = 0
    index: int = 0
    position: int = 0


class Control(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of all control messages."""


class Hello(Control, frozen=True, tag="hello", omit_defaults=True):
    """First message of a rank. Every rank of a group declares the whole; digests must match.

    ``ticket`` proves which process is speaking: the daemon hands it out over its descriptor socket,
    where the kernel vouches for the peer. ``declare`` is the whole model, as a configuration or as
    parts. ``pid`` and ``started_at`` are for display.
    """

    version_min: int
    version_max: int
    build: str
    ticket: int
    group: str
    role: Role = Role.SCHEDULER
    mode: Mode = Mode.MIRRORED
    stage: int = 0
    rank: int = 0
    tp: int = 1
    pp: int = 1
    program: int = 0
    declare: Declaration | None = None
    sizing: SizingInputs = SizingInputs()
    gpu_uuid: str = ""
    pid: int = 0
    started_at: str = ""


class Welcome(Control, frozen=True, tag="welcome", omit_defaults=True):
    """Answer to a hello once all ranks of the group are there."""

    version: int
    build: str
    epoch: int
    token: int
    incarnation: int
    heartbeat_ms: int
    frame_bytes_max: int
    next_index: int
    position: int
    asked_bytes: int
    granted_bytes: int
    minimum_rank: int
    plan: StoragePlan
    redo: bytes = b""
    """Body of a reply with the entries of the log before that this rank's memory may lack: they are
    redone first, from the segment behind its progress word on. Empty when nothing survived. Tables
    are cleared in any case; where something survived, the new log starts with its bindings."""
    values: tuple[int, ...] = ()
    """Values of the incarnation before that survived, and may be evicted by their numbers."""
    check_level: Literal["off", "warn", "strict"] = "off"
    """The daemon's setting: with ``strict`` a rank compares its tables with the books at idle."""


class Ping(Control, frozen=True, tag="ping", omit_defaults=True):
    """Proof of life of an idle client."""


class Bye(Control, frozen=True, tag="bye", omit_defaults=True):
    """The rank leaves on purpose, which ends its incarnation."""

    reason: str = "detached"


class Ack(Control, frozen=True, tag="ack", omit_defaults=True):
    """The message was taken in; there is nothing to say about it."""


class ErrorReply(Control, frozen=True, tag="error", omit_defaults=True):
    """An error: stable code, one sentence naming the value, and whether trying again can help."""

    code: str
    message: str
    retry: bool = False


class StatsRequest(Control, frozen=True, tag="stats_request", omit_defaults=True):
    """Ask the read-only socket for statistics."""


class HealthRequest(Control, frozen=True, tag="health_request", omit_defaults=True):
    """Ask the read-only socket whether the daemon's loop is alive, and what it waits for."""


class WhatIf(Control, frozen=True, tag="what_if", omit_defaults=True):
    """Ask a stage what a demand would cost now; changes nothing and is not logged.

    Either units per band, or a request by its tokens.
    """

    demand_units: tuple[int, ...] = ()
    prompt_tokens: int = 0
    new_tokens_max: int = 0
    chunk_tokens: int = 0


class WhatIfStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a demand fits under one rearrangement, and what that would move."""

    name: str
    """``now``, ``settled``, ``relief`` or ``eviction``."""
    fits: bool
    layout: str = ""
    """The rearrangement used: ``NO_MOVE``, ``FLUSH_ENDS`` or ``RELAYOUT``."""
    moved_units: tuple[int, ...] = ()
    moved_bytes: int = 0


class WhatIfReply(Control, frozen=True, tag="what_if_reply", omit_defaults=True):
    """Answer to a what-if: the demand priced, what memory grants at most, and each step."""

    demand_units: tuple[int, ...]
    fits_empty: bool
    new_tokens: int = 0
    """New tokens that an empty arena grants the request beside its prompt."""
    steps: tuple[WhatIfStep, ...] = ()
    obstacle: str = ""
    chunk_tokens: int = 0
    """Longest chunk that the request is granted, or was priced at; 0 for units, and never fits."""


class Books(Control, frozen=True, tag="books", omit_defaults=True):
    """Ask what the tables of this rank hold by the daemon's books; changes nothing.

    The answer is about the log's end. The header's position says where the rank is.
    """


class BooksReply(Control, frozen=True, tag="books_reply", omit_defaults=True):
    """Answer to `Books`: digests of tables as they lie in the arena, little-endian int32.

    They hold for every position from ``position_min`` to ``position``.
    """

    position_min: int
    """Of the entries that the rank has not applied the last one with effects; the rank's own
    position if there is none."""
    position: int
    """End of the log."""
    map_digests: tuple[int, ...]
    """Per band in chain order: of its whole virtual-to-physical map."""
    rows: bytes = b""
    """int32: the rows of the request table that a request holds, ascending."""
    page_counts: bytes = b""
    """int32: the pages that each of them names."""
    row_digests: tuple[int, ...] = ()
    """Of the virtual pages that each of them names."""
    slots_digest: int = 0
    """Of the virtual state slots of these rows, one after the other; 0 without a state band."""


class Ticket(Control, frozen=True, tag="ticket", omit_defaults=True):
    """What the descriptor socket says first: the number to put into the hello."""

    ticket: int
    epoch: int


class FetchDescriptors(Control, frozen=True, tag="fetch", omit_defaults=True):
    """Ask the descriptor socket for the arena and the fence page of a session.

    A process that is not the session's own becomes one of the rank's by it: the rank's memory is
    not quiet before that process ended or let go as well, and its end is the end of the rank unless
    it says `Bye` first.
    """

    token: int


class Descriptors(Control, frozen=True, tag="descriptors", omit_defaults=True):
    """Answer to a fetch; the file descriptors ride along in the order of ``names``."""

    names: tuple[str, ...]
    sizes_bytes: tuple[int, ...]


class FreeQuarantined(Control, frozen=True, tag="free_quarantined", omit_defaults=True):
    """Ask the descriptor socket to give a dead rank's memory back on an administrator's word.

    ``evidence`` says what proves that nobody touches it any more; it goes to the log.
    """

    group: str
    stage: int
    rank: int
    evidence: str


AnyControl: TypeAlias = (
    Hello
    | Welcome
    | Ping
    | Bye
    | Ack
    | ErrorReply
    | StatsRequest
    | HealthRequest
    | WhatIf
    | WhatIfReply
    | Books
    | BooksReply
    | Ticket
    | FetchDescriptors
    | Descriptors
    | FreeQuarantined
)
CONTROL_TYPES: tuple[type[Control], ...] = (
    Hello,
    Welcome,
    Ping,
    Bye,
    Ack,
    ErrorReply,
    StatsRequest,
    HealthRequest,
    WhatIf,
    WhatIfReply,
    Books,
    BooksReply,
    Ticket,
    FetchDescriptors,
    Descriptors,
    FreeQuarantined,
)
