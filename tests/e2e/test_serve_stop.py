"""How a daemon ends, by a signal or by force, and what is left behind."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from kvd_client.errors import EndedError, UnreachableError
from tests.e2e.daemon_process import (
    DaemonProcess,
    children_of,
    keepers_of_memory,
    serving,
    wait_ended,
    wait_until,
)
from tests.e2e.ranks import Ranks, admit

Start = Callable[..., DaemonProcess]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_daemon_and_leaves_nothing(start: Start, number: signal.Signals) -> None:
    daemon = start()
    (holder,) = children_of(daemon.pid)

    daemon.signal(number)

    assert daemon.wait() == 0
    assert list(daemon.folder.iterdir()) == []
    wait_ended(holder)
    assert "event=stopped" in daemon.log()


def test_a_stop_ends_idle_incarnations_at_once_and_tells_their_ranks(start: Start) -> None:
    daemon = start("--drain-wait-ms", "60000")
    with Ranks(daemon.address, "g") as ranks:
        client = ranks.attach()
        admit(client, [1])
        with client.batch() as batch:
            batch.idle()

        daemon.signal(signal.SIGTERM)

        wait_until("the incarnation has ended", lambda: "incarnation_end" in daemon.log())
        with pytest.raises(EndedError, match="the daemon is stopping"):
            client.ping()
        client.close()
        assert daemon.wait() == 0


def test_a_stop_waits_for_the_next_gate_of_a_busy_incarnation(start: Start) -> None:
    daemon = start("--drain-wait-ms", "60000")
    with Ranks(daemon.address, "g") as ranks:
        client = ranks.attach()
        admit(client, [1])

        daemon.signal(signal.SIGTERM)
        wait_until("the daemon drains", lambda: "event=draining running=1" in daemon.log())
        assert daemon.stats()["daemon"]["pid"] == daemon.pid
        with client.batch() as batch:
            batch.advance([1], 8)

        with pytest.raises(EndedError, match="the daemon is stopping"):
            client.ping()
        client.close()
        assert daemon.wait() == 0


def test_a_stop_does_not_wait_longer_than_it_was_told_to(start: Start) -> None:
    daemon = start("--drain-wait-ms", "100")
    with Ranks(daemon.address, "g") as ranks:
        client = ranks.attach()
        admit(client, [1])

        assert daemon.stop() == 0

        with pytest.raises((EndedError, UnreachableError)):
            client.ping()


def test_a_second_signal_stops_at_once(start: Start) -> None:
    daemon = start("--drain-wait-ms", "3600000")
    with Ranks(daemon.address, "g") as ranks:
        admit(ranks.attach(), [1])
        daemon.signal(signal.SIGTERM)
        wait_until("the daemon drains", lambda: "event=draining" in daemon.log())

        assert daemon.stop() == 0


def test_a_draining_daemon_takes_no_new_ranks(start: Start) -> None:
    daemon = start("--drain-wait-ms", "3600000")
    with Ranks(daemon.address, "g") as ranks:
        admit(ranks.attach(), [1])
        daemon.signal(signal.SIGTERM)
        wait_until("the daemon drains", lambda: "event=draining" in daemon.log())

        with Ranks(daemon.address, "h") as late, pytest.raises(Exception, match="is stopping"):
            late.attach()


@pytest.mark.case("126")
def test_after_sigkill_nothing_keeps_memory_and_the_next_daemon_starts(
    folder: Path, group: str
) -> None:
    group = f"{group}-{os.getpid()}"
    with serving(folder) as daemon, Ranks(daemon.address, group) as ranks:
        client = ranks.attach()
        admit(client, [1])
        (holder,) = children_of(daemon.pid)
        assert keepers_of_memory(f"kvd-{group}.1.0.0-arena")

        daemon.signal(signal.SIGKILL)
        daemon.wait()
        wait_ended(holder)
        began = monotonic()
        with pytest.raises(UnreachableError, match=re.escape(str(daemon.socket_path))):
            client.ping()
        assert monotonic() - began < 5
        client.close()
        assert keepers_of_memory(f"kvd-{group}") == []

    with serving(folder) as daemon, Ranks(daemon.address, group) as ranks:
        admit(ranks.attach(), [1])


def test_a_client_that_waits_while_the_daemon_is_killed_is_not_left_hanging(
    folder: Path, group: str
) -> None:
    with serving(folder) as daemon, Ranks(daemon.address, group) as ranks:
        waiting = ranks.start(ranks.attach, 0, tp=2)
        wait_until("the rank waits", lambda: "event=hello" in daemon.log())

        daemon.signal(signal.SIGKILL)

        with pytest.raises(UnreachableError, match="hung up"):
            waiting.result(5)


@pytest.mark.case("125")
def test_a_session_of_the_last_daemon_means_nothing_to_the_next(folder: Path, group: str) -> None:
    with serving(folder) as daemon, Ranks(daemon.address, group) as ranks:
        client = ranks.attach()
        daemon.signal(signal.SIGKILL)
        daemon.wait()

        with serving(folder) as later, pytest.raises((EndedError, UnreachableError)):
            client.ping()
        assert later.log().count("event=hello") == 0


def test_a_daemon_whose_log_nobody_reads_serves_and_stops(folder: Path) -> None:
    command = [sys.executable, "-c", "from kvd.cli.main import main; main()", "serve"]
    daemon = subprocess.Popen(
        [*command, "--runtime-dir", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        assert b"ready" in daemon.stdout.readline()
        daemon.stderr.close()
        for _ in range(3):
            with Ranks(f"ipc://{folder / 'kvd.sock'}", "g") as ranks:
                ranks.attach()
        daemon.terminate()
        assert daemon.wait(30) == 0
    finally:
        daemon.kill()
        daemon.wait()
        if daemon.stdout is not None:
            daemon.stdout.close()
