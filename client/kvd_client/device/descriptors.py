"""Memory without a name: creating it, and passing its descriptors between processes.

An arena is a file descriptor. Whoever holds one keeps the memory and its contents alive; when the
last holder ends, however it ends, the memory is gone and nothing is left in any file system.
Descriptors travel over a Unix socket whose messages keep their borders (SEQPACKET); the kernel
vouches for who is at the other end.

Standard library only: daemon, holder and clients use this module alike.
"""

import array
import fcntl
import os
import select
import socket
import stat
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from kvd_client.errors import DeviceError
from kvd_proto.errors import ErrorCode, FrameError

MESSAGE_BYTES_MAX: Final = 65_536
"""Longest message on a descriptor socket; they carry a few names and numbers."""
MESSAGE_DESCRIPTORS_MAX: Final = 253
"""Most descriptors the kernel passes with one message."""

_INT_BYTES: Final = array.array("i").itemsize
_CREDENTIALS: Final = struct.Struct("3i")
_SO_PEERPIDFD: Final = 77
"""Linux 6.5: the pidfd of the process that connected, free of any race with pid reuse."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class PeerCredentials(NamedTuple):
    """Who is at the other end of a Unix socket, as the kernel knows it."""

    pid: int
    uid: int
    gid: int


def create_memory(name: str, size_bytes: int) -> int:
    """Create zeroed memory of a fixed size and return its descriptor; raises DeviceError.

    The memory has no path: ``name`` shows up in ``/proc`` only. It is sealed against growing and
    shrinking, so that no holder can make another's mapping fault. Pages come into being when they
    are first touched.
    """
    if size_bytes <= 0:
        raise DeviceError(f"memory {name!r} needs a positive size, not {size_bytes} bytes")
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (OSError, ValueError) as error:
        raise DeviceError(f"cannot create memory {name!r}: {error}") from error
    try:
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except (OSError, OverflowError) as error:
        os.close(descriptor)
        raise DeviceError(f"cannot give memory {name!r} its {size_bytes} bytes: {error}") from error
    return descriptor


def send_message(sock: socket.socket, payload: bytes, fds: Sequence[int] = ()) -> None:
    """Send one message with descriptors, which stay open here as well.

    Raises FrameError for a payload that is empty (an empty message reads as the peer's end) or too
    long, and for too many descriptors; OSError comes through as it is.
    """
    if not payload:
        raise FrameError("a message on a descriptor socket cannot be empty")
    if len(payload) > MESSAGE_BYTES_MAX:
        raise FrameError(
            f"message of {len(payload)} bytes is over the cap of {MESSAGE_BYTES_MAX} bytes",
            code=ErrorCode.FRAME_TOO_LARGE,
        )
    if len(fds) > MESSAGE_DESCRIPTORS_MAX:
        raise FrameError(
            f"{len(fds)} descriptors are over the cap of {MESSAGE_DESCRIPTORS_MAX} per message"
        )
    socket.send_fds(sock, [payload], list(fds))


def receive_message(sock: socket.socket, fds_max: int) -> tuple[bytes, list[int]]:
    """Receive one message and its descriptors, which are the caller's to close.

    Returns ``(b"", [])`` when the peer has closed its end. Raises FrameError for a message that is
    too long or brings more than ``fds_max`` descriptors; none of them stays open then. OSError (a
    time-out among them) comes through as it is.
    """
    assert 0 <= fds_max <= MESSAGE_DESCRIPTORS_MAX
    # Room for one more than allowed: the kernel then shows the excess instead of hiding it.
    ancillary_bytes = socket.CMSG_SPACE((fds_max + 1) * _INT_BYTES)
    payload, ancillary, flags, _ = sock.recvmsg(
        MESSAGE_BYTES_MAX, ancillary_bytes, socket.MSG_CMSG_CLOEXEC
    )
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % _INT_BYTES])
    problem = ""
    if flags & socket.MSG_TRUNC:
        problem = f"a message over the cap of {MESSAGE_BYTES_MAX} bytes arrived"
    elif flags & socket.MSG_CTRUNC or len(descriptors) > fds_max:
        problem = f"a message brought more descriptors than the {fds_max} expected"
    elif descriptors and not payload:
        problem = "a message brought descriptors but not a byte that says what they are"
    if problem:
        close_all(descriptors)
        raise FrameError(problem)
    return payload, list(descriptors)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that nobody wants."""
    for descriptor in descriptors:
        os.close(descriptor)


def peer_credentials(sock: socket.socket) -> PeerCredentials:
    """Return pid, uid and gid of the process that connected or, on a pair, created the socket."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return PeerCredentials(*_CREDENTIALS.unpack(raw))


def open_pidfd(pid: int) -> int:
    """Return a descriptor of a process that becomes readable at its end; raises DeviceError.

    Only sound while something else keeps the pid from being reused; prefer `open_peer_pidfd`.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        raise DeviceError(f"cannot watch process {pid}: {error}") from error


def open_peer_pidfd(sock: socket.socket) -> int:
    """Return a pidfd of the peer; raises DeviceError when the peer is gone already.

    Kernels before 6.5 cannot give it directly; there it is opened by pid while the peer's end of
    the socket is checked to be open still, so that the pid cannot be a later process's.
    """
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _INT_BYTES)
    except OSError:
        descriptor = open_pidfd(peer_credentials(sock).pid)
        if _peer_hung_up(sock):
            os.close(descriptor)
            raise DeviceError("the peer ended while its pidfd was opened") from None
        return descriptor
    return int.from_bytes(raw, "little")


def process_ended(pidfd: int) -> bool:
    """Return whether the process behind a pidfd has ended. It does not mean its GPU is quiet."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _peer_hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))


def descriptor_size(descriptor: int) -> int:
    """Return the bytes behind a descriptor; raises DeviceError if it is none of ours."""
    try:
        return os.fstat(descriptor).st_size
    except OSError as error:
        raise DeviceError(f"descriptor {descriptor} cannot be read: {error}") from error


def is_host_memory(descriptor: int) -> bool:
    """Return whether a descriptor is memory of the host, whose size and identity can be read.

    False for memory of a GPU, which is a file of the driver's, and for what is closed.
    """
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a descriptor socket without a path."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def connect(path: str, *, timeout_ms: int) -> socket.socket:
    """Connect to a descriptor socket; OSError comes through as it is."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(timeout_ms / 1000)
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock
