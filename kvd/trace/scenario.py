"""Scenarios: events written by hand, with the answers that are expected, as one JSON file each.

A scenario names the configurations that it applies to: stages of a few bands with a few units, from
the file ``configurations.json`` beside it. Its steps are asked in order and are one of

``op``     one operation in a batch of its own; ``expect`` is its answer, as far as it is given
``batch``  several operations in one batch; ``expect`` is a list with an answer for each
``fact``   a rank's statement; ``expect`` is what the stage then releases, or null for nothing
``fits``   would these units fit beside all that is promised; ``expect`` is true or false
``bands``  counts of bands, as in a snap

An operation is its arguments with ``type``; ids are runs ``[first, count]``. What is a list per
band may be written as an object with the names of bands, where a band that is left out has no part.
``pure`` says that the step changed no state; ``effects`` counts units that were moved or zeroed,
and names what was waited for.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from kvd import __version__
from kvd.engine.shape import StageShape, band_shape
from kvd.engine.start import IncarnationStart
from kvd.errors import FileError
from kvd.price.geometry import BandKind, chain_geometry
from kvd.trace.adapter import Asked, BatchEvent, Event, FactEvent, Recorded
from kvd.trace.forms import Form
from kvd.trace.records import FORMAT, Head
from kvd.units import ceil_div
from kvd_proto.memory import Lifetime

SCENARIO_FORMAT: Final = "kvd.scenario/1"
CONFIGURATIONS_NAME: Final = "configurations.json"
BATCH_END: Final = Asked(type="batch_end")
PER_BAND_FIELDS: Final = ("demand_units", "units", "virtual", "host_units")
"""Arguments that are lists with an entry per band, and their entry for a band without a part."""


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
        wrong = _problem_of(self)
        if wrong:
            raise FileError(f"configuration: {wrong}")
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


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step; exactly one of the first five is there."""

    op: Form | None = None
    batch: tuple[Form, ...] = ()
    fact: Form | None = None
    fits: Form | None = None
    bands: dict[str, Form] = {}
    expect: Any = msgspec.UNSET
    effects: Form | None = None
    pure: bool = False
    program: int = 0
    rank: int = 0
    says: str = ""
    """Why it is expected, where that is not plain."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file."""

    format: str
    name: str
    says: str
    """What must not go wrong."""
    cases: tuple[str, ...] = ()
    """Numbers and sources of public cases that it is made of."""
    configurations: tuple[str, ...]
    ranks_count: int = 1
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
    scenario = _decoded(path, Scenario)
    if scenario.format != SCENARIO_FORMAT:
        raise FileError(
            f"{path} has format {scenario.format!r}; this build reads {SCENARIO_FORMAT}"
        )
    if not scenario.configurations or not scenario.steps:
        lacks = "steps" if scenario.configurations else "configurations"
        raise FileError(f"{path} has no {lacks}, so it says nothing")
    for number, step in enumerate(scenario.steps, 1):
        kinds = [step.op, step.batch or None, step.fact, step.fits, step.bands or None]
        if sum(kind is not None for kind in kinds) != 1:
            raise FileError(
                f"{path}, step {number}: one of op, batch, fact, fits and bands is needed"
            )
    return scenario


def read_configurations(path: Path) -> Configurations:
    """Return configurations by name; raises FileError."""
    return _decoded(path, dict[str, Configuration])


def configurations_of(path: Path, scenario: Scenario) -> Configurations:
    """Return those that the scenario of a file names; raises FileError for one that is missing."""
    beside = path.absolute().parent / CONFIGURATIONS_NAME
    if not beside.exists():
        beside = beside.parent.parent / CONFIGURATIONS_NAME
    known = read_configurations(beside)
    for name in scenario.configurations:
        if name not in known:
            raise FileError(f"{path} names configuration {name!r}; {beside} has {', '.join(known)}")
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


def event_of(step: Step, band_names: tuple[str, ...]) -> Event | None:
    """Return what a step asks of a stage; None for a question."""
    if step.fact is not None:
        asked = _asked(step.fact, band_names)
        return FactEvent(rank=step.rank, type=asked.type, args=asked.args)
    operations = step.batch if step.op is None else (step.op,)
    if not operations:
        return None
    asked_all = tuple(_asked(form, band_names) for form in operations)
    return BatchEvent(program=step.program, operations=(*asked_all, BATCH_END))


def units_of(form: Form, band_names: tuple[str, ...]) -> tuple[int, ...]:
    """Return counts per band from an object with names; raises FileError for another name."""
    return tuple(_per_band(form, band_names, 0))


def _asked(form: Form, band_names: tuple[str, ...]) -> Asked:
    args = {key: value for key, value in form.items() if key != "type"}
    if "type" not in form:
        raise FileError(f"an operation without its type: {form}")
    for key in PER_BAND_FIELDS:
        if isinstance(args.get(key), dict):
            nothing: object = 0 if key in ("demand_units", "units") else []
            args[key] = _per_band(args[key], band_names, nothing)
    if isinstance(args.get("band"), str):
        args["band"] = _place(args["band"], band_names)
    return Asked(type=str(form["type"]), args=args)


def _per_band(form: Form, band_names: tuple[str, ...], nothing: object) -> list[Any]:
    for name in form:
        _place(name, band_names)
    return [form.get(name, nothing) for name in band_names]


def _place(name: str, band_names: tuple[str, ...]) -> int:
    if name not in band_names:
        raise FileError(f"there is no band {name!r}; there are {', '.join(band_names)}")
    return band_names.index(name)


def _problem_of(configuration: Configuration) -> str:
    """Return why bands cannot be a stage; empty if they can."""
    bands = configuration.bands
    lifetimes = [band.lifetime for band in bands]
    if not bands or lifetimes[-1] is not Lifetime.FULL:
        return "its last band has to be full attention, which owns the pages"
    if Lifetime.STATE in lifetimes[1:] or Lifetime.FULL in lifetimes[:-1]:
        return "states come first, then windows, then full attention"
    if any(band.unit_bytes < 1 for band in bands):
        return "a unit has at least one byte"
    if not 0 <= configuration.sink_bytes <= configuration.arena_bytes:
        return f"a sink of {configuration.sink_bytes} bytes is no part of the arena"
    return ""


def _decoded(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{path} is no scenario: {error}") from error
