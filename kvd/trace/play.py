"""Plays a scenario and says where an answer is not the expected one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from kvd.engine.snap import StageSnap
from kvd.errors import FileError, WorkloadError
from kvd.trace.adapter import Adapter, BatchEvent, Decision, Event
from kvd.trace.compare import MISSING, Difference, first_difference
from kvd.trace.forms import Form, Plain
from kvd.trace.scenario import Configuration, Scenario, head_of
from kvd.trace.step import BATCH_END, Step, event_of, units_of
from kvd_proto.errors import KvdError

NOTHING_SAID: Final = msgspec.UNSET
ANNOUNCED: Final = ("error", "failed", "skipped", "not_run")
"""Answers of an operation that nothing was decided about; ``expect`` has to name them."""
NO_FAILURE: Final = "no failure, because expect names none"
_COUNTED: Final = {"move": ("moved", "sources"), "zero": ("zeroed", "units")}
"""Effects that are counted: under which name, and which column has their units."""


@dataclass(frozen=True, slots=True)
class Surprise:
    """What was not as a scenario expects it."""

    step_index: int
    """From 0."""
    what: str
    path: str
    expected: Plain
    got: Plain
    decisions: tuple[Form, ...] = ()
    """All that the step decided."""

    def __str__(self) -> str:
        """Return it as one line."""
        where = f" at {self.path}" if self.path else ""
        return (
            f"step {self.step_index + 1}, {self.what}{where}: {self.got!r}, expected "
            f"{self.expected!r}"
        )


def play(scenario: Scenario, configuration: Configuration, adapter: Adapter) -> Surprise | None:
    """Play a scenario to its end, or to the first answer that is not as expected.

    What an allocator does not know or cannot tell is not asserted. The scenario is one that
    `kvd.trace.scenario.configurations_of` looked at; raises FileError or WorkloadError where an
    allocator cannot play at all.
    """
    names = tuple(band.name for band in configuration.bands)
    adapter.start(head_of(scenario, configuration))
    for index, step in enumerate(scenario.steps):
        surprise = _play_step(index, step, names, adapter)
        if surprise is not None:
            return surprise
    return None


def _play_step(index: int, step: Step, names: tuple[str, ...], adapter: Adapter) -> Surprise | None:
    if step.fits is not None:
        got = adapter.fits(units_of(step.fits, names))
        if got is None or got == step.expect:
            return None
        return Surprise(index, f"fits {step.fits}", "", step.expect, got)
    if step.bands:
        return _check_bands(index, step, adapter.snap())
    event = event_of(step, names)
    assert event is not None
    before = adapter.snap() if step.pure else None
    decisions = _decisions(event, adapter)
    found = _answer_difference(step, decisions)
    if found is None and step.effects is not None:
        found = _effects_difference(step.effects, names, decisions)
    if found is None and before is not None:
        found = first_difference(
            msgspec.to_builtins(before), msgspec.to_builtins(adapter.snap()), "state"
        )
    if found is None:
        return None
    form = step.op or step.fact
    what = "a batch" if form is None else str(form["type"])
    return Surprise(index, what, *found, tuple(_shown(one) for one in decisions))


def _decisions(event: Event, adapter: Adapter) -> tuple[Decision, ...]:
    """Return what is decided; an error of the allocator's own is the answer to all of it."""
    try:
        return tuple(adapter.feed(event))
    except (FileError, WorkloadError):
        raise  # an allocator that cannot play, which is no answer
    except KvdError as error:
        answer = {"answer": "error", "code": error.code.value, "message": error.message}
        count = len(event.operations) if isinstance(event, BatchEvent) else 1
        return (Decision(source="op", type="error", answer=answer),) * count


def _answer_difference(step: Step, decisions: Sequence[Decision]) -> Difference | None:
    """Return the first difference of what is expected and what was answered.

    What failed or was not run is one where nothing announces it: the steps behind it then ask
    something else than whoever wrote them thinks.
    """
    if step.fact is not None:
        return _release_difference(step, decisions)
    expects: list[Form] = []
    if step.expect is not NOTHING_SAID:
        expects = [step.expect] if step.op is not None else step.expect
    for place, decision in enumerate(one for one in decisions if one.source == "op"):
        answer, path = decision.answer, f"[{place}]" if step.op is None else ""
        expected: Form = expects[place] if place < len(expects) else {}
        found = _unmet(expected, answer, path) if answer else None
        if found is not None:
            return found
        unannounced = answer.get("answer") in ANNOUNCED and "answer" not in expected
        # Once an incarnation has ended, not even what ends a batch is run.
        if unannounced and (decision.type, answer["answer"]) != (BATCH_END.type, "not_run"):
            return path, NO_FAILURE, answer
    return None


def _release_difference(step: Step, decisions: Sequence[Decision]) -> Difference | None:
    """Return the first difference of what is released and what is expected to be."""
    for decision in decisions:
        if decision.type == "error":
            return "", MISSING if step.expect is NOTHING_SAID else step.expect, decision.answer
    if step.expect is NOTHING_SAID:
        return None
    released = [one.answer for one in decisions if one.source == "gate"]
    if step.expect is None:
        return ("", MISSING, released[0]) if released else None
    return _unmet(step.expect, released[-1] if released else MISSING)


def _unmet(expected: Plain, got: Plain, path: str = "") -> Difference | None:
    """Return where an answer is not as expected; what is not mentioned may be anything."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for name, value in expected.items():
            inner = f"{path}.{name}" if path else str(name)
            found = _unmet(value, got.get(name, MISSING), inner)
            if found is not None:
                return found
        return None
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for place, value in enumerate(expected):
            found = _unmet(value, got[place], f"{path}[{place}]")
            if found is not None:
                return found
        return None
    return first_difference(expected, got, path)


def _check_bands(index: int, step: Step, snap: StageSnap | None) -> Surprise | None:
    if snap is None:
        return None
    got: Form = {band.name: msgspec.to_builtins(band) for band in snap.bands}
    found = _unmet(step.bands, got)
    return None if found is None else Surprise(index, "bands", *found)


def _effects_difference(
    expected: Form, names: tuple[str, ...], decisions: Sequence[Decision]
) -> Difference | None:
    got = effects_of(names, decisions)
    return first_difference(
        {name: expected[name] for name in expected},
        {name: got.get(name, MISSING) for name in expected},
        "effects",
    )


def effects_of(names: Sequence[str], decisions: Sequence[Decision]) -> Form:
    """Return units moved and zeroed per band, and what was waited for, in words."""
    found: dict[str, dict[str, int]] = {"moved": {}, "zeroed": {}}
    waits: list[str] = []
    for decision in decisions:
        outcome: Form = decision.outcome or {}
        columns: list[list[list[int]]] = outcome.get("columns", [])
        segments: list[list[Form]] = outcome.get("segments", [])
        for effect in (effect for segment in segments for effect in segment):
            if effect["type"] in _COUNTED:
                counts, field = _COUNTED[effect["type"]]
                band: int = effect["band"]
                place: int = effect[field]
                size = sum(count for _, count in columns[place])
                units = found[counts]
                units[names[band]] = units.get(names[band], 0) + size
            elif effect["type"] == "wait":
                kind = "step" if effect["step"] else "copy"
                waits.append(f"{kind} {effect[kind]}")
    return {**found, "waits": waits}


def _shown(decision: Decision) -> Form:
    return {"source": decision.source, "type": decision.type, "answer": decision.answer}
