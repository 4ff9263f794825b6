"""Descriptors: memory without a name, messages with descriptors, and who is at the other end."""

import fcntl
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kvd_client.device import descriptors
from kvd_client.errors import DeviceError
from kvd_proto.errors import ErrorCode, FrameError

DEADLINE_S = 30

CREATE_SEND_DIE = """
import mmap, os, signal, socket
from kvd_client.device.descriptors import create_memory, send_message
sock = socket.socket(fileno=int(os.sys.argv[1]))
fd = create_memory("arena", 8192)
mmap.mmap(fd, 8192)[5000:5004] = b"kept"
send_message(sock, b"arena", [fd])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = descriptors.socket_pair()
    ends[0].settimeout(DEADLINE_S)
    ends[1].settimeout(DEADLINE_S)
    yield ends
    ends[0].close()
    ends[1].close()


@pytest.fixture
def memory_fd() -> Iterator[int]:
    fd = descriptors.create_memory("arena", 4096)
    yield fd
    os.close(fd)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.case("126")
def test_memory_has_its_size_and_no_name(memory_fd: int) -> None:
    status = os.fstat(memory_fd)

    assert status.st_size == 4096
    assert status.st_nlink == 0
    assert not os.get_inheritable(memory_fd)


def test_memory_cannot_change_its_size(memory_fd: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(memory_fd, 8192)
    with pytest.raises(PermissionError):
        os.ftruncate(memory_fd, 0)
    assert fcntl.fcntl(memory_fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL


@pytest.mark.parametrize("size_bytes", [0, -1, 1 << 70])
def test_memory_of_an_impossible_size_is_refused_with_the_size(size_bytes: int) -> None:
    before = open_descriptors()

    with pytest.raises(DeviceError, match=str(size_bytes)):
        descriptors.create_memory("arena", size_bytes)

    assert open_descriptors() == before


@pytest.mark.case("135")
def test_memory_outlives_a_killed_creator_in_the_descriptor_it_sent(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    child = subprocess.Popen(
        [sys.executable, "-c", CREATE_SEND_DIE, str(there.fileno())], pass_fds=[there.fileno()]
    )
    payload, fds = descriptors.receive_message(here, fds_max=1)

    assert child.wait(DEADLINE_S) == -signal.SIGKILL
    assert payload == b"arena"
    assert not os.get_inheritable(fds[0])
    with mmap.mmap(fds[0], 8192) as mapping:
        assert mapping[5000:5004] == b"kept"
    assert os.fstat(fds[0]).st_nlink == 0
    os.close(fds[0])


def test_two_descriptors_arrive_in_order(
    pair: tuple[socket.socket, socket.socket], memory_fd: int
) -> None:
    page_fd = descriptors.create_memory("fence", 128)
    descriptors.send_message(pair[0], b"both", [memory_fd, page_fd])

    payload, fds = descriptors.receive_message(pair[1], fds_max=2)

    assert payload == b"both"
    assert [os.fstat(fd).st_size for fd in fds] == [4096, 128]
    descriptors.close_all([*fds, page_fd])


def test_messages_keep_their_borders(pair: tuple[socket.socket, socket.socket]) -> None:
    descriptors.send_message(pair[0], b"one")
    descriptors.send_message(pair[0], b"two")

    assert descriptors.receive_message(pair[1], 0) == (b"one", [])
    assert descriptors.receive_message(pair[1], 0) == (b"two", [])


def test_a_closed_peer_reads_as_an_empty_message(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    pair[0].close()

    assert descriptors.receive_message(pair[1], 1) == (b"", [])


@pytest.mark.parametrize(("sent", "allowed"), [(1, 0), (2, 1), (9, 2)])
def test_more_descriptors_than_expected_are_refused_and_closed(
    pair: tuple[socket.socket, socket.socket], memory_fd: int, sent: int, allowed: int
) -> None:
    descriptors.send_message(pair[0], b"x", [memory_fd] * sent)
    before = open_descriptors()

    with pytest.raises(FrameError, match=f"than the {allowed} expected"):
        descriptors.receive_message(pair[1], allowed)

    assert open_descriptors() == before


def test_a_message_over_the_cap_is_refused_when_sent_and_when_received(
    pair: tuple[socket.socket, socket.socket], memory_fd: int
) -> None:
    too_long = bytes(descriptors.MESSAGE_BYTES_MAX + 1)
    with pytest.raises(FrameError, match="65537 bytes") as refused:
        descriptors.send_message(pair[0], too_long)
    assert refused.value.code is ErrorCode.FRAME_TOO_LARGE

    socket.send_fds(pair[0], [too_long], [memory_fd])
    before = open_descriptors()
    with pytest.raises(FrameError, match="over the cap"):
        descriptors.receive_message(pair[1], 1)
    assert open_descriptors() == before


def test_an_empty_message_cannot_be_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(FrameError, match="empty"):
        descriptors.send_message(pair[0], b"")


def test_credentials_name_this_process_on_a_pair(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert descriptors.peer_credentials(pair[0]) == (os.getpid(), os.getuid(), os.getgid())


def test_a_pidfd_tells_when_its_process_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = descriptors.open_pidfd(child.pid)

    assert not descriptors.process_ended(pidfd)
    child.kill()
    child.communicate(timeout=DEADLINE_S)
    assert descriptors.process_ended(pidfd)
    os.close(pidfd)


def test_a_pidfd_of_nobody_is_an_error_with_the_pid() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(DEADLINE_S)

    with pytest.raises(DeviceError, match=str(child.pid)):
        descriptors.open_pidfd(child.pid)


def test_the_peers_pidfd_is_that_of_this_process(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    pidfd = descriptors.open_peer_pidfd(pair[0])

    assert not descriptors.process_ended(pidfd)
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as listing:
        assert f"Pid:\t{os.getpid()}\n" in listing.read()
    os.close(pidfd)
