"""What an incarnation starts from is enough to build it again, survivors included."""

from collections.abc import Iterator

import msgspec
import pytest

from kvd.alloc.checks import CheckLevel
from kvd.engine.incarnation import Incarnation
from kvd.engine.legacy import Legacy
from kvd.engine.start import IncarnationStart
from kvd_proto.operations import Admit, Advance, Evict, Insert, Launch, Processed, Take
from tests.stateful.program import batches
from tests.stateful.ranks import Rank, body_of, int32s, int64s, lone, stage


def with_survivors() -> Legacy:
    """Return the legacy of an incarnation that left two values, of 5 and 3 pages, and one gap."""
    rank = lone()
    ids = int64s([1, 2, 3])
    rank.send(Admit(ids, int32s([20, 10, 9]), int32s([8] * 3), int32s([16, 10, 9])))
    rank.send(Take(int64s([1]), 4))
    rank.send(Advance(int64s([1]), 20))
    rank.send(Launch(1, rank.position))
    rank.send(Processed(1))
    rank.send(Insert(4, 1), Insert(7, 2), Insert(9, 3))
    rank.send(Evict(int64s([7])))
    rank.world.note_confirmed(0, rank.position)
    rank.world.end("rank 0 is lost")
    legacy = rank.world.legacy()
    assert legacy.engine is not None
    return legacy


def following(legacy: Legacy) -> Incarnation:
    return Incarnation(
        stage(),
        number=2,
        ranks=(0,),
        level=CheckLevel.STRICT,
        ring_entries_max=1000,
        lag_entries_max=1000,
        idle_moves_max=5,
        batch_moves_max=3,
        legacy=legacy,
    )


def again(start: IncarnationStart) -> Incarnation:
    """Return an incarnation built from the encoded start alone."""
    start = msgspec.json.decode(msgspec.json.encode(start), type=IncarnationStart)
    return Incarnation(
        start.shape,
        number=start.incarnation,
        ranks=start.ranks,
        level=start.level,
        ring_entries_max=1000,
        lag_entries_max=1000,
        idle_moves_max=start.idle_moves_max,
        batch_moves_max=start.batch_moves_max,
        legacy=start.legacy(),
    )


def replies(world: Incarnation) -> Iterator[bytes]:
    """Yield what a rank is told that sends a program of its own and then evicts the survivors."""
    rank = Rank(world, 0, storage=stage())
    first = world.start.position
    rank.position = first
    for operations in batches(3, 30):
        rank.send(*operations)
    rank.send(Evict(int64s(list(world.engine.requests.values.of_number))))
    yield from rank.replies


def test_a_start_says_everything_that_the_incarnation_was_given() -> None:
    start = following(Legacy(12)).start
    assert (start.incarnation, start.ranks, start.position) == (2, (0,), 12)
    assert (start.level, start.idle_moves_max, start.batch_moves_max) == (CheckLevel.STRICT, 5, 3)
    assert start.survivors is None
    assert start.legacy() == Legacy(12)


def test_survivors_are_told_with_their_units() -> None:
    start = following(with_survivors()).start
    assert start.survivors is not None
    assert start.survivors.highest_value_id == 9
    assert [value.value_id for value in start.survivors.values] == [4, 9]
    assert [len(value.pages) for value in start.survivors.values] == [5, 3]
    assert [len(units) for units in start.survivors.physical][3] == 8
    assert all(value.slot_index for value in start.survivors.values)


@pytest.mark.parametrize("survives", [False, True])
def test_an_incarnation_built_from_its_start_decides_the_same(survives: bool) -> None:
    legacy = with_survivors if survives else (lambda: Legacy(40))
    world = following(legacy())
    told = list(replies(world))
    other = again(following(legacy()).start)
    assert list(replies(other)) == told
    assert [one.body for one in other.log.records(world.start.position + 1, world.log.end_position)]


def test_a_survivor_that_lies_elsewhere_is_another_start() -> None:
    start = following(with_survivors()).start
    assert start.survivors is not None
    *others, full = start.survivors.physical
    moved = msgspec.structs.replace(start.survivors, physical=(*others, tuple(reversed(full))))
    world = again(msgspec.structs.replace(start, survivors=moved))
    empty = body_of([])
    moved_reply = world.batch(rank=0, program=0, index=0, body=empty)
    assert moved_reply != again(start).batch(rank=0, program=0, index=0, body=empty)
