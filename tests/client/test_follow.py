"""Followers: the log up to the leader's word, no further, checked against the leader's records."""

from collections.abc import Iterator

import pytest

from kvd_client import (
    STANDING,
    Client,
    DeadlineError,
    DivergedError,
    Mode,
    StepOrderError,
    UnknownRequestError,
    UsageError,
)
from kvd_proto.codec import encode
from kvd_proto.control import Header, MessageKind
from tests.client.engine_daemon import Answer, EngineDaemon


@pytest.fixture
def daemon() -> EngineDaemon:
    return EngineDaemon(ranks=2)


@pytest.fixture
def leader(daemon: EngineDaemon) -> Iterator[Client]:
    with daemon.attach(0, Mode.LEADER) as client:
        yield client


@pytest.fixture
def follower(daemon: EngineDaemon) -> Iterator[Client]:
    with daemon.attach(1, Mode.FOLLOWER) as client:
        yield client


def admit(kv: Client, ids: list[int]) -> bytes:
    with kv.batch() as batch:
        batch.admit(
            ids,
            prompt_tokens=[3] * len(ids),
            new_tokens_max=[30] * len(ids),
            take_tokens=[3] * len(ids),
        )
        batch.standing(add=ids)
    return batch.record()


def take(kv: Client, tokens: int = 2) -> bytes:
    with kv.batch() as batch:
        batch.take(STANDING, tokens)
    return batch.record()


def test_a_follower_with_records_has_the_leaders_tables(leader: Client, follower: Client) -> None:
    records = [admit(leader, [1, 2]), take(leader)]

    follower.follow(leader.applied, records=records)

    assert follower.applied == leader.applied
    assert follower.standing.tolist() == [1, 2]
    for kv in (leader, follower):
        kv.stream.synchronize(5_000)
    for band in ("full", "window_8"):
        ours, theirs = follower.write_slots(band, [1, 2]), leader.write_slots(band, [1, 2])
        assert ours.values.tolist() == theirs.values.tolist()
    region = leader.plan.region
    start, end = region.band_maps[0].offset_bytes, region.scratch.offset_bytes
    assert bytes(follower.memory.buffer[start:end]) == bytes(leader.memory.buffer[start:end])


def test_a_follower_applies_no_further_than_told(leader: Client, follower: Client) -> None:
    records = [admit(leader, [1, 2])]
    told = leader.applied
    later = take(leader, 9)

    follower.follow(told, records=records)
    assert follower.applied == told
    assert follower.lengths(STANDING).tolist() == [3, 3]

    follower.follow(leader.applied, records=[later])
    assert follower.lengths(STANDING).tolist() == [12, 12]


def test_without_records_effects_are_applied_and_ids_unknown(
    leader: Client, follower: Client
) -> None:
    admit(leader, [1])

    follower.follow(leader.applied)

    assert follower.applied == leader.applied
    with pytest.raises(UnknownRequestError, match="request 1 "):
        follower.rows([1])


def test_a_record_that_is_not_what_was_decided_is_found_first(
    leader: Client, follower: Client
) -> None:
    records = [admit(leader, [1])]
    before = leader.applied
    take(leader)
    wrong = encode((0, 3, b"\x91" + encode(("take", b"", 9, b""))))

    with pytest.raises(DivergedError, match="Take"):
        follower.follow(leader.applied, records=[*records, wrong])

    assert follower.applied <= before


def test_a_launch_of_the_leader_is_launched_at_its_position(
    leader: Client, follower: Client
) -> None:
    records = [admit(leader, [1])]
    with leader.launch() as step:
        number, position = step.number, step.position
    with leader.batch() as batch:
        batch.processed(1)
        batch.take(STANDING)

    follower.follow(position, records=records)
    with follower.launch(step=number, position=position) as own:
        assert (own.number, own.position) == (number, position)
        assert follower.lengths([1]).tolist() == [3]
    follower.follow(leader.applied, records=[batch.record()])

    assert follower.lengths([1]).tolist() == [4]


def test_a_launch_behind_what_is_applied_is_refused(leader: Client, follower: Client) -> None:
    admit(leader, [1])
    follower.follow(leader.applied)

    with pytest.raises(StepOrderError, match="has applied"):
        follower.launch(step=1, position=1).__enter__()


def test_steps_of_a_follower_ascend(leader: Client, follower: Client) -> None:
    admit(leader, [1])
    with follower.launch(step=1, position=leader.applied):
        pass

    with pytest.raises(StepOrderError, match="after step 1"):
        follower.launch(step=1, position=leader.applied).__enter__()


def test_following_what_does_not_come_ends_at_the_deadline_and_goes_on(
    daemon: EngineDaemon, leader: Client, follower: Client
) -> None:
    with pytest.raises(DeadlineError):
        follower.follow(3, deadline_ms=10)
    admit(leader, [1])
    sent = daemon.transports[1].sent
    header, body = sent[-1]
    for answer in daemon.serve(1, header, body):
        daemon.transports[1].push(*answer)

    follower.follow(3)

    assert follower.applied == 3
    assert sum(one.kind is MessageKind.FOLLOW for one, _ in sent) == 1


def test_a_repeated_answer_to_a_follow_is_dropped(
    daemon: EngineDaemon, leader: Client, follower: Client
) -> None:
    def twice(rank: int, header: Header, body: bytes) -> list[Answer] | None:
        follows = rank == 1 and header.kind is MessageKind.FOLLOW
        return daemon.serve(rank, header, body) * 2 if follows else None

    daemon.hook = twice
    admit(leader, [1])
    follower.follow(leader.applied)
    take(leader)
    follower.follow(leader.applied)

    assert follower.applied == leader.applied


def test_who_sends_operations_does_not_follow(leader: Client) -> None:
    with pytest.raises(UsageError, match="leader"):
        leader.follow(1)


def test_a_follower_sends_no_operations(follower: Client) -> None:
    with pytest.raises(UsageError, match="follower"):
        follower.batch().__enter__()


def test_a_record_of_something_else_is_refused(follower: Client) -> None:
    with pytest.raises(UsageError, match="record"):
        follower.follow(0, records=[b"\x01nonsense"])
