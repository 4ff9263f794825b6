"""``kvd stress --mutants``: plant every fault, and say which check notices it and when."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import click

from kvd.errors import WorkloadError
from kvd.testing.mutants.hunt import Attempt, Catch, Outcome, attempts_for, hunt
from kvd.testing.mutants.registry import FAULTS
from kvd.testing.mutants.table import Recorded, read_table, render

EXIT_FOUND = 1
EXIT_WRONG = 2


def hunt_mutants(
    names: Sequence[str],
    *,
    processes_count: int,
    operations_max: int,
    table: Path | None,
    afresh: bool,
    recorded_only: bool,
) -> int:
    """Hunt faults, all of them where none is named, and print what notices them.

    What a table records is tried first, and is all that is tried with ``recorded_only``; otherwise
    the table is written anew, with the rows of faults that were not hunted as they were. The exit
    code is 1 if a fault was not noticed, or not as the table says.
    """
    recorded: Mapping[str, Recorded] = {}
    try:
        if recorded_only and table is None:
            raise WorkloadError("--recorded needs a --table that records something")
        if table is not None and (recorded_only or table.exists()):
            # Also where nothing of it is tried first: what is no table is not written over.
            recorded = read_table(table)
        if recorded_only:
            return _compare(names or list(recorded), recorded, processes_count)
        if table is not None and not os.access(table.parent, os.W_OK):
            raise WorkloadError(f"the table {table} cannot be written: its folder is not writable")
        outcomes = _hunt(
            names or list(FAULTS),
            recorded,
            processes_count=processes_count,
            operations_max=operations_max,
            table=table,
            afresh=afresh,
        )
    except WorkloadError as error:
        click.echo(error.message, err=True)
        return EXIT_WRONG
    noticed_count = sum(isinstance(outcome, Catch) for outcome in outcomes)
    return 0 if noticed_count == len(outcomes) else EXIT_FOUND


def _hunt(
    names: Sequence[str],
    recorded: Mapping[str, Recorded],
    *,
    processes_count: int,
    operations_max: int,
    table: Path | None,
    afresh: bool,
) -> list[Outcome]:
    """Hunt, and write the table whenever something is known, so that it stands when interrupted."""

    def attempts(name: str) -> Iterator[Attempt]:
        row = recorded.get(name)
        first = [] if afresh or row is None or row.attempt is None else [row.attempt]
        return chain(first, attempts_for(name))

    began_s = time.monotonic()
    outcomes: list[Outcome] = []
    kept = [row.as_outcome() for name, row in recorded.items() if name not in names]
    for outcome in hunt(
        names, jobs=processes_count, attempts=attempts, operations_max=operations_max
    ):
        outcomes.append(outcome)
        click.echo(_line_of(outcome))
        if table is not None:
            _write(table, render([*kept, *outcomes]))
    noticed_count = sum(isinstance(outcome, Catch) for outcome in outcomes)
    click.echo(
        f"{len(outcomes)} faults, {noticed_count} noticed, in {time.monotonic() - began_s:.0f} s"
    )
    return outcomes


def _write(table: Path, text: str) -> None:
    """Write a table as a whole or not at all; raises WorkloadError."""
    fresh = table.with_name(f".{table.name}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(table)
    except OSError as error:
        raise WorkloadError(f"the table {table} cannot be written: {error.strerror}") from None


def _compare(names: Sequence[str], recorded: Mapping[str, Recorded], processes_count: int) -> int:
    attempts = {name: [row.attempt] for name, row in recorded.items() if row.attempt is not None}
    for name in names:
        if name not in attempts:
            raise WorkloadError(f"the table records no run that noticed {name}")
    wrong_count = 0
    for outcome in hunt(names, jobs=processes_count, attempts=lambda name: iter(attempts[name])):
        row = recorded[outcome.fault]
        then = f"{row.check} after {row.operations_count} operations"
        now = "nothing"
        if isinstance(outcome, Catch):
            now = f"{outcome.check} after {outcome.run_operations_count} operations"
        wrong_count += now != then
        click.echo(f"{outcome.fault}: {now}" + (f"; the table says {then}" if now != then else ""))
    click.echo(f"{len(names)} faults, {wrong_count} otherwise than the table says")
    return EXIT_FOUND if wrong_count else 0


def _line_of(outcome: Outcome) -> str:
    if isinstance(outcome, Catch):
        attempt = outcome.attempt
        return (
            f"{outcome.fault:34} {outcome.check:24} {outcome.operations_count:6} operations, "
            f"{attempt.shape}, {attempt.seed_index}, {attempt.profile}: {outcome.message:.100}"
        )
    why = f": {outcome.message}" if outcome.message else ""
    return f"{outcome.fault:34} NOT NOTICED by {outcome.operations_count} operations{why}"
