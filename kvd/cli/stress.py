"""``kvd stress``: random programs on modelled devices, with every page checked after every step."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec
from click.core import ParameterSource

from kvd.cli.mutants import hunt_mutants
from kvd.cli.output import shown_progress
from kvd.errors import FileError
from kvd.testing.mutants.hunt import OPERATIONS_MAX as FAULT_OPERATIONS_COUNT
from kvd.testing.stress.as_test import as_test
from kvd.testing.stress.coverage import lines_of
from kvd.testing.stress.program import Program, decode_program, encode_program
from kvd.testing.stress.run import ORACLE_PERMILLE, run
from kvd.testing.stress.shapes import ALL_SHAPES, FURTHER_SHAPES
from kvd.testing.stress.shrink import Failing, Shrunk, attempt, shrink
from kvd.testing.stress.sweep import Backend, SeedJob, SeedReport, jobs_of, play_all

EXIT_FOUND: Final = 1
SEEDS_COUNT: Final = 22
OPERATIONS_COUNT: Final = 1000
SHRINK_RUNS_COUNT: Final = 400
FAULT_ONLY: Final = ("table", "afresh", "recorded", "faults")
NEEDS_TABLE: Final = ("afresh", "recorded")
FAULT_EFFECTS: Final = (*FAULT_ONLY, "plants_faults", "processes_count", "operations_max")
"""What --mutants listens to; the options below say the same of others."""
RECORDED_EFFECTS: Final = ("recorded", "table", "faults", "plants_faults", "processes_count")
PROGRAM_EFFECTS: Final = ("program_path", "out_path", "shrink_runs_max")
WITHOUT_EFFECT: Final = {
    Backend.DAEMON: ("oracle_permille", "shrink_runs_max"),
    Backend.CUDA: ("shrink_runs_max",),
}
PERMILLE: Final = 1000
MS_PER_S: Final = 1000


@click.command()
@click.option(
    "--seeds",
    "seeds_count",
    type=click.IntRange(1),
    default=SEEDS_COUNT,
    metavar="N",
    help=f"Seeds to play ({SEEDS_COUNT}).",
)
@click.option(
    "--ops",
    "operations_max",
    type=click.IntRange(1),
    metavar="M",
    help=f"Operations of each seed ({OPERATIONS_COUNT}).",
)
@click.option(
    "--backend",
    type=click.Choice([backend.value for backend in Backend]),
    default=Backend.MODELLED.value,
    help="What ranks are played on: modelled devices (modelled), processes of a real daemon with "
    "faults (daemon), or the first GPU (cuda).",
)
@click.option(
    "--shape",
    type=click.Choice(list(ALL_SHAPES)),
    metavar="NAME",
    help="Play all seeds on this stage; otherwise on all that any seed may have, by turns.",
)
@click.option(
    "--first-seed", type=click.IntRange(0), default=0, metavar="K", help="The lowest seed (0)."
)
@click.option(
    "--jobs",
    "processes_count",
    type=click.IntRange(1),
    default=1,
    metavar="J",
    help="Processes to spread the seeds over (1).",
)
@click.option(
    "--oracle-share",
    "oracle_permille",
    type=click.IntRange(0, PERMILLE),
    default=ORACLE_PERMILLE,
    metavar="PERMILLE",
    help=f"Share of the answers that are found again by trying every layout ({ORACLE_PERMILLE}).",
)
@click.option(
    "--out",
    "out_path",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where programs that fail are written.",
)
@click.option(
    "--shrink-runs",
    "shrink_runs_max",
    type=click.IntRange(0),
    default=SHRINK_RUNS_COUNT,
    metavar="N",
    help=f"Runs in which a program that fails is made smaller ({SHRINK_RUNS_COUNT}).",
)
@click.option(
    "--program",
    "program_path",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Play a program that was written, and nothing else.",
)
@click.option(
    "--coverage", "shows_coverage", is_flag=True, help="Say how often each thing happened."
)
@click.option(
    "--mutants",
    "plants_faults",
    is_flag=True,
    help="Plant faults in kvd, one at a time, and say which check notices each; --ops are the most "
    f"for one of them ({FAULT_OPERATIONS_COUNT}).",
)
@click.option(
    "--table",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Table of faults to write; the runs that it records are tried first.",
)
@click.option("--afresh", is_flag=True, help="Try nothing first that a table records.")
@click.option("--recorded", is_flag=True, help="Only repeat what the table records, and compare.")
@click.argument("faults", nargs=-1)
@click.option("--quiet", is_flag=True, help="Print no line for a seed on which nothing is wrong.")
def stress(  # one parameter per option is how click works
    seeds_count: int,
    operations_max: int | None,
    backend: str,
    shape: str | None,
    first_seed: int,
    processes_count: int,
    oracle_permille: int,
    out_path: Path | None,
    shrink_runs_max: int,
    program_path: Path | None,
    shows_coverage: bool,
    plants_faults: bool,
    table: Path | None,
    afresh: bool,
    recorded: bool,
    faults: tuple[str, ...],
    quiet: bool,
) -> None:
    """Play random programs on modelled devices and check every page after every step.

    Each seed is a program: requests, values, copies, transfers, forwards and deaths on a small
    stage with two ranks or more, whose devices run in an order that the seed draws. The exit code
    is 1 if a check failed; the program is then made smaller and printed as a test. Behind a
    daemon the same programs run in a process per rank, over messages that get lost, and ranks are
    killed; on a GPU they run on real streams, without deaths and copies to host pools. What fails
    there is printed as it is.

    With --mutants faults are planted instead, those that are named or all of them, and the exit
    code is 1 if one is not noticed.
    """
    _refuse_without_effect(click.get_current_context())
    if plants_faults:
        sys.exit(
            hunt_mutants(
                faults,
                processes_count=processes_count,
                operations_max=operations_max or FAULT_OPERATIONS_COUNT,
                table=table,
                afresh=afresh,
                recorded_only=recorded,
            )
        )
    if program_path is not None:
        sys.exit(_replay(program_path, shrink_runs_max, out_path))
    jobs = jobs_of(
        seeds_count=seeds_count,
        operations_max=operations_max or OPERATIONS_COUNT,
        shape=shape,
        first_seed=first_seed,
        oracle_permille=oracle_permille,
        backend=Backend(backend),
    )
    failed = _sweep(
        jobs, processes_count=processes_count, quiet=quiet, shows_coverage=shows_coverage
    )
    # First of all, because making one smaller takes minutes, in which it may be interrupted.
    for report in failed:
        _write(out_path, f"{report.shape}-{report.seed_index}.json", report.program_json)
    for report in failed[:1]:
        # What streams and processes did cannot be had again, and so not be made smaller.
        runs_max = shrink_runs_max if backend == Backend.MODELLED else 0
        _show(decode_program(report.program_json), report.check, runs_max)
    sys.exit(EXIT_FOUND if failed else 0)


def _refuse_without_effect(context: click.Context) -> None:
    """Raise UsageError naming every option that was given and has no effect beside the others."""
    given = {
        parameter.name: " ".join(context.params["faults"])
        if parameter.name == "faults"
        else parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
        and context.params[parameter.name] != ()
    }
    for name, option in given.items():
        if name in FAULT_ONLY and "plants_faults" not in given:
            raise click.UsageError(f"{option} goes with --mutants")
        if name in NEEDS_TABLE and "table" not in given:
            raise click.UsageError(f"{option} needs a --table")
    backend = context.params["backend"]
    if context.params["shape"] in FURTHER_SHAPES and backend != Backend.MODELLED:
        raise click.UsageError(
            f"--shape {context.params['shape']}: part of a pipeline, which is played on modelled "
            f"devices only"
        )
    beside: dict[str, tuple[str, ...]] = {
        "--mutants": FAULT_EFFECTS if "plants_faults" in given else (),
        "--recorded": RECORDED_EFFECTS if "recorded" in given else (),
        "--program": PROGRAM_EFFECTS if "program_path" in given else (),
    }
    for option, effects in beside.items():
        idle = [flag for name, flag in given.items() if effects and name not in effects]
        if idle:
            raise click.UsageError(f"{', '.join(idle)}: no effect with {option}; leave it out")
    for name in WITHOUT_EFFECT.get(Backend(backend), ()):
        if name in given:
            raise click.UsageError(f"{given[name]}: no effect with --backend {backend}")


def _sweep(
    jobs: Sequence[SeedJob], *, processes_count: int, quiet: bool, shows_coverage: bool
) -> list[SeedReport]:
    """Play all jobs and say how it went; return the reports of those that failed."""
    started_s = time.monotonic()
    reports = play_all(jobs, processes_count=processes_count)
    failed, counts, operations_count = _tell(reports, quiet=quiet)
    lasted_s = time.monotonic() - started_s
    click.echo(
        f"{operations_count} operations over {len(jobs)} seeds and "
        f"{len({job.shape for job in jobs})} shapes in {lasted_s:.1f} s: "
        f"{operations_count / lasted_s:.0f} per second, "
        f"{lasted_s * processes_count * MS_PER_S / max(1, operations_count):.2f} ms each on one of "
        f"{processes_count} processes; {counts['decisions judged']} answers found again; "
        f"{len(failed)} seeds failed"
    )
    if shows_coverage:
        click.echo("\n".join(lines_of(counts)))
    return failed


def _tell(
    reports: Iterable[SeedReport], *, quiet: bool
) -> tuple[list[SeedReport], Counter[str], int]:
    """Print a line per seed; return those that failed, what happened, and how many operations."""
    failed: list[SeedReport] = []
    counts: Counter[str] = Counter()
    operations_count = 0
    for report in reports:
        operations_count += report.operations_count
        counts.update(report.counts)
        counts[f"shape {report.shape}"] += 1
        counts[f"profile {report.profile}"] += 1
        if report.check:
            failed.append(report)
        if not quiet or report.check:
            how = report.message or "clean"
            click.echo(
                f"seed {report.seed_index} {report.shape} {report.profile} "
                f"{report.operations_count} operations {report.digest[:16]} {how}"
            )
    return failed, counts, operations_count


def _replay(path: Path, shrink_runs_max: int, out_path: Path | None) -> int:
    """Play a program from a file; return the exit code."""
    try:
        program = decode_program(path.read_bytes())
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{path} is no program of kvd stress: {error}") from error
    if program.shape not in ALL_SHAPES:
        raise FileError(f"{path} has shape {program.shape!r}; there are {', '.join(ALL_SHAPES)}")
    result = run(program)
    click.echo(f"{result.operations_count} operations {result.digest[:16]}")
    if result.failure is None:
        return 0
    click.echo(str(result.failure))
    small = _show(program, result.failure.check, shrink_runs_max)
    _write(out_path, f"{path.stem}-small.json", encode_program(small))
    return EXIT_FOUND


def _show(program: Program, check: str, runs_max: int) -> Program:
    """Make a failing program smaller and print it; return what came of it."""
    small = program
    if runs_max:
        shrunk = _shrunk(program, check, runs_max)
        small = shrunk.program
        click.echo(
            f"{check}: {len(program.steps)} steps became {len(small.steps)} in "
            f"{shrunk.runs_count} runs" + (", which were all" if shrunk.exhausted else "")
        )
        click.echo(as_test(small, check))
    click.echo(encode_program(small).decode())
    return small


def _shrunk(program: Program, check: str, runs_max: int) -> Shrunk:
    """Make a failing program smaller, which takes up to minutes, and show how far it is."""
    steps_count, runs_count = len(program.steps), 0
    with shown_progress("making it smaller, runs", total_count=runs_max) as show:

        def played(candidate: Program) -> Failing | None:
            nonlocal steps_count, runs_count
            failing = attempt(candidate)
            runs_count += 1
            if failing is not None and failing.check == check:
                steps_count = min(steps_count, failing.steps_count)
            show(runs_count, f"{steps_count} steps left")
            return failing

        return shrink(program, played, runs_max=runs_max)


def _write(folder: Path | None, name: str, content: bytes) -> None:
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        except OSError as error:
            raise FileError(f"--out {folder} cannot be written: {error.strerror}") from error
