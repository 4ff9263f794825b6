"""Two allocators on the same events, up to the first thing that they decide differently.

Replaying a trace is this with its recording on one side and the engine on the other. Exactly means
bit for bit: every entry of the log, in the same order, with the same digest, and every snap.
Answers only means what a scheduler is told: verdicts, counts and refusals, operation by operation,
because two allocators may rightly choose different units (semantics 11.5).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from kvd.engine.snap import StageSnap
from kvd.errors import FileError, WorkloadError
from kvd.trace.adapter import (
    Adapter,
    AdapterMaker,
    BatchEvent,
    Decision,
    Event,
    FactEvent,
    Playable,
    Recorded,
    Script,
)
from kvd.trace.forms import Form, Plain, logical
from kvd.trace.records import Head
from kvd_proto.errors import KvdError

MISSING: Final = "nothing"
"""Stands where one side has a field or an entry that the other has not."""
BEFORE: Final = "before the first event"

Difference: TypeAlias = tuple[str, Plain, Plain]
"""Path of a field, and what both sides have there."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference."""

    event_index: int
    """Of the events, from 0; -1 for what stands before the first."""
    position: int
    """In the log of whoever has one; 0 where nobody has."""
    what: str
    """The operation or entry in words, or ``snap``."""
    path: str
    """The first field that differs."""
    left: Plain
    right: Plain
    left_decision: Form | None
    right_decision: Form | None


@dataclass(frozen=True, slots=True)
class CommonState:
    """Where both sides stood at some time."""

    event_count: int
    """Events before it."""
    position: int
    snap: StageSnap
    name: str
    """Whose it is: of both, or of the only side that could tell."""


class Comparison:
    """How far two sides went together."""

    def __init__(self) -> None:
        self.event_count = 0
        self.decision_count = 0
        """Decisions that were compared and equal."""
        self.unknown_count = 0
        """Decisions that one side did not know, which are compared with nothing."""
        self.snap_count = 0
        """States that were compared and equal."""
        self.position = 0
        self.ending: str | None = None
        """How the recording ended; None where the events are no recording."""
        self.complete: bool | None = None
        """Whether the recording says that nothing is missing; None where it is none."""
        self.divergence: Divergence | None = None
        self.state: CommonState | None = None
        """The last one that both had."""


class Comparer:
    """Plays events on two sides."""

    def __init__(self, left: Adapter, right: Adapter, *, answers_only: bool) -> None:
        self.result = Comparison()
        self._left = left
        self._right = right
        self._answers_only = answers_only
        self._early: tuple[list[Decision], list[Decision]] = [], []
        """Entries of the stage's own that one side has, and the other may yet have: a recording
        does not tell whether one belongs to the event before it or behind it."""

    def run(
        self, head: Head, events: Iterable[Recorded], *, snap_every: int = 0, snap_from: int = 0
    ) -> Comparison:
        """Play a script to its end or to the first difference.

        States are compared where the script has a snap, and from the event ``snap_from`` on behind
        every ``snap_every`` events.
        """
        self._compare(-1, None, *(self._asked(side, head, None) for side in self._sides))
        for item in events:
            if self.result.divergence is not None:
                break
            if item.ending is not None:
                self.result.ending = item.ending
            if item.event is None:
                continue
            index = self.result.event_count
            asked = [self._asked(side, head, item.event) for side in self._sides]
            self._compare(index, item.event, *asked)
            self.result.event_count += 1
            done = index + 1
            due = snap_every and done >= snap_from and done % snap_every == 0
            if self.result.divergence is None and (item.snap is not None or due):
                self._compare_snaps(index)
        return self.result

    @property
    def _sides(self) -> tuple[Adapter, Adapter]:
        return self._left, self._right

    def _asked(self, side: Adapter, head: Head, event: Event | None) -> Sequence[Decision]:
        """Return what a side decides; an error of its own is an answer that can be compared."""
        try:
            return side.start(head) if event is None else side.feed(event)
        except (FileError, WorkloadError):
            raise  # a side that cannot play, which is no decision
        except KvdError as error:
            answer = {"answer": "error", "code": error.code.value, "message": error.message}
            return (Decision(source="op", type="error", answer=answer),)

    def _compare(
        self,
        index: int,
        event: Event | None,
        left: Sequence[Decision],
        right: Sequence[Decision],
    ) -> None:
        if self._answers_only:
            left, right = _answers(left), _answers(right)
        left, right = [*self._early[0], *left], [*self._early[1], *right]
        count = min(len(left), len(right))
        for place, (mine, other) in enumerate(zip(left[:count], right[:count], strict=True)):
            if self._answers_only and not (mine.answer and other.answer):
                self.result.unknown_count += 1
                continue
            found = self._difference(mine, other)
            if found is not None:
                self._diverge(index, _what(event, mine, place), mine, other, found)
                return
            self.result.decision_count += 1
            self.result.position = max(self.result.position, mine.position, other.position)
        self._early = left[count:], right[count:]
        if any(item.source != "gate" for side in self._early for item in side):
            self._miss(index, event, count)

    def finish(self) -> None:
        """Take what one side decided and the other has not, although all is over, as different."""
        if self.result.divergence is None and any(self._early):
            self._miss(self.result.event_count - 1, None, 0)

    def _miss(self, index: int, event: Event | None, place: int) -> None:
        mine, other = (side[0] if side else None for side in self._early)
        found = "", _shown(mine), _shown(other)
        self._diverge(index, _what(event, mine or other, place), mine, other, found)

    def _difference(self, left: Decision, right: Decision) -> Difference | None:
        if self._answers_only:
            return first_difference(logical(left.answer), logical(right.answer))
        if left.digest and (left.digest, left.position) == (right.digest, right.position):
            return None
        return first_difference(_comparable(left), _comparable(right))

    def _compare_snaps(self, index: int) -> None:
        left, right = self._left.snap(), self._right.snap()
        if left is None or right is None:
            known, side = (left, self._left) if left is not None else (right, self._right)
            if known is not None:
                self._note_state(index, known, side.name)
            return
        if self._answers_only:
            forms = _counts(left), _counts(right)
        else:
            forms = msgspec.to_builtins(left), msgspec.to_builtins(right)
        found = first_difference(*forms)
        if found is None:
            self.result.snap_count += 1
            self._note_state(index, left, "both")
            return
        self._diverge(index, "snap", None, None, found)

    def _note_state(self, index: int, snap: StageSnap, name: str) -> None:
        self.result.state = CommonState(index + 1, self.result.position, snap, name)

    def _diverge(
        self,
        index: int,
        what: str,
        left: Decision | None,
        right: Decision | None,
        found: Difference,
    ) -> None:
        positions = [item.position for item in (left, right) if item is not None]
        self.result.divergence = Divergence(
            event_index=index,
            position=max(positions, default=self.result.position),
            what=what,
            path=found[0],
            left=found[1],
            right=found[2],
            left_decision=None if left is None else _comparable(left),
            right_decision=None if right is None else _comparable(right),
        )


def compare(
    open_script: Callable[[], Playable],
    left: AdapterMaker,
    right: AdapterMaker,
    *,
    answers_only: bool = False,
    snap_every: int = 0,
) -> Comparison:
    """Play a script on two sides; raises FileError for a script that cannot be read.

    Once they have decided something differently they are made anew and play it again up to there,
    with their states looked at behind every event: either those differ before, which is then the
    first difference, or the state just before it is told.
    """
    result = _played(open_script(), left, right, answers_only, snap_every, 0)
    if result.divergence is None:
        return result
    seen_count = 0 if result.state is None else result.state.event_count
    return _played(open_script(), left, right, answers_only, 1, seen_count)


def _played(
    script: Playable,
    make_left: AdapterMaker,
    make_right: AdapterMaker,
    answers_only: bool,
    snap_every: int,
    snap_from: int,
) -> Comparison:
    with ExitStack() as stack:
        left, right = make_left(), make_right()
        stack.callback(left.close)
        stack.callback(right.close)
        comparer = Comparer(left, right, answers_only=answers_only)
        result = comparer.run(script.head, script, snap_every=snap_every, snap_from=snap_from)
        if isinstance(script, Script):
            result.complete = script.complete
        if not isinstance(script, Script) or not script.was_cut:
            comparer.finish()
        return result


def first_difference(left: Plain, right: Plain, path: str = "") -> Difference | None:
    """Return the path of the first difference of two documents, and both sides there."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in dict.fromkeys((*left, *right)):
            inner = f"{path}.{name}" if path else str(name)
            found = first_difference(left.get(name, MISSING), right.get(name, MISSING), inner)
            if found is not None:
                return found
        return None
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        mine: list[Any] = list(left)
        other: list[Any] = list(right)
        for place in range(max(len(mine), len(other))):
            found = first_difference(
                mine[place] if place < len(mine) else MISSING,
                other[place] if place < len(other) else MISSING,
                f"{path}[{place}]",
            )
            if found is not None:
                return found
        return None
    return None if left == right else (path, left, right)


def _answers(decisions: Sequence[Decision]) -> list[Decision]:
    return [item for item in decisions if item.source == "op"]


def _comparable(decision: Decision) -> Form:
    """Return a decision as a document; the digest stands last, because it explains nothing."""
    form: Form = {
        "i": decision.position,
        "source": decision.source,
        "type": decision.type,
        "answer": decision.answer,
    }
    if decision.outcome is not None:
        form["outcome"] = decision.outcome
    return {**form, "digest": decision.digest}


def _counts(snap: StageSnap) -> Form:
    """Return what two allocators have to agree on in a snap."""
    return {
        "request_count": snap.request_count,
        "bands": [{"name": band.name, "live_units": band.live_units} for band in snap.bands],
    }


def _shown(decision: Decision | None) -> Plain:
    return MISSING if decision is None else decision.answer


def _what(event: Event | None, decision: Decision | None, place: int) -> str:
    """Return in words what was being decided."""
    kind = "" if decision is None else decision.type
    if isinstance(event, BatchEvent):
        if decision is None or decision.source == "op":
            operations = event.operations
            asked = operations[min(place, len(operations) - 1)]
            if asked.type == kind:
                return f"{kind} {asked.args}" if asked.args else kind
        return f"{kind} in a batch of program {event.program}"
    if isinstance(event, FactEvent):
        return f"{kind} after {event.type} of rank {event.rank}"
    return f"{kind} {BEFORE}" if event is None else f"{kind} at the end: {event.cause}"
