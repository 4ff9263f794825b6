"""The descriptor socket: who a client is, whether it lives, and the memory it may map.

Every client opens one connection before its hello and keeps it as long as it lives. The kernel
vouches for the process at the other end; the ticket it gets here ties its hello to that process.
The connection's end, or the process's, is the end of the rank: an idle client that lives is never
dropped.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from kvd.errors import ServeError
from kvd.serve.runtime import clear_socket
from kvd_client.device.descriptors import (
    close_all,
    open_peer_pidfd,
    peer_credentials,
    process_ended,
    receive_message,
    send_message,
)
from kvd_proto.codec import decode_control, encode
from kvd_proto.control import Descriptors, ErrorReply, FetchDescriptors, Ticket
from kvd_proto.errors import ErrorCode, KvdError

BACKLOG_COUNT = 128
LIFELINES_COUNT_MAX = 4096
"""Connections at a time: far above eight ranks per stage and a few observers per host."""


class Lifeline:
    """One client process, as the kernel knows it."""

    def __init__(self, sock: socket.socket, *, pid: int, uid: int, pidfd: int) -> None:
        self.sock = sock
        self.pid = pid
        self.uid = uid
        self.pidfd: int | None = pidfd
        self.ticket = secrets.randbits(63) | 1
        self.connected = True
        self.claimed = False
        """Whether a hello has used the ticket."""

    @property
    def process_ended(self) -> bool:
        """Return whether the client process is gone."""
        return self.pidfd is None or process_ended(self.pidfd)

    def stop_watching(self) -> None:
        """Give up the process descriptor; the process counts as ended from now on."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class LifelineOwner(Protocol):
    """What the socket tells, and asks, the rest of the daemon."""

    def descriptors(self, lifeline: Lifeline, token: int) -> tuple[Descriptors, Sequence[int]]:
        """Return what a session may map; raises KvdError."""
        ...

    def lifeline_ended(self, lifeline: Lifeline, cause: str) -> None:
        """Take in that a client hung up or died."""
        ...


class LifelineServer:
    """Accepts lifelines and watches them; all on the daemon's one loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: Path,
        *,
        epoch: int,
        allowed_uids: tuple[int, ...],
        owner: LifelineOwner,
        log: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._path = path
        self._epoch = epoch
        self._allowed_uids = (os.getuid(), *allowed_uids)
        self._owner = owner
        self._log = log
        self._lifelines: dict[int, Lifeline] = {}
        clear_socket(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        try:
            self._listener.bind(os.fspath(path))
        except OSError as error:
            self._listener.close()
            raise ServeError(f"cannot bind descriptor socket {path}: {error}") from error
        self._listener.listen(BACKLOG_COUNT)
        loop.add_reader(self._listener, self._accept)

    @property
    def connected_count(self) -> int:
        """Return how many lifelines are open."""
        return len(self._lifelines)

    def claim(self, ticket: int) -> Lifeline:
        """Return the live lifeline of a ticket, once; raises ServeError."""
        lifeline = self._lifelines.get(ticket)
        if lifeline is None or lifeline.claimed:
            raise ServeError(
                f"ticket {ticket} is not one that a connected process holds; open the descriptor "
                f"socket first and use the number it sends",
                code=ErrorCode.BAD_HELLO,
            )
        lifeline.claimed = True
        return lifeline

    def close(self) -> None:
        """Stop listening and hang up on everyone."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for lifeline in list(self._lifelines.values()):
            self._forget(lifeline)
            lifeline.stop_watching()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # the client gave up before it was accepted
        sock.setblocking(False)
        uid = peer_credentials(sock).uid
        problem = None
        if uid not in self._allowed_uids:
            problem = f"user {uid} is not allowed here; the operator can add it to allowed_uids"
        elif len(self._lifelines) >= LIFELINES_COUNT_MAX:
            problem = f"{LIFELINES_COUNT_MAX} clients are connected, which is the most there may be"
        if problem is not None:
            self._refuse(sock, problem)
            return
        try:
            pidfd = open_peer_pidfd(sock)
        except KvdError:
            sock.close()  # it ended before it was looked at
            return
        lifeline = Lifeline(sock, pid=peer_credentials(sock).pid, uid=uid, pidfd=pidfd)
        self._lifelines[lifeline.ticket] = lifeline
        self._loop.add_reader(sock, self._readable, lifeline)
        self._loop.add_reader(pidfd, self._died, lifeline)
        try:
            send_message(sock, encode(Ticket(ticket=lifeline.ticket, epoch=self._epoch)))
        except OSError as error:
            self._end(lifeline, f"could not be greeted: {error}")

    def _refuse(self, sock: socket.socket, problem: str) -> None:
        self._log(f"event=lifeline_refused problem={problem!r}")
        try:
            send_message(sock, encode(ErrorReply(code=ErrorCode.FORBIDDEN, message=problem)))
        except OSError as error:
            self._log(f"event=lifeline_refused reply_lost={error}")
        sock.close()

    def _readable(self, lifeline: Lifeline) -> None:
        try:
            payload, descriptors = receive_message(lifeline.sock, 0)
        except BlockingIOError:
            return
        except (OSError, KvdError) as error:
            self._end(lifeline, f"broke its descriptor connection: {error}")
            return
        close_all(descriptors)
        if not payload:
            self._end(lifeline, "hung up")
            return
        try:
            request = decode_control(payload)
            if not isinstance(request, FetchDescriptors):
                raise ServeError(
                    f"{type(request).__name__} is no message for the descriptor socket",
                    code=ErrorCode.BAD_FRAME,
                )
            reply, fds = self._owner.descriptors(lifeline, request.token)
            send_message(lifeline.sock, encode(reply), fds)
        except KvdError as error:
            refusal = ErrorReply(code=error.code.value, message=error.message, retry=error.retry)
            try:
                send_message(lifeline.sock, encode(refusal))
            except OSError as lost:
                self._end(lifeline, f"could not be answered: {lost}")
        except OSError as error:
            self._end(lifeline, f"could not be answered: {error}")

    def _died(self, lifeline: Lifeline) -> None:
        self._end(lifeline, "died")

    def _end(self, lifeline: Lifeline, cause: str) -> None:
        if lifeline.connected:
            self._forget(lifeline)
            self._owner.lifeline_ended(lifeline, f"process {lifeline.pid} {cause}")

    def _forget(self, lifeline: Lifeline) -> None:
        lifeline.connected = False
        self._loop.remove_reader(lifeline.sock)
        assert lifeline.pidfd is not None
        self._loop.remove_reader(lifeline.pidfd)
        lifeline.sock.close()
        del self._lifelines[lifeline.ticket]
