"""What an incarnation leaves: positions go on, and the end of the log where something survives."""

import pytest

from kvd.alloc.checks import CheckLevel
from kvd.engine.incarnation import Incarnation
from kvd.engine.legacy import Legacy
from kvd.engine.stage import StageEngine
from kvd_proto.codec import decode_entry, decode_reply, digest_of, encode
from kvd_proto.operations import Admit, Idle, Launch, Processed, TablesRewritten, Take
from kvd_proto.outcomes import OWN_PROGRAM, WriteMap
from tests.stateful.ranks import (
    Tables,
    body_of,
    columns_of,
    incarnation,
    int32s,
    int64s,
    lone,
    stage,
)


def following(legacy: Legacy, *, ring: int = 0) -> Incarnation:
    return Incarnation(
        stage(),
        number=2,
        ranks=(0,),
        level=CheckLevel.STRICT,
        ring_entries_max=ring,
        lag_entries_max=1000,
        legacy=legacy,
    )


def everything(engine: StageEngine, confirmed_position: int) -> StageEngine:
    return engine


def surviving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything survive that is bound when an incarnation ends."""
    monkeypatch.setattr(StageEngine, "survivor", everything)


def ended(world: Incarnation) -> Incarnation:
    world.end("rank 0 is lost")
    return world


def test_positions_go_on_where_the_log_before_ended() -> None:
    rank = lone()
    rank.send(Admit(int64s([1]), int32s([8]), int32s([8])))
    legacy = ended(rank.world).legacy()
    assert (legacy.end_position, legacy.engine, legacy.records) == (3, None, ())

    world = following(legacy)

    assert world.log.end_position == 3
    assert world.applied == world.given == {0: 3}
    assert world.engine.requests.live_count == 0
    _, reply = world.batch(rank=0, program=0, index=0, body=body_of([Idle()]))
    assert decode_reply(reply).position == 4


def test_where_something_survives_the_new_log_starts_with_all_bindings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    surviving(monkeypatch)
    rank = lone()
    rank.send(Admit(int64s([1, 2]), int32s([30, 7]), int32s([8, 8]), int32s([16, 7])))
    rank.send(Take(int64s([1]), 14))
    before = rank.tables.maps

    world = following(ended(rank.world).legacy())

    _, reply = world.batch(rank=0, program=0, index=0, body=body_of([Idle()]))
    first = decode_reply(reply).entries[0]
    assert (first.program, first.digest) == (OWN_PROGRAM, digest_of(encode(TablesRewritten())))
    tables = Tables(stage().storage)
    tables.apply(1, first.outcome)
    assert [item.tolist() for item in tables.maps] == [item.tolist() for item in before]
    effects = [effect for segment in first.outcome.segments for effect in segment]
    assert {type(effect) for effect in effects} == {WriteMap}
    assert all(columns_of(first.outcome))


@pytest.mark.parametrize(("progress", "first"), [(0, 1), (1, 1), (3, 3), (5, 5)])
def test_what_has_to_be_redone_starts_with_the_entry_of_the_progress_word(
    monkeypatch: pytest.MonkeyPatch, progress: int, first: int
) -> None:
    surviving(monkeypatch)
    rank = lone()
    rank.send(Admit(int64s([1]), int32s([8]), int32s([8]), int32s([8])))
    rank.send(Take(int64s([1]), 1))
    legacy = ended(rank.world).legacy()
    encoded = [record.entry for record in rank.world.log.records(1, 5)]

    assert legacy.reaches(progress)
    reply = decode_reply(legacy.redo(progress))

    assert reply.position == first
    assert list(reply.entries) == [decode_entry(entry) for entry in encoded[first - 1 :]]


def test_a_word_that_no_entry_of_the_log_wrote_is_reached_by_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    surviving(monkeypatch)
    legacy = ended(incarnation()).legacy()

    assert legacy.reaches(legacy.end_position)
    assert not legacy.reaches(legacy.end_position + 1)


def test_entries_that_may_have_to_be_redone_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    surviving(monkeypatch)
    monkeypatch.setattr("kvd.engine.log.TRIM_STRIDE_ENTRIES", 0)
    world = incarnation(ring=0)
    for index in range(0, 20, 2):
        world.note_confirmed(0, min(7, world.given[0]))
        world.confirm(0, world.log.end_position)
        world.batch(rank=0, program=0, index=index, body=body_of([Idle()]))
        world.settle()

    assert world.log.first_position == 7
    legacy = ended(world).legacy()
    assert legacy.reaches(7)
    assert not legacy.reaches(6)
    assert not legacy.reaches(0)
    # They outlive further incarnations, until they have run.
    again = ended(following(legacy)).legacy()
    assert again.reaches(7)
    assert again.end_position == legacy.end_position + 2


def test_a_rank_that_calls_a_step_processed_has_run_all_before_its_launch() -> None:
    world = incarnation(ranks=2)
    bodies = [
        body_of([Admit(int64s([1]), int32s([8]), int32s([8]))]),
        body_of([Launch(1, 2), Idle()]),
        body_of([Processed(1)]),
    ]
    index = 0
    for body in bodies:
        assert world.confirmed == {}
        index, _ = world.batch(rank=0, program=0, index=index, body=body)

    assert world.confirmed == {0: 2}
    # The other rank says so when its own step is over.
    world.batch(rank=1, program=0, index=index - 2, body=bodies[2])
    assert world.confirmed == {0: 2, 1: 2}
    assert ended(world).legacy().end_position == world.log.end_position


def test_a_launch_that_was_refused_confirms_nothing() -> None:
    world = incarnation()
    world.batch(rank=0, program=0, index=0, body=body_of([Launch(1, 0)]))
    world.batch(rank=0, program=0, index=2, body=body_of([Launch(1, 2)]))

    world.batch(rank=0, program=0, index=4, body=body_of([Processed(1)]))

    assert world.confirmed == {}


def test_a_word_of_an_earlier_log_or_of_nobody_confirms_only_what_was_given() -> None:
    world = following(Legacy(40))

    world.note_confirmed(0, 1 << 60)
    assert world.confirmed == {0: 40}
    world.note_confirmed(0, 12)
    assert world.confirmed == {0: 40}


def test_without_survivors_only_the_position_is_left() -> None:
    engine = incarnation().engine

    assert Legacy(9, engine, ()).without_survivors() == Legacy(9)
