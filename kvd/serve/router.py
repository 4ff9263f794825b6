"""The ROUTER socket, drained by hand on its file descriptor.

ZeroMQ signals its descriptor on edges only, so after every burst, the last send included, EVENTS is
read again. A burst is bounded so that lifelines and timers get their turn.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter

import zmq

from kvd.errors import ServeError

BURST_MESSAGES_MAX = 64
FRAME_BYTES_HARD_FACTOR = 4
"""A frame over the cap is answered; one over this many caps is cut off by ZeroMQ unanswered."""
SEND_QUEUE_MESSAGES = 100_000
"""ROUTER drops silently at its high-water mark; one answer is outstanding per session."""
POLL_IN = int(zmq.POLLIN)
# As integers: or-ing members of pyzmq's enumerations takes a microsecond.
NOW = int(zmq.DONTWAIT)
MORE_NOW = int(zmq.SNDMORE | zmq.DONTWAIT)
SPIN_POLLS = 64
"""Polls of the socket between two looks at everything else while the daemon spins."""

OnMessage = Callable[[bytes, list[bytes]], None]


class Router:
    """Receives two-frame messages and sends answers; never blocks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        address: str,
        frame_bytes_max: int,
        busy_poll_us: int,
        on_message: OnMessage,
        after_message: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._busy_poll_s = busy_poll_us / 1e6
        self._on_message = on_message
        self._after_message = after_message
        self._spin_until = 0.0
        self._spinning = False
        self.lost_count = 0
        """Answers whose receiver was gone."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, SEND_QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_HARD_FACTOR * frame_bytes_max)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy()
            raise ServeError(f"cannot bind {address}: {error}") from error
        self._descriptor = self._option(zmq.FD)
        loop.add_reader(self._descriptor, self._drain)
        loop.call_soon(self._drain)

    def send(self, identity: bytes, header: bytes, body: bytes) -> None:
        """Send an answer; a receiver that is gone is counted, not waited for."""
        try:
            self._socket.send(identity, MORE_NOW)
            self._socket.send(header, MORE_NOW)
            self._socket.send(body, NOW)
        except zmq.ZMQError:
            self.lost_count += 1

    def close(self) -> None:
        """Stop receiving and close; answers that were sent get a moment to leave."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close(linger=200)
        self._context.term()

    def _option(self, option: int) -> int:
        value = self._socket.getsockopt(option)
        assert isinstance(value, int)
        return value

    def _drain(self) -> None:
        for _ in range(BURST_MESSAGES_MAX):
            if not self._option(zmq.EVENTS) & POLL_IN:
                break
            self._receive_one()
        else:
            self._loop.call_soon(self._drain)
            return
        if self._busy_poll_s and not self._spinning:
            self._spinning = True
            self._spin_until = perf_counter() + self._busy_poll_s
            self._loop.call_soon(self._spin)

    def _receive_one(self) -> None:
        socket = self._socket
        try:
            identity = socket.recv(NOW)
            # Behind the identity stands at least one frame.
            frames = [socket.recv(NOW)]
            while socket.getsockopt(zmq.RCVMORE):
                frames.append(socket.recv(NOW))
        except zmq.Again:
            return
        self._on_message(identity, frames)
        self._after_message()

    def _spin(self) -> None:
        """Poll instead of sleeping, letting everything else have a turn now and then."""
        for _ in range(SPIN_POLLS):
            if self._option(zmq.EVENTS) & POLL_IN:
                self._receive_one()
                self._spin_until = perf_counter() + self._busy_poll_s
        if perf_counter() < self._spin_until:
            self._loop.call_soon(self._spin)
        else:
            self._spinning = False
            self._drain_once_more()

    def _drain_once_more(self) -> None:
        if self._option(zmq.EVENTS) & POLL_IN:
            self._loop.call_soon(self._drain)
