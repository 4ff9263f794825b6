"""Traces, decisions and divergences in words, one line per thing."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from kvd.engine.snap import StageSnap
from kvd.trace.compare import Comparison, Divergence
from kvd.trace.forms import Form
from kvd.trace.records import AnyRecord, Cut, End, Ext, Gap, Gate, Head, Op, Res

SHOWN_CHARACTERS_MAX: Final = 160
"""Of one value; what is longer ends in dots."""


def record_line(record: AnyRecord) -> str:
    """Return a record as one line."""
    if isinstance(record, Head):
        return head_line(record)
    if isinstance(record, Op):
        return f"{record.position:>8} op   {record.type} {shown(record.args)}"
    if isinstance(record, Ext):
        return f"{record.position:>8} ext  {record.type} of rank {record.rank} {shown(record.args)}"
    if isinstance(record, Gate):
        return f"{record.position:>8} gate {record.type} {shown(record.args)}"
    if isinstance(record, Res):
        return f"{'':>8}   -> {shown(record.answer)}  {record.digest}"
    if isinstance(record, Cut):
        return (
            f"{record.position:>8} cut  the trace was cut off here: whoever wrote it ended, or "
            "still writes"
        )
    if isinstance(record, Gap):
        return f"{record.position:>8} gap  incomplete from here on: {record.reason}"
    if isinstance(record, End):
        return f"{record.position:>8} end  {record.cause}"
    return f"{record.position:>8} snap {'; '.join(snap_lines(record.snap))}"


def head_line(head: Head) -> str:
    """Return what a trace is of."""
    start, shape = head.start, head.start.shape
    bands = ", ".join(
        f"{band.name} {band.unit_index_end_count - band.unit_index_min} x {band.unit_bytes:,} B"
        for band in shape.bands
    )
    survivors = "" if start.survivors is None else f", {len(start.survivors.values)} values survive"
    return (
        f"group {head.group or '-'}, incarnation {start.incarnation}, stage {shape.stage_index}, "
        f"ranks {len(start.ranks)}, build {head.build}, behind position {start.position}"
        f"{survivors}: {bands}"
    )


def snap_lines(snap: StageSnap) -> Iterator[str]:
    """Yield a state: the stage, then each band."""
    yield (
        f"{snap.request_count} requests, {snap.value_count} values, steps {snap.launched_count} "
        f"launched and {snap.processed_count} processed, digest {snap.digest}"
    )
    for band in snap.bands:
        yield (
            f"{band.name} [{band.span[0]}, {band.span[1]}) {band.live_units} live "
            f"{band.hole_units} holes {band.pending_units} pending {band.promised_units} promised "
            f"{band.free_id_count} ids"
        )


def comparison_lines(result: Comparison, *, left: str, right: str) -> Iterator[str]:
    """Yield how far two sides went together, and the first difference if there is one."""
    unknown = f", {result.unknown_count} not known to one side" if result.unknown_count else ""
    equal = (
        f"{result.decision_count} decisions equal in {result.event_count} events, "
        f"{result.snap_count} states equal{unknown}"
    )
    divergence = result.divergence
    if divergence is None:
        yield f"{'same as far as it goes' if result.complete is False else 'same'}: {equal}"
        if result.ending is not None:
            yield f"ends: {result.ending}"
        return
    yield f"DIFFERENT at event {divergence.event_index}, position {divergence.position}"
    yield f"  in    {divergence.what}"
    yield f"  at    {divergence.path or 'the decision'}"
    yield f"  left  {shown(divergence.left)}  ({left})"
    yield f"  right {shown(divergence.right)}  ({right})"
    yield from _decision_lines(divergence)
    yield f"before it: {equal}"
    if result.state is None:
        yield "last common state: none was looked at"
        return
    whose = "" if result.state.name == "both" else f" (as {result.state.name} has it)"
    yield (
        f"last common state, behind event {result.state.event_count - 1}, position "
        f"{result.state.position}{whose}:"
    )
    yield from (f"  {line}" for line in snap_lines(result.state.snap))


def comparison_form(result: Comparison) -> Form:
    """Return the same as a document."""
    form: Form = {
        "same": result.divergence is None,
        "events": result.event_count,
        "decisions": result.decision_count,
        "unknown": result.unknown_count,
        "states": result.snap_count,
        "position": result.position,
        "ending": result.ending,
        "complete": result.complete,
        "divergence": None,
        "last_common_state": None,
    }
    if result.divergence is not None:
        form["divergence"] = msgspec.to_builtins(result.divergence)
    if result.state is not None:
        form["last_common_state"] = msgspec.to_builtins(result.state)
    return form


def shown(value: Any) -> str:
    """Return a value as short JSON."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}..."


def _decision_lines(divergence: Divergence) -> Iterator[str]:
    for side, decision in (
        ("left", divergence.left_decision),
        ("right", divergence.right_decision),
    ):
        if decision is not None:
            yield f"  {side} decided {shown(decision)}"
