"""Playing a program on the modelled device: every step, and every check behind it.

The first rank carries out each part of the script as the scheduler makes it; the others follow when
the program has them follow, each some parts behind. What is decided goes to the model as it is
decided. After every step all that was found wrong so far is raised.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from kvd.engine.legacy import Legacy
from kvd.errors import OperationError
from kvd.testing.in_process import FIRST, IncarnationNumber, RankMemories
from kvd.testing.modelled.memory import grains_of
from kvd.testing.modelled.world import World
from kvd.testing.stress.contents import Contents
from kvd.testing.stress.failure import CheckName, StressFailure, failure_of
from kvd.testing.stress.finish import finish
from kvd.testing.stress.forwards import plan_forward
from kvd.testing.stress.hand import Hand
from kvd.testing.stress.model import Model
from kvd.testing.stress.oracle import Oracle
from kvd.testing.stress.pace import Pace
from kvd.testing.stress.plans import ForwardPlan
from kvd.testing.stress.program import AnyStep, Program
from kvd.testing.stress.ranks import StressRank
from kvd.testing.stress.scheduler import Limits, Scheduler
from kvd.testing.stress.script import OpenLaunch, Part, SendBatch
from kvd.testing.stress.shapes import stress_stage
from kvd.testing.stress.stage import StressRanks, poisoned_memories
from kvd.testing.stress.steps import UNCOUNTED, play_step
from kvd_proto.codec import decode_entry, encode
from kvd_proto.operations import AnyOwnEntry, Operation, Released
from kvd_proto.outcomes import Outcome, Pump, Refusal

ORACLE_PERMILLE: Final = 100
"""Share of the operations whose answers are found again by trying every layout."""
PROGRAM: Final = 0
"""The program that all ranks run."""
LAG_PARTS_MAX: Final = 14
"""Parts that one rank may be behind the first."""
INCARNATIONS_MAX: Final = 1_000_003
"""Incarnations of one run, so that no two runs draw alike."""


@dataclass(slots=True)
class Result:
    """What came of a run."""

    program: Program
    """What was played: of an endless run, the steps so far."""
    operations_count: int
    """Steps of the scheduler's that were carried out; those that fitted nothing do not count."""
    digest: str
    """Of everything that was decided, and of the order of all modelled actions."""
    counts: Counter[str] = field(default_factory=Counter[str])
    """How often each thing happened, by name."""
    failure: StressFailure | None = None


class StressRun:
    """One run of a program; `play` its steps in order, then `end` it."""

    def __init__(self, program: Program, *, oracle_permille: int = ORACLE_PERMILLE) -> None:
        """Attach the ranks of a program; its steps are not looked at.

        ``oracle_permille`` of the operations have their answers found by trying every layout.
        """
        self.program = program
        self.oracle_permille = oracle_permille
        self.built = stress_stage(program.shape, overlap=program.overlap)
        plan = self.built.storage.storage
        self.counts: Counter[str] = Counter()
        self.memories: RankMemories = poisoned_memories(plan.total_bytes, ranks=program.ranks_count)
        self.cell_bytes = grains_of(plan)[0].cell_bytes
        self.first_index = 0
        """The rank that does everything first."""
        self.script: list[Part] = []
        self.step_index = -1
        self._digest = hashlib.blake2b(digest_size=16)
        self._number = FIRST
        self._attach(None, ())
        self._schedule(Model(Contents(plan, cell_bytes=self.cell_bytes)))

    # ---- incarnations ---------------------------------------------------------------------------

    def _attach(self, legacy: Legacy | None, redo: Sequence[bytes]) -> None:
        """Begin an incarnation."""
        program = self.program
        self.pace = Pace(program.seed_index * INCARNATIONS_MAX + self._number)
        self.world = World(self.pace, only_needed=program.seed_index % 3 != 0)
        self.script.clear()
        self.stage = StressRanks(
            program,
            self.built,
            world=self.world,
            memories=self.memories,
            number=self._number,
            legacy=legacy,
            redo=redo,
            plan_forward=self._plan_forward,
        )
        survives = legacy is not None and legacy.engine is not None
        self.oracle = Oracle(
            self.stage.incarnation.engine,
            seed=program.seed_index * INCARNATIONS_MAX + self._number,
            share_permille=self.oracle_permille,
            before=self.oracle if survives else None,
        )
        self.stage.incarnation.watcher = self

    def _schedule(self, model: Model) -> None:
        """Go on with what is there now."""
        plan, sized = self.built.storage.storage, self.built.storage.sized
        self.model = model
        self.scheduler = Scheduler(
            model,
            Limits(plan.context_tokens, sized.chunk_tokens, plan.page_tokens),
            overlap=self.program.overlap,
            carry=self._carry,
        )

    def die(self, killed: Sequence[int]) -> None:
        """Let ranks die where they are, and the next incarnation begin on their memory."""
        legacy, redo = self.stage.die(killed)
        self._digest.update(b"%d" % self.pace.digest)
        self.memories.renew_fences()
        self._number = IncarnationNumber(self._number + 1)
        self._attach(legacy, redo)
        before = self.model
        contents = Contents(self.built.storage.storage, cell_bytes=self.cell_bytes)
        contents.newest_tag = before.contents.newest_tag
        if legacy.engine is not None:
            log = self.stage.incarnation.log
            (record,) = log.records(log.end_position, log.end_position)
            contents.adopt(decode_entry(record.entry).outcome, before.contents)
        survivors = self.stage.ranks[0].client.values
        self.counts["survived"] += len(survivors)
        self._schedule(Model.after(before, contents, survivors))

    @property
    def ranks(self) -> list[StressRank]:
        """Return all ranks."""
        return self.stage.ranks

    # ---- parts ----------------------------------------------------------------------------------

    @property
    def first(self) -> Hand[StressRank]:
        """Return the rank that does everything first."""
        return self.stage.hands[self.first_index]

    def _carry(self, part: Part) -> None:
        self.script.append(part)
        self.first.do(part, first=True)
        if isinstance(part, SendBatch):
            part.peers, self.model.peers = self.model.peers, []
            self.first.rank.expect_peers(part.peers, part.position)
        for hand in self.stage.hands:
            behind = len(self.script) - hand.done_count
            if behind > LAG_PARTS_MAX:
                self.follow(hand, behind - LAG_PARTS_MAX)

    def follow(self, hand: Hand[StressRank], count: int) -> int:
        """Have a rank do what the first one did; return how many parts that were."""
        parts = self.script[hand.done_count : hand.done_count + count]
        for part in parts:
            hand.do(part, first=False)
        return len(parts)

    def _plan_forward(self, part: OpenLaunch) -> ForwardPlan:
        model, step = self.model, self.scheduler.launched_count + 1
        return plan_forward(
            model.contents, model, step=step, runners=part.runners, dirties_sink=part.dirties_sink
        )

    # ---- what is decided ------------------------------------------------------------------------

    def before(self, operation: Operation) -> None:
        """See an operation that is about to be decided."""
        self.oracle.before(operation)

    def wrong(self, operation: Operation, error: OperationError) -> None:
        """See one that was wrong use."""
        self.oracle.wrong(operation, error)
        part = self.script[-1]
        if not isinstance(part, SendBatch) or not part.misused:
            raise StressFailure(
                CheckName.CLIENT,
                f"{type(operation).__name__} was called wrong use: {error.message}",
            )

    def after(self, operation: Operation, outcome: Outcome) -> None:
        """See what was decided."""
        self.oracle.after(PROGRAM, operation, outcome)
        self._digest.update(encode(outcome))
        result = outcome.result
        if isinstance(result, Refusal):
            self.counts[f"refused {result.reason.value}"] += 1
        elif isinstance(result, Pump):
            self.counts["pump"] += 1
        self.model.note(operation, outcome)

    def own(self, entry: AnyOwnEntry, outcome: Outcome) -> None:
        """See an entry of the daemon's own."""
        if isinstance(entry, Released):
            self.oracle.released(entry)
        self._digest.update(encode(outcome))
        self.model.note_own(outcome)
        for copy in self.model.ended_backups:
            for rank in self.stage.ranks:
                for band, words in copy.words.items():
                    rank.check_pool(copy.number, band, copy.places[band], words)
        self.model.ended_backups.clear()

    def aborted(self, step: int) -> None:
        """See a rank's word, which is news, that it left a launch."""
        self.oracle.aborted(step)

    # ---- steps ----------------------------------------------------------------------------------

    def play(self, step: AnyStep) -> bool:
        """Play one step; return whether anything fitted it. Raises StressFailure."""
        self.step_index += 1
        with self._failing():
            done = play_step(self, step)
            name = type(step).__struct_config__.tag
            self.counts[f"{name}" if done else f"{name} skipped"] += 1
            self._look()
        return done

    def end(self) -> None:
        """Let everything come to its end, and check what is left; raises StressFailure."""
        with self._failing():
            finish(self)
            self._look()

    def close(self) -> None:
        """Give the memory back, however the run ended."""
        self.memories.close()

    @property
    def digest(self) -> str:
        """Return the digest of everything that was decided and of the order of all actions."""
        digest = self._digest.copy()
        digest.update(b"%d" % self.pace.digest)
        return digest.hexdigest()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Raise what comes out of a step as the failure of a check."""
        try:
            yield
        except StressFailure as failure:
            failure.step_index = self.step_index
            raise
        except Exception as error:  # rim: whatever the code under test raises is a finding
            broken = self.stage.incarnation.broken
            failure = failure_of(broken or error, in_engine=broken is not None)
            failure.step_index = self.step_index
            raise failure from (broken or error)

    def _look(self) -> None:
        for rank in self.stage.ranks:
            rank.post_peers()
            if rank.findings:
                raise rank.findings[0]


def run_steps(program: Program, steps: Iterable[AnyStep], *, operations_max: int = 0) -> Result:
    """Play steps on the stage of a program, whose own are left aside, until so many were done.

    0 plays them all. Nothing is raised for a failure: the result has it, and the steps so far.
    """
    played: list[AnyStep] = []
    run = StressRun(program)
    operations_count = 0
    failure: StressFailure | None = None
    try:
        for step in steps:
            played.append(step)
            done = run.play(step)
            operations_count += done and not isinstance(step, UNCOUNTED)
            if operations_max and operations_count >= operations_max:
                break
        run.end()
    except StressFailure as found:
        failure = found
    finally:
        run.close()
    return Result(
        program=structs.replace(program, steps=tuple(played)),
        operations_count=operations_count,
        digest=run.digest,
        counts=run.counts,
        failure=failure,
    )


def run(program: Program) -> Result:
    """Play a whole program."""
    return run_steps(program, program.steps)
