"""The test daemon behind real sockets, played by a thread."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import zmq

from kvd.testing.in_process import EPOCH
from kvd_client.device.descriptors import close_all, create_memory, receive_message, send_message
from kvd_client.device.fences import PAGE_BYTES, create_fence_page
from kvd_proto.codec import decode_control, decode_header, encode
from kvd_proto.control import Bye, Descriptors, FetchDescriptors, Ticket
from tests.client.engine_daemon import EngineDaemon

POLL_MS = 10
TICKET = 41
Raw = Callable[[bytes, bytes], list[list[bytes]] | None]


class SocketDaemon:
    """Serves one rank; ``raw`` may answer with frames of its own making."""

    def __init__(self, path: Path, daemon: EngineDaemon) -> None:
        self.path = path
        self.daemon = daemon
        self.raw: Raw | None = None
        self.received = threading.Event()
        self.parted = threading.Event()
        """Set once a client said that it is done with its memory."""
        self._stop = threading.Event()
        self._late: SimpleQueue[list[bytes]] = SimpleQueue()
        self._identity = b""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 200)
        self._router.bind(f"ipc://{path}")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"{path}.fd")
        self._listener.listen()
        self._lifelines: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def push(self, message: list[bytes]) -> None:
        """Send an answer that was kept back."""
        self._late.put(message)

    def stop(self) -> None:
        """Close every socket, as a daemon does that ends."""
        self._stop.set()
        self._thread.join(5)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._listener.fileno(), zmq.POLLIN)
        while not self._stop.is_set():
            ready = dict(poller.poll(POLL_MS))
            while not self._late.empty():
                self._router.send_multipart([self._identity, *self._late.get()])
            if self._listener.fileno() in ready:
                lifeline, _ = self._listener.accept()
                send_message(lifeline, encode(Ticket(ticket=TICKET, epoch=EPOCH)))
                self._lifelines.append(lifeline)
                poller.register(lifeline.fileno(), zmq.POLLIN)
            for lifeline in list(self._lifelines):
                if lifeline.fileno() in ready and not self._fetch(lifeline):
                    poller.unregister(lifeline.fileno())
                    self._lifelines.remove(lifeline)
                    lifeline.close()
            if self._router in ready:
                self._answer(self._router.recv_multipart())
        for one in (*self._lifelines, self._listener):
            one.close()
        self._router.close()
        self._context.term()

    def _fetch(self, lifeline: socket.socket) -> bool:
        payload, _ = receive_message(lifeline, 0)
        if not payload:
            return False
        request = decode_control(payload)
        if isinstance(request, Bye):
            self.parted.set()
            return True
        assert isinstance(request, FetchDescriptors)
        total_bytes = self.daemon.storage.storage.total_bytes
        fds = [create_memory("arena", total_bytes), create_fence_page("fence")]
        answer = Descriptors(names=("arena", "fence"), sizes_bytes=(total_bytes, PAGE_BYTES))
        send_message(lifeline, encode(answer), fds)
        close_all(fds)
        return True

    def _answer(self, frames: list[bytes]) -> None:
        self._identity, header, body = frames
        raw = None if self.raw is None else self.raw(header, body)
        if raw is None:
            answers = self.daemon.answer(0, decode_header(header), body)
            raw = [[encode(one), content] for one, content in answers]
        for message in raw:
            self._router.send_multipart([self._identity, *message])
        self.received.set()
