"""Who plays a trace, and what is played: the names that ``kvd trace`` takes."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import click

from kvd.config import process_environment
from kvd.errors import FileError, SettingError
from kvd.testing.trace_process import ProcessAdapter, tree_adapter
from kvd.trace.adapter import AdapterMaker, Playable, RecordedAdapter, Script
from kvd.trace.records import read_trace
from kvd.trace.scenario import (
    SCENARIO_FORMAT,
    Configuration,
    Scenario,
    configurations_of,
    read_scenario,
    script_of,
)
from kvd.trace.stage import StageAdapter

THIS_BUILD: Final = "kvd"
ADAPTERS: Final = (
    "An allocator is kvd (this build), tree:FOLDER (another source tree of kvd), run:COMMAND (a "
    "program that speaks the protocol of kvd.trace.process), or a trace, which answers what it did "
    "then."
)
_SEEDS: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
BEGINNING_BYTES: Final = 4096
"""Where a scenario says what it is."""


class Run(NamedTuple):
    """Events to be played, by name, and how to open them again."""

    name: str
    open: Callable[[], Playable]


def open_trace(path: Path) -> Script:
    """Return a trace from its beginning; raises FileError."""
    return Script(read_trace(path), name=str(path))


def maker_of(name: str) -> AdapterMaker:
    """Return how to make an adapter; raises KvdError for none."""
    if name == THIS_BUILD:
        return StageAdapter
    environment = process_environment()
    if name.startswith("tree:"):
        tree = Path(name.removeprefix("tree:"))
        tree_adapter(tree, environment=environment).close()
        return partial(tree_adapter, tree, environment=environment)
    if name.startswith("run:"):
        try:
            command = shlex.split(name.removeprefix("run:"))
        except ValueError as error:
            raise SettingError(f"{name!r} is no command: {error}") from None
        if not command:
            raise SettingError(f"{name!r} names no command")
        return partial(ProcessAdapter, command, name=name, environment=environment)
    path = Path(name)
    if not path.exists():
        raise FileError(f"{name!r} is no allocator and no file. {ADAPTERS}")
    return partial(_recorded, path)


def events_in(left: str, right: str) -> tuple[Path, ...]:
    """Return the trace among two sides, whose events are played if nothing else is said."""
    for side in (left, right):
        if side != THIS_BUILD and not side.startswith(("tree:", "run:")):
            return (Path(side),)
    raise click.UsageError("neither side is a trace: name what to ask, with --events FILE")


def runs_of(paths: Iterable[Path], configuration_name: str | None) -> Iterator[Run]:
    """Yield what files hold: a trace, or a scenario on each of its configurations."""
    for path in paths:
        if not is_scenario(path):
            yield Run(str(path), partial(open_trace, path))
            continue
        scenario = read_scenario(path)
        for name, chosen in chosen_of(path, scenario, configuration_name):
            yield Run(f"{path} on {name}", partial(script_of, scenario, chosen))


def drawn_runs(
    seeds: str | None, shapes: tuple[str, ...], *, step_count: int, folder: Path
) -> Iterator[Run]:
    """Yield what the stress harness draws from seeds ``A-B``, one incarnation after the other.

    Raises SettingError for seeds or shapes that there are not.
    """
    if seeds is None:
        if shapes:
            raise click.UsageError("--shape goes with --seeds")
        return
    # Loaded here: the harness and its modelled devices take longer to import than anything else.
    from kvd.testing.stress.shapes import SHAPES
    from kvd.testing.trace_seeds import record_seed

    found = _SEEDS.fullmatch(seeds)
    if found is None or int(found[1]) > int(found[2] or found[1]):
        raise SettingError(f"--seeds is {seeds!r}; allowed is one number, or two as 1-20")
    for shape in shapes or tuple(SHAPES):
        for seed in range(int(found[1]), int(found[2] or found[1]) + 1):
            for path in record_seed(shape, seed, step_count=step_count, folder=folder):
                yield Run(path.name.removesuffix(".trace.jsonl"), partial(open_trace, path))


def is_scenario(path: Path) -> bool:
    """Return whether a file calls itself a scenario; raises FileError if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return SCENARIO_FORMAT.partition("/")[0].encode() in stream.read(BEGINNING_BYTES)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error


def chosen_of(
    path: Path, scenario: Scenario, configuration_name: str | None
) -> list[tuple[str, Configuration]]:
    """Return the configurations that a scenario is played on; raises FileError for none of it."""
    known = configurations_of(path, scenario)
    if configuration_name is None:
        return list(known.items())
    if configuration_name not in known:
        raise FileError(
            f"{path} is for configurations {', '.join(known)}, not {configuration_name!r}"
        )
    return [(configuration_name, known[configuration_name])]


def _recorded(path: Path) -> RecordedAdapter:
    return RecordedAdapter(open_trace(path), name=str(path))
