"""The daemon as a process: readiness, locks, paths, limits."""

import json
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from urllib.request import urlopen

import pytest

from kvd_client.errors import AttachError
from kvd_proto.errors import ErrorCode
from tests.e2e.daemon_process import (
    DaemonProcess,
    errors_of,
    run_kvd,
    serving,
    wait_until,
)
from tests.e2e.ranks import Ranks, admit

Start = Callable[..., DaemonProcess]

pytestmark = pytest.mark.slow

STAYING_S = 0.5
"""How long a count does not change that is taken to be that of a daemon at rest."""


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


@pytest.mark.case("109")
def test_health_says_that_the_loop_is_alive(daemon: DaemonProcess) -> None:
    assert daemon.health()["ok"] is True


def test_neither_torch_nor_cupy_is_loaded(daemon: DaemonProcess) -> None:
    mapped = Path(f"/proc/{daemon.pid}/maps").read_text()

    assert "numpy" in mapped
    assert re.search(r"-packages/(torch|cupy|cuda)/", mapped) is None


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


@pytest.mark.parametrize("mode", [0o770, 0o707])
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


@pytest.mark.parametrize(
    ("suffix", "kind"), [("", "file"), (".fd", "directory"), (".stats", "link")]
)
def test_what_is_no_socket_is_never_removed(folder: Path, suffix: str, kind: str) -> None:
    folder.mkdir(mode=0o700)
    path = folder / f"kvd.sock{suffix}"
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/nowhere")

    done = run_kvd("serve", "--runtime-dir", str(folder))

    assert done.returncode != 0
    assert errors_of(done.stderr) == [
        f"error: {path} is there already and is no socket; remove it or choose another --socket"
    ]
    assert list(folder.iterdir()) == [path]


def test_a_socket_in_a_folder_that_is_missing_is_refused(folder: Path) -> None:
    path = folder / "none" / "kvd.sock"

    done = run_kvd("serve", "--runtime-dir", str(folder), "--socket", str(path))

    assert done.returncode != 0
    assert errors_of(done.stderr) == [
        f"error: cannot open lock {path}.lock: No such file or directory; the folder of --socket "
        f"must exist"
    ]


def test_sockets_of_a_daemon_that_was_killed_are_replaced(folder: Path) -> None:
    with serving(folder) as daemon:
        daemon.signal(signal.SIGKILL)
        daemon.wait()
    assert len(list(folder.iterdir())) == 4

    with serving(folder) as daemon:
        assert daemon.health()["ok"]
        assert daemon.stop() == 0
    assert list(folder.iterdir()) == []


def test_metrics_are_served_over_http_and_a_port_in_use_is_named(folder: Path) -> None:
    port = free_port()
    with serving(folder, "--metrics-port", str(port)) as daemon:
        with Ranks(daemon.address, "metered") as ranks:
            ranks.attach()
            daemon.fresh_stats()
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text = answer.read().decode()

        other = folder.with_name("other")
        done = run_kvd("serve", "--runtime-dir", str(other), "--metrics-port", str(port))

    assert "kvd_loop_healthy 1.0" in text
    assert re.search(r'kvd_arena_bytes\{group="metered",stage="0"\} \d', text)
    assert done.returncode != 0
    assert f"127.0.0.1:{port}" in errors_of(done.stderr)[0]
    assert list(other.iterdir()) == []


def test_a_daemon_that_spins_serves_like_one_that_sleeps(start: Start) -> None:
    daemon = start("--busy-poll-us", "200")
    with Ranks(daemon.address, "g") as ranks:
        client = ranks.attach()
        for request in range(1, 30):
            admit(client, [request], tokens=1)
            with client.batch() as batch:
                batch.free([request])
            client.ping()

    assert daemon.stop() == 0


def test_ranks_that_come_and_go_leave_no_descriptor_behind(start: Start) -> None:
    daemon = start()
    (holder,) = daemon.holder_pids

    def come_and_go(count: int) -> None:
        with Ranks(daemon.address, "g") as ranks:
            for _ in range(count):
                for client in ranks.attach_all(2):
                    client.close()
            wait_until("the group is gone", lambda: daemon.group("g") is None)

    def at_rest() -> tuple[int, int]:
        """Return the counts once they stay: what asked for the groups last is closed later."""
        counts, since_s = (0, 0), 0.0

        def stay() -> bool:
            nonlocal counts, since_s
            found = descriptors_of(daemon.pid), descriptors_of(holder)
            if found != counts:
                counts, since_s = found, time.monotonic()
            return time.monotonic() - since_s >= STAYING_S

        wait_until("the counts of descriptors stay", stay)
        return counts

    come_and_go(3)
    before = at_rest()
    come_and_go(20)

    assert at_rest() == before


def test_a_crowd_is_turned_away_before_descriptors_run_out(folder: Path) -> None:
    with serving(folder, files_max=164) as daemon, ExitStack() as stack:
        clients = [stack.enter_context(Ranks(daemon.address, f"g{n}")).attach() for n in range(20)]

        with Ranks(daemon.address, "late") as late, pytest.raises(AttachError) as full:
            late.attach()
        assert full.value.code is ErrorCode.BUSY
        assert full.value.retry
        assert full.value.message == (
            "20 clients are connected, which is the most that the daemon's limit of open files "
            "allows"
        )
        assert descriptors_of(daemon.pid) < 164
        clients[0].close()
        wait_until("there is room again", lambda: len(daemon.stats()["sessions"]) == 19)
        with Ranks(daemon.address, "late") as late:
            admit(late.attach(), [1])
        clients[1].ping()


def test_a_limit_of_open_files_too_low_for_one_client_is_refused(folder: Path) -> None:
    daemon = DaemonProcess(folder, files_max=68)
    try:
        assert daemon.wait() != 0
    finally:
        daemon.close()

    assert "error: 68 open files are allowed, too few for a daemon with one client: 69 are" in (
        daemon.log()
    )


def test_a_caller_that_cannot_be_accepted_does_not_keep_the_daemon_awake(start: Start) -> None:
    daemon = start()
    _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (descriptors_of(daemon.pid), hard))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.connect(f"{daemon.socket_path}.fd")
        wait_until("accepting failed", lambda: "event=accept_failed" in daemon.log())
        began = monotonic()
        wait_until("it failed again", lambda: daemon.log().count("event=accept_failed") >= 4)
        assert monotonic() - began > 0.2
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (hard, hard))
        caller.settimeout(20)
        assert caller.recv(1000)


def test_only_this_user_may_reach_the_sockets(daemon: DaemonProcess) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in daemon.folder.iterdir()}

    assert sorted(modes) == ["kvd.sock", "kvd.sock.fd", "kvd.sock.lock", "kvd.sock.stats"]
    assert [name for name, mode in modes.items() if mode & 0o077] == []


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


def descriptors_of(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def free_port() -> int:
    """Return a TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
