"""One rank of a replay: a process that plays an engine's scheduler and model runner.

``python -m kvd.testing.rank DESCRIPTOR PARENT_PID`` reads a `RankSpec` from the pipe behind the
descriptor, runs it through `kvd_client`, and answers with a `RankReport` or a `RankFailure`.
"""

import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

import kvd_client
from kvd.errors import WorkloadError
from kvd.testing.asking import ask_pass
from kvd.testing.child import die_with_parent
from kvd.testing.cuda_painter import CudaPainter
from kvd.testing.forward import ForwardBuilder
from kvd.testing.messages import (
    Attached,
    FollowEnd,
    FollowStep,
    FromLeader,
    FromRank,
    Leave,
    RankFailure,
    RankProgress,
    RankReport,
    RankSpec,
)
from kvd.testing.painter import ArenaPainter
from kvd.testing.passes import Answers, Pass, StepWork
from kvd.testing.workload import Workload
from kvd_client.device.port import Event
from kvd_proto.control import Mode
from kvd_proto.errors import KvdError
from kvd_proto.scalars import Position, RequestId, StepNumber

PROGRESS_INTERVAL_S: Final = 0.1
"""How often a rank says how far it is."""
TRACE_CHARACTERS_MAX: Final = 8_000
"""How much of a stack trace travels to the parent: its end, where the cause stands."""

_encoder = msgspec.msgpack.Encoder()
_spec_decoder = msgspec.msgpack.Decoder(RankSpec)
_leave_decoder = msgspec.msgpack.Decoder(Leave)
_leader_decoder: msgspec.msgpack.Decoder[FromLeader] = msgspec.msgpack.Decoder(FromLeader)


def main(arguments: Sequence[str]) -> int:
    """Run the rank behind a pipe and return the process's exit code."""
    # A terminal's Ctrl-C goes to every process in front of it; the parent decides what ends when.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(int(arguments[1]))
    parent = Connection(int(arguments[0]))
    try:
        run_rank(_spec_decoder.decode(parent.recv_bytes()), parent)
    except (EOFError, BrokenPipeError):
        return 1  # The parent is gone, and nobody is left to tell.
    except KvdError as error:
        _send(parent, RankFailure(error=type(error).__name__, message=str(error), trace=""))
        return 1
    except Exception as error:  # rim: whatever it is, the parent is told
        # Only an error that nobody planned for needs its trace.
        trace = "".join(traceback.format_exception(error))[-TRACE_CHARACTERS_MAX:]
        _send(parent, RankFailure(error=type(error).__name__, message=str(error), trace=trace))
        return 1
    return 0


def run_rank(spec: RankSpec, parent: Connection) -> None:
    """Attach, replay the whole workload, report, and part when the parent says so."""
    device = None
    if spec.device == "cuda":
        from kvd.testing.cuda_painter import open_gpu

        device = open_gpu(spec.rank_index)
    with kvd_client.attach(
        spec.address,
        group=spec.group,
        rank=spec.rank_index,
        tp=spec.tp_count,
        mode=spec.mode,
        declare=spec.declaration,
        sizing=spec.sizing,
        deadline_ms=spec.deadline_ms,
        overlap=spec.overlap,
        device=device,
    ) as kv:
        _send(parent, Attached(arena_bytes=kv.plan.arena_bytes))
        peers = [Connection(descriptor) for descriptor in spec.peer_descriptors]
        if spec.mode is Mode.FOLLOWER:
            report = _Follower(spec, kv, peers[0]).run()
        else:
            report = _Scheduler(spec, kv, parent, peers).run()
        _send(parent, report)
        # Whoever parts first ends the incarnation, so nobody does before all have reported.
        _leave_decoder.decode(parent.recv_bytes())


class _Launched(NamedTuple):
    """A step that was launched, and the event behind its forward."""

    step: StepNumber
    position: Position
    over: Event


class _Runner:
    """What a rank does for each forward, whoever decided it."""

    def __init__(self, spec: RankSpec, kv: kvd_client.Client) -> None:
        self.spec = spec
        self.kv = kv
        self.forward = ForwardBuilder(kv, corruption=spec.corruption)
        self.painter: ArenaPainter | CudaPainter
        if spec.device == "cuda":
            self.painter = CudaPainter(
                kv.plan,
                kv.memory,
                kv,
                rank_index=spec.rank_index,
                forward_us=spec.forward_us,
                corruption=spec.corruption,
            )
        else:
            self.painter = ArenaPainter(
                kv.plan,
                kv.arena_array(),
                rank_index=spec.rank_index,
                corruption=spec.corruption,
            )

    def launch(self, work: StepWork, launch: Any) -> _Launched:
        """Run a step's forward inside an open launch context."""
        with launch as step:
            job = self.forward.build(work)
            if isinstance(self.painter, CudaPainter):
                step.submit(partial(self.painter.read_tables, job))
            step.reads_done()
            step.submit(partial(self.painter.run, job))
            return _Launched(step.number, step.position, step.stream.record())

    def finish(self) -> None:
        """Wait until everything submitted so far has run."""
        self.kv.forward_stream.synchronize(self.spec.deadline_ms)
        self.kv.stream.synchronize(self.spec.deadline_ms)

    def report(
        self, workload: Workload | None, elapsed_s: float, latencies_ns: Sequence[int]
    ) -> RankReport:
        """Return what this rank did and found; raises TablesError for tables against the books."""
        self.finish()
        tables_count = self.kv.check_tables()
        painted = self.painter.statistics()
        counts = (workload or Workload((), self.spec.limits)).statistics()
        p50_ns, p99_ns = np.percentile(latencies_ns, (50, 99)) if latencies_ns else (0, 0)
        return RankReport(
            rank_index=self.spec.rank_index,
            is_scheduler=workload is not None,
            served_count=counts.served_count,
            served_tokens=counts.served_tokens,
            written_tokens=counts.written_tokens,
            pass_count=counts.pass_count,
            step_count=counts.step_count,
            running_count_max=counts.running_count_max,
            waiting_pass_count=counts.waiting_pass_count,
            idle_pass_count=counts.idle_pass_count,
            refused_take_count=counts.refused_take_count,
            retracted_count=counts.retracted_count,
            recomputed_tokens=counts.recomputed_tokens,
            clipped_count=counts.clipped_count,
            unschedulable=counts.unschedulable,
            verdicts=counts.verdicts,
            refusals=counts.refusals,
            elapsed_ms=elapsed_s * 1e3,
            batch_p50_us=float(p50_ns) / 1e3,
            batch_p99_us=float(p99_ns) / 1e3,
            useful_bytes_max=self.forward.useful_bytes_max,
            arena_bytes=self.kv.plan.arena_bytes,
            written_bytes=painted.written_bytes,
            checked_bytes=painted.checked_bytes,
            checked_units=painted.checked_units,
            corrupted_count=painted.corrupted_count,
            mismatch_count=painted.mismatch_count,
            mismatches=painted.mismatches,
            places_digest=self.forward.places_digest,
            tables_count=tables_count,
            position=Position(self.kv.applied),
        )


class _Scheduler(_Runner):
    """A rank that decides: each in mirrored mode, the first in leader mode."""

    def __init__(
        self,
        spec: RankSpec,
        kv: kvd_client.Client,
        parent: Connection,
        followers: Sequence[Connection],
    ) -> None:
        super().__init__(spec, kv)
        self._parent = parent
        self._followers = followers
        # The plan may hold fewer requests than were asked for.
        running_count_max = min(spec.limits.running_count_max, kv.plan.row_count - 1)
        limits = replace(spec.limits, running_count_max=running_count_max)
        self._workload = Workload(spec.requests, limits)
        self._latencies_ns: list[int] = []
        self._records: list[bytes] = []
        self._freed: list[RequestId] = []
        self._in_flight: deque[_Launched] = deque()
        self._launched_nothing = False

    def run(self) -> RankReport:
        """Serve the whole workload, one batch and at most one forward per pass.

        With overlap a batch goes out while the step launched last may still run: it frees that
        step's finished requests and takes the next one's tokens, and reports the step before as
        processed.
        """
        started_s = time.monotonic()
        told_s = started_s
        while not self._workload.is_over:
            asked = self._workload.next_pass()
            over = self._take_over(asked)
            # What the batch would wait for anyway; done here so that its time is the round trip's.
            for launched in over:
                launched.over.synchronize(self.spec.deadline_ms)
            answers = self._ask(asked, over)
            self.forward.forget((*asked.free, *answers.retracted))
            work = self._workload.settle(asked, answers)
            self._launched_nothing = work.is_empty
            if not work.is_empty:
                launched = self.launch(work, self.kv.launch(writes=work.requests))
                self._in_flight.append(launched)
                self._tell_followers(work, launched.step, launched.position)
            now_s = time.monotonic()
            if now_s - told_s >= PROGRESS_INTERVAL_S:
                told_s = now_s
                self._tell_progress()
        self._process_rest()
        self._tell_followers(StepWork((), (), (), (), ()), StepNumber(0), Position(self.kv.applied))
        for follower in self._followers:
            follower.send_bytes(_encoder.encode(FollowEnd()))
        self._tell_progress()
        return self.report(self._workload, time.monotonic() - started_s, self._latencies_ns)

    def _take_over(self, asked: Pass) -> list[_Launched]:
        """Return the steps that the next batch reports as processed, which are then not in flight.

        With overlap that is not the newest, unless nothing is or was launched behind it.
        """
        kept = 1 if self.spec.overlap and not (asked.is_idle or self._launched_nothing) else 0
        return [self._in_flight.popleft() for _ in range(len(self._in_flight) - kept)]

    def _ask(self, asked: Pass, over: Sequence[_Launched]) -> Answers:
        """Send one batch and return its answers."""
        began_ns = time.perf_counter_ns()
        with self.kv.batch() as batch:
            for launched in over:
                batch.processed(launched.step)
            asking = ask_pass(batch, asked, self.spec.limits)
        self._latencies_ns.append(time.perf_counter_ns() - began_ns)
        answers = asking.answers()
        if self._followers:
            self._records.append(batch.record())
            self._freed.extend((*asked.free, *answers.retracted))
        return answers

    def _process_rest(self) -> None:
        """Report the steps that no later batch did, so that what they held comes back."""
        if self._in_flight:
            with self.kv.batch() as batch:
                for launched in self._in_flight:
                    batch.processed(launched.step)
            self._in_flight.clear()
            if self._followers:
                self._records.append(batch.record())

    def _tell_followers(self, work: StepWork, step: StepNumber, position: Position) -> None:
        if not self._followers:
            return
        message = _encoder.encode(
            FollowStep(
                step=step,
                position=position,
                records=tuple(self._records),
                freed=tuple(self._freed),
                work=work,
            )
        )
        self._records.clear()
        self._freed.clear()
        for follower in self._followers:
            follower.send_bytes(message)

    def _tell_progress(self) -> None:
        counts = self._workload.statistics()
        _send(
            self._parent,
            RankProgress(
                served_count=counts.served_count,
                served_tokens=counts.served_tokens,
                pass_count=counts.pass_count,
            ),
        )


class _Follower(_Runner):
    """A rank that launches what its leader says, once the log up to there is applied."""

    def __init__(self, spec: RankSpec, kv: kvd_client.Client, leader: Connection) -> None:
        super().__init__(spec, kv)
        self._leader = leader

    def run(self) -> RankReport:
        """Follow until the leader says that it is over."""
        started_s = time.monotonic()
        while True:
            try:
                message = _leader_decoder.decode(self._leader.recv_bytes())
            except EOFError as error:
                raise WorkloadError("the leader's process ended before its workload") from error
            if isinstance(message, FollowEnd):
                break
            self.kv.follow(message.position, records=message.records)
            self.forward.forget(message.freed)
            if not message.work.is_empty:
                launch = self.kv.launch(step=message.step, position=message.position)
                self.launch(message.work, launch)
        return self.report(None, time.monotonic() - started_s, ())


def _send(pipe: Connection, message: FromRank) -> None:
    pipe.send_bytes(_encoder.encode(message))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
