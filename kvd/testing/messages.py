"""What the processes of a replay tell each other, over pipes that only they hold."""

from typing import TypeAlias

import msgspec

from kvd.testing.painter import Corruption, Mismatch
from kvd.testing.passes import StepWork, WorkloadLimits, WorkloadRequest
from kvd_proto.control import Mode
from kvd_proto.memory import DeclaredConfig, SizingInputs
from kvd_proto.scalars import Position, RequestId, StepNumber


class RankSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a rank process needs to know; the first message it gets."""

    address: str
    group: str
    rank_index: int
    tp_count: int
    mode: Mode
    declaration: DeclaredConfig
    sizing: SizingInputs
    requests: tuple[WorkloadRequest, ...]
    limits: WorkloadLimits
    deadline_ms: int
    overlap: bool = False
    """Whether a step is launched while the one before it may still run."""
    device: str = "host"
    """``host`` or ``cuda``: where the arena lies, and so who paints it."""
    forward_us: float = 0
    """How long a forward takes at least, on a GPU."""
    corruption: Corruption | None = None
    peer_descriptors: tuple[int, ...] = ()
    """Pipes between a leader and its followers, as descriptors of the rank process."""


class Attached(msgspec.Struct, frozen=True, kw_only=True, tag="attached"):
    """The rank has its arena."""

    arena_bytes: int


class RankProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Sent now and then."""

    served_count: int
    served_tokens: int
    pass_count: int


class RankReport(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """What a rank did and found; its last message if all went well."""

    rank_index: int
    is_scheduler: bool
    """Whether it sent batches itself; a follower's counts of them are 0."""
    served_count: int
    served_tokens: int
    written_tokens: int
    pass_count: int
    step_count: int
    running_count_max: int
    waiting_pass_count: int
    idle_pass_count: int
    refused_take_count: int
    retracted_count: int
    recomputed_tokens: int
    clipped_count: int
    unschedulable: tuple[RequestId, ...]
    verdicts: dict[str, int]
    refusals: dict[str, int]
    elapsed_ms: float
    """From the first batch to the last answer."""
    batch_p50_us: float
    batch_p99_us: float
    useful_bytes_max: int
    arena_bytes: int
    written_bytes: int
    checked_bytes: int
    checked_units: int
    corrupted_count: int
    mismatch_count: int
    mismatches: tuple[Mismatch, ...]
    places_digest: str
    tables_count: int
    """Tables in the rank's memory that were compared with the daemon's books at the end."""
    position: Position


class RankFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """Why a rank cannot go on; its last message if something went wrong."""

    error: str
    """The class of the error."""
    message: str
    trace: str
    """Where it was raised, or what the process wrote before it ended; empty for errors of kvd."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """Every rank has reported: the rank may part from the daemon."""


FromRank: TypeAlias = Attached | RankProgress | RankReport | RankFailure


class FollowStep(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """From the leader: apply up to ``position``, then launch the step if there is work."""

    step: StepNumber
    position: Position
    records: tuple[bytes, ...]
    """The leader's batches since its last message, which name the requests."""
    freed: tuple[RequestId, ...]
    work: StepWork


class FollowEnd(msgspec.Struct, frozen=True, tag="end"):
    """From the leader: nothing comes after this."""


FromLeader: TypeAlias = FollowStep | FollowEnd
