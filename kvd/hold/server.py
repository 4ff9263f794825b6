"""The holder's loop: one thread, one socket, a table of descriptors.

It imports neither a messaging nor a numeric library: the less it does, the longer it lives.
"""

import os
import select
import selectors
import socket
from typing import Final

from kvd.errors import ServeError
from kvd.hold.message import (
    HOLD_VERSION,
    Answer,
    AnyRequest,
    Drop,
    Dropped,
    Found,
    Get,
    Greeting,
    Kept,
    ListHeld,
    Listing,
    Put,
    Refused,
    decode_request,
    encode,
)
from kvd.hold.store import DescriptorTable, create_nonce
from kvd_client.device.descriptors import (
    close_all,
    peer_credentials,
    receive_message,
    send_message,
)
from kvd_proto.errors import ErrorCode, KvdError

LISTING_COUNT_MAX: Final = 128
"""Names in one answer: 128 of at most 200 bytes stay well below the cap of a message."""


class HolderServer:
    """Keeps descriptors for one daemon at a time, a process of its own user.

    A daemon that starts drops what it finds here, so two of them would destroy each other's.
    """

    def __init__(self, listener: socket.socket | None = None) -> None:
        """Serve a listener, or only the connections that `adopt` brings."""
        self._table = DescriptorTable()
        self._nonce = create_nonce()
        self._selector = selectors.DefaultSelector()
        self._daemon: socket.socket | None = None
        self._listener = listener
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    def adopt(self, sock: socket.socket) -> None:
        """Greet and serve a connection that exists already; takes the socket over."""
        assert self._daemon is None
        sock.setblocking(False)
        if not _send(sock, Greeting(HOLD_VERSION), [self._nonce]):
            sock.close()
            return
        self._selector.register(sock, selectors.EVENT_READ)
        self._daemon = sock

    def run(self, stop: socket.socket | None = None) -> int:
        """Serve until ``stop`` becomes readable, or nobody can reach this holder any more.

        Returns how many descriptors were kept at the end.
        """
        if stop is not None:
            self._selector.register(stop, selectors.EVENT_READ)
        while self._listener is not None or self._daemon is not None:
            for key, _ in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is stop:
                    return len(self._table)
                if sock is self._listener:
                    self._accept(sock)
                elif sock is self._daemon:  # an accept may just have parted from it
                    self._serve(sock)
        return len(self._table)

    def close(self) -> None:
        """Part from everybody and let go of everything that is kept."""
        if self._daemon is not None:
            self._part(self._daemon)
        self._selector.close()
        self._table.close()
        os.close(self._nonce)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:  # the peer was faster in leaving than we were in greeting
            return
        uid = peer_credentials(sock).uid
        refusal = None
        if uid != os.geteuid():
            refusal = Refused(
                ErrorCode.FORBIDDEN, f"this holder serves uid {os.geteuid()}, not uid {uid}"
            )
        else:
            self._finish_ended()
            if self._daemon is not None:
                pid = peer_credentials(self._daemon).pid
                refusal = Refused(
                    ErrorCode.BUSY,
                    f"process {pid} uses it, and it serves one daemon at a time; stop that one, or "
                    "start another holder with: kvd hold --socket PATH",
                )
        if refusal is None:
            self.adopt(sock)
            return
        sock.setblocking(False)
        _send(sock, refusal, [])
        sock.close()

    def _finish_ended(self) -> None:
        """Carry out what a daemon that ended asked last and part from it: its place is free.

        Its end may be noticed in the same round as its successor's connection, in either order.
        """
        while self._daemon is not None and _hung_up(self._daemon):
            self._serve(self._daemon)

    def _serve(self, sock: socket.socket) -> None:
        """Answer one request; a peer that breaks the rules or is gone loses its connection."""
        descriptors: list[int] = []
        try:
            payload, descriptors = receive_message(sock, fds_max=1)
            if not payload:
                self._part(sock)
                return
            request = decode_request(payload)
        except (KvdError, OSError) as error:
            close_all(descriptors)
            if not isinstance(error, BlockingIOError):
                _send(sock, Refused(ErrorCode.BAD_FRAME, str(error)), [])
                self._part(sock)
            return
        kept = False
        try:
            answer, to_send = self._decide(request, descriptors)
            kept = isinstance(answer, Kept)
        except KvdError as error:
            answer, to_send = Refused(error.code, error.message), []
        if not kept:
            close_all(descriptors)
        if not _send(sock, answer, to_send):
            self._part(sock)

    def _decide(self, request: AnyRequest, descriptors: list[int]) -> tuple[Answer, list[int]]:
        """Carry a request out and return the answer with the descriptors that go along."""
        wanted = 1 if isinstance(request, Put) else 0
        if len(descriptors) != wanted:
            raise ServeError(
                f"a {type(request).__name__} brings {wanted} descriptors, not {len(descriptors)}",
                code=ErrorCode.BAD_ARGUMENT,
            )
        match request:
            case Put(name=name, size_bytes=size_bytes):
                self._table.put(name, descriptors[0], size_bytes)
                return Kept(), []
            case Get(name=name):
                return Found(self._table.size_bytes(name)), [self._table.get(name)]
            case Drop(name=name):
                self._table.drop(name)
                return Dropped(), []
            case ListHeld(start_index=start):
                held = self._table.held()
                return Listing(held[start : start + LISTING_COUNT_MAX], len(held)), []

    def _part(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        self._daemon = None
        sock.close()


def _hung_up(sock: socket.socket) -> bool:
    """Return whether the peer's end is closed, by itself or because its process ended."""
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))


def _send(sock: socket.socket, answer: Answer, descriptors: list[int]) -> bool:
    """Return whether the answer is on its way; a peer that does not read is not waited for."""
    try:
        send_message(sock, encode(answer), descriptors)
    except OSError:
        return False
    return True
