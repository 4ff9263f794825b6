"""``kvd trace``: record what a stage decides, play it again without a GPU, and compare."""

import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from kvd.cli.output import print_json
from kvd.cli.replay import replay as kvd_replay
from kvd.cli.trace_sides import (
    ADAPTERS,
    THIS_BUILD,
    chosen_of,
    drawn_runs,
    events_in,
    is_scenario,
    maker_of,
    open_trace,
    runs_of,
)
from kvd.errors import FileError, ServeError
from kvd.testing.local import LocalDaemon
from kvd.testing.processes import ending_of
from kvd.trace.adapter import AdapterMaker
from kvd.trace.compare import Comparison, compare
from kvd.trace.play import play
from kvd.trace.records import Cut, Head, read_trace
from kvd.trace.scenario import read_scenario, script_of
from kvd.trace.stage import StageAdapter
from kvd.trace.text import comparison_form, comparison_lines, record_line
from kvd.trace.writer import TracedIncarnation

SCHEMA: Final = "kvd.trace/1"
EXIT_FOUND: Final = 1
REPLAY_OPTIONS: Final = (
    *("--preset", "phi-4-mini-flash", "--requests", "24", "--tokens-max", "1024"),
    *("--budget", "136MiB", "--chunk", "128", "--reserve-batches", "1", "--idle-every", "20"),
)
"""What ``record`` serves unless it is told something else: a few seconds in which pages are moved,
promises lapse and requests are retracted."""
SEED_STEP_COUNT: Final = 500
RECORDED_ENTRIES_MAX: Final = 1 << 20
"""Of what one event decides: nothing is dropped before it is written."""


@click.group()
def trace() -> None:
    """Record, replay, compare and show operation logs.

    A running daemon records every incarnation once its setting trace_dir names a folder; what
    follows needs no daemon and no GPU, but for record.
    """


@trace.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--out",
    "out_path",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The trace; it must not be there yet.",
)
@click.option(
    "--scenario",
    "scenario_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Play a scenario in this process instead.",
)
@click.option("--on", "configuration_name", metavar="NAME", help="The scenario's configuration.")
@click.argument("replay_options", nargs=-1, type=click.UNPROCESSED)
def record(
    out_path: Path,
    scenario_path: Path | None,
    configuration_name: str | None,
    replay_options: tuple[str, ...],
) -> None:
    """Record a trace.

    Starts a daemon of its own with trace_dir set, has rank processes serve requests through it as
    kvd replay does, and keeps the trace of stage 0. Options after -- are those of kvd replay. To
    record a daemon that serves others, set trace_dir where it is started: a trace begins with its
    incarnation, so there is nothing to attach to later.
    """
    if scenario_path is not None:
        if replay_options:
            raise click.UsageError("--scenario serves no requests; leave the other options out")
        with _created(out_path) as out:
            _record_scenario(out, scenario_path, configuration_name)
        return
    if configuration_name is not None:
        raise click.UsageError("--on goes with --scenario")
    if any(option.partition("=")[0] == "--connect" for option in replay_options):
        raise click.UsageError("--connect: a daemon of its own is recorded; leave it out")
    with _created(out_path) as out:
        with tempfile.TemporaryDirectory(prefix="kvd-trace-") as folder:
            _serve_and_record(Path(folder), replay_options or REPLAY_OPTIONS)
            (written,) = sorted(Path(folder).glob("*-stage0*"))
            data = written.read_bytes()
        out.write(data)
    click.echo(f"recorded: {out_path}, {len(data):,} bytes")


@trace.command()
@click.argument(
    "paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@click.option(
    "--with", "adapter_name", default=THIS_BUILD, metavar="ALLOCATOR", help=f"Who plays. {ADAPTERS}"
)
@click.option("--on", "configuration_name", metavar="NAME", help="One configuration of scenarios.")
@click.option("--answers", is_flag=True, help="Compare what a scheduler is told, not which units.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def replay(
    paths: tuple[Path, ...],
    adapter_name: str,
    configuration_name: str | None,
    *,
    answers: bool,
    as_json: bool,
) -> None:
    """Play traces or scenarios again and say whether the same is decided.

    A trace has to come out bit for bit, a scenario has to give the answers written in it, on every
    configuration that it names. Exits with 1 if anything is different. A trace that was cut, or has
    a gap, is played as far as it goes; that is told, and is no difference.
    """
    make = maker_of(adapter_name)
    documents: list[dict[str, Any]] = []
    for path in paths:
        if is_scenario(path):
            documents += _replay_scenario(path, configuration_name, make, quiet=as_json)
            continue
        if configuration_name is not None:
            raise click.UsageError(f"--on goes with scenarios, and {path} is none")
        result = compare(partial(open_trace, path), maker_of(str(path)), make, answers_only=answers)
        documents.append(_told(str(path), result, ("recorded", adapter_name), quiet=as_json))
    _conclude(documents, as_json=as_json)


@trace.command(name="compare")
@click.argument("left")
@click.argument("right")
@click.option(
    "--events",
    "event_paths",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A trace or scenario with what to ask; more than once for several.",
)
@click.option("--on", "configuration_name", metavar="NAME", help="One configuration of scenarios.")
@click.option(
    "--seeds",
    metavar="A-B",
    help="Ask what the stress harness draws from these seeds, both included.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME",
    help="A stage of the stress harness for --seeds; more than once for several (all).",
)
@click.option(
    "--steps",
    "step_count",
    type=click.IntRange(1),
    default=SEED_STEP_COUNT,
    help=f"Steps of the harness for each seed ({SEED_STEP_COUNT}).",
)
@click.option("--answers", is_flag=True, help="Compare what a scheduler is told, not which units.")
@click.option(
    "--snap-every",
    "snap_every_count",
    type=click.IntRange(0),
    default=0,
    metavar="EVENTS",
    help="Compare states that often, beside where a trace has one (0: never).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def compare_(
    left: str,
    right: str,
    event_paths: tuple[Path, ...],
    configuration_name: str | None,
    *,
    seeds: str | None,
    shapes: tuple[str, ...],
    step_count: int,
    answers: bool,
    snap_every_count: int,
    as_json: bool,
) -> None:
    """Ask two allocators the same and print the first thing that they decide differently."""
    makers = maker_of(left), maker_of(right)
    paths = event_paths if event_paths or seeds else events_in(left, right)
    documents: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kvd-trace-") as folder:
        drawn = drawn_runs(seeds, shapes, step_count=step_count, folder=Path(folder))
        for run in chain(runs_of(paths, configuration_name), drawn):
            result = compare(run.open, *makers, answers_only=answers, snap_every=snap_every_count)
            documents.append(_told(run.name, result, (left, right), quiet=as_json))
    _conclude(documents, as_json=as_json)


compare_.help = f"{compare_.help}\n\n{ADAPTERS}\n\nExits with 1 if anything is different."


@trace.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--from",
    "first_position",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="First position.",
)
@click.option("--to", "last_position", type=click.IntRange(0), metavar="N", help="Last position.")
def show(path: Path, first_position: int, last_position: int | None) -> None:
    """Print a trace in words: what was asked, what was answered, where the stage stood."""
    for item in read_trace(path):
        if isinstance(item, (Head, Cut)) or (
            first_position <= item.position
            and (last_position is None or item.position <= last_position)
        ):
            click.echo(record_line(item))


# ---- recording ------------------------------------------------------------------------------


@contextmanager
def _created(path: Path) -> Generator[BinaryIO, None, None]:
    """Give a new file, which is removed again if nothing comes of it; raises FileError."""
    try:
        stream = path.open("xb")
    except FileExistsError:
        raise FileError(f"{path} is there already; choose another --out") from None
    except OSError as error:
        raise FileError(f"--out {path} cannot be written: {error.strerror}") from error
    try:
        with stream:
            yield stream
    except OSError as error:
        path.unlink(missing_ok=True)
        raise FileError(f"--out {path} cannot be written: {error.strerror}") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _serve_and_record(folder: Path, replay_options: Sequence[str]) -> None:
    """Serve requests through a daemon that records into a folder; raises ServeError."""
    with LocalDaemon(arguments=("--trace-dir", str(folder))) as daemon:
        code = kvd_replay.main(
            args=[*replay_options, "--connect", str(daemon.socket_path)],
            prog_name="kvd replay",
            standalone_mode=False,
        )
        if code:
            raise ServeError(
                f"the replay found something wrong, so there is no trace to keep; the daemon's "
                f"last words: {daemon.complaints()}"
            )
    if daemon.returncode:
        raise ServeError(f"the daemon did not stop cleanly: {ending_of(daemon.returncode)}")


def _record_scenario(out: BinaryIO, path: Path, configuration_name: str | None) -> None:
    """Play a scenario and write what was decided; raises FileError where there are several."""
    scenario = read_scenario(path)
    chosen = chosen_of(path, scenario, configuration_name)
    if len(chosen) != 1:
        raise FileError(
            f"{path} is for configurations {', '.join(name for name, _ in chosen)}: choose one "
            f"with --on"
        )
    script = script_of(scenario, chosen[0][1])
    player = StageAdapter(ring_entries_max=RECORDED_ENTRIES_MAX)
    player.start(script.head)
    traced = TracedIncarnation(out, player.incarnation, group=scenario.name, snap_entries=1)
    for item in script:
        assert item.event is not None
        player.feed(item.event)
        traced.look()
    traced.end()


# ---- telling --------------------------------------------------------------------------------


def _replay_scenario(
    path: Path, configuration_name: str | None, make: AdapterMaker, *, quiet: bool
) -> list[dict[str, Any]]:
    scenario = read_scenario(path)
    documents: list[dict[str, Any]] = []
    for name, chosen in chosen_of(path, scenario, configuration_name):
        adapter = make()
        try:
            surprise = play(scenario, chosen, adapter)
        finally:
            adapter.close()
        same = surprise is None
        problem = None if surprise is None else str(surprise)
        if not quiet:
            click.echo(f"{path} on {name}: {'as expected' if problem is None else problem}")
        documents.append({"name": f"{path} on {name}", "same": same, "problem": problem})
    return documents


def _told(name: str, result: Comparison, sides: tuple[str, str], *, quiet: bool) -> dict[str, Any]:
    if not quiet:
        click.echo(f"{name}:")
        for line in comparison_lines(result, left=sides[0], right=sides[1]):
            click.echo(f"  {line}")
    return {"name": name, **comparison_form(result)}


def _conclude(documents: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(SCHEMA, {"runs": documents})
    if not all(document["same"] for document in documents):
        sys.exit(EXIT_FOUND)
