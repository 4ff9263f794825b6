"""A further process of a rank: it maps the rank's memory, sends nothing, and is watched.

A transfer agent, a copier or a worker that inherits the rank's device belongs to its rank: while it
lives it may touch the memory. So it asks for the memory itself, with the token of the rank's
session, and whoever is given memory is watched: the memory counts as quiet only when this process,
too, has let go or ended. If it ends without taking its leave, the incarnation ends.
"""

import socket
from types import TracebackType
from typing import Self

from kvd_client.device import descriptors
from kvd_client.errors import ForkedError, UnreachableError
from kvd_client.process import PROCESS
from kvd_client.transport import (
    LIFELINE_SUFFIX,
    MemoryDescriptor,
    expect_ticket,
    fetch_memory,
    listen_once,
    socket_path,
)
from kvd_proto.codec import encode
from kvd_proto.control import Bye


class Companion:
    """One process more of a rank; holds its descriptors until it is closed."""

    def __init__(self, address: str, *, token: int, deadline_ms: int) -> None:
        """Register with the daemon and take the memory of the session that the token names.

        Raises UnreachableError, DeadlineError, or what the daemon refuses with.
        """
        self._path = socket_path(address)
        self._deadline_ms = deadline_ms
        self._pid = PROCESS.pid
        self.memory: dict[str, MemoryDescriptor] = {}
        """The rank's memory by name; the descriptors are closed with the companion."""
        try:
            self._line = descriptors.connect(self._path + LIFELINE_SUFFIX, timeout_ms=deadline_ms)
        except OSError as error:
            raise UnreachableError(f"no daemon answers at {self._path}: {error}") from error
        try:
            expect_ticket(self._line, self._path, deadline_ms)
            self.memory = fetch_memory(self._line, self._path, token, deadline_ms)
        except BaseException:
            self._line.close()
            raise

    def close(self) -> None:
        """Take leave: nothing of this process touches the memory any more, which has to be true.

        Mappings and streams of it are closed before this. Harmless when repeated; raises
        ForkedError in a fork, which is a process of its own.
        """
        if PROCESS.pid != self._pid:
            raise ForkedError(
                f"this companion is process {self._pid}; process {PROCESS.pid} is a fork of it"
            )
        if self._line.fileno() == -1:
            return
        descriptors.close_all([one.descriptor for one in self.memory.values()])
        self.memory = {}
        try:
            descriptors.send_message(self._line, encode(Bye()))
            listen_once(self._line, self._path, self._deadline_ms, fds_max=0)
            # Forks may hold the socket, too: the daemon is to read its end now.
            self._line.shutdown(socket.SHUT_RDWR)
        except (OSError, UnreachableError):
            return  # the daemon is gone; so is whoever cared
        finally:
            self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
