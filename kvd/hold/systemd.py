"""The service manager as holder: systemd keeps descriptors in its store for a restarted service.

Descriptors go in over the notification socket and come back at the next start as open files 3, 4
and so on, each with its name. The unit needs ``FileDescriptorStoreMax``: systemd drops what is over
it without a word. To survive a stop it also needs ``FileDescriptorStorePreserve=yes``.
"""

import os
import select
import socket
from collections.abc import Sequence
from typing import Final

from kvd.errors import ServeError
from kvd.hold.message import HeldMemory
from kvd.hold.store import DescriptorTable, check_name, create_nonce, read_nonce
from kvd_client.device.descriptors import descriptor_size
from kvd_proto.errors import ErrorCode

FIRST_DESCRIPTOR: Final = 3
"""Where the descriptors start that a service manager hands over."""
NONCE_NAME: Final = "kvd-nonce"
BARRIER_TIMEOUT_MS: Final = 5_000


class DescriptorStore:
    """Keeps descriptors in the service manager's store, and one of each here to hand out."""

    def __init__(self, notify_address: str, descriptor_names: Sequence[str] = ()) -> None:
        """Take over what the service manager handed to this start; raises ServeError.

        The names are those of the open files from 3 on. Names that are not ours (a socket of the
        unit, say) are refused: the unit then hands over what this service does not know.
        """
        self._notify_address = notify_address
        self._table = DescriptorTable()
        self._nonce = b""
        for index, name in enumerate(descriptor_names):
            descriptor = FIRST_DESCRIPTOR + index
            os.set_inheritable(descriptor, False)
            if name == NONCE_NAME:
                self._nonce = read_nonce(descriptor)
                os.close(descriptor)
            else:
                self._table.put(name, descriptor, descriptor_size(descriptor))
        if not self._nonce:
            descriptor = create_nonce()
            self._nonce = read_nonce(descriptor)
            self._store(NONCE_NAME, descriptor)
            os.close(descriptor)

    def put(self, name: str, descriptor: int, size_bytes: int) -> None:
        """Hand a descriptor in; it stays open here too. Raises ServeError for a name in use."""
        check_name(name)
        if name == NONCE_NAME:
            raise ServeError(f"{name!r} is the nonce's name", code=ErrorCode.BAD_ARGUMENT)
        kept = os.dup(descriptor)
        try:
            self._table.put(name, kept, size_bytes)
        except BaseException:
            os.close(kept)
            raise
        try:
            self._store(name, descriptor)
        except BaseException:
            self._table.drop(name)
            raise

    def held(self) -> tuple[HeldMemory, ...]:
        """Return what is kept, in order of names."""
        return self._table.held()

    def get(self, name: str) -> int:
        """Return a new descriptor of what is kept; raises ServeError for an unknown name."""
        return os.dup(self._table.get(name))

    def drop(self, name: str) -> None:
        """Have a descriptor forgotten; raises ServeError for an unknown name."""
        self._table.get(name)
        notify(self._notify_address, f"FDSTOREREMOVE=1\nFDNAME={name}")
        self._table.drop(name)

    def nonce(self) -> bytes:
        """Return the 32 bytes that are as old as the store's contents."""
        return self._nonce

    def close(self) -> None:
        """Close the descriptors here; the service manager goes on keeping its own."""
        self._table.close()

    def _store(self, name: str, descriptor: int) -> None:
        # Without FDPOLL=0 the manager would watch the descriptor and drop it at the first event.
        notify(self._notify_address, f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", [descriptor])
        wait_until_read(self._notify_address)


def notify_ready(notify_address: str, *, status: str = "") -> None:
    """Tell the service manager that this service is ready; raises ServeError."""
    notify(notify_address, f"READY=1\nSTATUS={status}" if status else "READY=1")


def notify_stopping(notify_address: str) -> None:
    """Tell the service manager that this service is on its way out; raises ServeError."""
    notify(notify_address, "STOPPING=1")


def wait_until_read(notify_address: str, *, timeout_ms: int = BARRIER_TIMEOUT_MS) -> None:
    """Block until the service manager has read every earlier notification; raises ServeError."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            notify(notify_address, "BARRIER=1", [theirs])
        finally:
            os.close(theirs)
        # The manager closes its copy once it got there: the pipe then has no writer left.
        poll = select.poll()
        poll.register(ours, 0)
        if not poll.poll(timeout_ms):
            raise ServeError(
                f"the service manager did not read its notifications within {timeout_ms} ms",
                code=ErrorCode.TIMED_OUT,
            )
    finally:
        os.close(ours)


def notify(notify_address: str, message: str, descriptors: Sequence[int] = ()) -> None:
    """Send one notification to the service manager; raises ServeError."""
    if not notify_address.startswith(("/", "@")):
        raise ServeError(
            f"notification address {notify_address!r} is neither a path nor an abstract socket",
            code=ErrorCode.BAD_SETTING,
        )
    address = "\0" + notify_address[1:] if notify_address[0] == "@" else notify_address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(address)
            socket.send_fds(sock, [message.encode("ascii")], list(descriptors))
        except OSError as error:
            raise ServeError(
                f"cannot notify the service manager at {notify_address}: {error}",
                code=ErrorCode.UNREACHABLE,
            ) from error
