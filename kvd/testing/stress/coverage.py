"""What a sweep has to have seen, by name, and how often it did."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from kvd.testing.stress.contents import columns_of
from kvd.testing.stress.misuse import MISUSES
from kvd.testing.stress.program import STEP_TYPES, AnyStep
from kvd_proto.operations import Advance, BatchEnd, Idle, Operation, Processed
from kvd_proto.outcomes import (
    NO_COLUMN,
    AdmitResult,
    Move,
    Outcome,
    Pump,
    Refusal,
    ReleasedResult,
    Skipped,
    TakeResult,
    Verdict,
    Wait,
)

STEP_NAMES: Final = tuple(str(kind.__struct_config__.tag) for kind in STEP_TYPES)
REASONS: Final = ("NO_BYTES", "TRANSFERS", "NO_IDS", "NO_ROWS", "TOO_LONG")
EVENTS: Final = (
    "verdict FITS",
    "verdict WAIT",
    "verdict UNSCHEDULABLE",
    "retracted",
    "skipped by the engine",
    "pump",
    "windows slid",
    "moved asked",
    "moved unasked",
    "moved in 2 segments",
    "waited a step",
    "waited a copy",
    "copy failed",
    "copy released",
    "transfer released",
    "transfer quarantined",
    "step aborted",
    "died one",
    "died all",
    "survived",
    "redone",
)
"""What happened to pages and ranks beyond the steps themselves."""

EXPECTED: Final = (
    *STEP_NAMES,
    *(f"refused {reason}" for reason in REASONS),
    *(f"misuse {misuse.__name__.strip('_')}" for misuse in MISUSES),
    *EVENTS,
)
"""What should happen in any sweep that is long enough."""


def note_outcome(counts: Counter[str], operation: Operation, outcome: Outcome) -> None:
    """Count what was decided about an operation."""
    result = outcome.result
    match result:
        case Refusal():
            counts[f"refused {result.reason.value}"] += 1
        case Pump():
            counts["pump"] += 1
        case Skipped():
            counts["skipped by the engine"] += 1
        case AdmitResult():
            columns = columns_of(outcome)
            for verdict in columns[result.verdicts].tolist():
                counts[f"verdict {Verdict(verdict).name}"] += 1
            for refusal in result.refusals:
                counts[f"refused {refusal.reason.value}"] += 1
            counts["retracted"] += result.retracted != NO_COLUMN
        case TakeResult():
            counts["retracted"] += result.retracted != NO_COLUMN
        case _:
            counts["windows slid"] += isinstance(operation, Advance) and bool(outcome.segments)
    moves = [1 for segment in outcome.segments for effect in segment if type(effect) is Move]
    if moves:
        unasked = isinstance(operation, BatchEnd | Idle)
        counts["moved unasked" if unasked else "moved asked"] += len(moves)
        counts["moved in 2 segments"] += len(outcome.segments) > 1
    for segment in outcome.segments:
        for effect in segment:
            if isinstance(effect, Wait) and not isinstance(operation, Processed):
                counts["waited a step" if effect.step else "waited a copy"] += 1


def note_step(counts: Counter[str], step: AnyStep, *, done: bool) -> None:
    """Count a step that was played, and whether anything fitted it."""
    name = str(type(step).__struct_config__.tag)
    counts[name if done else f"{name} skipped"] += 1


def note_released(counts: Counter[str], result: ReleasedResult) -> None:
    """Count what is over."""
    counts["copy released"] += len(result.copies)
    counts["copy failed"] += len(result.failed_copies)
    counts["transfer released"] += len(result.transfers)
    counts["transfer quarantined"] += len(result.quarantined)


def missing(counts: Mapping[str, int]) -> list[str]:
    """Return what should happen and did not."""
    return [name for name in EXPECTED if not counts.get(name)]


def lines_of(counts: Mapping[str, int]) -> list[str]:
    """Return how often each thing happened, and what did not, as lines."""
    lines = [f"{count:>10}  {name}" for name, count in sorted(counts.items())]
    lines += [f"{'never':>10}  {name}" for name in missing(counts)]
    return lines
