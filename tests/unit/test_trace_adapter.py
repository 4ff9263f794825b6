"""The events of a trace, put together from its records, and a trace that answers for itself."""

import pytest

from kvd.errors import FileError
from kvd.trace.adapter import BatchEvent, FactEvent, RecordedAdapter, StopEvent
from kvd.trace.compare import compare
from kvd.trace.records import Gate, Op, Res, Snap
from kvd.trace.stage import StageAdapter
from kvd.trace.writer import TracedIncarnation
from kvd_proto.codec import encode
from kvd_proto.operations import (
    Admit,
    BackupSubmit,
    CopyEnded,
    Free,
    Idle,
    Insert,
    Launch,
    Processed,
)
from tests.stateful.ranks import Rank, incarnation, int32s, int64s, stage
from tests.unit.test_trace_writer import CountingSink
from tests.unit.trace_parts import joined, recorded, records, script, traced


def with_copies(*, stop: bool = False) -> bytes:
    """Return the trace of two ranks whose copy ends while their program goes on, or is idle."""
    world, sink = incarnation(ranks=2), CountingSink()
    trace = TracedIncarnation(sink, world, snap_entries=1)
    ranks = [Rank(world, number, storage=stage()) for number in (0, 1)]

    def send(*operations: object) -> None:
        for rank in ranks:
            rank.send(*operations)  # type: ignore[arg-type]
        trace.look()

    def fact(number: int, copy: int) -> None:
        world.fact(number, encode(CopyEnded(copy)))

    none = (b"", b"", b"")
    send(Admit(int64s([1, 2]), int32s([8, 8]), int32s([8, 8]), int32s([8, 8])), Insert(1, 1))
    send(BackupSubmit(1, (*none, int64s([1])), (*none, int32s([0]))))
    send(BackupSubmit(2, (*none, int64s([2])), (*none, int32s([1]))), Launch(1, 0))
    fact(1, 1)
    fact(0, 1)
    if stop:
        world.submit_end("somebody wants it to end")
    send(Processed(1), Free(int64s([2])), Idle())
    fact(0, 2)
    fact(1, 2)
    trace.end()
    return sink.data


def test_every_event_has_what_was_decided_for_it() -> None:
    events = list(script(traced()))
    assert events[-1].ending == "the program is over"
    assert isinstance(events[-2].event, StopEvent)
    assert events[-2].event.at_once
    for one in events[:-2]:
        assert isinstance(one.event, BatchEvent)
        assert len(one.decisions) == len(one.event.operations)
        assert one.decisions[-1].type == "batch_end"
    positions = [decision.position for one in events for decision in one.decisions]
    assert positions == list(range(1, len(positions) + 1))


def test_what_is_released_is_kept_with_the_fact_or_the_batch_that_it_came_in() -> None:
    events = list(script(with_copies()))
    with_gates = [
        (type(one.event), [item.type for item in one.decisions])
        for one in events
        if any(item.source == "gate" for item in one.decisions)
    ]
    assert with_gates == [
        (BatchEvent, ["processed", "released", "free", "idle", "batch_end"]),
        (FactEvent, ["copy_ended", "released"]),
    ]


def test_what_is_released_between_two_events_may_belong_to_either() -> None:
    """A gate in front of a batch reads like one behind the fact before it."""
    world, sink = incarnation(), CountingSink()
    trace = TracedIncarnation(sink, world, snap_entries=1)
    rank = Rank(world, 0, storage=stage())
    none = (b"", b"", b"")
    rank.send(Admit(int64s([1]), int32s([8]), int32s([8]), int32s([8])))
    rank.send(BackupSubmit(1, (*none, int64s([1])), (*none, int32s([0]))))
    world.fact(0, encode(CopyEnded(1)))
    rank.send(Free(int64s([1])))
    trace.end()
    kinds = [[item.type for item in one.decisions] for one in script(sink.data)]
    assert kinds[-3:-1] == [["copy_ended", "released"], ["free", "batch_end"]]
    result = compare(lambda: script(sink.data), recorded(sink.data), StageAdapter, snap_every=1)
    assert result.divergence is None


@pytest.mark.parametrize("stop", [False, True], ids=["runs on", "is stopped"])
def test_facts_of_ranks_and_stops_replay_to_the_same(stop: bool) -> None:
    data = with_copies(stop=stop)
    result = compare(lambda: script(data), recorded(data), StageAdapter)
    assert result.divergence is None
    assert result.snap_count > 3
    assert result.ending == ("somebody wants it to end" if stop else "recording was stopped")
    stops = [one.event for one in script(data) if isinstance(one.event, StopEvent)]
    assert stops == ([StopEvent(cause="somebody wants it to end", at_once=False)] if stop else [])


@pytest.mark.parametrize("seed", range(4))
def test_a_trace_replays_bit_for_bit(seed: int) -> None:
    data = traced(seed)
    result = compare(lambda: script(data), recorded(data), StageAdapter)
    assert result.divergence is None
    assert result.position == records(data)[-1].position  # type: ignore[union-attr]


@pytest.mark.parametrize("kept_count", range(2, 40))
def test_a_trace_that_was_cut_off_replays_as_far_as_its_batches_are_whole(kept_count: int) -> None:
    data = b"".join(traced().splitlines(keepends=True)[:kept_count])
    read = script(data)
    decided = [decision for one in read for decision in one.decisions]
    whole = [one for one in records(data) if isinstance(one, Res)]
    assert len(whole) - 5 < len(decided) <= len(whole)
    assert not decided or decided[-1].type == "batch_end"
    assert (read.complete, read.was_cut) == (False, True)
    result = compare(lambda: script(data), recorded(data), StageAdapter)
    assert (result.divergence, result.complete) == (None, False)
    assert result.ending is not None
    assert result.ending.startswith("the trace was cut off behind entry ")
    assert ("whose batch is left out" in result.ending) == (len(decided) < len(whole))
    assert result.decision_count == len(decided)


def without(place: int) -> bytes:
    items = records(traced())
    return joined([*items[:place], *items[place + 1 :]])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (without(1), "the res of entry 1 does not stand behind it"),
        (without(2), "entry 2 stands behind entry 1"),
        (joined([*records(traced())[:3], records(traced())[1]]), "entry 1 stands behind entry 1"),
    ],
)
def test_a_trace_with_a_hole_is_refused_naming_the_entry(data: bytes, said: str) -> None:
    with pytest.raises(FileError, match=said):
        list(script(data))


def test_a_snap_inside_a_batch_is_refused() -> None:
    items = records(traced())
    snap = next(one for one in items if isinstance(one, Snap))
    batch = [one for one in items[:3] if isinstance(one, (Op, Gate, Res))]
    data = joined([items[0], *batch, Snap(position=1, snap=snap.snap)])
    with pytest.raises(FileError, match="the snap behind entry 1 is inside a batch"):
        list(script(data))


def test_a_recording_answers_no_other_events() -> None:
    player = RecordedAdapter(script(traced(1)), name="x.jsonl")
    other = script(traced(2))
    player.start(other.head)
    event = next(one.event for one in other if one.event is not None)
    with pytest.raises(FileError, match=r"x\.jsonl has another event here"):
        player.feed(event)
    assert player.fits((1,)) is None


def test_a_recording_of_another_stage_is_refused() -> None:
    player = RecordedAdapter(script(with_copies()), name="x.jsonl")
    with pytest.raises(FileError, match=r"x\.jsonl starts from another state"):
        player.start(script(traced()).head)


def test_a_recording_that_is_over_says_so() -> None:
    data = traced()
    player = RecordedAdapter(script(b"".join(data.splitlines(keepends=True)[:1])), name="x.jsonl")
    player.start(script(data).head)
    event = next(one.event for one in script(data) if one.event is not None)
    with pytest.raises(FileError, match=r"x\.jsonl has no more events"):
        player.feed(event)
