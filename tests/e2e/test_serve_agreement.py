"""Mirrored and following ranks: the same positions, replies and bytes, or one clear end."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Queue
from typing import TYPE_CHECKING

import pytest

from kvd_client import Client, Mode
from kvd_client.errors import (
    DeadlineError,
    DeviceError,
    DivergedError,
    EndedError,
    PoisonedError,
    RankLostError,
    RefusedError,
)
from kvd_client.transport import Frames
from kvd_proto.errors import ErrorCode
from tests.e2e.daemon_process import DaemonProcess, serving, wait_until
from tests.e2e.ranks import Ranks, admit
from tests.e2e.schedule import Recorder, Told, finish, follow, lead, passes_of, run_pass

if TYPE_CHECKING:
    from kvd_client.calls import Batch

SEED = 7
PASSES = passes_of(SEED, 40)
Change = Callable[["Batch"], object]


@dataclass(frozen=True, slots=True)
class Observed:
    """What one rank saw and was left with."""

    position: int
    entries: dict[int, bytes]
    memory: bytes


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Give a daemon whose ranks may be few entries apart and have long to catch up."""
    settings = ("--rank-lag-count-max", "16", "--check-level", "strict")
    with serving(tmp_path_factory.mktemp("r") / "run", *settings) as running:
        yield running
        assert "internal_error" not in running.log()


def run_group(address: str, group: str, *, tp: int, mode: Mode) -> list[Observed]:
    """Run all passes on every rank of a group, each in a thread; returns what each saw."""
    recorders = [Recorder(address) for _ in range(tp)]
    modes = [mode] + [Mode.MIRRORED if mode is Mode.MIRRORED else Mode.FOLLOWER] * (tp - 1)
    with Ranks(address, group) as ranks:
        clients = ranks.attach_all(tp, modes, [{"transport": one} for one in recorders])
        queues: list[Queue[Told]] = [Queue() for _ in range(tp - 1)]
        if mode is Mode.MIRRORED:
            ranks.each(clients, lambda client: lead(client, PASSES))
        else:
            leading = ranks.start(lead, clients[0], PASSES, queues)
            following = [
                ranks.start(follow, client, queue)
                for client, queue in zip(clients[1:], queues, strict=True)
            ]
            for one in (leading, *following):
                one.result(60)
        for client, recorder in zip(clients, recorders, strict=True):
            client.check()
            assert recorder.conflicts == []
        return [
            Observed(client.applied, recorder.entries, bytes(client.memory.buffer))
            for client, recorder in zip(clients, recorders, strict=True)
        ]


@pytest.fixture(scope="module")
def alone(patient: DaemonProcess) -> Observed:
    """Return what a single rank sees of the passes."""
    (observed,) = run_group(patient.address, "alone", tp=1, mode=Mode.MIRRORED)
    return observed


def test_a_single_rank_sees_every_position_once(alone: Observed) -> None:
    print(f"seed {SEED}")
    assert list(alone.entries) == list(range(1, alone.position + 1))
    assert any(alone.memory)


@pytest.mark.case("98")
@pytest.mark.parametrize(
    ("tp", "mode"),
    [
        (1, Mode.LEADER),
        (2, Mode.MIRRORED),
        (4, Mode.MIRRORED),
        (2, Mode.LEADER),
        (4, Mode.LEADER),
    ],
)
def test_every_rank_of_every_mode_sees_the_same_positions_replies_and_bytes(
    patient: DaemonProcess, group: str, alone: Observed, tp: int, mode: Mode
) -> None:
    print(f"seed {SEED}")
    for observed in run_group(patient.address, group, tp=tp, mode=mode):
        assert observed.position == alone.position
        assert observed.entries == alone.entries
        assert observed.memory == alone.memory


# ---- lag --------------------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [(Mode.MIRRORED, Mode.MIRRORED), (Mode.LEADER, Mode.FOLLOWER)])
def test_a_rank_that_does_not_catch_up_is_named_after_the_deadline(
    daemon: DaemonProcess, ranks: Ranks, modes: tuple[Mode, Mode]
) -> None:
    ahead, behind = ranks.attach_all(2, modes)

    with pytest.raises(RefusedError) as late:
        send_idles(ahead, 100)

    assert late.value.code is ErrorCode.TIMED_OUT
    assert late.value.retry
    assert re.fullmatch(
        rf"rank 1 has applied position 0 of {ahead.applied} and did not catch up within 300 ms",
        late.value.message,
    )
    assert 16 < ahead.applied <= 20
    if modes[1] is Mode.FOLLOWER:
        behind.follow(ahead.applied)
        behind.ping()
    else:
        send_idles(behind, ahead.applied // 2)
    catching_up = ranks.start(catch_up, behind, ahead.applied)
    send_idles(ahead, 1)
    catching_up.result(10)


@pytest.mark.parametrize("modes", [(Mode.MIRRORED, Mode.MIRRORED), (Mode.LEADER, Mode.FOLLOWER)])
def test_a_reply_is_held_back_until_the_slowest_rank_has_caught_up(
    patient: DaemonProcess, group: str, modes: tuple[Mode, Mode]
) -> None:
    with Ranks(patient.address, group) as ranks:
        ahead, behind = ranks.attach_all(2, modes)
        leading = ranks.start(send_idles, ahead, 12)
        wait_until("the leader is held back", lambda: position_of(patient, group) > 16)
        held = position_of(patient, group)
        assert not leading.done()

        for position in range(2, 25, 2):
            catch_up(behind, position)

        leading.result(10)
        assert ahead.applied == 24
        assert held <= 20


@pytest.mark.parametrize("mode", [Mode.MIRRORED, Mode.LEADER])
def test_ranks_that_may_be_one_entry_apart_still_get_on(
    start: Callable[..., DaemonProcess], mode: Mode
) -> None:
    daemon = start("--rank-lag-count-max", "1", "--lag-wait-ms", "5000")

    first, second = run_group(daemon.address, "close", tp=2, mode=mode)

    assert first == second


def test_a_rank_that_waits_for_entries_learns_of_the_end(ranks: Ranks) -> None:
    leader, follower = ranks.attach_all(2, (Mode.LEADER, Mode.FOLLOWER))
    waiting = ranks.start(follower.follow, 1)

    leader.close()

    with pytest.raises(RankLostError, match=r"stage 0 rank 0 .* left"):
        waiting.result(10)


def test_a_batch_that_is_held_back_learns_of_the_end(patient: DaemonProcess, group: str) -> None:
    with Ranks(patient.address, group) as ranks:
        leader, follower = ranks.attach_all(2, (Mode.LEADER, Mode.FOLLOWER))
        held = ranks.start(send_idles, leader, 100)
        wait_until("the leader is held back", lambda: position_of(patient, group) > 16)

        follower.close()

        with pytest.raises(RankLostError, match=r"stage 0 rank 1 .* left"):
            held.result(10)


# ---- exactly once -------------------------------------------------------------------------------


class Losing(Recorder):
    """Loses answers on purpose, after the daemon gave them."""

    losses = 0

    def receive(self) -> Frames:
        frames = super().receive()
        if self.losses:
            self.losses -= 1
            raise DeadlineError("the answer was lost")
        return frames


def test_a_batch_whose_reply_was_lost_is_sent_again_and_done_once(
    daemon: DaemonProcess, ranks: Ranks
) -> None:
    transport = Losing(daemon.address)
    client = ranks.attach(transport=transport)
    transport.losses = 1

    with pytest.raises(DeadlineError):
        admit(client, [1, 2])
    with client.batch() as batch:
        batch.free([1])

    assert transport.conflicts == []
    assert client.rows([2]).tolist() == [2]
    found = daemon.group(ranks.group)
    assert found is not None
    assert found["stages"][0]["requests"] == 1
    assert found["stages"][0]["position"] == client.applied == 4


def test_lost_replies_on_every_rank_change_nothing_that_is_seen(
    patient: DaemonProcess, group: str, alone: Observed
) -> None:
    transports = [Losing(patient.address) for _ in range(2)]

    def lead_through_losses(client: Client, transport: Losing) -> None:
        for number, one in enumerate(PASSES, start=1):
            transport.losses = number % 3
            try:
                run_pass(client, one, step=number - 1)
            except DeadlineError:
                transport.losses = 0
                client.ping()
            with client.launch():
                pass
        finish(client, step=len(PASSES))

    with Ranks(patient.address, group) as ranks:
        clients = ranks.attach_all(2, changes=[{"transport": one} for one in transports])
        running = [
            ranks.start(lead_through_losses, client, transport)
            for client, transport in zip(clients, transports, strict=True)
        ]
        for one in running:
            one.result(60)

    assert [one.entries for one in transports] == [alone.entries] * 2
    assert [one.conflicts for one in transports] == [[], []]


# ---- divergence -------------------------------------------------------------------------------

WRONG: list[tuple[str, Change, str, str]] = [
    ("tokens", lambda b: b.take([1], 2), r"take\(.*tokens=2|tokens 2|tokens=2", "take"),
    ("another operation", lambda b: b.free([1]), "free", "take"),
    ("nothing", lambda _: None, "batch_end", "take"),
    ("another request", lambda b: b.take([2], 1), "2", "1"),
]


@pytest.mark.parametrize(
    ("change", "sent", "decided"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
@pytest.mark.parametrize(("tp", "wrong_rank"), [(2, 1), (4, 2)])
def test_a_rank_that_asks_something_else_is_told_before_it_applies_anything(
    daemon: DaemonProcess,
    ranks: Ranks,
    change: Change,
    sent: str,
    decided: str,
    tp: int,
    wrong_rank: int,
) -> None:
    clients = ranks.attach_all(tp)
    ranks.each(clients, lambda client: admit(client, [1, 2]))
    position = clients[0].applied
    with clients[0].batch() as batch:
        batch.take([1], 1)
    wrong = clients[wrong_rank]
    wrong.stream.synchronize(5_000)
    before = bytes(wrong.memory.buffer)

    with pytest.raises(DivergedError) as diverged, wrong.batch() as batch:
        change(batch)

    message = diverged.value.message
    assert f"program 0 index {position}: rank 0 sent" in message
    assert re.search(rf"rank 0 sent .*{decided}.*, rank {wrong_rank} sent .*{sent}", message), (
        message
    )
    assert (
        f"rank 0 has applied position {position}, rank {wrong_rank} position {position}" in message
    )
    assert wrong.applied == position
    assert bytes(wrong.memory.buffer) == before
    others = [client for client in clients if client is not wrong]
    for client in (*others, wrong):
        with pytest.raises(DivergedError, match=re.escape(message.partition(": ")[2][:60])):
            client.ping()
    end = f"incarnation_end group={ranks.group} code=DIVERGED"
    wait_until("the end is logged", lambda: end in daemon.log())
    assert daemon.log().count(end) == 1


def test_after_a_divergence_new_ranks_attach_and_run(ranks: Ranks) -> None:
    clients = ranks.attach_all(2)
    admit(clients[0], [1])
    with pytest.raises(DivergedError):
        admit(clients[1], [2])
    for client in clients:
        client.close()

    again = ranks.attach_all(2)

    assert [client.incarnation for client in again] in ([1, 1], [2, 2])
    ranks.each(again, lambda client: admit(client, [1]))


def test_a_follower_with_another_record_of_the_leader_s_batch_is_told_so(
    daemon: DaemonProcess, ranks: Ranks
) -> None:
    leader, follower = ranks.attach_all(2, (Mode.LEADER, Mode.FOLLOWER))
    with Ranks(daemon.address, ranks.group + "b") as elsewhere:
        other = elsewhere.attach(mode=Mode.LEADER)
        with other.batch() as batch:
            batch.relief([0, 0, 1])
    record = batch.record()
    send_idles(leader, 1)

    with pytest.raises(DivergedError, match="operation 0 of program 0 is Relief"):
        follower.follow(leader.applied, records=[record])

    assert follower.applied == 0
    with pytest.raises(DivergedError):
        follower.ping()
    with pytest.raises(RankLostError, match=r"rank 1 .* cannot go on: diverged"):
        eventually_ends(leader)


def test_a_follower_cannot_send_operations(ranks: Ranks) -> None:
    _, follower = ranks.attach_all(2, (Mode.LEADER, Mode.FOLLOWER))

    with pytest.raises(Exception, match="a follower sends no operations"):
        follower.batch().__enter__()


def test_a_poisoned_rank_reports_itself_and_ends_the_incarnation(ranks: Ranks) -> None:
    well, sick = ranks.attach_all(2)
    sick.stream.submit(fail)
    with pytest.raises(DeviceError, match="the device gave out"):
        sick.stream.synchronize(5_000)

    with pytest.raises(DeviceError, match="the device gave out"):
        admit(sick, [1])

    with pytest.raises(PoisonedError, match="the device gave out"):
        sick.ping()
    with pytest.raises(RankLostError, match=r"rank 1 .* cannot go on: .*the device gave out"):
        eventually_ends(well)
    for client in (well, sick):
        client.close()
    ranks.each(ranks.attach_all(2), lambda client: admit(client, [1]))


def fail() -> None:
    """Play work that the device cannot do."""
    raise MemoryError("the device gave out")


def test_a_forward_that_fails_on_its_stream_ends_the_incarnation(ranks: Ranks) -> None:
    well, sick = ranks.attach_all(2)

    with sick.launch() as step:
        step.submit(fail)
    with pytest.raises(Exception, match="the device gave out"), sick.batch() as batch:
        batch.processed(1)
    sick.close()

    with pytest.raises(RankLostError, match=r"stage 0 rank 1"):
        eventually_ends(well)
    well.close()
    for client in ranks.attach_all(2):
        client.ping()


def send_idles(client: Client, count: int) -> None:
    """Send batches that change nothing, two entries each."""
    for _ in range(count):
        with client.batch() as batch:
            batch.idle()


def catch_up(client: Client, position: int) -> None:
    """Bring a rank to a position, as its mode does it."""
    if client.mode is Mode.FOLLOWER:
        client.follow(position)
        return
    while client.applied < position:
        send_idles(client, 1)


def position_of(daemon: DaemonProcess, group: str) -> int:
    """Return the end of a group's log."""
    found = [one for one in daemon.stats()["groups"] if one["name"] == group]
    return int(found[0]["stages"][0]["position"]) if found and found[0]["stages"] else 0


def eventually_ends(client: Client) -> None:
    """Ask until the incarnation is over, and raise what the client then says."""

    def ended() -> bool:
        try:
            client.ping()
        except EndedError:
            return True
        return False

    wait_until("the incarnation ends", ended)
    client.ping()
