"""The service manager as holder, against a socket that plays systemd."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvd.errors import ServeError
from kvd.hold.message import HeldMemory
from kvd.hold.systemd import (
    NONCE_NAME,
    DescriptorStore,
    notify_ready,
    notify_stopping,
    wait_until_read,
)
from kvd_client.device.descriptors import create_memory
from kvd_proto.errors import ErrorCode

DEADLINE_S = 30

RESTARTED = """
import os, sys
from kvd.hold.systemd import DescriptorStore
moved = [os.dup(int(fd)) for fd in sys.argv[3:]]
for index, fd in enumerate(moved):
    os.dup2(fd, 3 + index)
store = DescriptorStore(sys.argv[1], sys.argv[2].split(":"))
print(store.nonce().hex())
print(*[f"{held.name}={held.size_bytes}" for held in store.held()])
print(os.pread(store.get("g/0/0/arena"), 4, 0).decode())
print(os.get_inheritable(3))
"""


class FakeManager:
    """Plays the service manager: keeps descriptors by name and notes all other messages."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.kept: dict[str, int] = {}
        self.polled: list[str] = []
        self.notes: list[str] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            message, fds, _, _ = socket.recv_fds(self._sock, 4096, 4)
            lines = dict(line.split("=", 1) for line in message.decode().split("\n"))
            if "FDSTORE" in lines:
                (self.kept[lines["FDNAME"]],) = fds
                if lines.get("FDPOLL") != "0":
                    self.polled.append(lines["FDNAME"])
            elif "FDSTOREREMOVE" in lines:
                os.close(self.kept.pop(lines["FDNAME"]))
            elif "BARRIER" in lines:
                os.close(fds[0])
            elif "END" in lines:
                return
            else:
                self.notes.append(message.decode())

    def end(self) -> None:
        self._sock.connect(self._sock.getsockname())
        self._sock.send(b"END=1")
        self._thread.join(DEADLINE_S)
        self._sock.close()
        for descriptor in self.kept.values():
            os.close(descriptor)


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeManager]:
    address = str(tmp_path / "notify")
    if request.param == "abstract":
        address = f"@kvd-test-{os.getpid()}"
    manager = FakeManager(address)
    yield manager
    manager.end()


@pytest.fixture
def memory_fd() -> Iterator[int]:
    descriptor = create_memory("arena", 4096)
    os.pwrite(descriptor, b"kept", 0)
    yield descriptor
    os.close(descriptor)


def test_a_first_start_stores_a_nonce(manager: FakeManager) -> None:
    store = DescriptorStore(manager.address)

    assert os.pread(manager.kept[NONCE_NAME], 32, 0) == store.nonce()
    assert len(store.nonce()) == 32
    assert store.held() == ()
    store.close()


def test_put_hands_the_descriptor_to_the_manager_unpolled(
    manager: FakeManager, memory_fd: int
) -> None:
    store = DescriptorStore(manager.address)

    store.put("g/0/0/arena", memory_fd, 4096)

    assert os.pread(manager.kept["g/0/0/arena"], 4, 0) == b"kept"
    assert manager.polled == []
    assert store.held() == (HeldMemory("g/0/0/arena", 4096),)
    store.close()


def test_get_returns_a_descriptor_of_the_callers_own(manager: FakeManager, memory_fd: int) -> None:
    store = DescriptorStore(manager.address)
    store.put("arena", memory_fd, 4096)

    copy = store.get("arena")
    store.close()

    assert os.pread(copy, 4, 0) == b"kept"
    os.close(copy)


def test_drop_has_the_manager_forget_the_name(manager: FakeManager, memory_fd: int) -> None:
    store = DescriptorStore(manager.address)
    store.put("arena", memory_fd, 4096)

    store.drop("arena")
    wait_until_read(manager.address)

    assert list(manager.kept) == [NONCE_NAME]
    assert store.held() == ()
    store.close()


def test_a_name_in_use_is_refused_before_the_manager_hears_of_it(
    manager: FakeManager, memory_fd: int
) -> None:
    store = DescriptorStore(manager.address)
    store.put("arena", memory_fd, 4096)
    first = manager.kept["arena"]

    with pytest.raises(ServeError, match="kept already"):
        store.put("arena", memory_fd, 4096)
    with pytest.raises(ServeError, match="nonce's name"):
        store.put(NONCE_NAME, memory_fd, 4096)

    wait_until_read(manager.address)
    assert manager.kept["arena"] == first
    store.close()


def test_a_restart_finds_what_was_kept_and_the_same_nonce(
    manager: FakeManager, memory_fd: int
) -> None:
    store = DescriptorStore(manager.address)
    store.put("g/0/0/arena", memory_fd, 4096)
    names = sorted(manager.kept)
    fds = [manager.kept[name] for name in names]

    restarted = subprocess.run(
        [sys.executable, "-c", RESTARTED, manager.address, ":".join(names), *map(str, fds)],
        pass_fds=fds,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )

    assert restarted.returncode == 0, restarted.stderr
    assert restarted.stdout.split("\n")[:4] == [
        store.nonce().hex(),
        "g/0/0/arena=4096",
        "kept",
        "False",
    ]
    assert sorted(manager.kept) == names
    store.close()


def test_readiness_and_stopping_are_told(manager: FakeManager) -> None:
    notify_ready(manager.address)
    notify_ready(manager.address, status="serving")
    notify_stopping(manager.address)
    wait_until_read(manager.address)

    assert manager.notes == ["READY=1", "READY=1\nSTATUS=serving", "STOPPING=1"]


def test_a_manager_that_does_not_read_is_not_waited_for_longer_than_said(tmp_path: Path) -> None:
    address = str(tmp_path / "deaf")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(address)

        with pytest.raises(ServeError, match="within 20 ms") as late:
            wait_until_read(address, timeout_ms=20)

    assert late.value.code is ErrorCode.TIMED_OUT


@pytest.mark.parametrize("address", ["vsock:2:1234", "", "relative/path"])
def test_an_address_that_is_no_unix_socket_is_refused_by_value(address: str) -> None:
    with pytest.raises(ServeError, match="neither a path nor an abstract socket"):
        notify_ready(address)


def test_a_manager_that_is_not_there_is_an_error_with_its_address(
    tmp_path: Path, memory_fd: int
) -> None:
    address = str(tmp_path / "nobody")

    with pytest.raises(ServeError, match=address) as missing:
        DescriptorStore(address)

    assert missing.value.code is ErrorCode.UNREACHABLE


def test_a_descriptor_the_manager_did_not_get_is_not_listed(tmp_path: Path, memory_fd: int) -> None:
    manager = FakeManager(str(tmp_path / "notify"))
    store = DescriptorStore(manager.address)
    manager.end()

    with pytest.raises(ServeError):
        store.put("arena", memory_fd, 4096)

    assert store.held() == ()
    store.close()
