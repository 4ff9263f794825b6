"""``python -m kvd.testing.mutants``: hunt planted faults, and write the table of what was found."""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from kvd.errors import WorkloadError
from kvd.testing.mutants.hunt import OPERATIONS_MAX, Catch, Outcome, attempts_for, hunt
from kvd.testing.mutants.registry import FAULTS
from kvd.testing.mutants.table import Recorded, read_table, render


def main(arguments: list[str]) -> int:
    """Hunt; the exit code is 1 if a fault was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m kvd.testing.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="faults; all of them where none is named")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--operations", type=int, default=OPERATIONS_MAX, help="most per fault")
    parser.add_argument("--table", type=Path, help="file to write; what it records is tried first")
    parser.add_argument("--afresh", action="store_true", help="try nothing first")
    parser.add_argument(
        "--recorded", action="store_true", help="only compare with what the table records"
    )
    options = parser.parse_args(arguments)
    names = options.names or list(FAULTS)
    recorded: Mapping[str, Recorded] = {}
    if options.table is not None and options.table.exists() and not options.afresh:
        recorded = read_table(options.table)
    if options.recorded:
        return _compare(names, recorded, jobs=options.jobs)
    tried_first = {name: row.attempt for name, row in recorded.items()}
    began_s = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        for outcome in hunt(
            names,
            jobs=options.jobs,
            attempts=lambda name: chain(
                [tried_first[name]] if name in tried_first else [], attempts_for(name)
            ),
            operations_max=options.operations,
        ):
            outcomes.append(outcome)
            print(line_of(outcome), flush=True)
    except WorkloadError as error:
        print(error.message, file=sys.stderr)
        return 2
    caught_count = sum(isinstance(outcome, Catch) for outcome in outcomes)
    took_s = time.monotonic() - began_s
    print(f"{len(outcomes)} faults, {caught_count} noticed, in {took_s:.0f} s")
    if options.table is not None and not options.names:
        options.table.write_text(render(outcomes), encoding="utf-8")
    return 0 if caught_count == len(outcomes) else 1


def _compare(names: Sequence[str], recorded: Mapping[str, Recorded], *, jobs: int) -> int:
    """Repeat the runs that a table records; return 1 if one of them ends otherwise now."""
    wrong_count = 0
    for outcome in hunt(names, jobs=jobs, attempts=lambda name: iter([recorded[name].attempt])):
        row = recorded[outcome.fault]
        then = f"{row.check} after {row.operations_count} operations"
        now = "nothing"
        if isinstance(outcome, Catch):
            now = f"{outcome.check} after {outcome.run_operations_count} operations"
        wrong_count += now != then
        print(f"{outcome.fault}: {now}" + (f", and by the table {then}" if now != then else ""))
    return 1 if wrong_count else 0


def line_of(outcome: Outcome) -> str:
    """Return an outcome as a line for people."""
    if isinstance(outcome, Catch):
        attempt = outcome.attempt
        return (
            f"{outcome.fault:34} {outcome.check:24} {outcome.operations_count:6} operations, "
            f"{attempt.shape}, {attempt.seed}, {attempt.profile}: {outcome.message:.100}"
        )
    return f"{outcome.fault:34} NOT NOTICED by {outcome.operations_count} operations"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
