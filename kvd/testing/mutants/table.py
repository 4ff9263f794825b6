"""The table of planted faults: written from a hunt, and read back by whoever hunts again."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kvd.errors import WorkloadError
from kvd.testing.mutants.equivalents import EQUIVALENTS
from kvd.testing.mutants.hunt import OPERATIONS_MAX, Attempt, Catch, Outcome, Survival
from kvd.testing.mutants.registry import FAULTS, GROUPS

TITLE: Final = "# Planted faults"
HEAD: Final = "| fault | rule that it breaks | noticed by | operations | shape, seed, profile |"
_SUMMARY: Final = re.compile(r"\d+ of (\d+) faults are noticed")
_RULE: Final = "| --- | --- | --- | --- | --- |"


class Recorded(NamedTuple):
    """A row of the table."""

    fault: str
    check: str
    operations_count: int
    attempt: Attempt | None
    """The run that noticed it; None for a fault that was not noticed."""

    def as_outcome(self) -> Outcome:
        """Return the row as what came of a hunt."""
        count = self.operations_count
        if self.attempt is None:
            return Survival(self.fault, count)
        return Catch(self.fault, self.check, count, self.attempt, count, "")


def render(outcomes: Sequence[Outcome]) -> str:
    """Return the table as Markdown: every fault by group, then what counts as none."""
    by_fault = {outcome.fault: outcome for outcome in outcomes}
    caught = [one for one in outcomes if isinstance(one, Catch)]
    lines = [
        TITLE,
        "",
        "`make stress-mutants` writes this table. Each fault is one rule of kvd left out or got",
        "wrong (`kvd/testing/mutants`), mostly by an edit of one line, and planted in a process of",
        "its own in which the stress harness runs. It is noticed by the first check that fails.",
        "`operations` counts those of the run that noticed it, which shape, seed and profile name",
        f"(`kvd stress --mutants NAME`); a fault has {OPERATIONS_MAX:,} operations, over however",
        "many runs, in which to be noticed.",
        "",
        f"{len(caught)} of {len(outcomes)} faults are noticed, "
        f"{sum(one.run_operations_count <= 100 for one in caught)} of them within 100 operations.",
    ]
    for group in GROUPS:
        rows = [_row(by_fault[fault.name]) for fault in group.faults if fault.name in by_fault]
        if rows:
            lines += ["", f"## {group.name}", "", HEAD, _RULE, *rows]
    lines += ["", "## Equivalent", "", "Changes that make no difference, and why.", ""]
    lines += [f"- **{one.name}**: {one.change}. {one.proof}" for one in EQUIVALENTS]
    return "\n".join(lines) + "\n"


def _row(outcome: Outcome) -> str:
    fault = FAULTS[outcome.fault]
    rule = fault.rule + (f"; and with it: {fault.beside}" if fault.beside else "")
    if isinstance(outcome, Survival):
        return f"| {fault.name} | {rule} | NOT NOTICED | {outcome.operations_count} | |"
    attempt = outcome.attempt
    return (
        f"| {fault.name} | {rule} | `{outcome.check}` | {outcome.run_operations_count} "
        f"| {attempt.shape}, {attempt.seed_index}, {attempt.profile} |"
    )


def read_table(path: Path) -> Mapping[str, Recorded]:
    """Return the rows of a table; raises WorkloadError for no table, and for a damaged one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise WorkloadError(f"the table {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{path} is no table of planted faults") from None
    if not lines or lines[0] != TITLE:
        begin = repr(lines[0])[:80] if lines else "nothing"
        raise WorkloadError(f"{path} is no table of planted faults; it begins with {begin}")
    try:
        rows = {row.fault: row for row in _rows(lines)}
    except ValueError as error:
        raise WorkloadError(f"the table {path} has a row that cannot be read: {error}") from None
    told = [match for match in map(_SUMMARY.match, lines) if match]
    if len(told) != 1 or int(told[0][1]) != len(rows):
        raise WorkloadError(
            f"the table {path} has {len(rows)} rows and tells of "
            f"{told[0][1] if told else 'none'}; was it cut?"
        )
    return rows


def _rows(lines: Sequence[str]) -> Iterator[Recorded]:
    for line in lines:
        if not line.startswith("|") or line in (HEAD, _RULE):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 5 or cells[0] not in FAULTS:
            raise WorkloadError(
                f"a table of planted faults has a row that cannot be read: {line[:80]!r}"
            )
        attempt = None
        if cells[4]:
            shape, seed, profile = cells[4].split(", ")
            attempt = Attempt(shape, int(seed), profile)
        yield Recorded(cells[0], cells[2].strip("`"), int(cells[3]), attempt)
