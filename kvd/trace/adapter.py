"""What an allocator has to answer in order to be compared with another one on the same trace.

An adapter plays one stage. It is given the head of a trace, then one event after the other, and
answers each with what it decided: one `Decision` per operation of a batch, in order, and whatever
else entered its log. An allocator that is no build of kvd answers with `answer` alone, in the words
of `kvd.trace.forms.answer_of`, or with ``{}`` for an operation that it does not know; then only
answers are compared. In a process of its own it speaks the same over two pipes
(`kvd.trace.process`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

import msgspec

from kvd.engine.snap import StageSnap
from kvd.errors import FileError
from kvd.trace.forms import Form
from kvd.trace.records import (
    AnyEntered,
    AnyRecord,
    Cut,
    End,
    Ext,
    Gap,
    Gate,
    Head,
    Op,
    Res,
    Snap,
    Source,
    source_of,
)

UNKNOWN: Form = {}
"""The answer of an allocator that does not know an operation; it is compared with nothing."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation of a batch, as in an ``op`` record."""

    type: str
    args: Form = {}
    body: str | None = None


class BatchEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="batch"):
    """A program's batch; its last operation is its ``batch_end``."""

    program: int
    operations: tuple[Asked, ...]


class FactEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="fact", omit_defaults=True
):
    """A rank's statement."""

    rank: int
    type: str
    args: Form = {}
    body: str | None = None


class StopEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="stop"):
    """The incarnation is to end: at once, or at the gate in the batch that follows."""

    cause: str
    at_once: bool


Event: TypeAlias = BatchEvent | FactEvent | StopEvent


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What entered a log, and what was decided about it."""

    source: Source
    type: str
    answer: Form
    position: int = 0
    """Position in the log; 0 where the allocator has none."""
    digest: str = ""
    """Of the whole entry; empty for an allocator that is no build of kvd."""
    outcome: Form | None = None


class Adapter(Protocol):
    """An allocator that plays traces."""

    name: str

    def start(self, head: Head) -> Sequence[Decision]:
        """Begin with an empty stage, or with what survived; return what that put into the log."""
        ...

    def feed(self, event: Event) -> Sequence[Decision]:
        """Decide what an event asks."""
        ...

    def snap(self) -> StageSnap | None:
        """Return where the stage stands now; None if the allocator cannot tell."""
        ...

    def fits(self, units: tuple[int, ...]) -> bool | None:
        """Return whether units per band would fit beside what is promised; None: cannot tell."""
        ...

    def close(self) -> None:
        """Give back what the adapter holds."""
        ...


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a trace and what was decided when it was recorded."""

    event: Event | None
    """None for what stands behind the head, before any event."""
    decisions: tuple[Decision, ...]
    snap: StageSnap | None = None
    """Where the stage stood behind it, if that was recorded."""
    ending: str | None = None
    """How the trace ends, if it does here; such a record has no event."""


class Playable(Protocol):
    """Events to be played: a recording, a scenario, or what a seed draws."""

    head: Head

    def __iter__(self) -> Iterator[Recorded]:
        """Yield events in order."""
        ...


class Script:
    """The events of a trace, put together from its records one by one.

    A batch is whole when its ``batch_end`` has its ``res``; one that was cut off is left out.
    """

    def __init__(self, records: Iterator[AnyRecord], *, name: str) -> None:
        """Read the head; ``name`` says in errors which trace it is; raises FileError."""
        self._name = name
        head = next(records)
        assert isinstance(head, Head)
        self.head = head
        self.complete: bool | None = None
        """Whether the trace says that nothing is missing; None while it is read."""
        self.was_cut = False
        """Whether the trace ends anywhere, so that entries may be missing at its very end."""
        self._records = records
        self._held: Recorded | None = None
        self._operations: list[Op] = []
        self._stop: StopEvent | None = None
        self._decisions: list[Decision] = []

    def __iter__(self) -> Iterator[Recorded]:
        """Yield events in order, each with the snap behind it."""
        position = self.head.start.position
        entered: AnyEntered | None = None
        for record in self._records:
            if isinstance(record, (Op, Ext, Gate)):
                if entered is not None or record.position != position + 1:
                    raise self._wrong(
                        f"entry {record.position} stands behind entry {position}; a trace has "
                        f"every entry once, each with its res"
                    )
                entered, position = record, record.position
            elif isinstance(record, Res):
                if entered is None or record.position != position:
                    raise self._wrong(
                        f"the res of entry {record.position} does not stand behind it"
                    )
                yield from self._take(entered, record)
                entered = None
            elif isinstance(record, Snap):
                held = self._held
                if held is None or record.position != position:
                    raise self._wrong(f"the snap behind entry {record.position} is inside a batch")
                self._held = msgspec.structs.replace(held, snap=record.snap)
            elif isinstance(record, (End, Gap)):
                yield from self._release()
                self.complete = isinstance(record, End)
                text = record.cause if isinstance(record, End) else f"gap: {record.reason}"
                yield Recorded(event=None, decisions=(), ending=text)
            elif isinstance(record, Cut):
                yield from self._release()
                self.complete, self.was_cut = False, True
                yield Recorded(event=None, decisions=(), ending=self._cut_text(record))

    def _cut_text(self, cut: Cut) -> str:
        lost = "" if not self._operations else ", whose batch is left out because it is not whole"
        return (
            f"the trace was cut off behind entry {cut.position}{lost}: whoever wrote it ended, or "
            "still writes"
        )

    def _wrong(self, message: str) -> FileError:
        return FileError(f"{self._name}: {message}")

    def _take(self, entered: AnyEntered, res: Res) -> Iterator[Recorded]:
        decision = Decision(
            source=source_of(entered),
            type=entered.type,
            answer=res.answer,
            position=res.position,
            digest=res.digest,
            outcome=res.outcome,
        )
        if isinstance(entered, Gate):
            yield from self._take_gate(entered, decision)
            return
        if isinstance(entered, Ext):
            event = FactEvent(
                rank=entered.rank, type=entered.type, args=entered.args, body=entered.body
            )
            yield from self._hold(Recorded(event=event, decisions=(decision,)))
            return
        if self._operations and entered.program != self._operations[0].program:
            raise self._wrong(
                f"entry {entered.position} is of program {entered.program}, inside a batch of "
                f"program {self._operations[0].program}"
            )
        self._operations.append(entered)
        self._decisions.append(decision)
        if entered.type == "batch_end":
            yield from self._end_batch()

    def _take_gate(self, gate: Gate, decision: Decision) -> Iterator[Recorded]:
        """Take an entry that the stage makes by itself, the end apart, which somebody asked for."""
        is_end = gate.type == "incarnation_end"
        if self._operations:
            if is_end:
                self._stop = StopEvent(cause=str(gate.args["cause"]), at_once=False)
            self._decisions.append(decision)
        elif is_end:
            event = StopEvent(cause=str(gate.args["cause"]), at_once=True)
            yield from self._hold(Recorded(event=event, decisions=(decision,)))
        elif self._held is None:
            yield from self._hold(Recorded(event=None, decisions=(decision,)))
        else:
            kept = self._held
            self._held = msgspec.structs.replace(kept, decisions=(*kept.decisions, decision))

    def _end_batch(self) -> Iterator[Recorded]:
        if self._stop is not None:
            yield from self._hold(Recorded(event=self._stop, decisions=()))
        operations = self._operations
        event = BatchEvent(
            program=operations[0].program,
            operations=tuple(Asked(type=it.type, args=it.args, body=it.body) for it in operations),
        )
        decisions = tuple(self._decisions)
        self._operations, self._decisions, self._stop = [], [], None
        yield from self._hold(Recorded(event=event, decisions=decisions))

    def _hold(self, recorded: Recorded) -> Iterator[Recorded]:
        """Keep what was read until it is known whether a gate or a snap belongs to it."""
        yield from self._release()
        self._held = recorded

    def _release(self) -> Iterator[Recorded]:
        held, self._held = self._held, None
        if held is not None:
            yield held


class RecordedAdapter:
    """Plays a trace by giving the answers that were recorded in it."""

    def __init__(self, script: Script, *, name: str) -> None:
        self.name = name
        self.script = script
        self._events = iter(script)
        self._newest: Recorded | None = None
        self._next: Recorded | None = None

    def start(self, head: Head) -> Sequence[Decision]:
        """Return what stands behind the head."""
        if head.start != self.script.head.start:
            raise FileError(f"{self.name} starts from another state: the heads differ")
        self._next = next(self._events, None)
        if self._next is not None and self._next.event is None and self._next.ending is None:
            return self._advance().decisions
        return ()

    def feed(self, event: Event) -> Sequence[Decision]:
        """Return what was decided then; raises FileError if another event was recorded."""
        if self._next is None or self._next.event is None:
            ending = None if self._next is None else self._next.ending
            raise FileError(f"{self.name} has no more events: {ending}")
        if self._next.event != event:
            raise FileError(f"{self.name} has another event here: {self._next.event}")
        return self._advance().decisions

    def snap(self) -> StageSnap | None:
        """Return the snap that was recorded here, if there is one."""
        return None if self._newest is None else self._newest.snap

    def fits(self, units: tuple[int, ...]) -> bool | None:
        """Return None: a recording answers no new questions."""
        return None

    def close(self) -> None:
        """Do nothing; the file is closed by whoever reads it."""

    def _advance(self) -> Recorded:
        newest = self._next
        assert newest is not None
        self._newest, self._next = newest, next(self._events, None)
        return newest


AdapterMaker: TypeAlias = Callable[[], Adapter]
