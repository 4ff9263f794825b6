"""The daemon as a process: readiness, locks, paths, signals, and what it leaves behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from kvd_client.errors import EndedError, UnreachableError
from tests.e2e.daemon_process import (
    DaemonProcess,
    children_of,
    command,
    environment,
    keepers_of_memory,
    run_kvd,
    serving,
    wait_ended,
    wait_until,
)
from tests.e2e.ranks import Ranks, admit

Start = Callable[..., DaemonProcess]

pytestmark = pytest.mark.slow


def test_the_ready_line_says_where_to_connect(daemon: DaemonProcess) -> None:
    assert daemon.ready_line == (
        f"kvd serve: ready socket={daemon.address} device=host pid={daemon.pid}\n"
    )


def test_stats_as_json_come_from_the_running_daemon(daemon: DaemonProcess) -> None:
    done = run_kvd("stats", "--json", "--runtime-dir", str(daemon.folder))

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "kvd.stats/1"
    assert document["daemon"]["pid"] == daemon.pid


def test_health_says_that_the_loop_is_alive(daemon: DaemonProcess) -> None:
    assert daemon.health()["ok"] is True


def test_neither_torch_nor_cupy_is_loaded(daemon: DaemonProcess) -> None:
    mapped = Path(f"/proc/{daemon.pid}/maps").read_text()

    assert "numpy" in mapped
    assert re.search(r"/(torch|cupy|cuda)/", mapped) is None


def test_a_second_daemon_on_the_same_socket_gives_up_and_the_first_lives_on(
    daemon: DaemonProcess, ranks: Ranks
) -> None:
    client = ranks.attach()

    done = run_kvd("serve", "--runtime-dir", str(daemon.folder))

    assert done.returncode != 0
    assert done.stdout == ""
    assert errors_of(done.stderr) == [
        f"error: another daemon (process {daemon.pid}) serves this path: "
        f"{daemon.socket_path}.lock is locked; stop it or choose another --socket"
    ]
    client.ping()
    ranks.attach_all(1, changes=[{"group": ranks.group + "b"}])


def test_a_socket_path_that_is_too_long_is_refused_with_its_length(folder: Path) -> None:
    path = folder / ("long" * 30)

    done = run_kvd("serve", "--runtime-dir", str(folder), "--socket", str(path))

    assert done.returncode != 0
    (error,) = errors_of(done.stderr)
    assert str(path) in error
    assert "107" in error


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_runtime_directory_that_others_may_write_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)

    done = run_kvd("serve", "--runtime-dir", str(folder))

    assert done.returncode != 0
    assert errors_of(done.stderr) == [
        f"error: runtime directory {folder} is writable by others (mode {mode:04o}); "
        f"it must be 0700"
    ]
    assert list(folder.iterdir()) == []


def test_a_runtime_directory_that_is_a_file_is_refused(folder: Path) -> None:
    folder.write_text("not a directory")

    done = run_kvd("serve", "--runtime-dir", str(folder))

    assert done.returncode != 0
    (error,) = errors_of(done.stderr)
    assert str(folder) in error


def test_only_this_user_may_reach_the_sockets(daemon: DaemonProcess) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in daemon.folder.iterdir()}

    assert sorted(modes) == ["kvd.sock", "kvd.sock.fd", "kvd.sock.lock", "kvd.sock.stats"]
    assert [name for name, mode in modes.items() if mode & 0o077] == []


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


def test_a_session_of_the_last_daemon_means_nothing_to_the_next(folder: Path, group: str) -> None:
    with serving(folder) as daemon, Ranks(daemon.address, group) as ranks:
        client = ranks.attach()
        daemon.signal(signal.SIGKILL)
        daemon.wait()

        with serving(folder) as later, pytest.raises((EndedError, UnreachableError)):
            client.ping()
        assert later.log().count("event=hello") == 0


def test_readiness_and_the_end_are_told_to_the_service_manager(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = str(folder.with_name("notify"))
        manager.bind(address)
        manager.settimeout(20)

        with serving(folder, extra={"NOTIFY_SOCKET": address}) as daemon:
            assert manager.recv(1000).decode().splitlines()[0] == "READY=1"
            daemon.signal(signal.SIGTERM)
            assert manager.recv(1000).decode() == "STOPPING=1"
            assert daemon.wait() == 0


def test_a_service_manager_that_is_gone_is_named_and_nothing_is_called_ready(folder: Path) -> None:
    gone = str(folder.with_name("nobody"))

    done = run_kvd("serve", "--runtime-dir", str(folder), extra={"NOTIFY_SOCKET": gone})

    assert done.returncode != 0
    assert gone in errors_of(done.stderr)[0]
    assert done.stdout == ""
    assert not folder.exists() or list(folder.iterdir()) == []


def test_memory_in_an_external_holder_is_given_back_when_ranks_leave(
    folder: Path, group: str
) -> None:
    with holding(folder), serving(folder, "--holder", "external") as daemon:
        assert children_of(daemon.pid) == []
        with Ranks(daemon.address, group) as ranks:
            admit(ranks.attach(), [1])
            assert keepers_of_memory(f"kvd-{group}.1.0.0-arena")

        wait_until("the memory is gone", lambda: not keepers_of_memory(f"kvd-{group}."))


def test_an_external_holder_outlives_the_daemon_which_then_starts_cold(
    folder: Path, group: str
) -> None:
    group = f"{group}-{os.getpid()}"
    with holding(folder) as holder:
        with serving(folder, "--holder", "external") as daemon:
            with Ranks(daemon.address, group) as ranks:
                ranks.attach()
                daemon.signal(signal.SIGKILL)
                daemon.wait()
            assert [one.split(":")[0] for one in keepers_of_memory(f"kvd-{group}.1.0.0-arena")] == [
                str(holder.pid)
            ]

        with serving(folder, "--holder", "external") as daemon:
            assert f"event=cold_start dropped={group}.1.0.0/arena" in daemon.log()
            assert keepers_of_memory(f"kvd-{group}.") == []


def test_a_missing_holder_is_named_with_its_path(folder: Path) -> None:
    done = run_kvd("serve", "--runtime-dir", str(folder), "--holder", "external")

    assert done.returncode != 0
    (error,) = errors_of(done.stderr)
    assert str(folder / "hold.sock") in error
    assert "kvd hold" in error


@contextmanager
def holding(folder: Path) -> Generator["subprocess.Popen[str]"]:
    """Run ``kvd hold`` in the folder of a daemon."""
    folder.mkdir(mode=0o700)
    arguments = command("hold", "--socket", str(folder / "hold.sock"))
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def errors_of(stderr: str) -> list[str]:
    """Return what a user reads as errors."""
    return [line for line in stderr.splitlines() if line.startswith(("error", "Error"))]


def test_optimized_python_is_refused_because_checks_would_be_gone(folder: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-O", "-c", "from kvd.cli.main import main; main()"),
            *("serve", "--runtime-dir", str(folder)),
        ],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )

    assert done.returncode != 0
    assert "without -O" in errors_of(done.stderr)[0]
