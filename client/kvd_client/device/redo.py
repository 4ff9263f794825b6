"""Redo: the first act on memory in which values survived an applier that died.

The log of the incarnation before may hold effects that this rank's memory lacks: those that were
enqueued and had not run when the applier died, and those that it never received. The progress word
says from which segment on. Segments are cut so that redoing one of which a part has run gives the
bytes of an unbroken run.

What is not redone: waits, because the work they wait for is over when the memory is quiet; copies
to and from the host, because a load or a backup that nobody acknowledged is void; what was left to
a launch, because rows and working states belong to requests, which ended with their incarnation.

Invariants:
    stub.redo_gapless: the first entry that is redone is the one that the progress word names, or
        the log's first
"""

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from kvd_client.device.apply import Applier, read_progress
from kvd_client.device.port import Device, Memory, Stream
from kvd_client.errors import ReplyError
from kvd_proto.memory import StoragePlan
from kvd_proto.outcomes import AnyEffect, ClearSlots, Copy, Entry, Outcome, ResetRows, Wait
from kvd_proto.scalars import Position

NOT_REDONE: Final[tuple[type[AnyEffect], ...]] = (Wait, Copy, ClearSlots, ResetRows)


def redo(
    *,
    device: Device,
    memory: Memory,
    plan: StoragePlan,
    stream: Stream,
    first_position: int,
    entries: Sequence[Entry],
) -> Position:
    """Enqueue what is unconfirmed of these entries, the last ones of a log; returns its end.

    Raises ReplyError if the progress word names an entry that is not among them.
    """
    progress = read_progress(memory, plan)
    end_position = first_position + len(entries) - 1
    if progress.position:
        start, segment_start_index = int(progress.position), progress.segment_index + 1
    else:
        start, segment_start_index = 1, 0
    if not first_position <= start <= end_position:
        raise ReplyError(
            f"stub.redo_gapless: this memory is at position {progress.position}, and the entries "
            f"from {first_position} to {end_position} came to be redone"
        )
    applier = Applier(
        device=device,
        memory=memory,
        plan=plan,
        stream=stream,
        applied=start - 1,
        segment_start_index=segment_start_index,
    )
    outcomes = [redoable(entry.outcome) for entry in entries[start - first_position :]]
    applier.apply_reply(start, outcomes)
    return applier.applied


def redoable(outcome: Outcome) -> Outcome:
    """Return an outcome with the same segments, without the effects that are not redone."""
    return structs.replace(
        outcome,
        segments=tuple(
            tuple(effect for effect in segment if not isinstance(effect, NOT_REDONE))
            for segment in outcome.segments
        ),
    )
