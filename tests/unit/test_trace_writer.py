"""What is written, and what a trace says of what is missing."""

import io
from dataclasses import dataclass, field

import pytest

from kvd.trace.records import End, Gap, Head, Res
from kvd.trace.writer import LAST_RECORD_BYTES, TracedIncarnation, TraceWriter
from kvd_proto.operations import Idle
from tests.stateful.program import TIGHT, batches
from tests.stateful.ranks import Rank, incarnation, lone
from tests.unit.trace_parts import records


@dataclass
class CountingSink:
    """Takes lines and counts how often."""

    writes: list[bytes] = field(default_factory=list[bytes])

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    @property
    def data(self) -> bytes:
        return b"".join(self.writes)


def busy() -> Rank:
    rank = lone(TIGHT)
    for operations in batches(1, 10):
        rank.send(*operations)
    return rank


def test_every_look_is_one_write_of_whole_lines() -> None:
    rank, sink = lone(TIGHT), CountingSink()
    trace = TracedIncarnation(sink, rank.world, snap_entries=1000)
    for operations in batches(1, 10):
        rank.send(*operations)
        trace.look()
        trace.look()
    assert len(sink.writes) == 11
    assert all(lines.endswith(b"\n") for lines in sink.writes)
    assert trace.writer.bytes_total == len(sink.data)


def test_what_happened_before_it_looks_is_written_too() -> None:
    rank, sink = busy(), CountingSink()
    TracedIncarnation(sink, rank.world).end()
    end = records(sink.data)[-1]
    assert isinstance(end, End)
    assert (end.position, end.cause) == (rank.world.log.end_position, "recording was stopped")


def test_entries_that_were_not_seen_end_the_trace_with_a_gap() -> None:
    rank, sink = busy(), CountingSink()
    writer = TraceWriter(sink, rank.world.start)
    log = rank.world.log
    writer.add(1, log.records(1, 4))
    writer.add(7, log.records(7, log.end_position))
    writer.add(5, log.records(5, log.end_position))
    writer.end("never")
    gap = records(sink.data)[-1]
    assert isinstance(gap, Gap)
    assert (gap.position, gap.reason) == (4, "entries 5 to 6 were not seen")


@pytest.mark.parametrize("spare_bytes", [0, 500, 3000, 9000])
def test_a_trace_never_gets_longer_than_it_may_and_says_that_it_is_full(spare_bytes: int) -> None:
    sink, rank = CountingSink(), busy()
    head_bytes = len(head_of(rank))
    bytes_max = head_bytes + LAST_RECORD_BYTES + spare_bytes
    writer = TraceWriter(sink, rank.world.start, bytes_max=bytes_max)
    log = rank.world.log
    for position in range(1, log.end_position + 1):
        writer.add(position, log.records(position, position))
    writer.gap("once more")
    gap = records(sink.data)[-1]
    assert isinstance(gap, Gap)
    assert gap.reason == f"the trace is full: it may have {bytes_max} bytes"
    assert gap.position == len([one for one in records(sink.data) if isinstance(one, Res)])
    assert writer.bytes_total == len(sink.data) <= bytes_max


def test_a_reason_however_long_leaves_room_for_itself() -> None:
    sink, rank = CountingSink(), busy()
    writer = TraceWriter(sink, rank.world.start)
    before = writer.bytes_total
    writer.end("\x01" * 5000)
    assert writer.bytes_total - before <= LAST_RECORD_BYTES
    assert isinstance(records(sink.data)[-1], End)


def test_a_snap_stands_behind_the_newest_entry_or_nowhere() -> None:
    rank = lone(TIGHT)
    sink = io.BytesIO()
    trace = TracedIncarnation(sink, rank.world, snap_entries=1)
    rank.send(Idle())
    trace.look()
    snap = records(sink.getvalue())[-1]
    assert snap.__struct_config__.tag == "snap"
    trace.writer.snap(1, snap.snap)  # type: ignore[union-attr]
    assert records(sink.getvalue())[-1] == snap


def test_an_incarnation_that_decided_nothing_is_a_head_and_an_end() -> None:
    sink = CountingSink()
    TracedIncarnation(sink, incarnation(storage=TIGHT)).end()
    head, end = records(sink.data)
    assert isinstance(head, Head)
    assert isinstance(end, End)
    assert end.position == 0


def test_an_unbounded_writer_has_a_head_that_names_the_build() -> None:
    sink = CountingSink()
    TraceWriter(sink, incarnation(storage=TIGHT).start, group="some")
    (head,) = records(sink.data)
    assert isinstance(head, Head)
    assert head.group == "some"
    assert head.build


def head_of(rank: Rank) -> bytes:
    """Return the line that a trace of a rank begins with."""
    sink = CountingSink()
    TraceWriter(sink, rank.world.start)
    return sink.data
