"""A trace of a busy rank, and what the tests of traces do with it."""

import io
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, cast

from kvd.engine.snap import StageSnap
from kvd.trace.adapter import Adapter, Decision, Event, RecordedAdapter, Script
from kvd.trace.records import AnyRecord, Cut, Head, Written, encode_record, read_lines
from kvd.trace.stage import StageAdapter
from kvd.trace.writer import TracedIncarnation
from tests.stateful.program import TIGHT, batches
from tests.stateful.ranks import lone

BATCH_COUNT = 30


@cache
def traced(seed: int = 5, *, snap_entries: int = 16) -> bytes:
    """Return the trace of a drawn program, ended in order."""
    rank, sink = lone(TIGHT), io.BytesIO()
    trace = TracedIncarnation(sink, rank.world, group="drawn", snap_entries=snap_entries)
    for operations in batches(seed, BATCH_COUNT):
        rank.send(*operations)
        trace.look()
    rank.world.end("the program is over")
    trace.end()
    # Whoever plays it need not check its own books after every operation.
    return sink.getvalue().replace(b'"check_level":"strict"', b'"check_level":"off"', 1)


def records(data: bytes) -> list[Written]:
    """Return the records of a trace that stand in it."""
    found = read_lines(io.BytesIO(data), name="a trace")
    return [record for record in found if not isinstance(record, Cut)]


def script(data: bytes) -> Script:
    """Return a trace as events."""
    return Script(read_lines(io.BytesIO(data), name="a trace"), name="a trace")


def recorded(data: bytes) -> Callable[[], RecordedAdapter]:
    """Return how to make who answers what was recorded."""
    return lambda: RecordedAdapter(script(data), name="recorded")


def joined(items: Iterable[AnyRecord]) -> bytes:
    """Return records as a trace."""
    return b"".join(map(encode_record, items))


def damaged(form: Any, place: int, value: object) -> Any:
    """Return a document with another value at one place; places beyond the last count anew."""
    places = list(_places(form))
    target = places[place % len(places)]
    return _replaced(form, target, value)


def _places(form: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything inside a document."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(form, dict):
        items = cast("dict[str, Any]", form).items()
    elif isinstance(form, list):
        items = enumerate(cast("list[Any]", form))
    for key, inner in items:
        yield (*path, key)
        yield from _places(inner, (*path, key))


def _replaced(form: Any, path: tuple[Any, ...], value: object) -> Any:
    if not path:
        return value
    copied = form.copy()
    copied[path[0]] = _replaced(form[path[0]], path[1:], value)
    return copied


class Altered:
    """This build with some answers changed on the way out."""

    def __init__(self, change: Callable[[int, Decision], Decision | None]) -> None:
        """Take a function from the number of a decision and it to what is said instead."""
        self.name = "altered"
        self._inner: Adapter = StageAdapter()
        self._change = change
        self._count = 0

    def start(self, head: Head) -> list[Decision]:
        return self._changed(list(self._inner.start(head)))

    def feed(self, event: Event) -> list[Decision]:
        return self._changed(list(self._inner.feed(event)))

    def snap(self) -> StageSnap | None:
        return self._inner.snap()

    def fits(self, units: tuple[int, ...]) -> bool | None:
        return self._inner.fits(units)

    def close(self) -> None:
        self._inner.close()

    def _changed(self, decisions: list[Decision]) -> list[Decision]:
        said: list[Decision] = []
        for decision in decisions:
            self._count += 1
            changed = self._change(self._count, decision)
            if changed is not None:
                said.append(changed)
        return said
