"""Two programs on one rank: each may end the other's requests, and neither is lost over it."""

from collections.abc import Sequence

import pytest

from kvd_client import Admitted, Client, OperationError, UnknownRequestError
from kvd_proto.codec import encode, join_batch
from kvd_proto.operations import (
    Admit,
    BatchEnd,
    Free,
    Insert,
    Operation,
)
from tests.client.engine_daemon import SIZING, EngineDaemon
from tests.stateful.ranks import int32s, int64s

OTHER = 1
"""The other program."""
ALL = list(range(1, (SIZING.running_requests_count or 0) + 1))
"""As many requests as there are rows."""
NEXT = len(ALL) + 1


def other(daemon: EngineDaemon, *operations: Operation) -> None:
    """Have a batch of the other program decided; this one hears of it with its next reply."""
    world = daemon.incarnation
    body = join_batch([encode(one) for one in (*operations, BatchEnd())])
    world.batch(rank=0, program=OTHER, index=world.next_index(OTHER), body=body)


def asked(*ids: int, tokens: int = 6, victims: Sequence[int] = ()) -> Admit:
    """Return an admit that takes all prompts at once."""
    counts = int32s([tokens] * len(ids))
    news = int32s([4] * len(ids))
    return Admit(int64s(list(ids)), counts, news, counts, victims=int64s(list(victims)))


def admit(kv: Client, *ids: int, tokens: int = 6, takes: bool = True) -> None:
    """Admit requests of this program, which then stand."""
    with kv.batch() as batch:
        batch.admit(
            ids,
            prompt_tokens=[tokens] * len(ids),
            new_tokens_max=[4] * len(ids),
            take_tokens=[tokens] * len(ids) if takes else None,
        )
        batch.standing(add=ids)


def hear(kv: Client) -> None:
    """Have the log applied up to here."""
    with kv.batch():
        pass


def agrees(daemon: EngineDaemon, kv: Client, *live: int) -> None:
    """Check what a client knows of its requests against the engine's books."""
    kv.session.book.check()
    table = daemon.incarnation.engine.requests
    assert kv.session.book.requests_count == len(live)
    assert kv.rows(live).tolist() == table.names.rows_of(list(live)).tolist()
    assert kv.lengths(live).tolist() == table.rows.tokens[kv.rows(live)].tolist()
    assert kv.standing.tolist() == list(live)


def test_requests_that_another_program_retracts_are_gone_and_may_come_back(
    daemon: EngineDaemon, kv: Client
) -> None:
    admit(kv, *ALL)
    other(daemon, asked(100, 101, victims=[2, 5]))
    hear(kv)

    agrees(daemon, kv, *(one for one in ALL if one not in (2, 5)))
    with pytest.raises(UnknownRequestError, match="request 5 has no row here"):
        kv.rows([5])
    with pytest.raises(OperationError, match="request 5 is not admitted"), kv.batch() as batch:
        batch.take([5])
    with kv.batch() as batch:
        batch.free([1])
    admit(kv, 5)
    assert kv.rows([5]).tolist() == [1]


def test_a_request_that_another_program_freed_is_gone_at_once(
    daemon: EngineDaemon, kv: Client
) -> None:
    admit(kv, 1, 2, 3)
    other(daemon, Free(int64s([2])))
    hear(kv)

    agrees(daemon, kv, 1, 3)
    with pytest.raises(UnknownRequestError, match="request 2 has no row here"):
        kv.rows([2])
    with pytest.raises(OperationError, match="request 2 has ended"), kv.batch() as batch:
        batch.free([2])
    with kv.batch() as batch:
        batch.take(kv.standing, [1, 1])
    agrees(daemon, kv, 1, 3)


def test_the_row_of_a_request_that_another_program_freed_may_be_given_away(
    daemon: EngineDaemon, kv: Client
) -> None:
    admit(kv, *ALL)
    row = int(kv.rows([2])[0])
    other(daemon, Free(int64s([2])))
    admit(kv, NEXT)

    assert kv.rows([NEXT]).tolist() == [row]
    agrees(daemon, kv, *(one for one in ALL if one != 2), NEXT)


def test_a_request_without_a_page_loses_its_row_when_that_is_given_away(
    daemon: EngineDaemon, kv: Client
) -> None:
    admit(kv, *ALL[:-1])
    admit(kv, ALL[-1], takes=False)
    row = int(kv.rows(ALL[-1:])[0])
    other(daemon, Free(int64s(ALL[-1:])))
    admit(kv, NEXT)

    assert kv.rows([NEXT]).tolist() == [row]
    agrees(daemon, kv, *ALL[:-1], NEXT)


def test_a_row_that_another_program_gives_to_its_own_is_nobodys_here(
    daemon: EngineDaemon, kv: Client
) -> None:
    admit(kv, *ALL[:-1])
    admit(kv, ALL[-1], takes=False)
    other(daemon, Free(int64s(ALL[-1:])), asked(NEXT))
    hear(kv)

    agrees(daemon, kv, *ALL[:-1])
    with pytest.raises(UnknownRequestError, match=f"request {ALL[-1]} has no row here"):
        kv.rows(ALL[-1:])


def test_a_request_that_another_program_made_a_value_of_loses_its_row_to_the_next(
    daemon: EngineDaemon, kv: Client
) -> None:
    admit(kv, *ALL)
    other(daemon, Insert(7, 1))
    admit(kv, NEXT)

    agrees(daemon, kv, *ALL[1:], NEXT)


def test_a_program_may_end_and_grow_requests_of_another(daemon: EngineDaemon, kv: Client) -> None:
    hear(kv)
    other(daemon, asked(1, 2, 3, 4))
    admit(kv, 5)
    with kv.batch() as batch:
        batch.take([2, 5], [1, 2])
    with kv.batch() as batch:
        batch.take([3, 5], 1, victims=[4])
        batch.free([2])

    agrees(daemon, kv, 5)
    assert kv.lengths([5]).tolist() == [9]


def test_victims_of_another_program_make_room_for_an_admit(
    daemon: EngineDaemon, kv: Client
) -> None:
    hear(kv)
    other(daemon, asked(*ALL))
    with kv.batch() as batch:
        handle = batch.admit([100], prompt_tokens=[6], new_tokens_max=[4], victims=[3])
        batch.standing(add=[100])

    admitted = handle()
    assert isinstance(admitted, Admitted)
    assert admitted.retracted.tolist() == [3]
    agrees(daemon, kv, 100)
