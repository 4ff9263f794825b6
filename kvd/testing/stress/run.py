"""Playing a program on the modelled device: every step, and every check behind it.

The first rank carries out each part of the script as the scheduler makes it; the others follow when
the program has them follow, each some parts behind. What is decided goes to the model as it is
decided. After every step all that was found wrong so far is raised.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from msgspec import structs

from kvd.engine.legacy import Legacy
from kvd.errors import OperationError, StressFailure
from kvd.testing.in_process import FIRST, IncarnationNumber, InProcessTransport, RankMemories
from kvd.testing.modelled.device import ModelledDevice
from kvd.testing.modelled.memory import grains_of
from kvd.testing.modelled.world import World
from kvd.testing.stress.bound import bounded
from kvd.testing.stress.contents import Contents
from kvd.testing.stress.coverage import note_outcome, note_released, note_step
from kvd.testing.stress.failure import CheckName, failure_of
from kvd.testing.stress.finish import finish
from kvd.testing.stress.forwards import plan_forward
from kvd.testing.stress.hand import Hand
from kvd.testing.stress.model import Model
from kvd.testing.stress.oracle import Oracle
from kvd.testing.stress.order import Order
from kvd.testing.stress.pace import Pace
from kvd.testing.stress.plans import ForwardPlan
from kvd.testing.stress.played_rank import PlayedRank
from kvd.testing.stress.program import AnyStep, Program
from kvd.testing.stress.ranks import StressRank, network_stream_count_max
from kvd.testing.stress.rest import check_units_at_rest
from kvd.testing.stress.scheduler import POOL_PLACES_COUNT, Limits, Scheduler
from kvd.testing.stress.script import OpenLaunch, Part, SendBatch
from kvd.testing.stress.shapes import stress_stage
from kvd.testing.stress.stage import StressRanks, attach_client, poisoned_memories
from kvd.testing.stress.steps import UNCOUNTED, play_step
from kvd.testing.stress.survival import check_survivors
from kvd.testing.stress.twin import Twin
from kvd_proto.codec import decode_entry, encode, join_batch
from kvd_proto.operations import AnyOwnEntry, BatchEnd, Operation, Released
from kvd_proto.outcomes import Outcome, ReleasedResult

ORACLE_PERMILLE: Final = 100
"""Share of the operations whose answers are found again by trying every layout."""
OTHER_PROGRAM: Final = 1
TWO_STREAMS_SHARE: Final = 4
"""Of how many seeds one has forwards that take turns on two streams."""
"""The program that all ranks run."""
LAG_PARTS_MAX: Final = 14
"""Parts that one rank may be behind the first."""
INCARNATIONS_MAX: Final = 1_000_003
"""Incarnations of one run, so that no two runs draw alike."""


@dataclass(frozen=True, slots=True)
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

    world: World | None = None
    """What plays all devices; None for devices that run by themselves."""
    copies = True
    """Whether devices copy to host pools."""
    oracle: Oracle

    def __init__(self, program: Program, *, oracle_permille: int = ORACLE_PERMILLE) -> None:
        """Attach the ranks of a program; its steps are not looked at.

        ``oracle_permille`` of the operations have their answers found by trying every layout.
        """
        self.program = program
        self.oracle_permille = oracle_permille
        self.built = stress_stage(program.shape, overlap=program.overlap)
        plan = self.built.storage.storage
        self.counts: Counter[str] = Counter()
        self.memories = self.new_memories(plan.total_bytes)
        self.cell_bytes = grains_of(plan)[0].cell_bytes
        self.first_index = 0
        """The rank that does everything first."""
        self.script: list[Part] = []
        self.step_index = -1
        self._digest = hashlib.blake2b(digest_size=16)
        self._number = FIRST
        self._attach(None, ())
        self._schedule(Model(Contents(plan, cell_bytes=self.cell_bytes)))

    # ---- what ranks run on ----------------------------------------------------------------------

    def new_memories(self, total_bytes: int) -> RankMemories:
        """Return memory for every rank, full of bytes that nobody wrote."""
        return poisoned_memories(total_bytes, ranks=self.program.ranks_count)

    def begin_incarnation(self) -> None:
        """Have everything that the ranks of an incarnation have in common."""
        self.world = World(self.pace, only_needed=self.program.seed_index % 3 != 0)

    def attach_rank(self, index: int, transport: InProcessTransport) -> PlayedRank[Any]:
        """Attach a rank."""
        plan, world = self.built.storage.storage, self.world
        assert world is not None
        device = ModelledDevice(world, rank=str(index), plan=plan, declares_only=True)
        world.note = f"rank {index}, attach"
        client = attach_client(
            self.program, self.built, index=index, transport=transport, device=device
        )
        rank = StressRank(index=index, device=device, client=client, pool_places=POOL_PLACES_COUNT)
        if self.program.seed_index % TWO_STREAMS_SHARE == 0:
            rank.second_stream = device.stream("second forward")
        return rank

    def advance(self, actions_count: int) -> bool:
        """Let some actions of the devices run; return whether there were any."""
        assert self.world is not None
        return self.world.advance(actions_count) > 0

    def run_dry(self) -> None:
        """Let everything run that is enqueued."""
        assert self.world is not None
        self.world.run()

    def come_to_rest(self) -> None:
        """Let everything run that can: what a peer holds back may stay."""
        if self.world is None:
            self.run_dry()
        else:
            while self.world.step():
                pass

    # ---- incarnations ---------------------------------------------------------------------------

    def _attach(self, legacy: Legacy | None, redo: Sequence[bytes]) -> None:
        """Begin an incarnation."""
        program = self.program
        self.pace = Pace(program.seed_index * INCARNATIONS_MAX + self._number)
        self.begin_incarnation()
        self.script.clear()
        self.stage = StressRanks(
            program,
            self.built,
            memories=self.memories,
            number=self._number,
            legacy=legacy,
            redo=redo,
            attach_rank=self.attach_rank,
            plan_forward=self._plan_forward,
        )
        self._start_position = 0 if legacy is None else legacy.end_position
        survives = legacy is not None and legacy.engine is not None
        self.oracle: Oracle = Oracle(
            self.stage.incarnation.engine,
            seed=program.seed_index * INCARNATIONS_MAX + self._number,
            share_permille=self.oracle_permille,
            before=self.oracle if survives else None,
        )
        self.twin = Twin(self.stage.incarnation.engine, seed=program.seed_index)
        self.order = Order(self.oracle)
        self._wrong_part: Part | None = None
        self.stage.incarnation.watcher = self

    def _schedule(self, model: Model) -> None:
        """Go on with what is there now."""
        plan, sized = self.built.storage.storage, self.built.storage.sized
        self.model = model
        self.scheduler = Scheduler(
            model,
            Limits(
                plan.context_tokens,
                sized.chunk_tokens,
                plan.page_tokens,
                copies=self.copies,
                network_stream_count_max=None
                if self.world is None
                else network_stream_count_max(self.program.ranks_count),
            ),
            overlap=self.program.overlap,
            carry=self._carry,
        )

    def die(self, killed: Sequence[int]) -> None:
        """Let ranks die where they are, and the next incarnation begin on their memory."""
        legacy, redo = self.stage.die(killed)
        self._check_survivors(legacy)
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
        self.counts["redone"] += any(redo)
        self.counts["died all" if len(killed) == len(self.ranks) else "died one"] += 1
        self._schedule(Model.after(before, contents, survivors))
        self.run_dry()
        check_units_at_rest(self)

    def _check_survivors(self, legacy: Legacy) -> None:
        """Compare what survives with what the log says, where that goes back to its beginning."""
        log, contents = self.stage.incarnation.log, self.model.contents
        if log.first_position > self._start_position + 1 or legacy.engine is None:
            return
        check_survivors(
            self.model.values,
            log.records(self._start_position + 1, log.end_position),
            start_position=self._start_position,
            confirmed_position=min(self.stage.progress_positions()),
            state_index=None if contents.state is None else contents.state.index,
            survivors=list(legacy.engine.requests.values.of_number),
        )

    @property
    def ranks(self) -> list[PlayedRank[Any]]:
        """Return all ranks."""
        return self.stage.ranks

    # ---- parts ----------------------------------------------------------------------------------

    @property
    def first(self) -> Hand[PlayedRank[Any]]:
        """Return the rank that does everything first."""
        return self.stage.hands[self.first_index]

    def _carry(self, part: Part) -> None:
        self.script.append(part)
        self._do(self.first, part, first=True)
        if isinstance(part, SendBatch):
            part.peers, self.model.peers = self.model.peers, []
            self.first.rank.expect_peers(part.peers, part.position)
        for hand in self.stage.hands:
            behind = len(self.script) - hand.done_count
            if behind > LAG_PARTS_MAX:
                self.follow(hand, behind - LAG_PARTS_MAX)

    def follow(self, hand: Hand[PlayedRank[Any]], count: int) -> int:
        """Have a rank do what the first one did; return how many parts that were."""
        parts = self.script[hand.done_count : hand.done_count + count]
        for part in parts:
            self._do(hand, part, first=False)
        return len(parts)

    def _do(self, hand: Hand[PlayedRank[Any]], part: Part, *, first: bool) -> None:
        """Have a rank do a part, in which it waits for a device only to say that steps are over."""
        world = self.world
        ran_count = 0 if world is None else world.ran_count
        hand.do(part, first=first)
        if world is None or (isinstance(part, SendBatch) and part.processed):
            return
        if world.ran_count != ran_count:
            raise StressFailure(
                CheckName.HOST_WAIT,
                f"rank {hand.rank.index} waited for a device in a {type(part).__name__} in which "
                "no step is over",
            )

    def _plan_forward(self, part: OpenLaunch) -> ForwardPlan:
        model, step = self.model, self.scheduler.launched_count + 1
        return plan_forward(
            model.contents, model, step=step, runners=part.runners, dirties_sink=part.dirties_sink
        )

    # ---- what is decided ------------------------------------------------------------------------

    @property
    def _last_part(self) -> Part | None:
        return self.script[-1] if self.script else None

    def before(self, operation: Operation) -> None:
        """See an operation that is about to be decided."""
        part = self._last_part
        self.oracle.before(operation, daring=isinstance(part, SendBatch) and part.misused)
        self.order.before()

    def wrong(self, operation: Operation, error: OperationError) -> None:
        """See one that was wrong use."""
        self.oracle.wrong(operation, error)
        part = self._wrong_part = self._last_part
        if not isinstance(part, SendBatch) or not part.misused:
            raise StressFailure(
                CheckName.CLIENT,
                f"{type(operation).__name__} was called wrong use: {error.message}",
            )

    def after(self, operation: Operation, outcome: Outcome, position: int) -> None:
        """See what was decided, and where in the log it stands."""
        wrong = self._wrong_part is not None and self._wrong_part is self._last_part
        if wrong and not isinstance(operation, BatchEnd):
            raise StressFailure(
                CheckName.ANSWERS, f"{type(operation).__name__} runs behind wrong use in its batch"
            )
        program = self.stage.incarnation.program
        self.oracle.after(program, operation, outcome, position)
        self.order.check(operation, outcome)
        encoded = encode(outcome)
        self._digest.update(encoded)
        self.twin.after(program, operation, outcome, encoded, position=position)
        note_outcome(self.counts, operation, outcome)
        self.model.note(operation, outcome)

    def own(self, entry: AnyOwnEntry, outcome: Outcome) -> None:
        """See an entry of the daemon's own."""
        encoded = encode(outcome)
        self._digest.update(encoded)
        if isinstance(entry, Released):
            self.oracle.released(entry)
            self.order.note_own()
            self.twin.released(entry, outcome, encoded)
        if isinstance(outcome.result, ReleasedResult):
            note_released(self.counts, outcome.result)
        self.model.note_own(outcome)
        for copy in self.model.ended_backups:
            for rank in self.stage.ranks:
                for band, words in copy.words.items():
                    rank.check_pool(copy.number, band, copy.places[band], words)
        self.model.ended_backups.clear()

    def aborted(self, step: int) -> None:
        """See a rank's word, which is news, that it left a launch."""
        self.counts["step aborted"] += 1
        self.oracle.aborted(step)
        self.twin.aborted(step)

    def decide_elsewhere(self, *operations: Operation) -> None:
        """Have another program's batch decided, of which ranks hear with their next one."""
        incarnation = self.stage.incarnation
        self._wrong_part = None
        incarnation.batch(
            rank=self.first_index,
            program=OTHER_PROGRAM,
            index=incarnation.next_index(OTHER_PROGRAM),
            body=join_batch([encode(operation) for operation in (*operations, BatchEnd())]),
        )
        incarnation.settle()

    # ---- steps ----------------------------------------------------------------------------------

    def play(self, step: AnyStep) -> bool:
        """Play one step; return whether anything fitted it. Raises StressFailure."""
        self.step_index += 1
        with self._failing():
            done = play_step(self, step)
            note_step(self.counts, step, done=done)
            self.look()
        return done

    def end(self) -> None:
        """Let everything come to its end, and check what is left; raises StressFailure."""
        with self._failing():
            finish(self)
            self.look()

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
    def _failing(self) -> Generator[None]:
        """Raise what comes out of a step as the failure of a check."""
        try:
            with bounded():
                yield
        except StressFailure as failure:
            failure.step_index = self.step_index
            raise
        except Exception as error:  # rim: whatever the code under test raises is a finding
            broken = self.stage.incarnation.broken
            found = failure_of(broken or error, in_engine=broken is not None)
            found.step_index = self.step_index
            raise found from (broken or error)

    def look(self) -> None:
        """Raise what was found wrong so far."""
        broken = self.stage.incarnation.broken
        if broken is not None:  # what was on its way to a rank may have been taken for news
            raise broken
        for rank in self.stage.ranks:
            rank.post_peers()
            if rank.findings:
                raise rank.findings[0]


def run_steps(
    program: Program,
    steps: Iterable[AnyStep],
    *,
    operations_max: int = 0,
    begin: Callable[[Program], StressRun] = StressRun,
) -> Result:
    """Play steps on the stage of a program, whose own are left aside, until so many were done.

    0 plays them all. Nothing is raised for a failure: the result has it, and the steps so far.
    """
    played: list[AnyStep] = []
    run = begin(program)
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
    run.counts["decisions judged"] += run.oracle.judged_count
    run.counts["decisions strictly checked"] += run.twin.strict_count
    return Result(
        program=structs.replace(program, steps=tuple(played)),
        operations_count=operations_count,
        digest=run.digest,
        counts=run.counts,
        failure=failure,
    )


def run(program: Program, *, oracle_permille: int = ORACLE_PERMILLE) -> Result:
    """Play a whole program."""
    begin = partial(StressRun, oracle_permille=oracle_permille)
    return run_steps(program, program.steps, begin=begin)
