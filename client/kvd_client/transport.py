"""The way to the daemon: two sockets that share one path, behind a seam.

Messages go over a ZeroMQ DEALER at the path. Descriptors come over a Unix socket at
``path + ".fd"``, which is also the lifeline: its end tells the daemon that this rank is gone.

A transport moves frames and knows nothing of their meaning. `Message` keeps what has to survive an
interruption: whether the frames went out and the answer that came.
"""

import asyncio
import os
import socket
from contextlib import suppress
from time import monotonic
from typing import Final, NamedTuple, Protocol

import zmq

from kvd_client.device import descriptors
from kvd_client.errors import (
    AttachError,
    ClosedError,
    DeadlineError,
    ReplyError,
    UnreachableError,
    UsageError,
    code_of,
    error_of,
)
from kvd_client.process import PROCESS
from kvd_proto.codec import decode_control, encode
from kvd_proto.control import Bye, Descriptors, ErrorReply, FetchDescriptors, Ticket
from kvd_proto.errors import FrameError

SOCKET_PATH_BYTES_MAX: Final = 107
"""What a Unix socket address can hold."""
LIFELINE_SUFFIX: Final = ".fd"
DESCRIPTORS_MAX: Final = 8
PROMPT_MS: Final = 20
"""How long an answer is waited for without a look at the lifeline: longer than nearly all take."""
LAST_WORDS_MS: Final = 200
"""How long an answer may lag behind the end of the daemon that gave it."""

# As integers: or-ing members of pyzmq's enumerations takes a microsecond.
_NOW: Final = int(zmq.NOBLOCK)
_MORE_NOW: Final = int(zmq.SNDMORE | zmq.NOBLOCK)


class Frames(NamedTuple):
    """One message: header and body, both encoded."""

    header: bytes
    body: bytes


class MemoryDescriptor(NamedTuple):
    """A descriptor that was handed out, and the bytes behind it."""

    descriptor: int
    size_bytes: int


class Message:
    """A request on its way.

    ``sent`` is False as long as it may be that the daemon did not get it or that its answer was
    lost here; it is then sent again, which the daemon takes for the same request.
    """

    __slots__ = ("answer", "frames", "sent")

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.sent = False
        self.answer: Frames | None = None


class Transport(Protocol):
    """What carries frames; the blocking client uses `wait`, the asyncio client `wait_async`."""

    def open(self, deadline_ms: int) -> Ticket:
        """Connect and return the ticket for the hello; raises UnreachableError, DeadlineError."""
        ...

    def send(self, frames: Frames) -> None:
        """Send one message; raises UnreachableError if no daemon takes it."""
        ...

    def wait(self, deadline_ms: int) -> None:
        """Block until a message is there; raises DeadlineError, and then none was touched."""
        ...

    async def wait_async(self, deadline_ms: int) -> None:
        """Wait until a message is there without blocking the loop; raises DeadlineError."""
        ...

    def receive(self) -> Frames:
        """Return the message that is there; raises ReplyError if it has not two frames."""
        ...

    def fetch(self, token: int, deadline_ms: int) -> dict[str, MemoryDescriptor]:
        """Return the session's descriptors by name, which are the caller's to close."""
        ...

    def let_go(self) -> None:
        """Say that nothing of this process touches the rank's memory any more; waits for nobody."""
        ...

    def close(self) -> None:
        """Close everything; for the daemon that is the end of the rank."""
        ...


def exchange(transport: Transport, message: Message, deadline_ms: int) -> None:
    """Send a message unless it is out already, and keep its answer; raises DeadlineError."""
    if message.answer is None:
        _send(transport, message)
        # Waiting may take the answer off the socket: what interrupts it may lose the answer.
        message.sent = False
        try:
            transport.wait(deadline_ms)
        except DeadlineError:
            message.sent = True
            raise
        _receive(transport, message)


async def exchange_async(transport: Transport, message: Message, deadline_ms: int) -> None:
    """Do what `exchange` does without blocking the loop."""
    if message.answer is None:
        _send(transport, message)
        await transport.wait_async(deadline_ms)
        _receive(transport, message)


def _send(transport: Transport, message: Message) -> None:
    if not message.sent:
        transport.send(message.frames)
        message.sent = True


def _receive(transport: Transport, message: Message) -> None:
    # Whatever interrupts between these lines may lose the answer; the request is then sent again.
    message.sent = False
    message.answer = transport.receive()
    message.sent = True


def socket_path(address: str) -> str:
    """Return the path of an address; raises UsageError naming what is wrong with it."""
    scheme, separator, rest = address.partition("://")
    if separator and scheme != "ipc":
        raise UsageError(f"address {address!r}: only ipc:// is spoken, not {scheme}://")
    path = rest if separator else address
    if not path:
        raise UsageError("the address of the daemon is empty")
    size_bytes = len(os.fsencode(path + LIFELINE_SUFFIX))
    if size_bytes > SOCKET_PATH_BYTES_MAX:
        raise UsageError(
            f"socket path {path!r} with {LIFELINE_SUFFIX!r} has {size_bytes} bytes, "
            f"a Unix socket takes {SOCKET_PATH_BYTES_MAX}"
        )
    return path


def listen_once(
    line: socket.socket, path: str, deadline_ms: int, *, fds_max: int
) -> tuple[object, list[int]]:
    """Receive one message from a lifeline and decode it; raises DeadlineError and others."""
    line.settimeout(deadline_ms / 1000)
    try:
        payload, fds = descriptors.receive_message(line, fds_max)
    except TimeoutError as error:
        raise _late(path, deadline_ms) from error
    except OSError as error:
        raise _hung_up(path) from error
    finally:
        # With a time-out set, Python waits even where the flags say not to.
        line.setblocking(False)
    if not payload:
        raise _hung_up(path)
    try:
        return decode_control(payload), fds
    except FrameError as error:
        descriptors.close_all(fds)
        raise ReplyError(f"the lifeline of {path}: {error.message}") from error


def expect_ticket(line: socket.socket, path: str, deadline_ms: int) -> Ticket:
    """Return what a lifeline says first; raises AttachError if the daemon takes no client."""
    ticket, _ = listen_once(line, path, deadline_ms, fds_max=0)
    if isinstance(ticket, ErrorReply):
        raise AttachError(ticket.message, code=code_of(ticket.code), retry=ticket.retry)
    if not isinstance(ticket, Ticket):
        raise ReplyError(
            f"{path}{LIFELINE_SUFFIX} said {type(ticket).__name__} where a ticket is due"
        )
    return ticket


def fetch_memory(
    line: socket.socket, path: str, token: int, deadline_ms: int
) -> dict[str, MemoryDescriptor]:
    """Ask over a lifeline for a session's memory; raises what the daemon answers."""
    descriptors.send_message(line, encode(FetchDescriptors(token=token)))
    answer, fds = listen_once(line, path, deadline_ms, fds_max=DESCRIPTORS_MAX)
    if isinstance(answer, ErrorReply):
        raise error_of(answer.code, answer.message, retry=answer.retry)
    if not isinstance(answer, Descriptors) or len(answer.names) != len(fds):
        descriptors.close_all(fds)
        raise ReplyError(f"{type(answer).__name__} with {len(fds)} descriptors came to a fetch")
    pairs = zip(answer.names, fds, answer.sizes_bytes, strict=True)
    return {name: MemoryDescriptor(fd, size_bytes) for name, fd, size_bytes in pairs}


def _late(path: str, deadline_ms: int) -> DeadlineError:
    return DeadlineError(f"no answer from {path} within {deadline_ms} ms")


def _hung_up(path: str) -> UnreachableError:
    return UnreachableError(f"the daemon at {path} has hung up")


class ZmqTransport:
    """A daemon on the same host."""

    def __init__(self, address: str) -> None:
        self._path = socket_path(address)
        self._pid = PROCESS.pid
        self._lifeline: socket.socket | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._dealer: zmq.Socket[bytes] | None = None
        self._poller = zmq.Poller()
        self._torn = False
        """Whether a message was begun and not received to its end."""
        self._head: bytes | None = None
        """The first frame of a message whose rest is still in the socket."""

    def open(self, deadline_ms: int) -> Ticket:
        """Connect to both sockets; raises UnreachableError, DeadlineError, ReplyError.

        Raises AttachError with the daemon's sentence if it takes no client, or not this one.
        """
        path = self._path + LIFELINE_SUFFIX
        try:
            self._lifeline = descriptors.connect(path, timeout_ms=deadline_ms)
        except OSError as error:
            raise UnreachableError(
                f"no daemon answers at {path} ({error.strerror or error}); "
                f"start one with: kvd serve --socket {self._path}"
            ) from error
        ticket = expect_ticket(self._lifeline, self._path, deadline_ms)
        # A context of its own: a fork of this process then shares no I/O thread with it.
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.LINGER, 0)
        self._dealer.setsockopt(zmq.IMMEDIATE, 1)
        self._dealer.setsockopt(zmq.RCVTIMEO, PROMPT_MS)
        self._dealer.connect(f"ipc://{self._path}")
        self._poller.register(self._dealer, zmq.POLLIN)
        self._poller.register(self._lifeline.fileno(), zmq.POLLIN)
        if not self._dealer.poll(deadline_ms, zmq.POLLOUT):
            raise UnreachableError(
                f"a daemon answers at {path}, but none takes messages at {self._path}"
            )
        return ticket

    def send(self, frames: Frames) -> None:
        """Send both frames; raises UnreachableError when the connection is down."""
        dealer = self._socket()
        try:
            dealer.send(frames.header, _MORE_NOW)
            dealer.send(frames.body, _NOW)
        except zmq.Again as error:
            raise UnreachableError(f"the daemon at {self._path} takes no messages") from error

    def wait(self, deadline_ms: int) -> None:
        """Block until a message is there, the deadline passes or the daemon hangs up."""
        dealer = self._socket()
        if self._head is not None:
            return
        left_ms = deadline_ms
        if deadline_ms >= PROMPT_MS:
            try:
                self._head = self._first_frame(dealer, 0)
            except zmq.Again:
                left_ms -= PROMPT_MS
            else:
                return
        ready = dict(self._poller.poll(left_ms))
        if dealer in ready:
            return
        if not ready:
            raise _late(self._path, deadline_ms)
        # The last words of a daemon that stopped may come behind its end of the lifeline.
        if not dealer.poll(LAST_WORDS_MS):
            raise _hung_up(self._path)

    async def wait_async(self, deadline_ms: int) -> None:
        """Wait until a message is there; the loop watches both sockets meanwhile."""
        loop = asyncio.get_running_loop()
        end = monotonic() + deadline_ms / 1000
        files = (self._socket().fileno(), self._line().fileno())
        changed = asyncio.Event()
        for file in files:
            loop.add_reader(file, changed.set)
        try:
            # The descriptor of a ZeroMQ socket tells of changes only: look at the state first.
            while not self._readable():
                changed.clear()
                if self._lifeline_ended():
                    end = min(end, monotonic() + LAST_WORDS_MS / 1000)
                    loop.remove_reader(files[1])
                await asyncio.wait_for(changed.wait(), max(0.0, end - monotonic()))
        except TimeoutError:
            raise (
                _hung_up(self._path) if self._lifeline_ended() else _late(self._path, deadline_ms)
            ) from None
        finally:
            for file in files:
                loop.remove_reader(file)

    def receive(self) -> Frames:
        """Return the message that is there; raises ReplyError for another number of frames."""
        dealer = self._socket()
        header, self._head = self._head, None
        if header is None:
            header = self._first_frame(dealer, _NOW)
        frames = [header]
        while dealer.getsockopt(zmq.RCVMORE):
            frames.append(dealer.recv(_NOW))
        self._torn = False
        if len(frames) != len(Frames._fields):
            raise ReplyError(f"an answer of {len(frames)} frames came from {self._path}")
        return Frames(*frames)

    def fetch(self, token: int, deadline_ms: int) -> dict[str, MemoryDescriptor]:
        """Ask the lifeline for the session's memory; raises what the daemon answers."""
        return fetch_memory(self._line(), self._path, token, deadline_ms)

    def let_go(self) -> None:
        """Say that nothing of this process touches the rank's memory any more; waits for nobody.

        The end of the connection does not say it: that of a killed process looks the same.
        """
        with suppress(OSError):  # a daemon that is gone asks nobody
            descriptors.send_message(self._line(), encode(Bye()))

    def close(self) -> None:
        """Close both sockets; the lifeline last, so that a farewell gets out first."""
        if self._dealer is not None:
            self._dealer.close()
        if self._context is not None:
            self._context.term()
        if self._lifeline is not None:
            if PROCESS.pid == self._pid:
                # Forks hold the socket as well: the daemon is to read its end now, not with them.
                with suppress(OSError):
                    self._lifeline.shutdown(socket.SHUT_RDWR)
            self._lifeline.close()
        self._dealer = self._context = self._lifeline = None

    def _listen(self, deadline_ms: int, *, fds_max: int) -> tuple[object, list[int]]:
        """Receive one message from the lifeline and decode it."""
        return listen_once(self._line(), self._path, deadline_ms, fds_max=fds_max)

    def _first_frame(self, dealer: "zmq.Socket[bytes]", flags: int) -> bytes:
        """Receive the first frame of a message; raises zmq.Again if none is there in time."""
        torn, self._torn = self._torn, True
        try:
            frame = dealer.recv(flags)
            if torn and not dealer.getsockopt(zmq.RCVMORE):
                # The rest of a message whose first frame an interruption took away.
                frame = dealer.recv(flags)
        except zmq.Again:
            self._torn = False
            raise
        return frame

    def _readable(self) -> bool:
        return bool(int(self._socket().getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _lifeline_ended(self) -> bool:
        try:
            return not self._line().recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _socket(self) -> "zmq.Socket[bytes]":
        if self._dealer is None:
            raise ClosedError(f"the connection to {self._path} is closed")
        return self._dealer

    def _line(self) -> socket.socket:
        if self._lifeline is None:
            raise ClosedError(f"the connection to {self._path} is closed")
        return self._lifeline
