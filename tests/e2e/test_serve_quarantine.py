"""Memory that is not quiet is set aside, with a reason, and freed on proof; processes of a rank."""

import subprocess
import sys
from collections.abc import Iterator
from os import getpid

import pytest

from kvd_client import Client
from kvd_client.companion import Companion
from kvd_client.errors import AttachError, FencedError, RankLostError
from kvd_proto.errors import ErrorCode
from tests.e2e.daemon_process import (
    DaemonProcess,
    environment,
    keepers_of_memory,
    run_kvd,
    serving,
    wait_until,
)
from tests.e2e.ranks import DEADLINE_MS, Ranks, admit
from tests.e2e.test_serve_death import RankProcess

pytestmark = pytest.mark.slow

SETTINGS = (
    *("--quiet-wait-ms", "1000"),
    *("--group-wait-ms", "1200"),
    *("--check-level", "strict"),
)
COMPANION = """
import sys
from kvd_client.companion import Companion
companion = Companion(sys.argv[1], token=int(sys.argv[2]), deadline_ms=10_000)
print(sorted(companion.memory), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with serving(tmp_path_factory.mktemp("r") / "run", *SETTINGS) as running:
        yield running
        assert running.lives()
        assert "internal_error" not in running.log()


@pytest.fixture
def name(group: str) -> str:
    """Return a group's name whose memory no other test run on this host has."""
    return f"{group}-{getpid()}"


def end(client: Client) -> None:
    """End the incarnation and keep everything that the client has mapped."""
    client.run(client.session.say_bye())


def release(daemon: DaemonProcess, rank: str, evidence: str) -> "subprocess.CompletedProcess[str]":
    return run_kvd(
        *("release-quarantine", rank, "--i-have-proof", evidence),
        *("--runtime-dir", str(daemon.folder)),
    )


@pytest.mark.case("110")
def test_memory_that_stays_in_use_is_set_aside_and_given_back_on_proof_alone(
    daemon: DaemonProcess, name: str
) -> None:
    with Ranks(daemon.address, name) as ranks:
        old = ranks.attach()
        who = f"stage 0 rank 0 (process {getpid()})"
        why = f"{who}: process {getpid()} lives and keeps its mapping"
        end(old)

        # Nobody waits for ever: whoever comes next is told who is in the way, and why.
        with pytest.raises(AttachError) as busy:
            ranks.attach()
        assert busy.value.code is ErrorCode.BUSY
        assert busy.value.retry
        assert why in busy.value.message
        group = daemon.group(name)
        assert group is not None
        (item,) = group["quarantined"]
        assert item | {"age_s": 0} == {
            "stage": 0,
            "rank": 0,
            "who": who,
            "reason": f"process {getpid()} lives and keeps its mapping",
            "age_s": 0,
            "arena_bytes": group["quarantined_bytes"],
        }
        assert group["quarantined_bytes"] == old.memory.size_bytes
        (problem,) = daemon.health()["problems"]
        assert problem.startswith(f"{group['quarantined_bytes']} bytes of group {name} are in")
        assert problem.endswith(why)

        refused = release(daemon, f"{name}/1", "it is another")
        assert refused.returncode == 2
        assert "stage 0 rank 1" in refused.stderr
        assert "is not in quarantine" in refused.stderr
        assert daemon.group(name) is not None
        ran = release(daemon, f"{name}/0", "its process is this very test")
        assert ran.returncode == 0, ran.stderr

        admit(ranks.attach(), [1])
        told = f"event=quarantine_overruled group={name} rank='{who}' by_process="
        (line,) = [line for line in daemon.log().splitlines() if told in line]
        assert "evidence='its process is this very test'" in line
        wait_until("nothing is wrong any more", lambda: daemon.health()["problems"] == [])


def test_a_further_process_keeps_the_memory_of_a_killed_rank_from_being_used(
    daemon: DaemonProcess, name: str
) -> None:
    rank = RankProcess(address=daemon.address, group=name, tp=1, rank=0)
    try:
        token = rank.read("attached")["token"]
        rank.read("running")
        companion = Companion(daemon.address, token=token, deadline_ms=DEADLINE_MS)

        rank.kill()

        wait_until("the group leaves", lambda: (daemon.group(name) or {})["state"] == "leaving")
        assert daemon.health()["problems"] == [
            f"memory of group {name} is still in use by stage 0 rank 0 (process {rank.pid}): "
            f"process {getpid()} lives and keeps its mapping"
        ]
        companion.close()
        wait_until("the group is forgotten", lambda: daemon.group(name) is None)
        assert keepers_of_memory(f"kvd-{name}.") == []
    finally:
        rank.end()


def test_a_further_process_may_leave_but_not_die(daemon: DaemonProcess, name: str) -> None:
    with Ranks(daemon.address, name) as ranks:
        client = ranks.attach()
        token = client.welcome.token
        with Companion(daemon.address, token=token, deadline_ms=DEADLINE_MS) as companion:
            assert sorted(companion.memory) == ["arena", "fence"]
        client.ping()
        other = subprocess.Popen(
            (sys.executable, "-c", COMPANION, daemon.address, str(token)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        assert other.stdout is not None
        assert other.stdin is not None
        with other.stdin, other.stdout:
            assert other.stdout.readline() == b"['arena', 'fence']\n"
            client.ping()

            other.kill()
            other.wait()

        with pytest.raises(RankLostError, match=rf"process {other.pid} .*a process beside its own"):
            until_lost(client)
        with pytest.raises(FencedError, match="while its incarnation runs"):
            Companion(daemon.address, token=token, deadline_ms=DEADLINE_MS)


def test_nobody_is_given_memory_of_a_rank_that_is_not_his(daemon: DaemonProcess, name: str) -> None:
    with Ranks(daemon.address, name) as ranks:
        token = ranks.attach().welcome.token

        with pytest.raises(FencedError, match="to a welcomed session"):
            Companion(daemon.address, token=token + 2, deadline_ms=DEADLINE_MS)

        companion = Companion(daemon.address, token=token, deadline_ms=DEADLINE_MS)
        companion.close()
        companion.close()  # harmless


def until_lost(client: Client) -> None:
    """Ask until the daemon has noticed."""
    while True:
        client.ping()
