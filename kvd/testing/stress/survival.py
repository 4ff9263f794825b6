"""Which values survive the end of an incarnation, found from its log and its ranks' memory alone.

A value survives if its bytes are what they should be on every rank: every rank has run its insert,
has waited for the last step that may have written it, and nothing that writes it, or reads it for a
copy, was open at the end. All of that stands in the log; how far a rank has come stands in its
progress word.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from kvd.engine.log import LogRecord
from kvd.testing.stress.broken import require
from kvd.testing.stress.contents import Indices, columns_of
from kvd.testing.stress.model import Value
from kvd_proto.codec import decode_entry, decode_fact, decode_operation, decode_own_entry
from kvd_proto.operations import (
    BackupSubmit,
    CancelHold,
    Hold,
    Insert,
    Launch,
    LoadCancel,
    LoadReserve,
    Processed,
    Publish,
    Released,
    StepAborted,
    WriteSet,
)
from kvd_proto.outcomes import (
    FACT_PROGRAM,
    NO_COLUMN,
    OWN_PROGRAM,
    Failed,
    NotRun,
    Outcome,
    Pump,
    Refusal,
    Skipped,
    WriteMap,
    WriteSlots,
)

Names = tuple[bytes, ...]
"""Virtual ids per band, as operations name them."""
_NOTHING_DONE = (Failed, NotRun, Pump, Refusal, Skipped)


class _Story:
    """What the log says, up to its end."""

    def __init__(self, state_index: int | None) -> None:
        self.state_index = state_index
        self.launched_count = 0
        self.unknown_step = 0
        """The newest step that may have written anything."""
        self.processed: dict[int, int] = {}
        """Positions of steps that were processed."""
        self.inserted: dict[int, tuple[int, int]] = {}
        """Per value: where it came to be, and how many steps were launched by then."""
        self.uncleared: dict[int, int] = {}
        """By state slot that no launch has cleared: where in the log it was handed out."""
        self.clearing: dict[int, int] = {}
        """By state slot: the step that cleared it."""
        self.loads: dict[int, int] = {}
        self.backups: dict[int, Names] = {}
        self.receives: dict[int, Names] = {}
        self.spoiled: dict[int, None] = {}


def check_survivors(
    values: Mapping[int, Value],
    records: Sequence[LogRecord],
    *,
    start_position: int,
    confirmed_position: int,
    state_index: int | None,
    survivors: Sequence[int],
) -> None:
    """Raise StressFailure unless exactly those values survive that are sealed on every rank.

    ``records`` are those of the incarnation, the first of which stands behind ``start_position``;
    up to ``confirmed_position`` effects have run on every rank.
    """
    story = _Story(state_index)
    for position, record in enumerate(records, start_position + 1):
        _tell(story, position, record)
    waited = max(
        (step for step, position in story.processed.items() if position <= confirmed_position),
        default=0,
    )
    sealed = [
        number
        for number, value in values.items()
        if _is_sealed(story, value, confirmed_position, waited)
        and not _is_touched(story, number, value, state_index)
    ]
    require(
        sorted(sealed) == sorted(survivors),
        "sealed",
        f"values {sorted(survivors)} survive; by log and memory, confirmed up to "
        f"{confirmed_position}, {sorted(sealed)} do",
    )


def _is_sealed(story: _Story, value: Value, confirmed_position: int, waited: int) -> bool:
    number = value.number
    position, launched = story.inserted.get(number, (0, 0))
    written_step = max(launched, story.unknown_step)
    if position and value.slot in story.uncleared:
        return False
    if position:
        written_step = max(written_step, story.clearing.get(value.slot, 0))
    return number not in story.spoiled and position <= confirmed_position and written_step <= waited


def _is_touched(story: _Story, number: int, value: Value, state_index: int | None) -> bool:
    if number in story.loads.values():
        return True
    return any(
        np.isin(
            np.frombuffer(ids, dtype="<i8"), [value.slot] if index == state_index else value.pages
        ).any()
        for names in (*story.backups.values(), *story.receives.values())
        for index, ids in enumerate(names)
    )


def _tell(story: _Story, position: int, record: LogRecord) -> None:
    if record.program == FACT_PROGRAM:
        fact = decode_fact(record.body)
        if isinstance(fact, StepAborted):
            story.unknown_step = max(story.unknown_step, fact.step)
        return
    if record.program == OWN_PROGRAM:
        entry = decode_own_entry(record.body)
        if isinstance(entry, Released):
            _release(story, entry)
        return
    outcome = decode_entry(record.entry).outcome
    if not isinstance(outcome.result, _NOTHING_DONE):
        _operate(story, position, record, outcome)


def _operate(story: _Story, position: int, record: LogRecord, outcome: Outcome) -> None:
    columns = columns_of(outcome)
    for effect in [effect for segment in outcome.segments for effect in segment]:
        if isinstance(effect, WriteSlots):
            handed_out = columns[effect.virtual].tolist()
            for slot in [it for it in handed_out if it]:
                story.clearing.pop(slot, None)
                story.uncleared[slot] = position
        elif isinstance(effect, WriteMap) and effect.physical == NO_COLUMN:
            _forget(story, effect.band, columns[effect.virtual])
    operation = decode_operation(record.body)
    match operation:
        case Launch():
            story.launched_count = operation.step
            for slot, handed_out in list(story.uncleared.items()):
                if handed_out <= operation.position:
                    del story.uncleared[slot]
                    story.clearing[slot] = operation.step
            if operation.writes is not WriteSet.REQUESTS:
                story.unknown_step = max(story.unknown_step, operation.step)
        case Processed():
            story.processed[operation.step] = position
        case Insert():
            story.inserted[operation.value_id] = position, story.launched_count
        case LoadReserve():
            story.loads[operation.load] = operation.value_id
        case LoadCancel():
            del story.loads[operation.load]
        case BackupSubmit():
            story.backups[operation.backup] = operation.virtual
        case Hold():
            story.receives[operation.transfer] = operation.virtual
        case Publish() if story.state_index is not None:
            zeroed = story.receives[operation.transfer][story.state_index]
            for slot in np.frombuffer(zeroed, dtype="<i8").tolist():
                story.uncleared.pop(slot, None)
        case CancelHold():
            del story.receives[operation.transfer]
        case _:
            pass


def _forget(story: _Story, band_index: int, unbound: Indices) -> None:
    """Let receives that went astray have nothing of ids that were freed, and may be another's."""
    for number, names in story.receives.items():
        ids = np.frombuffer(names[band_index], dtype="<i8")
        kept = ids[np.isin(ids, unbound, invert=True)].tobytes()
        story.receives[number] = (*names[:band_index], kept, *names[band_index + 1 :])


def _release(story: _Story, entry: Released) -> None:
    for number in entry.copies:
        value = story.loads.pop(number, 0)
        story.backups.pop(number, None)
        if number in entry.failed_copies and value:
            story.spoiled[value] = None
    for number in entry.transfers:
        story.receives.pop(number, None)
