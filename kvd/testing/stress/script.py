"""What has to be done by every rank, in order: batches and launches, as the first rank did them.

A mirrored rank does each part by itself; a follower of a leader follows the log to where the part
ended. Ranks are apart by as many parts as the program has them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from kvd.testing.stress.failure import CheckName, StressFailure
from kvd.testing.stress.ranks import ForwardPlan, StressRank
from kvd_client import STANDING, Batch, OperationError
from kvd_client.calls import StandingSet
from kvd_client.client import LaunchBlock
from kvd_client.launch import Step
from kvd_proto.control import Mode

Ask: TypeAlias = Callable[[Batch], object]
"""Adds one operation to a batch."""


class StressAbort(Exception):
    """Raised in a launch block to leave it; never seen outside."""


@dataclass(slots=True)
class SendBatch:
    """A batch of operations."""

    asks: list[Ask]
    processed: list[int]
    idles: bool = False
    record: bytes = b""
    """What followers need to follow it."""
    position: int = 0
    """Where the log stood behind it."""
    error: str | None = None
    """What the first rank was told about wrong use in it; None if all was well."""


@dataclass(slots=True)
class OpenLaunch:
    """The beginning of a forward."""

    step: int
    position: int
    plan: ForwardPlan
    writes: tuple[int, ...] | StandingSet | None
    silent: bool


@dataclass(slots=True)
class CloseLaunch:
    """The end of a launch block; by an exception on one rank at most."""

    aborted_on: int = -1


Part: TypeAlias = SendBatch | OpenLaunch | CloseLaunch


class Hand:
    """Carries out parts on one rank."""

    def __init__(self, rank: StressRank, *, follows: bool) -> None:
        self.rank = rank
        self.done_count = 0
        """Parts of the script that are done."""
        self._follows = follows
        self._block: LaunchBlock | None = None
        self._step: Step | None = None

    @property
    def launching(self) -> bool:
        """Return whether a launch block is open."""
        return self._block is not None

    def do(self, part: Part, *, first: bool) -> None:
        """Carry out one part, as the first rank or after it; raises StressFailure."""
        self.done_count += 1
        if isinstance(part, SendBatch):
            if self._follows:
                self.rank.client.follow(part.position, records=[part.record])
            else:
                self._send(part, first=first)
        elif isinstance(part, OpenLaunch):
            self._launch(part)
        else:
            self.close(aborted=part.aborted_on == self.rank.index)

    def close(self, *, aborted: bool) -> None:
        """Leave the launch block."""
        block, self._block, self._step = self._block, None, None
        assert block is not None
        if aborted:
            block.__exit__(StressAbort, StressAbort(), None)
        else:
            block.__exit__(None, None, None)

    def _send(self, part: SendBatch, *, first: bool) -> None:
        client = self.rank.client
        error: str | None = None
        block = client.batch()
        batch = block.__enter__()
        for step in part.processed:
            batch.processed(step)
        for ask in part.asks:
            ask(batch)
        try:
            block.__exit__(None, None, None)
        except OperationError as wrong:
            error = wrong.message
        if first:
            part.error, part.record = error, batch.record()
        elif error != part.error:
            raise StressFailure(
                CheckName.DIVERGENCE,
                f"rank {self.rank.index} was told {error!r}, the first rank {part.error!r}",
            )

    def _launch(self, part: OpenLaunch) -> None:
        client = self.rank.client
        if self._follows:
            block = client.launch(step=part.step, position=part.position)
        else:
            writes = part.writes
            block = client.launch(writes=STANDING if isinstance(writes, StandingSet) else writes)
        step = block.__enter__()
        self._block, self._step = block, step
        if (step.number, step.position) != (part.step, part.position):
            raise StressFailure(
                CheckName.DIVERGENCE,
                f"rank {self.rank.index} launches step {step.number} at position {step.position}, "
                f"the first rank launched step {part.step} at {part.position}",
            )
        self.rank.enqueue_forward(step, part.plan, silent=part.silent)


def mode_of(*, leader: bool, index: int) -> Mode:
    """Return the mode that a rank attaches in."""
    if not leader:
        return Mode.MIRRORED
    return Mode.FOLLOWER if index else Mode.LEADER
