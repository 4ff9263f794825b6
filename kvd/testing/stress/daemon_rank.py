"""A rank's process in a stress run against a real daemon: it plays the whole program by itself.

Every rank resolves the same steps against the same log, so all of them ask the same: a reply to a
mirrored rank ends with its batch, whoever else has sent what since. What depends on time, such as
when a copy is over, only enters through the log. A step that is about one rank is carried out by
that rank; the others take note of what it will have said.
"""

import hashlib
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from random import Random
from typing import Final

import msgspec

from kvd.errors import StressFailure
from kvd.testing.child import die_with_parent
from kvd.testing.faults import FaultyTransport
from kvd.testing.modelled.memory import grains_of
from kvd.testing.stress import finish, rank_steps
from kvd.testing.stress.contents import Contents
from kvd.testing.stress.coverage import note_outcome, note_released, note_step
from kvd.testing.stress.daemon_messages import RankEnd, RankTask
from kvd.testing.stress.failure import CheckName, failure_of
from kvd.testing.stress.forwards import plan_forward
from kvd.testing.stress.generator import program_of, steps_of
from kvd.testing.stress.host_rank import HostPeer, HostRank
from kvd.testing.stress.insisting import InsistingHand
from kvd.testing.stress.log_reader import LogReader
from kvd.testing.stress.model import Model
from kvd.testing.stress.plans import ForwardPlan
from kvd.testing.stress.program import (
    AdmitElsewhere,
    AnyStep,
    CheckTables,
    Die,
    Elsewhere,
    EndTransfer,
    FailCopy,
    Follow,
    Lead,
    LetGo,
    Misuse,
    Play,
    Rest,
)
from kvd.testing.stress.rest import check_at_rest
from kvd.testing.stress.scheduler import POOL_PLACES_COUNT, Limits, Scheduler
from kvd.testing.stress.script import OpenLaunch, Part, SendBatch
from kvd.testing.stress.shapes import StressStage, stress_stage
from kvd.testing.stress.steps import UNCOUNTED, play_scheduled
from kvd_client import Client, Mode, attach
from kvd_client.errors import AttachError, EndedError, UsageError
from kvd_client.transport import ZmqTransport
from kvd_proto.codec import encode
from kvd_proto.operations import CopyEnded, TransferEnded
from kvd_proto.outcomes import OWN_PROGRAM, Failed, Outcome, ReleasedResult

DEADLINE_MS: Final = 20_000
ATTACH_WAIT_S: Final = 20.0
"""How long memory of the incarnation before may take to fall quiet."""
NUMBERS_PER_INCARNATION: Final = 1_000_000
CALLS_TO_DEATH_MAX: Final = 8
"""Within how many messages a rank dies that is to die."""
TRACE_CHARACTERS: Final = 3_000
DRAIN_ROUNDS_MAX: Final = 4_000
DRAIN_PAUSE_S: Final = 0.002


class DaemonRun:
    """One rank's side of one incarnation."""

    def __init__(self, task: RankTask) -> None:
        self.task = task
        self.program = program_of(task.shape, task.seed_index)
        self.built: StressStage = stress_stage(task.shape, overlap=self.program.overlap)
        self.counts: Counter[str] = Counter()
        self.step_index = task.first_step_index
        self.operations_count = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._faulty = FaultyTransport(
            ZmqTransport(task.address),
            rates=task.rates,
            seed=f"{task.shape} {task.seed_index} {task.incarnation_index} {task.rank_index}",
        )
        self._log = LogReader(self._faulty)
        client = self._attach()
        self._log.start_at(client.applied)
        self.rank = HostRank(
            index=task.rank_index,
            client=client,
            pool_places=POOL_PLACES_COUNT,
            seed=f"paces of rank {task.rank_index} in {task.incarnation_index}",
        )
        self.ranks = [self.rank]
        self.hand = InsistingHand(
            self.rank, plan_forward=self._plan_forward, seed=f"aborts of {task.incarnation_index}"
        )
        plan, sized = self.built.storage.storage, self.built.storage.sized
        contents = Contents(plan, cell_bytes=grains_of(plan)[0].cell_bytes)
        self.model = Model(contents)
        for kind in self.model.next_number:
            self.model.next_number[kind] += task.incarnation_index * NUMBERS_PER_INCARNATION
        self.scheduler = Scheduler(
            self.model,
            Limits(plan.context_tokens, sized.chunk_tokens, plan.page_tokens),
            overlap=self.program.overlap,
            carry=self._carry,
        )
        self._start_afresh(client)
        self._faulty.armed = True

    # ---- attaching ------------------------------------------------------------------------------

    def _attach(self) -> Client:
        task, end_s = self.task, time.monotonic() + ATTACH_WAIT_S
        while True:
            try:
                client = attach(
                    task.address,
                    group=task.group,
                    rank=task.rank_index,
                    tp=self.program.ranks_count,
                    mode=Mode.MIRRORED,
                    declare=self.built.layers,
                    sizing=self.built.sizing,
                    deadline_ms=DEADLINE_MS,
                    transport=self._log,
                    overlap=self.program.overlap,
                )
            except AttachError as error:
                if not error.retry or time.monotonic() > end_s:
                    raise
                time.sleep(0.02)
            else:
                break
        if client.plan != self.built.storage.storage:
            raise StressFailure(CheckName.CLIENT, "the daemon built another plan than this process")
        return client

    def _start_afresh(self, client: Client) -> None:
        """Give up what survived the incarnation before: its bytes are checked elsewhere."""
        if client.values:
            self.counts["survived"] += len(client.values)
            values = list(client.values)
            with client.batch() as batch:
                batch.evict(values)
        self._log.start_at(client.applied)

    # ---- parts ----------------------------------------------------------------------------------

    def _carry(self, part: Part) -> None:
        self.hand.do(part, first=True)
        if isinstance(part, SendBatch):
            for entry, operation in self._log.take():
                self._digest.update(encode(entry.outcome))
                self._check_used_rightly(entry.outcome, misused=part.misused)
                if operation is not None:
                    note_outcome(self.counts, operation, entry.outcome)
                    self.model.note(operation, entry.outcome)
                elif entry.program == OWN_PROGRAM:
                    if isinstance(entry.outcome.result, ReleasedResult):
                        note_released(self.counts, entry.outcome.result)
                    self.model.note_own(entry.outcome)
            peers, self.model.peers = self.model.peers, []
            self.rank.expect_peers(peers, self._log.position)
            for copy in self.model.ended_backups:
                for band, words in copy.words.items():
                    self.rank.check_pool(copy.number, band, copy.places[band], words)
            self.model.ended_backups.clear()
        self.rank.post_peers()

    def _check_used_rightly(self, outcome: Outcome, *, misused: bool) -> None:
        """Raise StressFailure for what was called wrong use and is none."""
        result = outcome.result
        if isinstance(result, Failed):
            if not misused:
                raise StressFailure(CheckName.CLIENT, f"called wrong use: {result.message}")
            self.counts["wrong use"] += 1

    def _plan_forward(self, part: OpenLaunch) -> ForwardPlan:
        return plan_forward(
            self.model.contents,
            self.model,
            step=self.scheduler.launched_count + 1,
            runners=part.runners,
            dirties_sink=part.dirties_sink,
        )

    # ---- steps ----------------------------------------------------------------------------------

    def play(self, step: AnyStep) -> bool:
        """Play one step; return whether anything fitted it. Raises StressFailure."""
        done = play_scheduled(self.scheduler, step)
        if done is None:
            done = self._play_on_rank(step)
        note_step(self.counts, step, done=done)
        self.rank.post_peers()
        if self.rank.findings:
            raise self.rank.findings[0]
        return done

    def _play_on_rank(self, step: AnyStep) -> bool:
        match step:
            case FailCopy():
                return self._fail_copy(step)
            case LetGo():
                return self._let_go(step)
            case EndTransfer():
                return self._end_transfer(step)
            case Misuse():
                return bool(rank_steps.ask_wrong(self.scheduler, step))
            case CheckTables():
                return self._check_tables(step)
            case _:
                assert isinstance(
                    step, Play | Follow | Lead | Rest | Die | Elsewhere | AdmitElsewhere
                )
                return False  # real ranks and devices go at their own pace

    def _is_about_us(self, rank: int) -> bool:
        return rank % self.program.ranks_count == self.task.rank_index

    def _fail_copy(self, step: FailCopy) -> bool:
        running = [copy.number for copy in self.model.copies.values() if copy.submitted]
        for number in self.scheduler.pick(running, step.pick_index):
            copies = self.rank.client.session.applier.copies
            # Inside an open launch what was decided waits for its end, copies among it.
            if self._is_about_us(step.rank) and copies.has_started(number):
                fact = CopyEnded(number, failed=True)
                end = copies.end_of(number)
                if end is not None:
                    end.synchronize(DEADLINE_MS)
                    self.hand.insist(partial(self.rank.client.fact, fact))
            return True
        return False

    def _let_go(self, step: LetGo) -> bool:
        published = [one.number for one in self.model.transfers.values() if one.published]
        for number in self.scheduler.pick(published, step.pick_index):
            if number in self.rank.peers:
                self.rank.peers[number].let_go = True
            return True
        return False

    def _end_transfer(self, step: EndTransfer) -> bool:
        rank = step.rank % self.program.ranks_count
        open_peers = [one for one in self.rank.peers.values() if rank not in one.reported]
        for peer in self.scheduler.pick(open_peers, step.pick_index):
            return self._report(peer, rank, failed=step.failed, proven=not step.unproven)
        return False

    def _report(self, peer: HostPeer, rank: int, *, failed: bool, proven: bool) -> bool:
        """Have a rank say how a transfer ended; the others take note of what it says."""
        number = peer.plan.number
        is_over = peer.let_go and self.rank.client.applied >= peer.position
        if not is_over or (failed and not proven):
            if not failed or proven or rank in peer.astray:
                return False
            peer.astray[rank] = None
            fact = TransferEnded(number, failed=True, proven=False)
        else:
            if rank == self.task.rank_index:
                self.rank.await_end(peer, compares=not failed)
            peer.reported[rank] = None
            if len(peer.reported) == self.program.ranks_count:
                del self.rank.peers[number]
            fact = TransferEnded(number, failed=failed)
        self.model.transfers[number].failed |= failed
        if rank == self.task.rank_index:
            self.hand.insist(lambda: self.rank.client.fact(fact))
        return True

    def _check_tables(self, step: CheckTables) -> bool:
        if self.hand.launching or not self._is_about_us(step.rank):
            return False
        try:
            self.hand.insist(self.rank.client.check_tables)
        except UsageError:
            return False  # another rank is further, and the books are those of the log's end
        return True

    # ---- death and the end ----------------------------------------------------------------------

    def arm_death(self, step: Die) -> bool:
        """Have this process be killed within a few messages if it is its turn."""
        dies = step.all_die or self._is_about_us(step.rank)
        if dies:
            self._faulty.die_after(Random(self.step_index).randrange(CALLS_TO_DEATH_MAX) + 1)
        return dies

    def die_if_due(self) -> None:
        """Have this process be killed now, if it did not come to its death so far."""
        self._faulty.die_if_due()

    def end(self, meet: Callable[[RankEnd], None]) -> None:
        """Let everything come to its end, and check what is left; raises StressFailure.

        ``meet`` blocks until all ranks have come as far: tables are only compared at the end of the
        log.
        """
        self._faulty.armed = False
        self._settle()
        self._check_at_rest(meet)
        finish.empty(self)
        finish.serve(self)
        finish.empty(self)
        self._check_at_rest(meet)

    def _check_at_rest(self, meet: Callable[[RankEnd], None]) -> None:
        client = self.rank.client
        client.forward_stream.synchronize(DEADLINE_MS)
        client.stream.synchronize(DEADLINE_MS)
        meet(self.ending("waiting"))
        check_at_rest(self)
        if self.rank.findings:
            raise self.rank.findings[0]
        meet(self.ending("waiting"))

    def _settle(self) -> None:
        """Let all copies, transfers and steps end."""
        finish.cancel_all(self.scheduler)
        for peer in self.rank.peers.values():
            peer.let_go = True
        self.rank.post_peers()
        for peer in list(self.rank.peers.values()):
            for rank in range(self.program.ranks_count):
                if rank not in peer.reported:
                    self._report(peer, rank, failed=rank in peer.astray, proven=True)
        for _ in range(DRAIN_ROUNDS_MAX):
            self.scheduler.send()
            if not self.model.copies and not self.model.transfers:
                return
            time.sleep(DRAIN_PAUSE_S)
        raise StressFailure(
            CheckName.DRAIN,
            f"copies {list(self.model.copies)} and transfers {list(self.model.transfers)} are over "
            "on every rank and were not released",
        )

    def ending(self, how: str, error: StressFailure | None = None) -> RankEnd:
        """Return how it went."""
        counts = self.counts + Counter(
            {f"fault {k.value}": n for k, n in self._faulty.counts.items()}
        )
        counts["fault batch_aborted"] = self.hand.aborted_batches_count
        return RankEnd(
            rank_index=self.task.rank_index,
            how=how,
            step_index=self.step_index,
            operations_count=self.operations_count,
            digest=self._digest.hexdigest(),
            checked_words_count=self.rank.checked_words_count,
            counts=dict(counts),
            check=error.check if error else "",
            message=error.message if error else "",
        )


def play(task: RankTask, say: Callable[[RankEnd], None], wait: Callable[[], object]) -> None:
    """Play a task as one rank and say how it ended; ``wait`` blocks until all ranks have."""

    def meet(word: RankEnd) -> None:
        say(word)
        wait()

    run: DaemonRun | None = None
    try:
        run = DaemonRun(task)
        _play_steps(run, say)
        run.die_if_due()
        run.end(meet)
        meet(run.ending("done"))
        run.rank.close()
    except EndedError:
        end = RankEnd(rank_index=task.rank_index, how="ended", step_index=0, operations_count=0)
        say(run.ending("ended") if run else end)
    except Exception as error:  # rim: whatever it is, the parent is told
        failure = error if isinstance(error, StressFailure) else failure_of(error, in_engine=False)
        if failure is not error:
            # Only an error that nobody planned for needs its trace.
            failure.message += "\n" + "".join(traceback.format_exception(error))[-TRACE_CHARACTERS:]
        if run:
            say(run.ending("failed", failure))
        else:
            say(
                RankEnd(
                    rank_index=task.rank_index,
                    how="failed",
                    step_index=task.first_step_index,
                    operations_count=0,
                    check=failure.check,
                    message=failure.message,
                )
            )


def _play_steps(run: DaemonRun, say: Callable[[RankEnd], None]) -> None:
    task = run.task
    steps = islice(steps_of(task.shape, task.seed_index), task.first_step_index, None)
    for run.step_index, step in enumerate(steps, task.first_step_index):
        if isinstance(step, Die):
            if run.arm_death(step):
                say(run.ending("dying"))
            continue
        done = run.play(step)
        run.operations_count += done and not isinstance(step, UNCOUNTED)
        if run.operations_count >= task.operations_count_max:
            return


def serve(task: RankTask, pipe: Connection, parent_pid: int) -> None:
    """Play a task in a process that was forked for it; never returns."""
    code = 1
    try:
        die_with_parent(parent_pid)
        encoder = msgspec.msgpack.Encoder()
        play(task, lambda end: pipe.send_bytes(encoder.encode(end)), pipe.recv_bytes)
        code = 0
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone, and nobody is left to tell
    finally:
        os._exit(code)
