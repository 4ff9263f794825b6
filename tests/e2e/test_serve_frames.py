"""Frames that no client of ours sends: each gets one error that names what is wrong with it."""

import random
import re
from collections.abc import Iterator
from time import monotonic

import msgspec
import pytest

from kvd_client import Client
from kvd_client.device import descriptors
from kvd_proto.codec import decode_control, encode, join_batch
from kvd_proto.control import Bye, Descriptors, ErrorReply, Header, MessageKind, Ping
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import BatchEnd, Idle, Processed, RankFailed, StepAborted
from kvd_proto.outcomes import Done
from tests.e2e.daemon_process import DaemonProcess
from tests.e2e.ranks import Ranks, admit
from tests.e2e.wire import Peer, batch_body, peers


@pytest.fixture
def peer(daemon: DaemonProcess) -> Iterator[Peer]:
    """Give a peer that has not said hello."""
    with peers(daemon.address) as (one,):
        yield one


@pytest.fixture
def attached(peer: Peer, group: str) -> Peer:
    """Give a peer that is a group's only rank."""
    peer.attach(group)
    return peer


@pytest.fixture
def bystander(daemon: DaemonProcess, group: str) -> Iterator[Client]:
    """Give a client of another group, which nothing that happens may disturb."""
    with Ranks(daemon.address, group + "-bystander") as ranks:
        client = ranks.attach()
        admit(client, [1])
        yield client
        client.ping()
        with client.batch() as batch:
            batch.advance([1], 8)
            batch.free([1])


def assert_lives(peer: Peer) -> None:
    """Fail unless the session goes on as if nothing had happened."""
    assert [type(entry.outcome.result) for entry in peer.batch(Idle()).entries] == [Done, Done]


HELLO = encode(Header(MessageKind.HELLO))


@pytest.mark.parametrize(
    ("frames", "problem"),
    [
        ((b"",), "message of 1 frames; header and body are expected"),
        ((HELLO,), "message of 1 frames"),
        ((HELLO, b"", b""), "message of 3 frames"),
        ((HELLO, *[b"x"] * 40), "message of 41 frames"),
        ((b"", b""), "header of 0 bytes cannot be decoded"),
        ((b"\xc1", b""), "header of 1 bytes cannot be decoded"),
        ((HELLO[:-1], b""), "cannot be decoded"),
        ((HELLO + b"\x00", b""), "cannot be decoded"),
        ((encode(["hallo", 0, 0, 0, 0]), b""), "hallo"),
        ((encode(["hello", "0", 0, 0, 0]), b""), "Expected `int`, got `str`"),
        ((encode({"kind": "hello"}), b""), "Expected `array`, got `object`"),
        ((b"\x91" * 100_000, b""), "cannot be decoded|over the cap"),
        ((HELLO, b""), "control message of 0 bytes cannot be decoded"),
        ((HELLO, encode({"type": "hello"})), "missing required field"),
        ((HELLO, encode({"type": "no such"})), "no such"),
        ((HELLO, encode(Ping())), "hello expected, Ping came"),
        ((HELLO, b"\x91" * 5_000), "control message of 5000 bytes cannot be decoded"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_frame_that_is_garbage_gets_one_error(
    peer: Peer, bystander: Client, frames: tuple[bytes, ...], problem: str
) -> None:
    peer.send(*frames)

    error = peer.error()
    assert error.code in ("BAD_FRAME", "BAD_HELLO", "FRAME_TOO_LARGE")
    assert re.search(problem, error.message), error.message
    assert len(error.message) < 1000


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_get_one_error_each(peer: Peer, bystander: Client, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    count = 50

    for _ in range(count):
        peer.send(*(rng.randbytes(rng.randrange(200)) for _ in range(rng.choice((1, 2, 2, 2, 3)))))
    answers = [peer.answer() for _ in range(count)]

    assert {header.kind for header, _ in answers} == {MessageKind.ERROR}
    assert peer.is_silent()


@pytest.mark.parametrize("seed", range(4))
def test_a_hello_with_flipped_bits_is_answered_or_waits_but_harms_nobody(
    daemon: DaemonProcess, bystander: Client, group: str, seed: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    with peers(daemon.address) as (peer,):
        for _ in range(50):
            body = bytearray(encode(peer.hello(group)))
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
            peer.send(HELLO, bytes(body))
        for _ in range(50):
            peer.answer()
    bystander.ping()


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_with_flipped_bits_is_decided_or_refused_but_harms_nobody(
    attached: Peer, bystander: Client, seed: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    body = batch_body(Processed(1), Idle())
    for _ in range(50):
        damaged = bytearray(body)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        attached.ask(MessageKind.BATCH, bytes(damaged), index=1 << 40)
    codes = [decode_error(attached.answer()).code for _ in range(50)]

    assert set(codes) <= {"BAD_INDEX", "BAD_FRAME"}
    assert_lives(attached)


@pytest.mark.parametrize("where", ["header", "body"])
def test_an_oversized_frame_is_refused_with_its_size_and_the_cap(
    attached: Peer, bystander: Client, where: str
) -> None:
    large = bytes(65_537)

    if where == "header":
        attached.send(encode(attached.header(MessageKind.PING)) + large, b"")
    else:
        attached.ask(MessageKind.BATCH, large)

    error = attached.error()
    assert error.code in ("FRAME_TOO_LARGE", "BAD_FRAME")
    assert "65537" in error.message or where == "header"
    assert_lives(attached)


def test_a_frame_of_exactly_the_cap_is_looked_at(attached: Peer) -> None:
    attached.ask(MessageKind.BATCH, bytes(65_536))

    assert "65536 bytes" in attached.error().message


def test_a_frame_far_over_the_cap_costs_the_connection_and_nobody_else(
    daemon: DaemonProcess, peer: Peer, bystander: Client
) -> None:
    peer.send(HELLO, bytes(8 << 20))

    bystander.ping()
    assert daemon.lives()


@pytest.mark.parametrize(
    "kind",
    [
        MessageKind.WELCOME,
        MessageKind.REPLY,
        MessageKind.ACK,
        MessageKind.ERROR,
        MessageKind.STATS,
        MessageKind.HEALTH,
    ],
)
def test_a_kind_that_only_others_send_is_refused_by_name(attached: Peer, kind: MessageKind) -> None:
    attached.ask(kind, Ping())

    error = attached.error()
    assert error.code == "BAD_FRAME"
    assert f"message kind {kind.value} is not for this socket" in error.message
    assert_lives(attached)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "batch of 0 bytes cannot be decoded"),
        (b"\x90", "batch of 0 operations has 0 batch_end"),
        (join_batch([encode(Idle())]), "batch of 1 operations has 0 batch_end"),
        (join_batch([encode(BatchEnd())] * 2), "batch of 2 operations has 2 batch_end"),
        (join_batch([encode(BatchEnd()), encode(Idle())]), "exactly one is needed, as its last"),
        (batch_body(Idle())[:-2], "cannot be decoded"),
        (batch_body(Idle()) + b"\x00", "cannot be decoded"),
        (join_batch([encode(["admit"]), encode(BatchEnd())]), "operation of 7 bytes"),
        (join_batch([encode(["steal", 1]), encode(BatchEnd())]), "steal"),
        (join_batch([encode(["processed", -1, 2]), encode(BatchEnd())]), "cannot be decoded"),
        (join_batch([encode(["processed", 1.5]), encode(BatchEnd())]), "Expected `int`"),
        (batch_body(*[Idle()] * 4096), "batch of 4097 operations, at most 4096"),
        (b"\xdd\xff\xff\xff\xff" + bytes(1000), "cannot be decoded"),
        (b"\x91" * 60_000, "cannot be decoded"),
        (encode(Bye()), "batch of"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_batch_that_cannot_be_read_changes_nothing(
    attached: Peer, bystander: Client, body: bytes, problem: str
) -> None:
    attached.ask(MessageKind.BATCH, body)

    error = attached.error()
    assert error.code == "BAD_FRAME"
    assert re.search(problem, error.message), error.message
    assert_lives(attached)


@pytest.mark.parametrize("body", [b"", b"\xc1", encode(["fact"]), encode(["rank_failed", 1])])
def test_a_fact_that_cannot_be_read_changes_nothing(attached: Peer, body: bytes) -> None:
    attached.ask(MessageKind.FACT, body)

    error = attached.error()
    assert error.code == "BAD_FRAME"
    assert "fact of" in error.message
    assert_lives(attached)


def test_a_fact_about_a_step_that_never_was_is_refused_with_its_number(attached: Peer) -> None:
    attached.ask(MessageKind.FACT, StepAborted(99))

    error = attached.error()
    assert "99" in error.message
    assert_lives(attached)


@pytest.mark.parametrize("index", [-1, 1, 1 << 62])
def test_a_batch_at_another_index_is_refused_with_the_one_expected(
    attached: Peer, index: int
) -> None:
    attached.ask(MessageKind.BATCH, batch_body(Idle()), index=index)

    error = attached.error()
    assert error.code == "BAD_INDEX"
    assert f"index {index}" in error.message
    assert "continues at 0" in error.message
    assert_lives(attached)


@pytest.mark.parametrize("position", [-1, 1, 1 << 62])
def test_an_applied_position_that_cannot_be_is_refused_with_the_log_s_end(
    attached: Peer, position: int
) -> None:
    attached.ask(MessageKind.BATCH, batch_body(Idle()), position=position)

    error = attached.error()
    assert error.code == "BAD_INDEX"
    assert f"position {position}" in error.message
    assert "the log ends at 0" in error.message
    assert_lives(attached)


@pytest.mark.case("114")
def test_a_stale_epoch_is_fenced_with_both_epochs(attached: Peer) -> None:
    assert attached.welcome is not None
    epoch = attached.welcome.epoch

    attached.ask(MessageKind.BATCH, batch_body(Idle()), epoch=epoch - 1)

    error = attached.error()
    assert error.code == "FENCED"
    assert f"epoch {epoch - 1} is stale, this daemon's is {epoch}" in error.message
    assert_lives(attached)


@pytest.mark.parametrize("token", [0, 1, -1, (1 << 64) - 1])
def test_an_unknown_token_is_fenced(attached: Peer, token: int) -> None:
    attached.ask(MessageKind.BATCH, batch_body(Idle()), token=token)

    assert attached.error().code == "FENCED"
    assert_lives(attached)


@pytest.mark.case("107")
def test_a_token_from_another_socket_is_fenced(attached: Peer, daemon: DaemonProcess) -> None:
    with peers(daemon.address) as (thief,):
        thief.welcome = attached.welcome
        thief.ask(MessageKind.BATCH, batch_body(Idle()))

        assert thief.error().code == "FENCED"
    assert_lives(attached)


def test_a_token_before_the_group_is_whole_can_do_nothing(
    daemon: DaemonProcess, peer: Peer, group: str
) -> None:
    peer.say_hello(group, tp=2)
    peer.send(encode(Header(MessageKind.BATCH, 0, 0)), batch_body(Idle()))

    assert decode_error(peer.answer()).code == "FENCED"
    assert decode_error(peer.answer()).code == "GROUP_INCOMPLETE"


def test_a_ticket_used_twice_is_refused(attached: Peer, group: str) -> None:
    attached.say_hello(group + "b")

    error = attached.error()
    assert error.code == "BAD_HELLO"
    assert f"ticket {attached.ticket.ticket} " in error.message
    assert_lives(attached)


@pytest.mark.case("107")
@pytest.mark.parametrize("ticket", [0, -1, 12345])
def test_a_ticket_that_nobody_was_given_is_refused(peer: Peer, group: str, ticket: int) -> None:
    peer.say_hello(group, ticket=ticket)

    error = peer.error()
    assert error.code == "BAD_HELLO"
    assert f"ticket {ticket} " in error.message


def test_a_hello_with_fields_of_a_later_version_is_welcome(peer: Peer, group: str) -> None:
    fields = msgspec.msgpack.decode(encode(peer.hello(group)))

    peer.send(HELLO, encode(fields | {"colour": "green"}))

    peer.read_welcome()


@pytest.mark.parametrize(
    "payload", [b"\xc1", b"\x80", encode(Ping()), b"x" * 60_000], ids=["c1", "map", "ping", "long"]
)
def test_garbage_on_the_descriptor_socket_gets_one_error(
    daemon: DaemonProcess, attached: Peer, payload: bytes
) -> None:
    descriptors.send_message(attached.lifeline, payload)

    answer, fds = descriptors.receive_message(attached.lifeline, 4)
    error = decode_control(answer)
    assert isinstance(error, ErrorReply)
    assert error.code == "BAD_FRAME"
    assert fds == []
    assert_lives(attached)


@pytest.mark.case("114")
@pytest.mark.parametrize("token", [0, 1, -1])
def test_descriptors_are_not_given_for_another_token(attached: Peer, token: int) -> None:
    answer, fds = attached.fetch(token)

    assert isinstance(answer, ErrorReply)
    assert answer.code == "FENCED"
    assert fds == []


def test_descriptors_are_given_to_a_companion_that_knows_the_token(
    daemon: DaemonProcess, attached: Peer
) -> None:
    """A further process of a rank maps its memory; from then on the daemon watches it, too."""
    assert attached.welcome is not None
    with peers(daemon.address) as (companion,):
        answer, fds = companion.fetch(attached.welcome.token)
        assert isinstance(answer, Descriptors)
        descriptors.close_all(fds)
        assert_lives(attached)


@pytest.mark.case("135")
def test_descriptors_are_given_as_often_as_they_are_asked_for(attached: Peer) -> None:
    assert attached.welcome is not None
    for _ in range(3):
        answer, fds = attached.fetch(attached.welcome.token)

        assert isinstance(answer, Descriptors)
        assert answer.names == ("arena", "fence")
        assert [descriptors.descriptor_size(fd) for fd in fds] == list(answer.sizes_bytes)
        descriptors.close_all(fds)


def test_a_batch_sent_again_after_a_lost_reply_is_answered_alike_and_done_once(
    attached: Peer,
) -> None:
    first = attached.batch(Idle())
    again = attached.batch(Idle())
    assert again == first

    beyond = attached.batch(Idle(), index=2, position=2)
    assert beyond.position == 3
    assert [entry.index for entry in beyond.entries] == [2, 3]


def test_another_batch_at_an_index_already_used_ends_the_incarnation(attached: Peer) -> None:
    attached.batch(Idle())

    attached.ask(MessageKind.BATCH, batch_body(Processed(1)), index=0)

    error = attached.error()
    assert error.code == "DIVERGED"
    assert "index 0" in error.message
    assert "sent again" in error.message
    attached.ask(MessageKind.PING, Ping())
    assert attached.error().code == "DIVERGED"


def test_after_bye_every_message_is_answered_with_the_end(attached: Peer) -> None:
    attached.ask(MessageKind.BYE, Bye())
    assert attached.answer()[0].kind is MessageKind.ACK

    attached.ask(MessageKind.PING, Ping())

    error = attached.error()
    assert error.code == "RANK_LOST"
    assert "left" in error.message


def test_a_reported_failure_ends_the_incarnation_with_its_reason(attached: Peer) -> None:
    attached.ask(MessageKind.FACT, RankFailed("the device is on fire"))
    assert attached.answer()[0].kind is MessageKind.ACK

    attached.ask(MessageKind.PING, Ping())

    error = attached.error()
    assert error.code == "RANK_LOST"
    assert "the device is on fire" in error.message


@pytest.mark.case("116")
def test_errors_are_counted_by_code(daemon: DaemonProcess, peer: Peer) -> None:
    before = daemon.fresh_stats()["counters"]["errors"].get("BAD_FRAME", 0)

    peer.send(b"")
    peer.error()

    assert daemon.fresh_stats()["counters"]["errors"]["BAD_FRAME"] == before + 1


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ((b"",), ErrorCode.BAD_FRAME),
        ((b"", b""), ErrorCode.BAD_FRAME),
        ((b"\xff" * 50, b"\xff"), ErrorCode.BAD_FRAME),
        ((encode(Header(MessageKind.BATCH)), b""), ErrorCode.FORBIDDEN),
        ((encode(Header(MessageKind.BYE)), b""), ErrorCode.FORBIDDEN),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_the_statistics_socket_answers_garbage_and_goes_on(
    daemon: DaemonProcess, frames: tuple[bytes, ...], code: ErrorCode
) -> None:
    with peers(daemon.address) as (peer,):
        peer.dealer.connect(f"{daemon.address}.stats")
        peer.dealer.disconnect(daemon.address)
        peer.send(*frames)

        assert peer.error().code == code
    assert daemon.stats()["daemon"]["pid"] == daemon.pid


def test_a_flood_of_garbage_does_not_keep_others_waiting(
    daemon: DaemonProcess, bystander: Client
) -> None:
    with peers(daemon.address) as (peer,):
        for _ in range(2_000):
            peer.send(b"\xc1", b"")
        began = monotonic()
        bystander.ping()
        waited_s = monotonic() - began
        for _ in range(2_000):
            peer.answer()

    assert waited_s < 5


def decode_error(answer: tuple[Header, bytes]) -> ErrorReply:
    """Return what an error answer says."""
    header, body = answer
    assert header.kind is MessageKind.ERROR
    reply = decode_control(body)
    assert isinstance(reply, ErrorReply)
    return reply
