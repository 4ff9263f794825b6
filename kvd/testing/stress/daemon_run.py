"""Programs of the stress harness against a real daemon: sockets, processes, faults, host device.

Every rank is a process, forked from this one, with a client over a transport that loses, repeats
and delays messages (`kvd.testing.faults`). Batches and launch blocks are left by exceptions, and
ranks are killed in the middle of an exchange; the next incarnation then goes on with the program.
What a rank cannot know, it reads in the log; what all of them must have in common is compared here.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Final

import msgspec

from kvd.testing.faults import FaultRates
from kvd.testing.stress.daemon_rank import RankEnd, RankTask, serve
from kvd.testing.stress.failure import CheckName, StressFailure
from kvd.testing.stress.generator import program_of

RATES: Final = FaultRates(
    lose_request_permille=20,
    lose_answer_permille=20,
    double_permille=20,
    repeat_old_permille=20,
    delay_permille=10,
)
"""Faults of messages, each of so many of a thousand."""
SILENCE_S_MAX: Final = 60.0
"""How long ranks may work without a word before the run counts as stuck."""
STEPS_BEHIND_DEATH: Final = 12
"""Where the next incarnation goes on in the program, behind the step that killed a rank."""

_decoder = msgspec.msgpack.Decoder(RankEnd)


@dataclass(slots=True)
class DaemonResult:
    """What came of a seed."""

    operations_count: int = 0
    """Steps of the scheduler's that were carried out, counted once and not per rank."""
    incarnations_count: int = 0
    checked_words_count: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    failure: StressFailure | None = None


def run_seed(
    address: str, shape: str, seed: int, *, operations_max: int, rates: FaultRates = RATES
) -> DaemonResult:
    """Play so many operations of a seed on a daemon's group of its own.

    Nothing is raised for a failure: the result has it. This process must have no other threads.
    """
    result, first_step_index = DaemonResult(), 0
    while result.operations_count < operations_max and result.failure is None:
        task = RankTask(
            address=address,
            group=f"{shape}-{seed}",
            shape=shape,
            seed=seed,
            rank=0,
            incarnation=result.incarnations_count,
            first_step_index=first_step_index,
            operations_max=operations_max - result.operations_count,
            rates=rates,
        )
        ends = _play_incarnation(task, program_of(shape, seed).ranks_count)
        result.incarnations_count += 1
        _take_in(result, ends)
        first_step_index = max(end.step_index for end in ends) + STEPS_BEHIND_DEATH
    return result


def _play_incarnation(task: RankTask, ranks_count: int) -> list[RankEnd]:
    """Run all ranks to their ends; return the last word of each."""
    pipes: list[Connection] = []
    pids: list[int] = []
    parent_pid = os.getpid()
    for rank in range(ranks_count):
        ours, theirs = Pipe(duplex=True)
        pid = os.fork()
        if pid == 0:
            serve(msgspec.structs.replace(task, rank=rank), theirs, parent_pid)
        theirs.close()
        pipes.append(ours)
        pids.append(pid)
    words = [_next_word(pipe, rank) for rank, pipe in enumerate(pipes)]
    while any(word.how == "waiting" for word in words):
        waiting = [rank for rank, word in enumerate(words) if word.how == "waiting"]
        for rank in waiting:
            pipes[rank].send_bytes(b"go on")
        for rank in waiting:
            words[rank] = _next_word(pipes[rank], rank)
    for pipe, word in zip(pipes, words, strict=True):
        if word.how == "done":
            # Whoever parts first ends the incarnation, so nobody does before all have reported.
            pipe.send_bytes(b"leave")
    for pid in pids:
        os.waitpid(pid, 0)
    for pipe in pipes:
        pipe.close()
    return words


def _next_word(pipe: Connection, rank: int) -> RankEnd:
    """Return what a rank says next; of one that died after it said it would, that."""
    last: RankEnd | None = None
    while pipe.poll(SILENCE_S_MAX):
        try:
            last = _decoder.decode(pipe.recv_bytes())
        except (EOFError, OSError):
            if last is not None and last.how == "dying":
                return last
            break
        if last.how != "dying":
            return last
    return RankEnd(
        rank=rank,
        how="failed",
        step_index=0,
        operations_count=0,
        check=CheckName.CLIENT,
        message=f"the process of rank {rank} ended or hung without a word",
    )


def _take_in(result: DaemonResult, ends: list[RankEnd]) -> None:
    """Add up what ranks did; what one of them found, or in what they differ, is the failure."""
    longest = max(ends, key=lambda end: end.operations_count)
    result.operations_count += longest.operations_count
    result.counts.update(longest.counts)
    for end in ends:
        result.checked_words_count += end.checked_words_count
        result.counts[f"rank {end.how}"] += 1
        if end.how == "failed" and result.failure is None:
            result.failure = StressFailure(
                end.check, f"rank {end.rank}: {end.message}", step_index=end.step_index
            )
    done = [end for end in ends if end.how == "done"]
    if done and len(done) < len(ends) and result.failure is None:
        hows = [end.how for end in ends]
        result.failure = StressFailure(CheckName.CLIENT, f"ranks ended differently: {hows}")
    if len({end.digest for end in done}) > 1 and result.failure is None:
        result.failure = StressFailure(
            CheckName.DIVERGENCE, f"ranks read different logs: {[end.digest for end in done]}"
        )
