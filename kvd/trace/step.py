"""One step of a scenario: what it asks, and whether it makes sense.

An operation is its arguments with ``type``; ids are runs ``[first, count]``. What is a list per
band may be written as an object with the names of bands, where a band that is left out has no part.
``pure`` says that the step changed no state; ``effects`` counts units that were moved or zeroed,
and names what was waited for. An operation that failed, was skipped or was not run is as expected
only where ``expect`` says so with ``answer``; what is refused is an answer like another.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from kvd.errors import FileError
from kvd.trace.adapter import Asked, BatchEvent, Event, FactEvent
from kvd.trace.forms import FACT_NAMES, OPERATION_NAMES, Form, Plain, message_of

BATCH_END: Final = Asked(type="batch_end")
PER_BAND_FIELDS: Final[dict[str, type[int] | type[list[int]]]] = {
    "demand_units": int,
    "units": int,
    "virtual": list,
    "host_units": list,
}
"""Arguments that are lists with an entry per band, and what makes that of a band without a part."""
EFFECT_NAMES: Final = ("moved", "zeroed", "waits")
_PROGRAMS_COUNT_MAX: Final = 1 << 31
_UNITS_END: Final = 1 << 63


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
    program: Annotated[int, msgspec.Meta(ge=0, lt=_PROGRAMS_COUNT_MAX)] = 0
    rank: int = 0
    says: str = ""
    """Why it is expected, where that is not plain."""

    @property
    def kind(self) -> str:
        """Return which of the five it is; raises FileError unless it is one."""
        given = {
            "op": self.op,
            "batch": self.batch or None,
            "fact": self.fact,
            "fits": self.fits,
            "bands": self.bands or None,
        }
        found = [name for name, value in given.items() if value is not None]
        if len(found) != 1:
            has = f"it has {' and '.join(found)}" if found else "it has none of them"
            raise FileError(f"one of op, batch, fact, fits and bands is needed; {has}")
        return found[0]


def validate_step(step: Step, *, ranks_count: int) -> None:
    """Raise FileError for a step that makes no sense on any configuration."""
    kind = step.kind
    _validate_expect(step, kind)
    if kind in ("fits", "bands") and (step.pure or step.effects is not None):
        raise FileError(f"pure and effects go with op, batch and fact; {kind} only asks")
    if step.program and kind not in ("op", "batch"):
        raise FileError(f"program goes with op and batch, not with {kind}")
    if step.rank and kind != "fact":
        raise FileError(f"rank goes with fact, not with {kind}")
    if not 0 <= step.rank < ranks_count:
        raise FileError(f"rank is {step.rank}; the ranks are 0 to {ranks_count - 1}")
    for name in step.effects or {}:
        if name not in EFFECT_NAMES:
            raise FileError(f"effects has {name!r:.80}; there are {', '.join(EFFECT_NAMES)}")
    for band, units in (step.fits or {}).items():
        if type(units) is not int or not 0 <= units < _UNITS_END:
            raise FileError(
                f"fits has {units!r:.80} for {band!r:.80}; it has to be a count of units"
            )


def event_of(step: Step, band_names: tuple[str, ...]) -> Event | None:
    """Return what a step asks of a stage; None for a question; raises FileError."""
    if step.fact is not None:
        asked = _asked(step.fact, band_names, "fact", FACT_NAMES)
        return FactEvent(rank=step.rank, type=asked.type, args=asked.args)
    operations = step.batch if step.op is None else (step.op,)
    if not operations:
        return None
    asked_all = tuple(_asked(form, band_names, "operation", OPERATION_NAMES) for form in operations)
    return BatchEvent(program=step.program, operations=(*asked_all, BATCH_END))


def units_of(form: Form, band_names: tuple[str, ...]) -> tuple[int, ...]:
    """Return counts per band from an object with names; raises FileError for another name."""
    return tuple(_per_band(form, band_names, 0))


def _validate_expect(step: Step, kind: str) -> None:
    """Raise FileError for an expectation that no answer can meet."""
    expect: Plain = step.expect
    is_left_out = step.expect is msgspec.UNSET
    if kind == "bands":
        right, wanted = is_left_out, "left out: bands says what is expected"
    elif kind == "fits":
        right, wanted = isinstance(expect, bool), "true or false"
    elif is_left_out:
        return
    elif kind == "op":
        right, wanted = isinstance(expect, dict), "an object with fields of the answer"
    elif kind == "fact":
        right, wanted = expect is None or isinstance(expect, dict), "an object, or null for nothing"
    else:
        answers = expect if isinstance(expect, list) else []
        right = len(answers) == len(step.batch) and all(isinstance(it, dict) for it in answers)
        wanted = f"a list of {len(step.batch)} objects, one for each operation"
    if not right:
        shown = "left out" if is_left_out else f"{expect!r:.80}"
        raise FileError(f"expect is {shown}; with {kind} it has to be {wanted}")


def _asked(form: Form, band_names: tuple[str, ...], what: str, allowed: Sequence[str]) -> Asked:
    if "type" not in form:
        raise FileError(f"an {what} needs its type: {', '.join(allowed)}; this has none: {form!r}")
    kind = form["type"]
    if kind not in allowed:
        raise FileError(f"{kind!r:.80} is no {what}; there are {', '.join(allowed)}")
    if kind == BATCH_END.type:
        raise FileError("batch_end ends every batch by itself; leave it out")
    args = {key: value for key, value in form.items() if key != "type"}
    for key, nothing in PER_BAND_FIELDS.items():
        if isinstance(args.get(key), dict):
            args[key] = _per_band(args[key], band_names, nothing())
    if isinstance(args.get("band"), str):
        args["band"] = _place(args["band"], band_names)
    message_of(kind, args)
    return Asked(type=kind, args=args)


def _per_band(form: Form, band_names: tuple[str, ...], nothing: object) -> list[Any]:
    for name in form:
        _place(name, band_names)
    return [form.get(name, nothing) for name in band_names]


def _place(name: str, band_names: tuple[str, ...]) -> int:
    if name not in band_names:
        raise FileError(f"there is no band {name!r}; there are {', '.join(band_names)}")
    return band_names.index(name)
