"""Many seeds: each a run of its own, spread over processes, told in the order of the seeds."""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from multiprocessing import get_context

from kvd.testing.child import die_with_parent
from kvd.testing.stress.generator import profile_of, program_of, steps_of
from kvd.testing.stress.program import encode_program
from kvd.testing.stress.run import ORACLE_PERMILLE, Result, StressRun, run_steps
from kvd.testing.stress.shapes import SHAPES

JOBS_WAITING_MAX = 4
"""Seeds per process that are handed out before they are needed."""


class Backend(StrEnum):
    """What the ranks of a run are played on."""

    MODELLED = "modelled"
    """Modelled devices, whose order the seed draws."""
    DAEMON = "daemon"
    """A daemon and a process per rank, on the host device, over messages that get lost."""
    CUDA = "cuda"
    """Streams of the first GPU, whose order nobody draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedJob:
    """A seed that is to be played."""

    shape: str
    seed_index: int
    operations_count: int
    oracle_permille: int = ORACLE_PERMILLE
    profile: str | None = None
    """What the program leans to; the seed draws it where it is not said."""
    backend: Backend = Backend.MODELLED


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReport:
    """What came of a seed, as it passes between processes."""

    shape: str
    seed_index: int
    profile: str
    operations_count: int
    steps_count: int
    digest: str
    counts: Counter[str] = field(default_factory=Counter[str])
    check: str = ""
    """The check that failed; empty if none did."""
    message: str = ""
    program_json: bytes = b""
    """The program up to the failure; empty if there is none."""


def run_seed(
    shape: str,
    seed: int,
    operations_max: int,
    *,
    profile: str | None = None,
    oracle_permille: int = ORACLE_PERMILLE,
    backend: Backend = Backend.MODELLED,
) -> Result:
    """Play a seed in this process until so many operations were done, or a check failed."""
    if backend is Backend.DAEMON:
        # Only here: sockets are not looked for where nobody uses them.
        from kvd.testing.stress.daemon_run import run_on_daemon

        return run_on_daemon(shape, seed, operations_max=operations_max)
    kind: type[StressRun] = StressRun
    if backend is Backend.CUDA:
        # Only here: without a GPU it is not looked for.
        from kvd.testing.stress.cuda_run import CudaRun

        kind = CudaRun
    return run_steps(
        program_of(shape, seed),
        steps_of(shape, seed, profile=profile),
        operations_max=operations_max,
        begin=partial(kind, oracle_permille=oracle_permille),
    )


def play(job: SeedJob) -> SeedReport:
    """Play a seed and report it."""
    result = run_seed(
        job.shape,
        job.seed_index,
        job.operations_count,
        profile=job.profile,
        oracle_permille=job.oracle_permille,
        backend=job.backend,
    )
    failure = result.failure
    return SeedReport(
        shape=job.shape,
        seed_index=job.seed_index,
        profile=job.profile or profile_of(job.shape, job.seed_index),
        operations_count=result.operations_count,
        steps_count=len(result.program.steps),
        digest=result.digest,
        counts=result.counts,
        check="" if failure is None else failure.check,
        message="" if failure is None else failure.message,
        program_json=b"" if failure is None else encode_program(result.program),
    )


def jobs_of(
    *,
    seeds_count: int,
    operations_max: int,
    shape: str | None = None,
    first_seed: int = 0,
    oracle_permille: int = ORACLE_PERMILLE,
    backend: Backend = Backend.MODELLED,
) -> list[SeedJob]:
    """Return the jobs of a sweep: seed after seed, over all shapes by turns if none is named."""
    names = list(SHAPES) if shape is None else [shape]
    return [
        SeedJob(
            shape=names[seed % len(names)],
            seed_index=seed,
            operations_count=operations_max,
            oracle_permille=oracle_permille,
            backend=backend,
        )
        for seed in range(first_seed, first_seed + seeds_count)
    ]


def play_all(jobs: Sequence[SeedJob], *, processes_count: int = 1) -> Iterator[SeedReport]:
    """Play all jobs and yield their reports in order; one process is this one.

    Others are started anew: a process that was forked from one with a GPU has none.
    """
    if processes_count == 1:
        for job in jobs:
            yield play(job)
        return
    pool = ProcessPoolExecutor(
        processes_count,
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(os.getpid(),),
    )
    with pool:
        handed_out = [pool.submit(play, job) for job in jobs[: processes_count * JOBS_WAITING_MAX]]
        waiting = iter(jobs[len(handed_out) :])
        try:
            while handed_out:
                yield handed_out.pop(0).result()
                for job in waiting:
                    handed_out.append(pool.submit(play, job))
                    break
        except BaseException:
            # Whoever leaves now waits for no seed that is being played.
            workers = list(pool._processes.values())
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.kill()
            for worker in workers:
                worker.join()
            raise


def _begin(parent_pid: int) -> None:
    """Begin a process that plays seeds: it ends with its parent, who alone hears of Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent_pid)
