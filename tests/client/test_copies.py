"""Values, loads, backups and transfers through a client: bytes there and back, ends in the log."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from kvd_client import Admitted, Client, Mode
from kvd_client.errors import (
    OperationError,
    UnknownRequestError,
    UsageError,
)
from kvd_client.results import ResolvedUnits
from kvd_proto.codec import decode_fact, encode
from kvd_proto.operations import CopyEnded, TransferEnded
from kvd_proto.outcomes import Done, Freed, Pump, ReleasedResult
from tests.client.engine_daemon import EngineDaemon
from tests.client.overlap_parts import Gates, assert_stalls, settle

FULL, WINDOW = "full", "window_8"
POOL_UNITS = 16
DEADLINE_MS = 5000


@pytest.fixture(params=[False, True], ids=["one stream", "overlap"])
def kv(daemon: EngineDaemon, request: pytest.FixtureRequest) -> Iterator[Client]:
    with daemon.attach(0, Mode.LEADER, overlap=request.param) as client:
        yield client


def with_value(kv: Client) -> dict[str, list[int]]:
    """Make value 1 of request 1, of 16 tokens; return its pages, and those it lacks a window of."""
    with kv.batch() as batch:
        admitted = batch.admit([1], prompt_tokens=[16], new_tokens_max=[4], take_tokens=[16])
    granted = admitted()
    assert isinstance(granted, Admitted)
    pages = granted.taken.virtual.tolist()
    with kv.batch() as batch:
        batch.advance([1], 16)
        inserted = batch.insert(1, 1)
    assert inserted() == Done()
    return {FULL: pages, WINDOW: pages[:2]}


def grid(kv: Client, band: str) -> NDArray[np.uint8]:
    """Return the arena as units of a band."""
    unit_bytes = next(item.unit_bytes for item in kv.plan.bands if item.name == band)
    arena = kv.arena_array()
    return arena[: len(arena) // unit_bytes * unit_bytes].reshape(-1, unit_bytes)


def places(daemon: EngineDaemon, band: str, pages: list[int]) -> list[int]:
    """Return where pages lie, as the daemon's books say."""
    chain = daemon.incarnation.engine.chain
    index = [item.geometry.name for item in chain.bands].index(band)
    physical: list[int] = chain.bands[index].physical(np.array(pages)).tolist()
    return physical


def released(kv: Client, what: str, number: int) -> None:
    """Send batches until the log has said that a copy or transfer is over."""
    for _ in range(1000):
        with kv.batch() as batch:
            batch.standing()
            batch.relief([0] * len(kv.plan.bands))
        for item in kv.take_released():
            if number in getattr(item, what):
                return
    raise AssertionError(f"{what} {number} was not released")


def test_a_request_that_becomes_a_value_is_gone_for_the_client(kv: Client) -> None:
    with_value(kv)
    with pytest.raises(UnknownRequestError, match="request 1 has no row"):
        kv.rows([1])
    kv.check()


def test_bytes_go_out_with_a_backup_and_come_back_with_a_load(
    daemon: EngineDaemon, kv: Client
) -> None:
    pool = {band: kv.host_pool(band, POOL_UNITS) for band in (FULL, WINDOW)}
    pages = with_value(kv)
    kv.stream.synchronize(DEADLINE_MS)
    lies = places(daemon, FULL, pages[FULL])
    written = np.arange(len(lies), dtype=np.uint8)[:, None] + 1
    grid(kv, FULL)[lies] = written

    with kv.batch() as batch:
        backup = batch.backup(1, {FULL: pages[FULL]}, {FULL: [3, 2, 1, 0]})
    assert backup() == Done()
    released(kv, "copies", 1)
    assert (pool[FULL].units[[3, 2, 1, 0]] == written).all()

    pool[WINDOW].units[5:7] = [[77], [78]]
    with kv.batch() as batch:
        batch.load_reserve(2, 1, {WINDOW: 2})
        batch.load_name(2, WINDOW, pages[WINDOW])
        load = batch.load_submit(2, {WINDOW: [5, 6]})
    assert load() == Done()
    released(kv, "copies", 2)
    loaded = grid(kv, WINDOW)[places(daemon, WINDOW, pages[WINDOW])]
    assert (loaded == np.array([[77], [78]], dtype=np.uint8)).all()
    with kv.batch() as batch:
        evicted = batch.evict([1])
    assert isinstance(evicted(), Freed)
    daemon.incarnation.engine.requests.holdings.check()


def test_a_backup_of_what_a_load_fills_finds_what_was_loaded(kv: Client) -> None:
    pool = kv.host_pool(WINDOW, POOL_UNITS)
    pages = with_value(kv)
    pool.units[0] = 9
    with kv.batch() as batch:
        batch.load_reserve(1, 1, {WINDOW: 1})
        batch.load_name(1, WINDOW, pages[WINDOW][1:])
        batch.load_submit(1, {WINDOW: [0]})
        batch.backup(2, {WINDOW: pages[WINDOW][1:]}, {WINDOW: [4]})
    released(kv, "copies", 2)
    assert (pool.units[4] == 9).all()


def test_ends_of_copies_are_said_once(daemon: EngineDaemon, kv: Client) -> None:
    kv.host_pool(FULL, POOL_UNITS)
    pages = with_value(kv)
    with kv.batch() as batch:
        batch.backup(1, {FULL: pages[FULL]}, {FULL: range(4)})
    released(kv, "copies", 1)
    for _ in range(3):
        with kv.batch() as batch:
            batch.standing()
    facts = [decode_fact(body) for body in daemon.facts]
    assert facts.count(CopyEnded(1)) == 1


@pytest.mark.case("36")
def test_places_of_transfers_are_resolved_by_band(daemon: EngineDaemon, kv: Client) -> None:
    pages = with_value(kv)
    with kv.batch() as batch:
        post = batch.post(1, {FULL: pages[FULL][:2]})
        batch.hold(2, {FULL: pages[FULL][:1]})
        publish = batch.publish(2)
    sent = post()
    assert isinstance(sent, ResolvedUnits)
    assert sent.physical[FULL].tolist() == places(daemon, FULL, pages[FULL][:2])
    assert sent.physical[WINDOW].size == 0
    assert publish() == Pump((1,))
    daemon.incarnation.fact(0, encode(TransferEnded(1)))
    released(kv, "transfers", 1)
    with kv.batch() as batch:
        publish = batch.publish(2)
    assert isinstance(publish(), ResolvedUnits)


def test_the_other_calls_reach_the_daemon(daemon: EngineDaemon, kv: Client) -> None:
    pages = with_value(kv)
    with kv.batch() as batch:
        answers = [
            batch.reset_sink(),
            batch.load_reserve(1, 1, {WINDOW: 1}),
            batch.hold(1, {FULL: pages[FULL]}),
            batch.cancel_hold(1),
        ]
        cancelled = batch.load_cancel(1)
    assert [answer() for answer in answers] == [Done()] * 4
    assert isinstance(cancelled(), Freed)


@pytest.mark.parametrize("band", ["full_2", ""])
def test_a_band_that_is_none_is_named_before_anything_is_sent(kv: Client, band: str) -> None:
    with pytest.raises(UsageError, match="there is no band"):
        kv.host_pool(band, 1)
    with kv.batch() as batch:
        for call in (
            lambda: batch.load_reserve(1, 1, {band: 1}),
            lambda: batch.load_name(1, band, [1]),
            lambda: batch.post(1, {band: [1]}),
            lambda: batch.backup(1, {FULL: [1]}, {band: [1]}),
        ):
            with pytest.raises(UsageError, match="there is no band"):
                call()


def test_wrong_use_is_the_daemons_error(kv: Client) -> None:
    with_value(kv)
    with pytest.raises(OperationError, match="value 7 was never inserted"), kv.batch() as batch:
        batch.evict([7])


def test_a_band_has_one_pool_of_at_least_one_unit(kv: Client) -> None:
    with pytest.raises(UsageError, match="holds nothing"):
        kv.host_pool(FULL, 0)
    pool = kv.host_pool(FULL, 2)
    assert pool.size_bytes == 2 * pool.unit_bytes
    assert not pool.units.any()
    with pytest.raises(UsageError, match="has a host pool already"):
        kv.host_pool(FULL, 2)


@pytest.mark.parametrize(
    ("units", "said"), [(0, "has no host pool on this rank"), (2, r"place 2 is outside \[0, 2\)")]
)
def test_a_copy_that_has_no_place_is_refused_before_anything_is_sent(
    daemon: EngineDaemon, units: int, said: str
) -> None:
    with daemon.attach(0, Mode.LEADER) as kv:
        if units:
            kv.host_pool(FULL, units)
        pages = with_value(kv)
        before = daemon.batches()
        with pytest.raises(UsageError, match=said), kv.batch() as batch:
            batch.backup(1, {FULL: pages[FULL][:3]}, {FULL: [0, 1, 2]})
        assert daemon.batches() == before
        with kv.batch() as batch:
            batch.evict([1])


def test_what_is_over_is_told_once(kv: Client) -> None:
    kv.host_pool(FULL, POOL_UNITS)
    pages = with_value(kv)
    with kv.batch() as batch:
        batch.backup(1, {FULL: pages[FULL][:1]}, {FULL: [0]})
    seen: list[ReleasedResult] = []
    for _ in range(1000):
        with kv.batch() as batch:
            batch.relief([0] * len(kv.plan.bands))
        seen += kv.take_released()
        if seen:
            break
    assert seen == [ReleasedResult(copies=(1,))]
    assert kv.take_released() == []


# ---- order ---------------------------------------------------------------------------------------


@pytest.mark.case("58")
def test_a_copy_runs_behind_the_forward_that_was_launched_before_it(daemon: EngineDaemon) -> None:
    with daemon.attach(0, Mode.LEADER, overlap=True) as kv, Gates() as gates:
        pool = kv.host_pool(FULL, POOL_UNITS)
        pages = with_value(kv)
        settle(kv.stream)
        grid(kv, FULL)[places(daemon, FULL, pages[FULL][:1])] = 5
        gate = gates.running_step(kv)
        with kv.batch() as batch:
            batch.backup(1, {FULL: pages[FULL][:1]}, {FULL: [0]})
        settle(kv.stream)  # the allocator's stream is held up by neither
        with kv.batch() as batch:
            batch.relief([0] * len(kv.plan.bands))
        assert kv.take_released() == []
        assert not pool.units[0].any()
        gate.open()
        released(kv, "copies", 1)
        assert (pool.units[0] == 5).all()


def test_the_allocators_stream_waits_for_a_copy_where_the_log_says_so(daemon: EngineDaemon) -> None:
    with daemon.attach(0, Mode.LEADER, overlap=True) as kv, Gates() as gates:
        kv.host_pool(WINDOW, POOL_UNITS)
        page = with_value(kv)[WINDOW][1:]
        gate = gates.running_step(kv)
        with kv.batch() as batch:
            batch.load_reserve(1, 1, {WINDOW: 1})
            batch.load_name(1, WINDOW, page)
            batch.load_submit(1, {WINDOW: [0]})
        settle(kv.stream)
        with kv.batch() as batch:
            batch.backup(2, {WINDOW: page}, {WINDOW: [1]})
        assert_stalls(kv.stream)
        gate.open()
        settle(kv.stream)
        released(kv, "copies", 2)


def test_a_client_that_leaves_lets_its_copies_end(daemon: EngineDaemon) -> None:
    with daemon.attach(0, Mode.LEADER) as kv:
        pool = kv.host_pool(FULL, POOL_UNITS)
        pages = with_value(kv)
        settle(kv.stream)
        grid(kv, FULL)[places(daemon, FULL, pages[FULL])] = 6
        with kv.batch() as batch:
            batch.backup(1, {FULL: pages[FULL]}, {FULL: range(4)})
    assert (pool.units[:4] == 6).all()
