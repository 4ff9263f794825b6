"""A client without a library: raw frames in, raw frames out, for what no honest client sends."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import zmq

from kvd_client.device import descriptors
from kvd_proto.codec import decode_control, decode_header, decode_reply, encode, join_batch
from kvd_proto.control import (
    ErrorReply,
    FetchDescriptors,
    Header,
    Hello,
    MessageKind,
    Ticket,
    Welcome,
)
from kvd_proto.operations import BatchEnd, Operation
from kvd_proto.outcomes import BatchReply
from kvd_proto.version import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from tests.e2e.ranks import LAYERS, SIZING

ANSWER_WAIT_MS: Final = 10_000
SILENCE_MS: Final = 30
"""How long nothing more may come behind an answer."""


class Peer:
    """One DEALER and one lifeline."""

    def __init__(self, address: str) -> None:
        path = address.removeprefix("ipc://")
        self.lifeline = descriptors.connect(path + ".fd", timeout_ms=ANSWER_WAIT_MS)
        ticket = decode_control(descriptors.receive_message(self.lifeline, 0)[0])
        assert isinstance(ticket, Ticket)
        self.ticket = ticket
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.dealer = self._context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.LINGER, 0)
        self.dealer.connect(address)
        self.welcome: Welcome | None = None

    def close(self) -> None:
        self.dealer.close()
        self._context.term()
        self.lifeline.close()

    def send(self, *frames: bytes) -> None:
        self.dealer.send_multipart(frames)

    def answer(self) -> tuple[Header, bytes]:
        """Return the next answer."""
        assert self.dealer.poll(ANSWER_WAIT_MS), "no answer came"
        header, body = self.dealer.recv_multipart()
        return decode_header(header), body

    def is_silent(self) -> bool:
        """Return whether nothing more comes."""
        return not self.dealer.poll(SILENCE_MS)

    def error(self) -> ErrorReply:
        """Return the next answer, which is an error and the only one."""
        header, body = self.answer()
        assert header.kind is MessageKind.ERROR
        reply = decode_control(body)
        assert isinstance(reply, ErrorReply)
        assert self.is_silent()
        return reply

    def say_hello(self, group: str, **changes: Any) -> None:
        """Send a hello that is right, but for the changes."""
        self.send(encode(Header(MessageKind.HELLO)), encode(self.hello(group, **changes)))

    def hello(self, group: str, **changes: Any) -> Hello:
        hello = Hello(
            version_min=PROTOCOL_VERSION_MIN,
            version_max=PROTOCOL_VERSION,
            build="test",
            ticket=self.ticket.ticket,
            group=group,
            declare=LAYERS,
            sizing=SIZING,
        )
        return msgspec.structs.replace(hello, **changes)

    def attach(self, group: str, **changes: Any) -> Welcome:
        """Say hello and return the welcome."""
        self.say_hello(group, **changes)
        return self.read_welcome()

    def read_welcome(self) -> Welcome:
        header, body = self.answer()
        welcome = decode_control(body)
        assert header.kind is MessageKind.WELCOME, welcome
        assert isinstance(welcome, Welcome)
        self.welcome = welcome
        return welcome

    def header(self, kind: MessageKind, **changes: int) -> Header:
        """Return a header of this session, but for the changes."""
        assert self.welcome is not None
        header = Header(kind, self.welcome.epoch, self.welcome.token)
        return msgspec.structs.replace(header, **changes)

    def ask(self, kind: MessageKind, body: object, **changes: int) -> None:
        """Send a message of this session; a body that is no bytes is encoded."""
        encoded = body if isinstance(body, bytes) else encode(body)
        self.send(encode(self.header(kind, **changes)), encoded)

    def batch(self, *operations: Operation, index: int = 0, position: int = 0) -> BatchReply:
        """Send operations as one batch and return its reply."""
        self.ask(MessageKind.BATCH, batch_body(*operations), index=index, position=position)
        return self.reply()

    def reply(self) -> BatchReply:
        header, body = self.answer()
        assert header.kind is MessageKind.REPLY, decode_control(body)
        return decode_reply(body)

    def fetch(self, token: int) -> tuple[object, list[int]]:
        """Ask the lifeline for descriptors; returns what was said, and the descriptors."""
        descriptors.send_message(self.lifeline, encode(FetchDescriptors(token=token)))
        payload, fds = descriptors.receive_message(self.lifeline, 4)
        return decode_control(payload), fds


def batch_body(*operations: Operation) -> bytes:
    """Return a batch that ends as it should."""
    return join_batch([encode(one) for one in (*operations, BatchEnd())])


@contextmanager
def peers(address: str, count: int = 1) -> Generator[Sequence[Peer]]:
    """Give peers and close them all."""
    opened: list[Peer] = []
    try:
        for _ in range(count):
            opened.append(Peer(address))
        yield opened
    finally:
        for peer in opened:
            peer.close()
