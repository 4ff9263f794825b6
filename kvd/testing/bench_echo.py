"""A plain echo over the same kind of sockets: what a round trip costs that decides nothing.

The server is a process of its own that reads a ROUTER the way the daemon does, by hand on its
descriptor under uvloop, and answers every message of two frames with two frames of fixed sizes. The
client is a DEALER that blocks in `recv`.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from select import select
from time import perf_counter_ns
from typing import Final

import uvloop
import zmq

from kvd.errors import WorkloadError
from kvd.testing.child import die_with_parent
from kvd.testing.processes import end_process, start_process, tail_of

READY_WAIT_S: Final = 20.0
ANSWER_WAIT_MS: Final = 10_000
BURST_MESSAGES_MAX: Final = 64
# As integers: or-ing members of pyzmq's enumerations takes a microsecond.
_POLL_IN: Final = int(zmq.POLLIN)
_NOW: Final = int(zmq.DONTWAIT)
_MORE_NOW: Final = int(zmq.SNDMORE | zmq.DONTWAIT)


class EchoServer:
    """The server's process, for as long as the context lasts."""

    def __init__(self, address: str, *, header_bytes: int, body_bytes: int) -> None:
        """Prepare a server whose answers have these frame sizes."""
        self._arguments = (address, str(header_bytes), str(body_bytes), str(os.getpid()))
        self._stack = ExitStack()

    def __enter__(self) -> "EchoServer":
        """Start the server and wait until it is bound; raises WorkloadError with its own words."""
        with ExitStack() as stack:
            complaints = stack.enter_context(tempfile.TemporaryFile())
            process = start_process(
                ("-m", "kvd.testing.bench_echo", *self._arguments),
                stdout=subprocess.PIPE,
                stderr=complaints,
            )
            stack.callback(end_process, process, kill=True)
            assert process.stdout is not None
            stack.callback(process.stdout.close)
            readable, _, _ = select([process.stdout], [], [], READY_WAIT_S)
            if not readable or not process.stdout.readline():
                raise WorkloadError(f"the echo did not get ready: {tail_of(complaints)}")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the server: it holds nothing."""
        self._stack.close()


class EchoClient:
    """The client's socket, for as long as the context lasts."""

    def __init__(self, address: str, *, header_bytes: int, body_bytes: int) -> None:
        """Prepare requests of these frame sizes."""
        self._address = address
        self._header = bytes(header_bytes)
        self._body = bytes(body_bytes)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, ANSWER_WAIT_MS)

    def __enter__(self) -> "EchoClient":
        """Connect."""
        self._socket.connect(self._address)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the socket."""
        self._socket.close()
        self._context.term()

    def round_trip(self) -> int:
        """Send a request, receive its answer; return the nanoseconds that took."""
        socket = self._socket
        started_ns = perf_counter_ns()
        socket.send(self._header, zmq.SNDMORE)
        socket.send(self._body)
        socket.recv()
        socket.recv()
        return perf_counter_ns() - started_ns


def serve(address: str, *, header_bytes: int, body_bytes: int) -> None:
    """Echo until killed; prints one line when bound."""
    header, body = bytes(header_bytes), bytes(body_bytes)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(address)
    descriptor = socket.getsockopt(zmq.FD)
    assert isinstance(descriptor, int)
    loop = uvloop.new_event_loop()

    def drain() -> None:
        for _ in range(BURST_MESSAGES_MAX):
            if not int(socket.getsockopt(zmq.EVENTS)) & _POLL_IN:
                return
            identity = socket.recv(_NOW)
            socket.recv(_NOW)
            while socket.getsockopt(zmq.RCVMORE):
                socket.recv(_NOW)
            socket.send(identity, _MORE_NOW)
            socket.send(header, _MORE_NOW)
            socket.send(body, _NOW)
        loop.call_soon(drain)

    loop.add_reader(descriptor, drain)
    loop.call_soon(drain)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    loop.run_forever()


if __name__ == "__main__":
    _address, _header_bytes, _body_bytes, _parent_pid = sys.argv[1:]
    die_with_parent(int(_parent_pid))
    serve(_address, header_bytes=int(_header_bytes), body_bytes=int(_body_bytes))
