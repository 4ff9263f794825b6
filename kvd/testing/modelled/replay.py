"""A workload served by modelled ranks, each as far ahead of the others as the seed has it."""

import random
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from kvd.errors import WorkloadError
from kvd.testing.asking import ask_pass
from kvd.testing.modelled.ranks import ModelledRank, ModelledStage
from kvd.testing.passes import StepWork, WorkloadLimits, WorkloadRequest
from kvd.testing.workload import Workload
from kvd_proto.control import Mode
from kvd_proto.scalars import Position, RequestId, StepNumber

LAG_PASSES_MAX: Final = 3
"""Passes that one rank may be ahead of another."""


class _Told(NamedTuple):
    """What a leader tells a follower about one pass."""

    step: StepNumber | None
    position: Position
    records: bytes
    freed: tuple[RequestId, ...]
    work: StepWork


class _Granted(NamedTuple):
    """What a batch gave, to be launched."""

    work: StepWork
    freed: tuple[RequestId, ...]
    records: bytes


class _Driver(Protocol):
    """Runs the passes of one rank, one at a time."""

    passes: int

    @property
    def over(self) -> bool: ...

    @property
    def ready(self) -> bool: ...

    def run_pass(self) -> None: ...


class _Scheduler:
    """A rank that decides: each in mirrored mode, the first in leader mode."""

    def __init__(
        self,
        rank: ModelledRank,
        requests: Sequence[WorkloadRequest],
        limits: WorkloadLimits,
        *,
        steps_ahead: int,
        seed: int,
        followers: "Sequence[_Follower]",
    ) -> None:
        self.passes = 0
        self._rank = rank
        self._limits = limits
        self.workload = Workload(requests, limits)
        self._steps_ahead = steps_ahead
        self._followers = followers
        self._unprocessed: deque[StepNumber] = deque()
        self._granted: _Granted | None = None
        # Mirrored ranks have to send the same in the same order, so they draw the same.
        self._random = random.Random(seed)

    @property
    def over(self) -> bool:
        """Return whether every request was served and every step processed."""
        return self.workload.is_over and not self._unprocessed and self._granted is None

    @property
    def ready(self) -> bool:
        """Return whether a pass can be run."""
        return not self.over

    def run_pass(self) -> None:
        """Launch what the last batch granted, and ask the next one, if the seed has it meanwhile.

        Steps are processed as late as allowed.
        """
        self.passes += 1
        rank = self._rank
        rank.device.world.note = f"rank {rank.index}, pass {self.passes}"
        granted = self._ask() if self._granted is None else self._granted
        self._granted = None
        step, position = None, Position(rank.client.applied)
        if not granted.work.is_empty:
            inside = None
            if self._steps_ahead and self._random.randrange(2):
                inside = self._ask_inside
            step, position = rank.launch(granted.work, inside=inside)
            self._unprocessed.append(step)
        for follower in self._followers:
            follower.told.append(
                _Told(step, position, granted.records, granted.freed, granted.work)
            )

    def _ask_inside(self) -> None:
        """Ask the next batch while the launch is open, as another thread of an engine would."""
        if not self.workload.is_over:
            self._granted = self._ask()

    def _ask(self) -> _Granted:
        keep = 0 if self.workload.is_over else self._steps_ahead
        asked = self.workload.next_pass()
        with self._rank.client.batch() as batch:
            while len(self._unprocessed) > keep:
                batch.processed(self._unprocessed.popleft())
            asking = ask_pass(batch, asked, self._limits)
        answers = asking.answers()
        freed = (*asked.free, *answers.retracted)
        self._rank.forward.forget(freed)
        return _Granted(self.workload.settle(asked, answers), freed, batch.record())


class _Follower:
    """A rank that launches what the leader launched."""

    def __init__(self, rank: ModelledRank) -> None:
        self.passes = 0
        self.told: deque[_Told] = deque()
        self._rank = rank

    @property
    def over(self) -> bool:
        """Return whether nothing is left to follow for now."""
        return not self.told

    @property
    def ready(self) -> bool:
        """Return whether the leader is ahead."""
        return bool(self.told)

    def run_pass(self) -> None:
        """Follow one pass."""
        self.passes += 1
        told, rank = self.told.popleft(), self._rank
        rank.device.world.note = f"rank {rank.index}, pass {self.passes}"
        rank.client.follow(told.position, records=[told.records])
        rank.forward.forget(told.freed)
        if told.step is not None:
            rank.launch(told.work, step=told.step, position=told.position)


class StageReplay:
    """Serves a workload on all ranks of a stage; every choice comes from the seed."""

    def __init__(
        self,
        stage: ModelledStage,
        requests: Sequence[WorkloadRequest],
        limits: WorkloadLimits,
        *,
        seed: int,
        mode: Mode = Mode.MIRRORED,
        steps_ahead: int = 0,
        actions_between_max: int = 40,
    ) -> None:
        """Prepare; ``mode`` is the stage's.

        A batch is asked while up to ``steps_ahead`` steps are not processed, and up to
        ``actions_between_max`` actions of the world run between two passes.
        """
        self._stage = stage
        self._random = random.Random(seed)
        self._actions_between_max = actions_between_max
        self.schedulers: list[_Scheduler] = []
        followers: list[_Follower] = []
        if mode is not Mode.MIRRORED:
            followers = [_Follower(rank) for rank in stage.ranks[1:]]
        for rank in stage.ranks[: len(stage.ranks) - len(followers)]:
            self.schedulers.append(
                _Scheduler(
                    rank,
                    requests,
                    limits,
                    steps_ahead=steps_ahead,
                    seed=seed,
                    followers=followers,
                )
            )
        self._drivers: list[_Driver] = [*self.schedulers, *followers]

    def run(self, passes_max: int = 100_000) -> None:
        """Serve everything and run all that was enqueued.

        Raises RaceError, WorkloadError if it takes too many passes or forwards found bytes that
        nobody wrote there, and TablesError for tables that differ from the books at the end.
        """
        for _ in range(passes_max):
            if not self.run_pass():
                self._stage.world.run()
                self.check()
                for rank in self._stage.ranks:
                    rank.client.check_tables()
                return
        raise WorkloadError(f"the workload is not served after {passes_max} passes")

    def run_pass(self) -> bool:
        """Run one pass of one rank and some actions; False once there is nothing left."""
        if all(driver.over for driver in self._drivers):
            return False
        least = min(driver.passes for driver in self._drivers)
        able = [
            driver
            for driver in self._drivers
            if driver.ready and driver.passes < least + LAG_PASSES_MAX
        ]
        able[self._random.randrange(len(able))].run_pass()
        self._stage.world.advance(self._random.randrange(self._actions_between_max + 1))
        return True

    def check(self) -> None:
        """Raise WorkloadError if a forward found something wrong, or the ranks disagree."""
        findings = self._stage.findings
        if findings:
            raise WorkloadError(f"{len(findings)} findings: " + "; ".join(findings[:5]))
        digests = {rank.forward.places_digest for rank in self._stage.ranks}
        if all(driver.over for driver in self._drivers) and len(digests) > 1:
            raise WorkloadError("the ranks were granted different places")
