"""Scenarios: events written by hand, with the answers that are expected, as one JSON file each.

A scenario names the configurations that it applies to: stages of a few bands with a few units, from
the file ``configurations.json`` beside it. Its steps are asked in order and are one of

``op``     one operation in a batch of its own; ``expect`` is its answer, as far as it is given
``batch``  several operations in one batch; ``expect`` is a list with an answer for each
``fact``   a rank's statement; ``expect`` is what the stage then releases, or null for nothing
``fits``   would these units fit beside all that is promised; ``expect`` is true or false
``bands``  counts of bands, as in a snap

`kvd.trace.step` says more about steps.

What can be wrong in a file is found before anything is played, and named with file and step.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from kvd import __version__
from kvd.engine.shape import StageShape, band_shape
from kvd.engine.start import IncarnationStart
from kvd.errors import FileError
from kvd.price.geometry import BandKind, chain_geometry
from kvd.trace.adapter import Event, Recorded
from kvd.trace.forms import line_of
from kvd.trace.head import validate_shape
from kvd.trace.records import FORMAT, Head
from kvd.trace.step import Step, event_of, units_of, validate_step
from kvd.units import ceil_div
from kvd_proto.memory import Lifetime

SCENARIO_FORMAT: Final = "kvd.scenario/1"
CONFIGURATIONS_NAME: Final = "configurations.json"
RANKS_COUNT_MAX: Final = 1024


class BandChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One band of a configuration."""

    name: str
    lifetime: Lifetime
    unit_bytes: int
    window_tokens: int = 0


class Configuration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stage by hand: bands low to high, the last of which owns the pages."""

    arena_bytes: int
    sink_bytes: int
    page_tokens: int
    context_tokens: int
    row_count: int
    """Requests that may live at a time."""
    chunk_tokens: int
    bands: tuple[BandChoice, ...]
    step_tokens: int = 1
    overlap: bool = False
    virtual_page_count: int = 0
    """Ids of pages; 0: as many as the arena has units for."""
    virtual_slot_count: int = 0
    batch_moves_max: int = 0
    idle_moves_max: int = 0

    @property
    def shape(self) -> StageShape:
        """Return the stage; raises FileError for one that cannot be."""
        for band in self.bands:
            if band.unit_bytes < 1:
                raise FileError(f"unit_bytes is {band.unit_bytes}; a unit has at least one byte")
        if not self.bands:
            raise FileError("bands is empty; there has to be one or more")
        if not 0 <= self.sink_bytes <= self.arena_bytes:
            raise FileError(f"a sink of {self.sink_bytes} bytes is no part of the arena")
        if self.page_tokens < 1:
            raise FileError(f"page_tokens is {self.page_tokens}; it has to be 1 or more")
        last = len(self.bands) - 1
        kinds = [BandKind.GROW_UP] + [BandKind.FLOAT] * (last - 1) + [BandKind.GROW_DOWN]
        geometry = chain_geometry(
            arena_bytes=self.arena_bytes,
            sink_bytes=self.sink_bytes,
            bands=tuple(
                (band.name, kind, band.unit_bytes)
                for band, kind in zip(self.bands, kinds[-1 - last :], strict=True)
            ),
        )
        first, owner = geometry.bands[0], geometry.bands[-1]
        return StageShape(
            stage_index=0,
            arena_bytes=self.arena_bytes,
            sink_bytes=self.sink_bytes,
            bands=tuple(
                band_shape(grid, lifetime=band.lifetime, window_tokens=band.window_tokens)
                for band, grid in zip(self.bands, geometry.bands, strict=True)
            ),
            page_tokens=self.page_tokens,
            context_tokens=self.context_tokens,
            row_count=self.row_count + 1,
            row_pages=ceil_div(self.context_tokens, self.page_tokens) + 1,
            virtual_page_count=self.virtual_page_count or owner.unit_index_end_count,
            virtual_slot_count=self.virtual_slot_count or first.unit_index_end_count,
            chunk_tokens=self.chunk_tokens,
            step_tokens=self.step_tokens,
            overlap=self.overlap,
        )


class _Format(msgspec.Struct, frozen=True):
    """What any version of a scenario says."""

    format: str


class _Beginning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of a file but its steps."""

    format: str
    name: str
    says: str
    """What must not go wrong."""
    cases: tuple[str, ...] = ()
    """Numbers and sources of public cases that it is made of."""
    configurations: tuple[str, ...]
    ranks_count: Annotated[int, msgspec.Meta(ge=1, le=RANKS_COUNT_MAX)] = 1


class _Written(_Beginning, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file, whose steps are read one by one, so that what is wrong is told with its step."""

    steps: tuple[msgspec.Raw, ...]


class Scenario(_Beginning, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file."""

    steps: tuple[Step, ...]


T = TypeVar("T")
Configurations: TypeAlias = Mapping[str, Configuration]


class ScenarioScript:
    """A scenario on one configuration, for whoever plays events."""

    def __init__(self, head: Head, events: tuple[Event, ...]) -> None:
        self.head = head
        self._events = events

    def __iter__(self) -> Iterator[Recorded]:
        """Yield the events; nothing was decided yet."""
        return (Recorded(event=event, decisions=()) for event in self._events)


def read_scenario(path: Path) -> Scenario:
    """Return the scenario of a file; raises FileError for what is none."""
    found = _decoded(path, _Format).format
    if found != SCENARIO_FORMAT:
        raise FileError(f"{path} has format {found!r:.80}; this build reads {SCENARIO_FORMAT}")
    written = _decoded(path, _Written)
    if not written.configurations or not written.steps:
        lacks = "steps" if written.configurations else "configurations"
        raise FileError(f"{path} has no {lacks}, so it says nothing")
    steps: list[Step] = []
    for number, raw in enumerate(written.steps, 1):
        with _at(f"{path}, step {number}"):
            step = _read(raw, Step)
            validate_step(step, ranks_count=written.ranks_count)
            steps.append(step)
    fields = {name: getattr(written, name) for name in _Beginning.__struct_fields__}
    return Scenario(**fields, steps=tuple(steps))


def read_configurations(path: Path) -> Configurations:
    """Return configurations by name; raises FileError."""
    found: dict[str, Configuration] = {}
    for name, raw in _decoded(path, dict[str, msgspec.Raw]).items():
        with _at(f"{path}, configuration {name!r}"):
            found[name] = _read(raw, Configuration)
    return found


def configurations_of(path: Path, scenario: Scenario) -> Configurations:
    """Return those that the scenario of a file names; raises FileError for one that is missing.

    Raises it also for one that is no stage, and for a step that makes no sense on one of them.
    """
    beside = path.absolute().parent / CONFIGURATIONS_NAME
    if not beside.exists():
        beside = beside.parent.parent / CONFIGURATIONS_NAME
    known = read_configurations(beside)
    for name in scenario.configurations:
        if name not in known:
            raise FileError(f"{path} names configuration {name!r}; {beside} has {', '.join(known)}")
        with _at(f"{beside}, configuration {name!r}"):
            validate_shape(known[name].shape)
        names = tuple(band.name for band in known[name].bands)
        for number, step in enumerate(scenario.steps, 1):
            with _at(f"{path}, step {number}, on {name}"):
                event_of(step, names)
                units_of(step.fits or step.bands, names)
    return {name: known[name] for name in scenario.configurations}


def head_of(scenario: Scenario, configuration: Configuration) -> Head:
    """Return what a stage that plays it starts from."""
    return Head(
        format=FORMAT,
        build=__version__,
        group=scenario.name,
        start=IncarnationStart(
            incarnation=1,
            ranks=tuple(range(scenario.ranks_count)),
            check_level="strict",
            idle_moves_max=configuration.idle_moves_max,
            batch_moves_max=configuration.batch_moves_max,
            position=0,
            shape=configuration.shape,
        ),
    )


def script_of(scenario: Scenario, configuration: Configuration) -> ScenarioScript:
    """Return the events of a scenario, without its questions and expectations."""
    names = tuple(band.name for band in configuration.bands)
    return ScenarioScript(
        head_of(scenario, configuration),
        tuple(event for step in scenario.steps if (event := event_of(step, names)) is not None),
    )


@contextmanager
def _at(place: str) -> Generator[None, None, None]:
    """Put the place in front of what is wrong there."""
    try:
        yield
    except FileError as error:
        raise FileError(f"{place}: {error.message}") from error


def _decoded(path: Path, kind: type[T]) -> T:
    try:
        return _read(path.read_bytes(), kind)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    except FileError as error:
        raise FileError(f"{path} is no scenario: {error.message}") from error


def _read(text: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Return what a text says; raises FileError, with the fields that there are for a wrong one."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = line_of(error)
        if "unknown field" in message and " - at" not in message:
            message += f"; there are {', '.join(getattr(kind, '__struct_fields__', ()))}"
        raise FileError(message) from error
