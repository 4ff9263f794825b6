"""A replay: rank processes that serve a workload through a daemon, and what came of it.

The parent decides nothing; it starts the ranks, passes on how far they are, compares what they
report, and makes sure that none of them outlives it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Final, TypeAlias

from kvd.errors import WorkloadError
from kvd.testing.messages import (
    Attached,
    RankFailure,
    RankProgress,
    RankReport,
    RankSpec,
)
from kvd.testing.painter import Corruption
from kvd.testing.passes import WorkloadLimits, WorkloadRequest
from kvd.testing.processes import RankProcess
from kvd_proto.control import Mode
from kvd_proto.memory import DeclaredConfig, SizingInputs

SILENCE_S_MAX: Final = 120.0
"""Ranks that say nothing for so long hang: their clients' own deadlines are shorter."""
ECHO_S: Final = 3.0
"""After one rank failed: how long the others may take to say what they saw."""

Observer = Callable[[RankProgress], None]
PeerPipe: TypeAlias = "Connection[Any, Any]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySpec:
    """What to replay."""

    group: str
    tp_count: int
    mode: Mode
    """MIRRORED, or LEADER: the first rank leads and the others follow the log."""
    declaration: DeclaredConfig
    sizing: SizingInputs
    requests: tuple[WorkloadRequest, ...]
    limits: WorkloadLimits
    deadline_ms: int
    overlap: bool = False
    """Whether each rank launches a step before it has processed the one before."""
    device: str = "host"
    forward_us: float = 0
    corruption: Corruption | None = None
    """Applied on rank 0."""


@dataclass(frozen=True, slots=True)
class RankProblem:
    """Why a rank could not go on."""

    rank_index: int
    failure: RankFailure

    @property
    def sentence(self) -> str:
        """Return it as one line."""
        return f"rank {self.rank_index}: {self.failure.error}: {self.failure.message}"


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """Reports of the ranks that got to the end, and problems of the others, first one first."""

    reports: tuple[RankReport, ...]
    problems: tuple[RankProblem, ...]


def run_replay(
    spec: ReplaySpec,
    *,
    address: str,
    observe: Observer,
    on_end: Callable[[], None],
) -> ReplayOutcome:
    """Run a replay on the daemon at an address to its end, or until a rank fails.

    ``observe`` is called with rank 0's progress, at least ten times a second while it moves;
    ``on_end`` when all requests are freed and all ranks still attached.

    Raises WorkloadError if no rank could attach.
    """
    with ExitStack() as stack:
        ranks = _start_ranks(spec, address, stack)
        outcome = _listen(ranks, observe)
        if outcome.problems:
            return outcome
        on_end()
        return ReplayOutcome(outcome.reports, tuple(_part(ranks)))


def _start_ranks(spec: ReplaySpec, address: str, stack: ExitStack) -> list[RankProcess]:
    peers = _peer_pipes(spec, stack)
    ranks: list[RankProcess] = []
    for rank_index in range(spec.tp_count):
        mode = Mode.FOLLOWER if spec.mode is Mode.LEADER and rank_index > 0 else spec.mode
        passed = peers[rank_index]
        rank_spec = RankSpec(
            address=address,
            group=spec.group,
            rank_index=rank_index,
            tp_count=spec.tp_count,
            mode=mode,
            declaration=spec.declaration,
            sizing=spec.sizing,
            requests=spec.requests,
            limits=spec.limits,
            deadline_ms=spec.deadline_ms,
            overlap=spec.overlap,
            device=spec.device,
            forward_us=spec.forward_us,
            corruption=spec.corruption if rank_index == 0 else None,
            peer_descriptors=tuple(pipe.fileno() for pipe in passed),
        )
        ranks.append(stack.enter_context(RankProcess(rank_spec, passed=passed)))
        # Our own ends must go, or no rank would ever see its peer's end close.
        for pipe in passed:
            pipe.close()
    return ranks


def _peer_pipes(spec: ReplaySpec, stack: ExitStack) -> list[list[PeerPipe]]:
    """Return for each rank its ends of the pipes between a leader and its followers."""
    peers: list[list[PeerPipe]] = [[] for _ in range(spec.tp_count)]
    if spec.mode is Mode.LEADER:
        for follower_index in range(1, spec.tp_count):
            ours, theirs = Pipe(duplex=True)
            peers[0].append(stack.enter_context(ours))
            peers[follower_index].append(stack.enter_context(theirs))
    return peers


def _listen(ranks: Sequence[RankProcess], observe: Observer) -> ReplayOutcome:
    """Take in messages until every rank has reported or failed."""
    reports: dict[int, RankReport] = {}
    problems: list[RankProblem] = []
    attached_count = 0
    open_ranks = {rank.pipe.fileno(): rank for rank in ranks}
    heard_s = time.monotonic()
    while open_ranks:
        limit_s = ECHO_S if problems else SILENCE_S_MAX
        ready = wait(list(open_ranks), timeout=max(0.0, heard_s + limit_s - time.monotonic()))
        for descriptor in ready:
            assert isinstance(descriptor, int)
            rank = open_ranks[descriptor]
            heard_s = time.monotonic()
            message = rank.receive()
            if isinstance(message, RankProgress):
                if rank.rank_index == 0:
                    observe(message)
            elif isinstance(message, RankReport):
                reports[rank.rank_index] = message
                del open_ranks[descriptor]
            elif isinstance(message, RankFailure):
                problems.append(RankProblem(rank.rank_index, message))
                del open_ranks[descriptor]
            else:
                assert isinstance(message, Attached)
                attached_count += 1
        if not ready:
            problems += [
                RankProblem(rank.rank_index, _silence(limit_s)) for rank in open_ranks.values()
            ]
            break
    if problems and attached_count == 0:
        # Nothing was replayed: whatever the first one was told is all there is to say.
        raise WorkloadError(problems[0].failure.message)
    return ReplayOutcome(tuple(reports[key] for key in sorted(reports)), tuple(problems))


def _silence(seconds: float) -> RankFailure:
    message = f"said nothing for {seconds:.0f} s and was killed"
    return RankFailure(error="Silent", message=message, trace="")


def _part(ranks: Sequence[RankProcess]) -> list[RankProblem]:
    """Let all ranks part from the daemon; return what went wrong with that."""
    problems: list[RankProblem] = []
    for rank in ranks:
        if rank.leave() != 0:
            failure = rank.receive()
            assert isinstance(failure, RankFailure)
            problems.append(RankProblem(rank.rank_index, failure))
    return problems
