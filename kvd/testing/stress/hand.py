"""Carries out the parts of a script on one rank."""

from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

from kvd.errors import StressFailure, WorkloadError
from kvd.testing.stress.checked_rank import CheckedRank
from kvd.testing.stress.failure import CheckName
from kvd.testing.stress.plans import ForwardPlan
from kvd.testing.stress.script import OpenLaunch, Part, SendBatch
from kvd_client import STANDING, Batch, OperationError
from kvd_client.client import BatchBlock, LaunchBlock
from kvd_client.launch import Step
from kvd_proto.control import Mode

RankT = TypeVar("RankT", bound=CheckedRank)
PlanForward: TypeAlias = Callable[[OpenLaunch], ForwardPlan]


def left_by_error(block: LaunchBlock | BatchBlock) -> None:
    """Leave a block as an exception does."""
    error = WorkloadError("the program has this block be left")
    block.__exit__(WorkloadError, error, None)


class Hand(Generic[RankT]):
    """Carries out parts on one rank."""

    def __init__(self, rank: RankT, *, follows: bool, plan_forward: PlanForward) -> None:
        self.rank = rank
        self.done_count = 0
        """Parts of the script that are done."""
        self._follows: Final = follows
        self._plan_forward = plan_forward
        self._block: LaunchBlock | None = None
        self._step_number = 0
        """The newest step that was launched."""

    @property
    def launching(self) -> bool:
        """Return whether a launch block is open."""
        return self._block is not None

    def do(self, part: Part, *, first: bool) -> None:
        """Carry out one part, as the first rank or after it; raises StressFailure."""
        self.done_count += 1
        self.rank.note(f"part {self.done_count}")
        if isinstance(part, SendBatch):
            for fill in part.fills:
                self.rank.fill_pool(fill.band_index, fill.places, fill.words)
            if self._follows:
                self.rank.client.follow(part.position, records=[part.record])
            else:
                self._send(part, first=first)
            if not first:
                self.rank.expect_peers(part.peers, part.position)
        elif isinstance(part, OpenLaunch):
            self._launch(part, first=first)
        else:
            self.close(aborts=first and part.aborts)

    def close(self, *, aborts: bool) -> None:
        """Leave the launch block."""
        block, self._block = self._block, None
        assert block is not None
        if aborts:
            self.rank.left_steps[self._step_number] = None
            left_by_error(block)
        else:
            block.__exit__(None, None, None)

    def leave(self) -> None:
        """Leave the group, once everything that was enqueued has run."""
        self.rank.note("leaves")
        if self._block is not None:
            self.close(aborts=False)
        self.rank.client.close()

    def open_batch(self, part: SendBatch) -> tuple[BatchBlock, Batch]:
        """Return a block with everything asked that a part asks."""
        block = self.rank.client.batch()
        batch = block.__enter__()
        for step in part.processed:
            batch.processed(step)
        for ask in part.asks:
            ask(batch)
        return block, batch

    def _leave_batch(self, block: BatchBlock) -> None:
        """Send what was asked; raises OperationError."""
        block.__exit__(None, None, None)

    def _enter_launch(self, block: LaunchBlock) -> Step:
        return block.__enter__()

    def _send(self, part: SendBatch, *, first: bool) -> None:
        client = self.rank.client
        error: str | None = None
        block, batch = self.open_batch(part)
        try:
            self._leave_batch(block)
        except OperationError as wrong:
            error = wrong.message
        if first:
            part.error, part.record = error, batch.record()
            part.position = client.session.cursor.known
        elif error != part.error:
            raise StressFailure(
                CheckName.DIVERGENCE,
                f"rank {self.rank.index} was told {error!r}, the first rank {part.error!r}",
            )

    def _launch(self, part: OpenLaunch, *, first: bool) -> None:
        client = self.rank.client
        stream = self.rank.stream_of(client.session.steps.launched + 1)
        if self._follows:
            block = client.launch(stream, step=part.step, position=part.position)
        else:
            block = client.launch(stream, writes=STANDING if part.standing else part.writes)
        step = self._enter_launch(block)
        self._block, self._step_number = block, step.number
        if first:
            part.step, part.position = step.number, step.position
            part.plan = self._plan_forward(part)
        elif (step.number, step.position) != (part.step, part.position):
            raise StressFailure(
                CheckName.DIVERGENCE,
                f"rank {self.rank.index} launches step {step.number} at position {step.position}, "
                f"the first rank launched step {part.step} at {part.position}",
            )
        assert part.plan is not None
        self.rank.enqueue_forward(step, part.plan, silent=part.silent)


def mode_of(*, leader: bool, index: int) -> Mode:
    """Return the mode that a rank attaches in."""
    if not leader:
        return Mode.MIRRORED
    return Mode.FOLLOWER if index else Mode.LEADER
