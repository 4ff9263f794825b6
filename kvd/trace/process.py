"""An allocator in a process of its own: what is asked and answered over its two pipes.

Each message is one line of JSON. The process is sent ``start`` with the head of a trace, then
``feed`` with one event after the other, and now and then ``snap`` or ``fits``. It answers every
line with one, in order, and ends when its input does. ``{"error": {"code", "message"}}`` answers
what cannot be decided. An allocator that is no build of kvd need not know ``snap`` or ``fits``: it
answers ``{}``. This module as a program is this build behind such pipes.

    > {"ask": "start", "head": {...}}
    < {"decisions": []}
    > {"ask": "feed", "event": {"event": "batch", "program": 0, "operations": [{"type": "idle"}]}}
    < {"decisions": [{"source": "op", "type": "idle", "answer": {"answer": "done"}}]}
    > {"ask": "snap"}
    < {"snap": {...}}
    > {"ask": "fits", "units": [0, 3, 3]}
    < {"fits": true}
"""

import sys
from typing import BinaryIO, TypeAlias

import msgspec

from kvd.engine.snap import StageSnap
from kvd.trace.adapter import Adapter, Decision, Event
from kvd.trace.records import Head
from kvd.trace.stage import StageAdapter
from kvd_proto.errors import KvdError


class StartAsk(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="start"):
    """Begin."""

    head: Head


class FeedAsk(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="feed"):
    """Decide an event."""

    event: Event


class SnapAsk(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="snap"):
    """Say where the stage stands."""


class FitsAsk(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="fits"):
    """Say whether units per band fit beside what is promised."""

    units: tuple[int, ...]


Ask: TypeAlias = StartAsk | FeedAsk | SnapAsk | FitsAsk


class AskError(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be decided, and why."""

    code: str
    message: str


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer; which fields are there depends on what was asked."""

    decisions: tuple[Decision, ...] = ()
    snap: StageSnap | None = None
    fits: bool | None = None
    error: AskError | None = None


def encode_line(message: Ask | Answer) -> bytes:
    """Return a message as its line."""
    return msgspec.json.encode(message) + b"\n"


def answer_of(adapter: Adapter, ask: Ask) -> Answer:
    """Return what an adapter says."""
    try:
        if isinstance(ask, StartAsk):
            return Answer(decisions=tuple(adapter.start(ask.head)))
        if isinstance(ask, FeedAsk):
            return Answer(decisions=tuple(adapter.feed(ask.event)))
        if isinstance(ask, SnapAsk):
            return Answer(snap=adapter.snap())
        return Answer(fits=adapter.fits(ask.units))
    except KvdError as error:
        return Answer(error=AskError(code=error.code.value, message=error.message))


def serve(adapter: Adapter, asks: BinaryIO, answers: BinaryIO) -> None:
    """Answer every line until there are no more."""
    for line in asks:
        answer = answer_of(adapter, msgspec.json.decode(line, type=Ask))
        answers.write(encode_line(answer))
        answers.flush()
    adapter.close()


if __name__ == "__main__":
    serve(StageAdapter(), sys.stdin.buffer, sys.stdout.buffer)
