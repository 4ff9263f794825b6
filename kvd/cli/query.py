"""Asking a running daemon for its statistics, over the socket that only reads.

Imports stay few: ``kvd stats --json`` has 0.3 s for everything, the interpreter's start included.
"""

from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import zmq

from kvd.errors import ServeError
from kvd_proto.codec import decode_control, decode_header, encode
from kvd_proto.control import Control, ErrorReply, Header, HealthRequest, MessageKind, StatsRequest
from kvd_proto.errors import ErrorCode

ANSWER_WAIT_MS: Final = 2_000
"""The daemon publishes its statistics beside the hot path: no load of it makes them late."""
SCHEMA: Final = "kvd.stats/1"
Range: TypeAlias = tuple[int, int]
"""Half-open: of unit numbers, or of arena bytes."""


class OpenUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a step, copy or transfer does to units of a band."""

    use: str
    by: str
    unit_count: int | None = msgspec.field(name="units", default=None)
    """None: any unit that is live."""


class BandStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One band of a stage; spans are unit numbers, half open."""

    name: str
    kind: str
    chain_kind: str
    unit_bytes: int
    page_tokens: int
    unit_index_min: int
    unit_index_end_count: int = msgspec.field(name="unit_index_end")
    span_start_index: int = msgspec.field(name="span_start")
    span_end_index: int = msgspec.field(name="span_end")
    live_units: int
    hole_units: int
    pending_units: int = 0
    fixed_units: int = 0
    """Live units that must not be moved; published by daemons that have transfers."""
    promised_units: int = 0
    virtual_free_count: int = msgspec.field(name="virtual_free", default=0)
    virtual_total_count: int | None = msgspec.field(name="virtual_total", default=None)
    """None: the band's units carry the names of another band's."""
    window_tokens: int = 0
    vacated_forward_units: int = 0
    vacated_network_units: int = 0
    fenced_units: int = 0
    hard_fixed: Range | None = None
    soft_fixed: Range | None = None
    movable: bool = True
    moved_units_total: int = 0
    moved_bytes_total: int = 0
    move_count_total: int = msgspec.field(name="move_batches_total", default=0)
    """Times that some units were moved, as many as then had to."""
    open_use_count: int = msgspec.field(name="open_uses", default=0)
    oldest_uses: tuple[OpenUse, ...] = ()
    available_estimate_units: int = msgspec.field(name="available_units_estimate", default=0)
    """Roughly how many more units it could take; for people only."""


class DemandStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How a stage prices requests."""

    page_tokens: int
    chunk_tokens: int
    slots_per_request_slots: int = msgspec.field(name="slots_per_request")
    step_tokens: int
    overlap: bool
    slide_tokens: int
    checkpoint_tokens: int
    tracking: str
    context_tokens: int


class LogStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage's log holds in memory."""

    entry_count: int = msgspec.field(name="entries")
    kept_bytes: int = msgspec.field(name="bytes")


class StageStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One stage: its log, its requests and its arena."""

    stage: int
    position: int
    request_count: int = msgspec.field(name="requests")
    value_count: int = msgspec.field(name="values", default=0)
    arena_bytes: int
    sink_bytes: int
    bands: tuple[BandStatistics, ...]
    row_count: int = msgspec.field(name="rows", default=0)
    log: LogStatistics | None = None
    blocked: tuple[Range, ...] = msgspec.field(name="blocked_bytes", default=())
    quarantined: tuple[Range, ...] = msgspec.field(name="quarantined_bytes", default=())
    demand: DemandStatistics | None = None
    layouts: dict[str, int] = {}
    """Takes that needed one, by how far it went."""
    counters: dict[str, Any] = {}
    refusals: dict[str, Any] = {}


class QuarantineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a rank that ended, set aside because somebody may still touch it."""

    rank_text: str = msgspec.field(name="who")
    reason: str
    age_s: float
    arena_bytes: int


class GroupStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One model instance; it has stages while its ranks are attached."""

    name: str
    tp: int
    pp: int
    incarnation: int
    state: str
    model: str = ""
    last_end: str | None = None
    waiting_for: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    """Ranks that ended and whose memory is not quiet yet, each with the reason."""
    quarantined: tuple[QuarantineStatistics, ...] = ()
    stages: tuple[StageStatistics, ...] = ()


class DaemonStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's process."""

    pid: int
    uptime_s: float
    epoch: int
    build: str


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """A statistics document, as far as the command line shows it."""

    schema: str
    daemon: DaemonStatistics
    groups: tuple[GroupStatistics, ...] = ()
    sessions: tuple[dict[str, Any], ...] = ()
    counters: dict[str, Any] = {}


def fetch_statistics(stats_path: Path) -> bytes:
    """Return the statistics document as the daemon wrote it: JSON.

    Raises ServeError if no daemon answers, or answers with an error.
    """
    return _ask(stats_path, MessageKind.STATS, StatsRequest())


def fetch_health(stats_path: Path) -> bytes:
    """Return the health document as the daemon wrote it: JSON.

    Raises ServeError if no daemon answers, or answers with an error.
    """
    return _ask(stats_path, MessageKind.HEALTH, HealthRequest())


def read_statistics(document: bytes) -> Statistics:
    """Return a document as values; raises ServeError if it is of another kind."""
    try:
        found = msgspec.json.decode(document, type=Statistics)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ServeError(f"the daemon's statistics cannot be read: {error}") from error
    if found.schema != SCHEMA:
        raise ServeError(f"the daemon's statistics are {found.schema}, this build reads {SCHEMA}")
    return found


def _ask(stats_path: Path, kind: MessageKind, request: Control) -> bytes:
    unreachable = ServeError(
        f"no daemon answers at {stats_path}; start one with kvd serve, or name its --socket",
        code=ErrorCode.UNREACHABLE,
        retry=True,
    )
    if not stats_path.exists():
        raise unreachable
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(f"ipc://{stats_path}")
        socket.send_multipart([encode(Header(kind=kind)), encode(request)])
        if not socket.poll(ANSWER_WAIT_MS):
            raise unreachable
        frames = socket.recv_multipart()
    if len(frames) != 2:
        raise ServeError(f"{stats_path} answered with {len(frames)} frames instead of 2")
    if decode_header(frames[0]).kind is MessageKind.ERROR:
        error = decode_control(frames[1])
        assert isinstance(error, ErrorReply)
        raise ServeError(error.message)
    return frames[1]
