"""Programs of the stress harness against a real daemon: sockets, processes, faults, host device.

Every rank is a process, forked from this one, with a client over a transport that loses, repeats
and delays messages (`kvd.testing.faults`). Batches and launch blocks are left by exceptions, and
ranks are killed in the middle of an exchange; the next incarnation then goes on with the program.
What a rank cannot know, it reads in the log; what all of them must have in common is compared here.
"""

import os
from collections import Counter
from dataclasses import replace
from itertools import islice
from multiprocessing.connection import Connection, Pipe
from typing import Final

import msgspec
from msgspec import structs

from kvd.errors import StressFailure
from kvd.testing.faults import FaultRates
from kvd.testing.local import LocalDaemon
from kvd.testing.stress.daemon_messages import RankEnd, RankTask
from kvd.testing.stress.daemon_rank import serve
from kvd.testing.stress.failure import CheckName
from kvd.testing.stress.generator import program_of, steps_of
from kvd.testing.stress.run import Result

RATES: Final = FaultRates(
    lose_request_permille=20,
    lose_answer_permille=20,
    double_permille=20,
    repeat_old_permille=20,
    delay_permille=10,
)
"""Faults of messages, each of so many of a thousand."""
DAEMON_ARGUMENTS: Final = (
    *("--check-level", "strict"),
    *("--group-wait-ms", "10000"),
    *("--quiet-wait-ms", "5000"),
    *("--idle-move-units-max", "6"),
    *("--batch-move-units-max", "3"),
)
"""Settings of the daemon: every check, and unasked moves as on the modelled device."""
SILENCE_S_MAX: Final = 60.0
"""How long ranks may work without a word before the run counts as stuck."""
STEPS_BEHIND_DEATH: Final = 12
"""Where the next incarnation goes on in the program, behind the step that killed a rank."""

_decoder = msgspec.msgpack.Decoder(RankEnd)


def run_on_daemon(
    shape: str, seed_index: int, *, operations_max: int, rates: FaultRates = RATES
) -> Result:
    """Play so many operations of a seed against a daemon that is started for it.

    Nothing is raised for a failure: the result has it, with the steps so far as a program that the
    modelled device can play, too. This process must have no other threads: it forks.
    """
    with LocalDaemon(arguments=DAEMON_ARGUMENTS) as daemon:
        result = run_seed(
            f"ipc://{daemon.socket_path}",
            shape,
            seed_index,
            operations_max=operations_max,
            rates=rates,
        )
        complaints = daemon.complaints()
    if daemon.returncode == 0 and "internal_error" not in complaints:
        return result
    failure = StressFailure(
        CheckName.CLIENT,
        f"the daemon ended with exit code {daemon.returncode}; its last words: {complaints}",
    )
    return replace(result, failure=result.failure or failure)


def run_seed(
    address: str, shape: str, seed_index: int, *, operations_max: int, rates: FaultRates
) -> Result:
    """Play so many operations of a seed in a group of its own of a daemon that runs."""
    program = program_of(shape, seed_index)
    course = _Course()
    while course.operations_count < operations_max and course.failure is None:
        task = RankTask(
            address=address,
            group=f"{shape}-{seed_index}",
            shape=shape,
            seed_index=seed_index,
            rank_index=0,
            incarnation_index=course.counts["incarnation"],
            first_step_index=course.next_step_index,
            operations_count_max=operations_max - course.operations_count,
            rates=rates,
        )
        course.take_in(_play_incarnation(task, program.ranks_count))
    if course.failure is not None:
        steps = tuple(islice(steps_of(shape, seed_index), course.last_step_index + 1))
        program = structs.replace(program, steps=steps)
    return Result(
        program=program,
        operations_count=course.operations_count,
        digest=course.digest,
        counts=course.counts,
        failure=course.failure,
    )


class _Course:
    """What ranks of all incarnations of a seed did so far."""

    def __init__(self) -> None:
        self.operations_count = 0
        self.last_step_index = 0
        self.next_step_index = 0
        """Where in the program the next incarnation goes on."""
        self.digest = ""
        self.counts: Counter[str] = Counter()
        self.failure: StressFailure | None = None

    def take_in(self, ends: list[RankEnd]) -> None:
        """Add up an incarnation; what a rank found, or in what two differ, is the failure."""
        longest = max(ends, key=lambda end: end.operations_count)
        self.operations_count += longest.operations_count
        self.last_step_index = max(end.step_index for end in ends)
        self.next_step_index = self.last_step_index + STEPS_BEHIND_DEATH
        self.counts.update(longest.counts)
        self.counts["incarnation"] += 1
        for end in ends:
            self.counts["word checked"] += end.checked_words_count
            self.counts[f"rank {end.how}"] += 1
        self.digest = next((end.digest for end in ends if end.how == "done"), "")
        self.failure = _failure_of(ends)


def _play_incarnation(task: RankTask, ranks_count: int) -> list[RankEnd]:
    """Run all ranks to their ends; return the last word of each."""
    pipes: list[Connection] = []
    pids: list[int] = []
    parent_pid = os.getpid()
    for rank in range(ranks_count):
        ours, theirs = Pipe(duplex=True)
        pid = os.fork()
        if pid == 0:
            serve(structs.replace(task, rank_index=rank), theirs, parent_pid)
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
        rank_index=rank,
        how="failed",
        step_index=0,
        operations_count=0,
        check=CheckName.CLIENT,
        message=f"the process of rank {rank} ended or hung without a word",
    )


def _failure_of(ends: list[RankEnd]) -> StressFailure | None:
    """Return what a rank found, or in what ranks differ."""
    for end in ends:
        if end.how == "failed":
            message = f"rank {end.rank_index}: {end.message}"
            return StressFailure(end.check, message, step_index=end.step_index)
    digests = [end.digest for end in ends if end.how == "done"]
    if digests and len(digests) < len(ends):
        hows = [end.how for end in ends]
        return StressFailure(CheckName.CLIENT, f"ranks ended differently: {hows}")
    if any(digest != digests[0] for digest in digests):
        return StressFailure(CheckName.DIVERGENCE, f"ranks read different logs: {digests}")
    return None
