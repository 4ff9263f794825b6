"""A rank's tables against the daemon's books: every byte that is wrong is found and named."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from kvd.alloc.checks import CheckLevel
from kvd_client import (
    STANDING,
    Client,
    Mode,
    PoisonedError,
    ReplyError,
    StepAborted,
    TablesError,
    UsageError,
    aio,
)
from kvd_client.mock import Answer
from kvd_proto.codec import decode_fact, encode
from kvd_proto.control import BooksReply, Header, MessageKind
from kvd_proto.operations import RankFailed
from tests.client.engine_daemon import (
    LAYERS,
    PAGE_TOKENS,
    SIZING,
    EngineDaemon,
    admit_three_tokens_each,
)

TABLES_COUNT = 6
"""Three band maps, the request table, its lengths and the state table."""


@pytest.fixture
def kv(daemon: EngineDaemon) -> Iterator[Client]:
    """Give a rank with three requests, of which the second has ended, and some steps behind it."""
    with daemon.attach() as client:
        admit_three_tokens_each(client, [1, 2, 3])
        for _ in range(3 * PAGE_TOKENS):
            decode(client)
        with client.batch() as batch:
            batch.free([2])
        yield client
        # What a test broke on purpose is known by now.
        client.session.poison("the test is over")


def decode(client: Client) -> None:
    with client.batch() as batch:
        batch.take(STANDING)
        batch.advance(STANDING)


def idle(client: Client) -> None:
    with client.batch() as batch:
        batch.idle()


def table_at(client: Client, offset_bytes: int, entry_count: int) -> NDArray[np.int32]:
    """Return a table in memory, to be written to."""
    client.stream.synchronize(5_000)
    return np.frombuffer(client.memory.buffer, "<i4", entry_count, offset_bytes)


def map_of(client: Client, band: str) -> NDArray[np.int32]:
    plan = next(one for one in client.plan.region.band_maps if one.band == band)
    return table_at(client, plan.offset_bytes, plan.entry_count)


def row_of(client: Client, request: int) -> NDArray[np.int32]:
    row, plan = int(client.rows([request])[0]), client.plan
    start_bytes = plan.region.request_table.offset_bytes + row * plan.row_pages * 4
    return table_at(client, start_bytes, plan.row_pages)


def lengths_of(client: Client) -> NDArray[np.int32]:
    plan = client.plan.region.row_lengths
    return table_at(client, plan.offset_bytes, plan.row_count)


def slots_of(client: Client) -> NDArray[np.int32]:
    plan = client.plan.region.state_table
    assert plan is not None
    return table_at(client, plan.offset_bytes, plan.row_count * plan.column_count)


def flip_bound(band: str) -> Callable[[Client], str]:
    """Return what changes the lowest bit of a bound entry and says how that is reported."""

    def change(client: Client) -> str:
        table = map_of(client, band)
        place = int(table.nonzero()[0][-1])
        table[place] ^= 1
        return (
            f"map of band '{band}' is not what the books say: entry {place} holds "
            f"{table[place]}, by the host's copy {table[place] ^ 1}; 1 of {len(table)} differ"
        )

    return change


def bind_unbound(client: Client) -> str:
    table = map_of(client, "full")
    place = int((table == 0).nonzero()[0][-1])
    table[place] = 1
    return f"map of band 'full' is not what the books say: entry {place} holds 1, by the host's"


def bind_the_sink(client: Client) -> str:
    map_of(client, "full")[0] = 1
    return "map of band 'full' is not what the books say: entry 0 holds 1, by the host's copy 0;"


def swap_pages_of_a_row(client: Client) -> str:
    table = row_of(client, 3)
    table[:2] = table[[1, 0]]
    row = client.rows([3])[0]
    return f"row {row} of the request table is not what the books say: place 0 holds {table[0]}"


def shorten_a_row(client: Client) -> str:
    row = int(client.rows([1])[0])
    lengths = lengths_of(client)
    lengths[row] -= PAGE_TOKENS
    return f"row {row} has length {lengths[row]}, the books say {lengths[row] + PAGE_TOKENS} tokens"


def give_a_slot_away(client: Client) -> str:
    rows, table = client.rows([1, 3]), slots_of(client)
    width = len(table) // client.plan.row_count
    table[rows[1] * width] = table[rows[0] * width]
    return f"state table is not what the books say: row {rows[1]} holds {table[rows[0] * width]},"


BREAKAGES = {
    "full": flip_bound("full"),
    "window": flip_bound("window_8"),
    "state": flip_bound("state"),
    "unbound": bind_unbound,
    "sink": bind_the_sink,
    "row": swap_pages_of_a_row,
    "length": shorten_a_row,
    "slot": give_a_slot_away,
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_table_entry_that_is_wrong_is_found_and_ends_the_rank(
    daemon: EngineDaemon, kv: Client, breakage: str
) -> None:
    assert kv.check_tables() == TABLES_COUNT
    said = BREAKAGES[breakage](kv)

    with pytest.raises(TablesError) as caught:
        kv.check_tables()

    assert str(caught.value).startswith(f"tables.match_books: at position {kv.applied}, {said}")
    assert caught.value.code.value == "INVARIANT"
    (fact,) = map(decode_fact, daemon.facts)
    assert isinstance(fact, RankFailed)
    assert fact.reason == str(caught.value)
    with pytest.raises(PoisonedError, match=r"tables\.match_books"):
        decode(kv)


def test_rows_that_no_request_holds_and_places_behind_a_rows_end_may_hold_anything(
    kv: Client,
) -> None:
    row = int(kv.rows([3])[0])
    free_row = next(one for one in range(1, kv.plan.row_count) if one not in kv.rows([1, 3]))
    row_of(kv, 3)[int(lengths_of(kv)[row]) // PAGE_TOKENS :] = 77
    lengths_of(kv)[free_row] = 77

    assert kv.check_tables() == TABLES_COUNT


def test_books_that_are_wrong_show_where_the_hosts_copy_cannot(
    daemon: EngineDaemon, kv: Client
) -> None:
    rows = daemon.incarnation.engine.requests.rows
    rows.pages[int(kv.rows([3])[0]), 0] += 1

    with pytest.raises(TablesError, match="host's copy of it is the same: other effects came"):
        kv.check_tables()


def test_effects_that_have_not_run_yet_are_waited_for(kv: Client) -> None:
    gate = threading.Event()
    kv.stream.submit(lambda: None if gate.wait(5) else pytest.fail("the gate stayed shut"))
    for _ in range(PAGE_TOKENS):
        decode(kv)
    opener = threading.Timer(0.05, gate.set)
    opener.start()

    assert kv.check_tables() == TABLES_COUNT

    assert gate.is_set()
    opener.join()


def test_with_level_strict_a_batch_that_ended_with_idle_is_followed_by_a_comparison(
    kv: Client,
) -> None:
    idle(kv)
    bind_unbound(kv)
    decode(kv)

    with pytest.raises(TablesError, match=r"tables\.match_books: .* map of band 'full'"):
        idle(kv)


def test_with_level_strict_a_rank_that_leaves_compares_first_and_releases_everything() -> None:
    daemon = EngineDaemon()
    kv = daemon.attach()
    bind_unbound(kv)

    with pytest.raises(TablesError, match=r"tables\.match_books: .* map of band 'full'"):
        kv.close()

    assert daemon.transports[0].closed
    assert daemon.transports[0].let_go_count == 1
    kv.close()


@pytest.mark.parametrize("level", [CheckLevel.OFF, CheckLevel.WARN])
def test_below_strict_nothing_is_compared_unasked(level: CheckLevel) -> None:
    daemon = EngineDaemon(level=level)
    with daemon.attach() as kv:
        admit_three_tokens_each(kv, [1])
        bind_unbound(kv)
        idle(kv)

    assert all(header.kind is not MessageKind.ASK for header, _ in daemon.transports[0].sent)


def test_a_mirrored_rank_behind_another_is_told_so_and_goes_on() -> None:
    daemon = EngineDaemon(ranks=2)
    with daemon.attach(0) as ahead, daemon.attach(1) as behind:
        admit_three_tokens_each(ahead, [1])
        idle(ahead)

        with pytest.raises(UsageError, match="applied position 0, and the entry at 1 has effects"):
            behind.check_tables()

        # Nobody asked here: what this rank's idle would compare is compared by who is ahead.
        admit_three_tokens_each(behind, [1])
        decode(ahead)
        decode(ahead)  # the first one still had a place on its page, and so no effects
        idle(behind)
        assert behind.applied < ahead.applied
        with pytest.raises(UsageError, match="apply the log up to there first"):
            behind.check_tables()
        assert ahead.check_tables() == TABLES_COUNT


def test_a_follower_compares_once_it_has_followed_to_the_end() -> None:
    daemon = EngineDaemon(ranks=2)
    with daemon.attach(0, Mode.LEADER) as leader, daemon.attach(1, Mode.FOLLOWER) as follower:
        admit_three_tokens_each(leader, [1, 2])

        with pytest.raises(UsageError, match=r"applied position 0, .* those of position 3, so"):
            follower.check_tables()

        follower.follow(leader.applied)
        assert follower.check_tables() == TABLES_COUNT
        bind_unbound(follower)
        with pytest.raises(TablesError, match=r"tables\.match_books"):
            follower.check_tables()
        assert leader.check_tables() == TABLES_COUNT


def test_entries_without_effects_keep_no_rank_from_comparing() -> None:
    daemon = EngineDaemon(ranks=2)
    with daemon.attach(0, Mode.LEADER) as leader, daemon.attach(1, Mode.FOLLOWER) as follower:
        admit_three_tokens_each(leader, [1])
        with follower.launch(step=1, position=leader.applied):
            pass
        follower.fact(StepAborted(1))

        assert leader.applied < daemon.incarnation.log.end_position
        assert leader.check_tables() == TABLES_COUNT


@pytest.mark.parametrize(
    "answer",
    [
        BooksReply(position_min=0, position=0, map_digests=(1, 2)),
        BooksReply(position_min=0, position=0, map_digests=(1, 2, 3), rows=b"\1\0\0\0"),
        BooksReply(
            position_min=0,
            position=0,
            map_digests=(1, 2, 3),
            rows=b"\xff\xff\xff\x7f",
            page_counts=b"\0\0\0\0",
            row_digests=(1,),
        ),
        BooksReply(
            position_min=0,
            position=0,
            map_digests=(1, 2, 3),
            rows=b"\1\0\0\0",
            page_counts=b"\xff\xff\0\0",
            row_digests=(1,),
        ),
        BooksReply(position_min=0, position=0, map_digests=(1, 2, 3), rows=b"\1"),
    ],
)
def test_books_of_another_plan_poison(daemon: EngineDaemon, kv: Client, answer: BooksReply) -> None:
    def hook(rank: int, header: Header, _body: bytes) -> list[Answer] | None:
        if header.kind is not MessageKind.ASK:
            return None
        return [(daemon.header(rank, MessageKind.ASK), encode(answer))]

    daemon.hook = hook
    with pytest.raises(ReplyError, match="do not fit this rank's plan"):
        kv.check_tables()
    with pytest.raises(PoisonedError):
        kv.check_tables()


def test_the_asyncio_client_compares_when_asked_at_idle_and_when_it_leaves() -> None:
    async def run() -> int:
        daemon = EngineDaemon()
        kv = await aio.attach(
            "ipc:///nowhere",
            group="g",
            declare=LAYERS,
            sizing=SIZING,
            deadline_ms=5_000,
            transport=daemon.transport(),
        )
        async with kv:
            count = await kv.check_tables()
            async with kv.batch() as batch:
                batch.idle()
        asked = sum(header.kind is MessageKind.ASK for header, _ in daemon.transports[0].sent)
        return count * 10 + asked

    assert asyncio.run(run()) == TABLES_COUNT * 10 + 3
