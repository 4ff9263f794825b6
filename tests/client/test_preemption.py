"""Admits with victims: the client's book says what the engine's does."""

from collections.abc import Iterator, Sequence

import pytest

from kvd_client import STANDING, Admitted, Client, Mode, UnknownRequestError
from kvd_client.calls import read_call
from kvd_proto.codec import split_batch
from kvd_proto.control import MessageKind
from kvd_proto.operations import Admit
from kvd_proto.outcomes import Verdict
from tests.client.engine_daemon import SIZING, EngineDaemon


@pytest.fixture
def daemon() -> EngineDaemon:
    return EngineDaemon(ranks=2)


@pytest.fixture
def kv(daemon: EngineDaemon) -> Iterator[Client]:
    with daemon.attach(0, Mode.LEADER) as client:
        yield client


def admit(
    kv: Client, ids: Sequence[int], *, tokens: int = 6, victims: Sequence[int] = ()
) -> tuple[Admitted, bytes]:
    with kv.batch() as batch:
        handle = batch.admit(
            ids,
            prompt_tokens=[tokens] * len(ids),
            new_tokens_max=[4] * len(ids),
            take_tokens=[tokens] * len(ids),
            victims=victims,
        )
    admitted = handle()
    assert isinstance(admitted, Admitted)
    return admitted, batch.record()


def fill(kv: Client) -> tuple[list[int], list[bytes]]:
    """Admit requests until every row is taken; all of them stand."""
    count = SIZING.running_requests_count
    assert count is not None
    ids = list(range(1, count + 1))
    admitted, record = admit(kv, ids)
    assert set(admitted.verdicts.tolist()) == {Verdict.FITS}
    with kv.batch() as batch:
        batch.standing(add=ids)
    return ids, [record, batch.record()]


def agrees(daemon: EngineDaemon, kv: Client) -> None:
    """Compare a client's rows, lengths and standing set with the engine's."""
    table = daemon.incarnation.engine.requests
    live = sorted(table.names.row_of)
    assert kv.rows(live).tolist() == table.names.rows_of(live).tolist()
    rows = kv.rows(live)
    assert kv.session.book.lengths(rows).tolist() == table.rows.tokens[rows].tolist()
    assert kv.session.book.requests_count == len(live)
    kv.session.book.check()


def test_victims_are_named_and_their_rows_are_given_away(daemon: EngineDaemon, kv: Client) -> None:
    ids, _ = fill(kv)
    row = int(kv.rows([5])[0])
    admitted, _ = admit(kv, [100], tokens=9, victims=[5, 2])
    assert admitted.verdicts.tolist() == [Verdict.FITS]
    assert admitted.retracted.tolist() == [5]
    assert admitted.rows.tolist() == [row]
    assert kv.standing.tolist() == [request for request in ids if request != 5]
    with pytest.raises(UnknownRequestError, match="request 5 has no row here"):
        kv.rows([5])
    agrees(daemon, kv)


def test_a_follower_ends_the_same_victims(daemon: EngineDaemon, kv: Client) -> None:
    with daemon.attach(1, Mode.FOLLOWER) as follower:
        _, records = fill(kv)
        for ask, victims in (([100, 101], [7, 3, 9]), ([102], [100]), ([103], [9])):
            admitted, record = admit(kv, ask, victims=victims)
            assert admitted.retracted.tolist() == victims[: len(ask)]
            records.append(record)
        follower.follow(kv.applied, records=records)
        for one in (kv, follower):
            agrees(daemon, one)
            one.stream.synchronize(5_000)
        assert follower.standing.tolist() == kv.standing.tolist()
        region = kv.plan.region
        start, end = region.band_maps[0].offset_bytes, region.scratch.offset_bytes
        assert bytes(follower.memory.buffer[start:end]) == bytes(kv.memory.buffer[start:end])


def test_who_ends_nobody_gets_an_empty_list(daemon: EngineDaemon, kv: Client) -> None:
    admit(kv, [1])
    admitted, _ = admit(kv, [2], victims=[1])
    assert admitted.retracted.tolist() == []
    agrees(daemon, kv)


@pytest.mark.case("68")
def test_a_retracted_request_comes_back_under_its_id(daemon: EngineDaemon, kv: Client) -> None:
    fill(kv)
    admit(kv, [100], victims=[5])
    with kv.batch() as batch:
        batch.free([100])
    admitted, _ = admit(kv, [5])
    assert admitted.verdicts.tolist() == [Verdict.FITS]
    assert 5 not in kv.standing
    with kv.batch() as batch:
        batch.take(STANDING, 1)
    agrees(daemon, kv)


def test_victims_travel_in_the_order_given(daemon: EngineDaemon, kv: Client) -> None:
    fill(kv)
    admit(kv, [100], victims=[9, 2])
    header, body = daemon.transports[0].sent[-1]
    assert header.kind is MessageKind.BATCH
    operation = read_call(bytes(split_batch(body)[0])).operation
    assert isinstance(operation, Admit)
    assert operation.victims == b"".join(n.to_bytes(8, "little") for n in (9, 2))
