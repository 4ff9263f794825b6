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
from kvd_proto.control import (
    Ack,
    Bye,
    Control,
    Descriptors,
    ErrorReply,
    FetchDescriptors,
    FreeQuarantined,
    Ticket,
)
from kvd_proto.errors import ErrorCode, KvdError

BACKLOG_COUNT = 128
ACCEPT_PAUSE_S = 0.1
"""How long nobody is accepted after that failed for want of something other clients have."""


class Lifeline:
    """One client process, as the kernel knows it."""

    def __init__(self, sock: socket.socket, *, pid: int, uid: int, pidfd: int) -> None:
        self.sock = sock
        self.pid = pid
        self.uid = uid
        self.pidfd: int | None = pidfd
        self.ticket = secrets.randbits(63) | 1
        self.connected = True
        self.let_go = False
        """Whether it hung up in order: it submits nothing any more."""
        self.parting = False
        """Whether it said, with its streams dry, that it is done with the memory of its rank."""
        self.claimed = False
        """Whether a hello has used the ticket, or a rank has this process beside its own."""

    @property
    def parted(self) -> bool:
        """Return whether it took its leave and hung up: it is done with the memory of its rank."""
        return self.parting and self.let_go

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

    def free_quarantined(self, request: FreeQuarantined, *, pid: int) -> None:
        """Give memory back on an administrator's word; raises KvdError."""
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
        clients_count_max: int,
        owner: LifelineOwner,
        log: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._path = path
        self._epoch = epoch
        self._allowed_uids = (os.getuid(), *allowed_uids)
        self._clients_count_max = clients_count_max
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
        self._resume: asyncio.TimerHandle | None = None
        self._listen()

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
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for lifeline in list(self._lifelines.values()):
            self._forget(lifeline)
            lifeline.stop_watching()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # the client gave up before it was accepted
        except OSError as error:
            # Nothing was taken from the queue: at once it would fail again, and again.
            self._log(f"event=accept_failed error={error.strerror!r}")
            self._loop.remove_reader(self._listener)
            self._resume = self._loop.call_later(ACCEPT_PAUSE_S, self._listen)
            return
        sock.setblocking(False)
        uid = peer_credentials(sock).uid
        if uid not in self._allowed_uids:
            problem = f"user {uid} is not allowed here; the operator can add it to allowed_uids"
            self._refuse(sock, problem, ErrorCode.FORBIDDEN)
            return
        if len(self._lifelines) >= self._clients_count_max:
            problem = (
                f"{len(self._lifelines)} clients are connected, which is the most that the "
                f"daemon's limit of open files allows"
            )
            self._refuse(sock, problem, ErrorCode.BUSY)
            return
        try:
            pidfd = open_peer_pidfd(sock)
        except KvdError as error:
            self._refuse(sock, error.message, error.code)  # most likely it ended already
            return
        lifeline = Lifeline(sock, pid=peer_credentials(sock).pid, uid=uid, pidfd=pidfd)
        self._lifelines[lifeline.ticket] = lifeline
        self._loop.add_reader(sock, self._readable, lifeline)
        self._loop.add_reader(pidfd, self._died, lifeline)
        try:
            send_message(sock, encode(Ticket(ticket=lifeline.ticket, epoch=self._epoch)))
        except OSError as error:
            self._end(lifeline, f"could not be greeted: {error}")

    def _refuse(self, sock: socket.socket, problem: str, code: ErrorCode) -> None:
        self._log(f"event=lifeline_refused problem={problem!r}")
        reply = ErrorReply(code=code.value, message=problem, retry=code is ErrorCode.BUSY)
        try:
            send_message(sock, encode(reply))
        except OSError as error:
            self._log(f"event=lifeline_refused reply_lost={error}")
        sock.close()

    def _readable(self, lifeline: Lifeline) -> None:
        try:
            payload, descriptors = receive_message(lifeline.sock, 0)
        except BlockingIOError:
            return
        except (OSError, KvdError) as error:
            # What was sent to it last was not read before it hung up: in order all the same.
            lifeline.let_go = isinstance(error, ConnectionResetError)
            self._end(lifeline, f"broke its descriptor connection: {error}")
            return
        close_all(descriptors)
        if not payload:
            lifeline.let_go = True
            self._end(lifeline, "hung up")
            return
        try:
            reply, fds = self._answer(lifeline, payload)
            send_message(lifeline.sock, encode(reply), fds)
        except KvdError as error:
            refusal = ErrorReply(code=error.code.value, message=error.message, retry=error.retry)
            try:
                send_message(lifeline.sock, encode(refusal))
            except OSError as lost:
                self._end(lifeline, f"could not be answered: {lost}")
        except OSError as error:
            # Who takes its leave may not wait for the answer; its end is read next.
            if not lifeline.parting:
                self._end(lifeline, f"could not be answered: {error}")

    def _answer(self, lifeline: Lifeline, payload: bytes) -> tuple[Control, Sequence[int]]:
        """Do what a message asks; returns the answer and its descriptors. Raises KvdError."""
        request = decode_control(payload)
        if isinstance(request, FetchDescriptors):
            return self._owner.descriptors(lifeline, request.token)
        if isinstance(request, Bye):
            lifeline.parting = True
            return Ack(), ()
        if isinstance(request, FreeQuarantined):
            if lifeline.uid not in (0, os.getuid()):
                raise ServeError(
                    f"user {lifeline.uid} may not free quarantined memory; the daemon's own user, "
                    f"{os.getuid()}, and root may",
                    code=ErrorCode.FORBIDDEN,
                )
            self._owner.free_quarantined(request, pid=lifeline.pid)
            return Ack(), ()
        raise ServeError(
            f"{type(request).__name__} is no message for the descriptor socket",
            code=ErrorCode.BAD_FRAME,
        )

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
