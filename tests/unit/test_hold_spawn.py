"""A holder that belongs to one daemon, and ``kvd hold`` as a process."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvd.hold.client import connect
from kvd.hold.message import HeldMemory
from kvd.hold.spawn import spawn_holder
from kvd_client.device.descriptors import create_memory, open_pidfd, socket_pair

DEADLINE_S = 30
HEAVY = ("zmq", "numpy", "torch", "cupy", "rich", "uvloop")

PARENT = """
import os, subprocess, sys, threading
holder = subprocess.Popen(
    [sys.executable, "-P", "-m", "kvd.hold.embedded", sys.argv[1], str(os.getpid())],
    pass_fds=[int(sys.argv[1])],
)
print(holder.pid, flush=True)
threading.Event().wait()
"""


class HoldProcess:
    """``kvd hold`` on a path, from its readiness line on."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from kvd.cli.main import main; main()",
                "hold",
                "--socket",
                str(path),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        assert ready
        self.line = self.process.stdout.readline()

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal and return the exit status and what stood on stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors


@pytest.fixture
def memory_fd() -> Iterator[int]:
    descriptor = create_memory("arena", 4096)
    os.pwrite(descriptor, b"kept", 0)
    yield descriptor
    os.close(descriptor)


def wait_for_end(pidfd: int) -> bool:
    """Return whether the process ended before the deadline."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(DEADLINE_S * 1000))


def test_a_spawned_holder_keeps_and_returns_memory(memory_fd: int) -> None:
    holder = spawn_holder()
    assert holder.process is not None
    assert holder.process.pid != os.getpid()

    holder.put("arena", memory_fd, 4096)
    copy = holder.get("arena")

    assert os.pread(copy, 4, 0) == b"kept"
    assert holder.held() == (HeldMemory("arena", 4096),)
    os.close(copy)
    holder.close()


def test_closing_the_client_ends_its_holder() -> None:
    holder = spawn_holder()

    holder.close()

    assert holder.process is not None
    assert holder.process.returncode == 0


def test_a_spawned_holder_is_out_of_reach_of_the_terminals_signals() -> None:
    holder = spawn_holder()
    assert holder.process is not None

    assert os.getsid(holder.process.pid) != os.getsid(0)
    holder.close()


def test_a_holder_dies_with_its_parent_even_if_its_socket_lives_on() -> None:
    here, there = socket_pair()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(there.fileno())],
        pass_fds=[there.fileno()],
        stdout=subprocess.PIPE,
        text=True,
    )
    there.close()
    assert parent.stdout is not None
    pidfd = open_pidfd(int(parent.stdout.readline()))

    parent.kill()
    parent.wait(DEADLINE_S)

    assert wait_for_end(pidfd)
    os.close(pidfd)
    parent.stdout.close()
    here.close()


def test_a_holder_whose_parent_is_gone_already_exits_at_once() -> None:
    here, there = socket_pair()
    orphan = subprocess.Popen(
        [sys.executable, "-P", "-m", "kvd.hold.embedded", str(there.fileno()), "1"],
        pass_fds=[there.fileno()],
    )

    assert orphan.wait(DEADLINE_S) == 0
    here.close()
    there.close()


@pytest.mark.parametrize("module", ["kvd.hold.embedded", "kvd.hold.server", "kvd.cli.hold"])
def test_the_holder_imports_nothing_heavy(module: str) -> None:
    listing = f"import sys, {module}; print(*[m for m in {HEAVY} if m in sys.modules])"

    found = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, timeout=DEADLINE_S
    )

    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == []


def test_kvd_hold_prints_one_line_and_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    path = tmp_path / "hold.sock"
    hold = HoldProcess(path)
    assert hold.line == f"kvd hold: ready socket={path} pid={hold.process.pid}\n"

    assert hold.end(signal.SIGTERM) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_kvd_hold_keeps_memory_between_two_daemons(tmp_path: Path, memory_fd: int) -> None:
    hold = HoldProcess(tmp_path / "hold.sock")
    first = connect(tmp_path / "hold.sock")
    first.put("arena", memory_fd, 4096)
    nonce = first.nonce()
    first.close()

    second = connect(tmp_path / "hold.sock")
    copy = second.get("arena")

    assert os.pread(copy, 4, 0) == b"kept"
    assert second.nonce() == nonce
    os.close(copy)
    second.close()
    status, errors = hold.end(signal.SIGINT)
    assert status == 0
    assert "1 descriptors" in errors


def test_kvd_hold_replaces_what_a_killed_one_left_and_keeps_nothing_of_it(
    tmp_path: Path, memory_fd: int
) -> None:
    path = tmp_path / "hold.sock"
    killed = HoldProcess(path)
    client = connect(path)
    client.put("arena", memory_fd, 4096)
    nonce = client.nonce()
    client.close()
    killed.end(signal.SIGKILL)
    assert path.exists()

    successor = HoldProcess(path)
    client = connect(path)

    assert client.held() == ()
    assert client.nonce() != nonce
    client.close()
    successor.end(signal.SIGTERM)


def test_a_second_kvd_hold_on_a_path_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "hold.sock"
    first = HoldProcess(path)

    second = HoldProcess(path)
    status, errors = second.end(signal.SIGTERM)

    assert second.line == ""
    assert status == 2
    assert errors == (f"error: another holder (pid {first.process.pid}) serves {path} already\n")
    assert first.end(signal.SIGTERM) == (0, "")
