"""Ranks that die, hang up or linger: one clear message to the others, memory back, a new start."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import Any

import pytest

from kvd_client import Mode
from kvd_client.errors import AttachError, RankLostError
from kvd_proto.errors import ErrorCode
from tests.e2e.daemon_process import (
    DEADLINE_S,
    DaemonProcess,
    environment,
    keepers_of_memory,
    serving,
    wait_ended,
    wait_until,
)
from tests.e2e.ranks import Ranks, admit

TOLD_WITHIN_S = 2.0

pytestmark = pytest.mark.slow


class Talker:
    """A process that tells what happens, one line of JSON each, and obeys lines on stdin."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        )
        assert self.process.stdout is not None
        self._stdout = self.process.stdout.fileno()
        self._unread = b""
        self.read_at = 0.0
        """When the last line was told, as far as it was read at once."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def read(self, event: str) -> dict[str, Any]:
        """Return the next line, which tells of this event."""
        end = monotonic() + DEADLINE_S
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._stdout], [], [], max(0.0, end - monotonic()))
            assert ready, f"no {event} from process {self.pid}"
            piece = os.read(self._stdout, 65_536)
            assert piece, f"process {self.pid} ended without {event}"
            self._unread += piece
            self.read_at = monotonic()
        line, _, self._unread = self._unread.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        assert told["event"] == event, told
        return told

    def tell(self, what: object) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def nudge(self) -> None:
        """Let it do the next thing."""
        self.tell(None)

    def kill(self) -> float:
        """Kill it; returns when."""
        self.process.kill()
        return monotonic()

    def end(self) -> None:
        """Kill and reap it, if it still runs."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class RankProcess(Talker):
    """One rank in a process of its own."""

    def __init__(self, **spec: Any) -> None:
        parent = str(os.getpid())
        super().__init__((sys.executable, "-m", "tests.e2e.rank_program", parent, json.dumps(spec)))


StartRanks = Callable[..., list[RankProcess]]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Give a daemon whose patience for groups is short, but longer than a rank's start."""
    settings = ("--group-wait-ms", "5000", "--lag-wait-ms", "5000", "--check-level", "strict")
    with serving(tmp_path_factory.mktemp("r") / "run", *settings) as running:
        yield running
        assert running.lives()
        assert "internal_error" not in running.log()


@pytest.fixture
def start_ranks(daemon: DaemonProcess, name: str) -> Iterator[StartRanks]:
    """Give a function that starts all ranks of a group as processes, which end with the test."""
    with ExitStack() as stack:

        def start(tp: int, **changes: Any) -> list[RankProcess]:
            spec = {"address": daemon.address, "group": name, "tp": tp}
            started = [RankProcess(**(spec | changes | {"rank": rank})) for rank in range(tp)]
            for one in started:
                stack.callback(one.end)
            return started

        yield start


@pytest.fixture
def name(group: str) -> str:
    """Return a group's name whose memory no other test run on this host has."""
    return f"{group}-{os.getpid()}"


def run(processes: list[RankProcess]) -> list[RankProcess]:
    """Block until every rank is in the middle of its work."""
    for event in ("attached", "running"):
        for one in processes:
            one.read(event)
    return processes


def wait_released(daemon: DaemonProcess, group: str) -> None:
    """Block until no memory of the group is left in any process of this host."""
    wait_until(f"memory of {group} is gone", lambda: not keepers_of_memory(f"kvd-{group}."))
    wait_until("the group is forgotten", lambda: daemon.group(group) is None)


@pytest.mark.case("110", "138")
@pytest.mark.parametrize(("tp", "victim"), [(2, 1), (2, 0), (4, 2)])
def test_a_killed_rank_ends_its_incarnation_for_every_other_rank_at_once(
    daemon: DaemonProcess, start_ranks: StartRanks, name: str, tp: int, victim: int
) -> None:
    ranks = run(start_ranks(tp))

    killed_at = ranks[victim].kill()

    for one in ranks:
        if one is ranks[victim]:
            continue
        told = one.read("ended")
        assert monotonic() - killed_at < TOLD_WITHIN_S
        assert told["code"] == "RANK_LOST"
        assert told["message"] in (
            f"incarnation 1 of group {name!r} ended: stage 0 rank {victim} (process "
            f"{ranks[victim].pid}) is lost: process {ranks[victim].pid} {how}"
            for how in ("died", "hung up")
        )
        one.nudge()
        one.read("closed")
    wait_released(daemon, name)
    assert daemon.log().count(f"incarnation_end group={name} ") == 1
    with Ranks(daemon.address, name) as later:
        later.each(later.attach_all(tp), lambda client: admit(client, [1]))


@pytest.mark.case("128")
def test_a_rank_whose_forked_child_lives_on_is_lost_all_the_same(
    daemon: DaemonProcess, start_ranks: StartRanks, name: str
) -> None:
    ranks = start_ranks(2, forks=True)
    for one in ranks:
        one.read("attached")
    children = [one.read("forked")["pid"] for one in ranks]
    for one in ranks:
        one.read("running")

    killed_at = ranks[1].kill()

    assert "rank 1" in ranks[0].read("ended")["message"]
    assert monotonic() - killed_at < TOLD_WITHIN_S
    os.kill(children[1], 0)
    # A fork holds the sockets, too, and keeps neither its dead parent's memory nor a closed one's.
    ranks[0].nudge()
    ranks[0].read("closed")
    wait_until("the group is forgotten", lambda: daemon.group(name) is None)
    for child in children:
        os.kill(child, 0)
        os.kill(child, signal.SIGKILL)
        wait_ended(child)


def test_a_rank_that_ends_by_itself_is_told_as_lost(
    daemon: DaemonProcess, start_ranks: StartRanks, name: str
) -> None:
    ranks = run(start_ranks(2))

    ranks[0].process.terminate()

    assert f"process {ranks[0].pid}" in ranks[1].read("ended")["message"]


@pytest.mark.case("103")
def test_all_ranks_killed_at_once_leave_nothing(
    daemon: DaemonProcess, start_ranks: StartRanks, name: str
) -> None:
    ranks = run(start_ranks(3))
    assert keepers_of_memory(f"kvd-{name}.1.0.2-fence")

    for one in ranks:
        one.kill()

    wait_released(daemon, name)


def test_other_groups_do_not_notice(
    daemon: DaemonProcess, start_ranks: StartRanks, name: str
) -> None:
    with Ranks(daemon.address, f"{name}-other") as others:
        client = others.attach()
        admit(client, [1])
        ranks = run(start_ranks(2))

        ranks[0].kill()
        ranks[1].read("ended")

        client.ping()
        with client.batch() as batch:
            batch.free([1])


def test_a_survivor_that_keeps_its_mapping_blocks_the_next_incarnation_by_name(
    daemon: DaemonProcess, start_ranks: StartRanks, name: str
) -> None:
    ranks = run(start_ranks(2))
    ranks[1].kill()
    ranks[0].read("ended")
    with Ranks(daemon.address, name) as later:
        waiting = [later.start(later.attach, rank, tp=2) for rank in range(2)]
        for one in waiting:
            with pytest.raises(AttachError) as busy:
                one.result(DEADLINE_S)
            assert busy.value.code is ErrorCode.BUSY
            assert busy.value.retry
            assert f"stage 0 rank 0 (process {ranks[0].pid})" in busy.value.message
            assert "rank 1" not in busy.value.message
        assert keepers_of_memory(f"kvd-{name}.1.0.0-arena")
        assert daemon.health()["problems"] == [
            f"memory of group {name} is still in use by stage 0 rank 0 (process {ranks[0].pid}): "
            f"process {ranks[0].pid} lives and keeps its mapping"
        ]

        waiting = [later.start(later.attach, rank, tp=2) for rank in range(2)]
        wait_until("both wait again", lambda: state_of(daemon, name) == ("leaving", []))
        ranks[0].nudge()
        ranks[0].read("closed")

        clients = [one.result(DEADLINE_S) for one in waiting]
        assert [client.incarnation for client in clients] == [2, 2]
        later.each(clients, lambda client: admit(client, [1]))
        # The same arenas, but fence pages of their own.
        assert keepers_of_memory(f"kvd-{name}.1.0.0-arena")
        assert keepers_of_memory(f"kvd-{name}.2.0.0-fence")
        assert keepers_of_memory(f"kvd-{name}.2.0.0-arena") == []
        wait_until("old fences are gone", lambda: not keepers_of_memory(f"kvd-{name}.1.0.0-fence"))


def test_a_leader_that_is_killed_is_told_to_followers_that_wait(
    daemon: DaemonProcess, start_ranks: StartRanks, name: str
) -> None:
    with Ranks(daemon.address, name) as here:
        following = here.start(here.attach, 1, tp=2, mode=Mode.FOLLOWER)
        leader = start_ranks(2, mode="leader")[0]
        client = following.result(DEADLINE_S)
        leader.read("attached")
        leader.read("running")
        waiting = here.start(client.follow, 1 << 40)

        leader.kill()

        with pytest.raises(RankLostError, match=rf"rank 0 \(process {leader.pid}\) is lost"):
            waiting.result(DEADLINE_S)


@pytest.mark.case("105")
def test_a_rank_that_is_killed_while_it_waits_for_its_group_is_forgotten(
    daemon: DaemonProcess, name: str
) -> None:
    lonely = RankProcess(address=daemon.address, group=name, tp=2, rank=0)
    try:
        wait_until("rank 0 waits", lambda: state_of(daemon, name)[0] == "forming")

        lonely.kill()

        wait_until("the group is forgotten", lambda: daemon.group(name) is None)
    finally:
        lonely.end()


@pytest.mark.case("109")
def test_a_stopped_process_is_slow_but_not_dead(
    daemon: DaemonProcess, start_ranks: StartRanks, name: str
) -> None:
    ranks = run(start_ranks(2))
    ranks[1].process.send_signal(signal.SIGSTOP)
    before = daemon.fresh_stats()["daemon"]["published_at"]
    wait_until("a second has passed", lambda: daemon.stats()["daemon"]["published_at"] > before + 1)

    assert state_of(daemon, name)[0] == "running"

    ranks[1].process.send_signal(signal.SIGCONT)
    ranks[0].kill()
    ranks[1].read("ended")


def test_the_daemon_dies_and_every_rank_process_says_so(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    with (
        serving(tmp_path_factory.mktemp("r") / "run") as daemon,
        ExitStack() as stack,
    ):
        ranks = [
            RankProcess(address=daemon.address, group=name, tp=2, rank=rank) for rank in range(2)
        ]
        for one in ranks:
            stack.callback(one.end)
        run(ranks)

        daemon.signal(signal.SIGKILL)
        daemon.wait()

        for one in ranks:
            assert one.process.wait(DEADLINE_S) != 0
        wait_until("nothing is kept", lambda: not keepers_of_memory(f"kvd-{name}."))


def state_of(daemon: DaemonProcess, group: str) -> tuple[str, list[str]]:
    """Return what a group does and which ranks it waits for."""
    found = [one for one in daemon.stats()["groups"] if one["name"] == group]
    return (found[0]["state"], found[0]["waiting_for"]) if found else ("", [])
