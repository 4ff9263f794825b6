"""Which message an answer belongs to, and messages whose sender was interrupted."""

from collections.abc import Iterator

import pytest

from kvd_proto.codec import encode
from kvd_proto.control import MessageKind, Ping
from kvd_proto.operations import Idle
from kvd_proto.outcomes import Done
from tests.e2e.daemon_process import DaemonProcess
from tests.e2e.wire import Peer, batch_body, peers


@pytest.fixture
def attached(daemon: DaemonProcess, group: str) -> Iterator[Peer]:
    """Give a peer that is a group's only rank."""
    with peers(daemon.address) as (one,):
        one.attach(group)
        yield one


@pytest.mark.parametrize("torn_count", [1, 3])
def test_a_message_torn_by_an_interrupt_is_completed_by_its_repetition(
    attached: Peer, torn_count: int
) -> None:
    head = encode(attached.header(MessageKind.BATCH))
    attached.send(*[head] * torn_count, head, batch_body(Idle()))
    assert [type(entry.outcome.result) for entry in attached.reply().entries] == [Done, Done]


def test_what_is_sent_instead_of_a_torn_message_counts(attached: Peer) -> None:
    torn = encode(attached.header(MessageKind.BATCH))
    attached.send(torn, encode(attached.header(MessageKind.PING, index=9)), encode(Ping()))
    header, _ = attached.answer()
    assert (header.kind, header.index) == (MessageKind.ACK, 9)


def test_an_error_carries_the_index_of_the_message_it_answers(attached: Peer) -> None:
    attached.ask(MessageKind.BATCH, b"\xc1", index=0)
    assert attached.error().code == "BAD_FRAME"
    attached.ask(MessageKind.ASK, Ping(), index=77)
    header, _ = attached.answer()
    assert (header.kind, header.index) == (MessageKind.ERROR, 77)
