"""Hunting planted faults: which check of the stress harness notices one, after how many operations.

A fault is hunted by short runs of the harness, one after the other, until one of them fails. Which
runs follows from the fault's group alone, so the same fault is noticed by the same check after the
same number of operations, on every machine. Each fault is planted in a process of its own, forked
before anything is built.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Final

import msgspec

from kvd.errors import WorkloadError
from kvd.testing.child import die_with_parent
from kvd.testing.mutants.fault import Fault, planted
from kvd.testing.mutants.registry import ANY_SHAPE, FAULTS, PROFILES_OF, SHAPES_OF
from kvd.testing.stress.generator import PROFILES, program_of, steps_of
from kvd.testing.stress.run import StressRun, run_steps

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

OPERATIONS_MAX: Final = 20_000
"""Operations within which a fault has to be noticed, over all runs."""
RUN_OPERATIONS_MAX: Final = 250
"""Operations of one run: enough to fill an arena many times, few enough to end often."""
FIRST_SEED: Final = 1
SILENCE_S_MAX: Final = 240.0
"""How long one run may take; a fault that keeps it from ending is not noticed by that."""

_BEGIN: Final = partial(StressRun, oracle_permille=300)
"""Answers are found again by trying every layout more often than in a sweep."""
_encoder: Final = msgspec.msgpack.Encoder()


class Attempt(msgspec.Struct, frozen=True):
    """One run: it depends on nothing else."""

    shape: str
    seed_index: int
    profile: str


class Catch(msgspec.Struct, frozen=True):
    """How a fault was noticed."""

    fault: str
    check: str
    operations_count: int
    """Operations until then, over all runs."""
    attempt: Attempt
    run_operations_count: int
    """Operations of the run that noticed it."""
    message: str


class Survival(msgspec.Struct, frozen=True):
    """A fault that was not noticed."""

    fault: str
    operations_count: int
    message: str = ""


Outcome = Catch | Survival
_Report = tuple[int, Catch | None, str]
_decoder: Final = msgspec.msgpack.Decoder(tuple[int, Catch | None, str])


def attempts_for(name: str) -> Iterator[Attempt]:
    """Yield the runs that hunt a fault, without an end: profiles that suit it come more often."""
    suited = cycle(PROFILES_OF[name] or tuple(PROFILES))
    others = cycle(PROFILES)
    shapes = cycle(SHAPES_OF.get(name, ANY_SHAPE))
    for seed in count(FIRST_SEED):
        yield Attempt(next(shapes), seed, next(others if seed % 3 == 0 else suited))


def try_once(fault: Fault, attempt: Attempt, *, operations_before_count: int = 0) -> _Report:
    """Run once with a fault planted; return the operations, and how it was noticed if it was."""
    program = program_of(attempt.shape, attempt.seed_index)
    steps = steps_of(attempt.shape, attempt.seed_index, profile=attempt.profile)
    with planted(fault):
        result = run_steps(program, steps, operations_max=RUN_OPERATIONS_MAX, begin=_BEGIN)
    operations_count = operations_before_count + result.operations_count
    failure = result.failure
    if failure is None:
        return operations_count, None, ""
    catch = Catch(
        fault=fault.name,
        check=failure.check,
        operations_count=operations_count,
        attempt=attempt,
        run_operations_count=result.operations_count,
        message=failure.message,
    )
    return operations_count, catch, ""


def hunt(
    names: Sequence[str],
    *,
    jobs: int,
    attempts: Callable[[str], Iterator[Attempt]] = attempts_for,
    operations_max: int = OPERATIONS_MAX,
) -> Iterator[Outcome]:
    """Hunt faults by name in so many processes at a time; yield what came of each as it does.

    A fault that cannot be planted is not noticed. Raises WorkloadError for a name that is none.
    """
    for name in names:
        if name not in FAULTS:
            raise WorkloadError(f"there is no fault {name!r}")
    waiting = [_Hunter(name, attempts(name), operations_max) for name in reversed(names)]
    running: list[_Hunter] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                hunter = waiting.pop()
                hunter.start()
                running.append(hunter)
            ready = wait([hunter.pipe for hunter in running], timeout=SILENCE_S_MAX)
            for hunter in list(running):
                outcome = hunter.hear() if hunter.pipe in ready else None
                if not ready:
                    outcome = Survival(hunter.name, hunter.operations_count, "a run did not end")
                if outcome is not None:
                    running.remove(hunter)
                    hunter.stop()
                    yield outcome
    finally:
        for hunter in running:
            hunter.stop()


class _Hunter:
    """The process that hunts one fault, and what it has told."""

    def __init__(self, name: str, attempts: Iterator[Attempt], operations_max: int) -> None:
        self.name = name
        self.operations_count = 0
        self._operations_max = operations_max
        context = get_context("fork")
        self.pipe, self._theirs = context.Pipe(duplex=False)
        self._process: ForkProcess = context.Process(
            target=_hunt_one,
            args=(self._theirs, os.getpid(), FAULTS[name], attempts, operations_max),
            daemon=True,
        )

    def start(self) -> None:
        """Begin."""
        self._process.start()
        self._theirs.close()

    def hear(self) -> Outcome | None:
        """Take in one report; return what came of the hunt once that is known."""
        try:
            self.operations_count, catch, complaint = _decoder.decode(self.pipe.recv_bytes())
        except EOFError:
            raise WorkloadError(f"the process that hunts {self.name} ended by itself") from None
        if complaint:
            return Survival(self.name, self.operations_count, complaint)
        if catch is not None:
            return catch
        if self.operations_count >= self._operations_max:
            return Survival(self.name, self.operations_count)
        return None

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _hunt_one(
    pipe: Connection,
    parent_pid: int,
    fault: Fault,
    attempts: Iterator[Attempt],
    operations_max: int,
) -> None:
    """Run in a process of its own until the fault is noticed, reporting every run."""
    die_with_parent(parent_pid)
    operations_count = 0
    for attempt in attempts:
        try:
            report = try_once(fault, attempt, operations_before_count=operations_count)
        except WorkloadError as error:
            report = operations_count, None, error.message
        operations_count, catch, complaint = report
        pipe.send_bytes(_encoder.encode(report))
        if catch is not None or complaint or operations_count >= operations_max:
            return
    pipe.send_bytes(_encoder.encode((operations_max, None, "")))
