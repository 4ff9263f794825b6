"""Ranks of a real daemon compare their tables with its books, asked and by themselves."""

import numpy as np
import pytest

from kvd_client import Client, Mode, RankLostError, TablesError
from tests.e2e.daemon_process import DaemonProcess, wait_until
from tests.e2e.ranks import Ranks, admit

TABLES_COUNT = 6
"""Three band maps, the request table, its lengths and the state table."""


def work(client: Client) -> None:
    """Have requests come, grow, slide and go, and leave two; few entries, so that no rank lags."""
    admit(client, [1, 2, 3], tokens=8)
    for computed_tokens in (8, 4):
        with client.batch() as batch:
            batch.take([1, 3], tokens=4)
            batch.advance([1, 3], tokens=computed_tokens)
    with client.batch() as batch:
        batch.free([2])
        batch.idle()


def break_map(client: Client) -> int:
    """Change the last bound entry of the window's map in this rank's memory; returns which."""
    plan = next(one for one in client.plan.region.band_maps if one.band == "window_8")
    client.stream.synchronize(client.deadline_ms)
    table = np.frombuffer(client.memory.buffer, "<i4", plan.entry_count, plan.offset_bytes)
    place = int(table.nonzero()[0][-1])
    table[place] += 1
    return place


@pytest.mark.parametrize("modes", [(Mode.MIRRORED, Mode.MIRRORED), (Mode.LEADER, Mode.FOLLOWER)])
def test_every_rank_finds_its_tables_as_the_books_say(
    ranks: Ranks, modes: tuple[Mode, Mode]
) -> None:
    clients = ranks.attach_all(2, modes)
    deciding = [client for client in clients if client.mode is not Mode.FOLLOWER]
    ranks.each(deciding, work)
    for client in clients:
        if client.mode is Mode.FOLLOWER:
            client.follow(deciding[0].applied)

    assert {client.welcome.check_level for client in clients} == {"strict"}
    assert [client.check_tables() for client in clients] == [TABLES_COUNT] * 2


def test_a_wrong_entry_in_one_ranks_memory_ends_the_group_with_its_name(
    daemon: DaemonProcess, ranks: Ranks
) -> None:
    first, second = ranks.attach_all(2)
    ranks.each([first, second], work)
    place = break_map(second)
    named = rf"tables\.match_books: .* map of band 'window_8' .* entry {place} holds"

    assert first.check_tables() == TABLES_COUNT
    with pytest.raises(TablesError, match=named), second.batch() as batch:
        batch.idle()

    # The failed rank says so without waiting for an answer.
    wait_until("the daemon knows", lambda: "map of band 'window_8'" in daemon.log())
    with pytest.raises(RankLostError, match=named):
        first.ping()
    assert daemon.lives()


def test_a_rank_that_leaves_compares_before(ranks: Ranks) -> None:
    first, second = ranks.attach_all(2)
    ranks.each([first, second], work)
    break_map(second)

    with pytest.raises(TablesError, match=r"tables\.match_books"):
        second.close()
    wait_until("the other rank is told", lambda: is_lost(first))


def is_lost(client: Client) -> bool:
    try:
        client.ping()
    except RankLostError:
        return True
    return False
