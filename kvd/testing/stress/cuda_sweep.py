"""Many stress programs on one GPU, in processes beside each other; each prints a line.

    python -m kvd.testing.stress.cuda_sweep [OPERATIONS [PROCESSES [FIRST_SEED]]]

The exit code is 1 if a check did not hold.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from time import perf_counter
from typing import Final, NamedTuple

from kvd.testing.stress.shapes import SHAPES

OPERATIONS_COUNT: Final = 50_000
OPERATIONS_PER_SEED: Final = 1_000
PROCESSES_COUNT: Final = 8


class Played(NamedTuple):
    """What came of one seed."""

    shape: str
    seed_index: int
    ranks_count: int
    operations_count: int
    forwards_count: int
    duration_s: float
    failure: str
    """What did not hold, empty if all did."""


def play_seed(shape: str, seed: int, operations_max: int) -> Played:
    """Play one seed on the first GPU of this process."""
    # Here: a process that only hands seeds out has no use for a GPU.
    from kvd.testing.stress.cuda_run import run_seed

    began_s = perf_counter()
    result = run_seed(shape, seed, operations_max=operations_max)
    return Played(
        shape=shape,
        seed_index=seed,
        ranks_count=result.program.ranks_count,
        operations_count=result.operations_count,
        forwards_count=result.counts["launch"],
        duration_s=perf_counter() - began_s,
        failure=""
        if result.failure is None
        else f"{result.failure} (step {result.failure.step_index})",
    )


def play_seeds(
    operations_count: int, processes_count: int, first_seed: int = 1
) -> Iterator[Played]:
    """Play all shapes in turns, one seed after the other, until so many operations were handed out.

    Yields what came of each as it ends.
    """
    shapes = list(SHAPES)
    seeds_count = -(-operations_count // OPERATIONS_PER_SEED)
    # A process that was forked has no GPU.
    with ProcessPoolExecutor(processes_count, mp_context=get_context("spawn")) as pool:
        tasks = [
            pool.submit(
                play_seed,
                shapes[nth % len(shapes)],
                first_seed + nth // len(shapes),
                OPERATIONS_PER_SEED,
            )
            for nth in range(seeds_count)
        ]
        for task in as_completed(tasks):
            yield task.result()


def main(arguments: list[str]) -> int:
    """Play as many operations as the arguments say; return the exit code."""
    numbers = [int(argument) for argument in arguments]
    defaults = [OPERATIONS_COUNT, PROCESSES_COUNT, 1]
    operations, processes, first_seed = numbers + defaults[len(numbers) :]
    began_s = perf_counter()
    played: list[Played] = []
    for one in play_seeds(operations, processes, first_seed):
        played.append(one)
        print(
            f"{one.shape:32} seed {one.seed_index:3}  {one.ranks_count} ranks"
            f"{one.operations_count:6} operations {one.forwards_count:5} forwards "
            f"{one.duration_s:6.1f} s  {one.failure or 'ok'}",
            flush=True,
        )
    failed = sum(bool(one.failure) for one in played)
    print(
        f"{sum(one.operations_count for one in played)} operations, {len(played)} seeds, "
        f"{failed} failed, {perf_counter() - began_s:.0f} s"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
