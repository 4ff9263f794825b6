"""Batches that wait for slow ranks, and messages that are not what their header says."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kvd.alloc.checks import CheckLevel
from kvd.errors import InvariantError
from kvd.serve.dispatch import Dispatcher
from kvd_proto.codec import decode_control, encode
from kvd_proto.control import Bye, ErrorReply, Header, MessageKind, Ping
from kvd_proto.errors import MESSAGE_CHARACTERS_MAX, ErrorCode
from tests.fuzz.world import EPOCH, World


def test_batches_that_wait_no_longer_are_each_decided_once_though_each_decision_looks_again() -> (
    None
):
    dispatcher: Any = Dispatcher.__new__(Dispatcher)
    decided: list[bytes] = []

    def message(identity: bytes, _frames: list[bytes]) -> None:
        decided.append(identity)
        dispatcher._retry_parked()

    dispatcher.message = message

    def still_lags(item: Any) -> bool:
        return bool(item.session.identity == b"slow")

    dispatcher._still_lags = still_lags
    dispatcher._parked = [
        SimpleNamespace(
            session=SimpleNamespace(identity=identity),
            header=Header(MessageKind.BATCH, 1, 2, 3, 4),
            body=b"",
            timer=SimpleNamespace(cancel=lambda: None),
        )
        for identity in (b"one", b"slow", b"two", b"three")
    ]
    dispatcher._retry_parked()
    assert decided == [b"one", b"two", b"three"]
    assert [item.session.identity for item in dispatcher._parked] == [b"slow"]


def _settled(settle: Any, news: list[str]) -> tuple[list[str], list[tuple[str, str, ErrorCode]]]:
    """Return what a dispatcher logs, and the groups that it ends, when a batch is settled."""
    dispatcher: Any = Dispatcher.__new__(Dispatcher)
    lines: list[str] = []
    ended: list[tuple[str, str, ErrorCode]] = []

    def end_group(group: Any, cause: str, *, code: ErrorCode) -> None:
        ended.append((group.name, cause, code))

    dispatcher._log = lines.append
    dispatcher._recorder = None
    dispatcher.lobby = SimpleNamespace(end_group=end_group)
    engine = SimpleNamespace(monitor=SimpleNamespace(news=news))
    group = SimpleNamespace(name="g")
    dispatcher._unsettled = (group, SimpleNamespace(settle=settle, engine=engine))
    dispatcher.after_send()
    dispatcher.after_send()
    return lines, ended


def test_an_invariant_that_is_found_broken_behind_a_reply_ends_its_group_alone() -> None:
    def settle() -> None:
        raise InvariantError("idle.units_held", "a leak")

    assert _settled(settle, []) == ([], [("g", "idle.units_held: a leak", ErrorCode.INVARIANT)])


def test_what_is_counted_is_logged_once() -> None:
    news = ["ledger.release_once: no copy; broken 1 times"]
    lines, ended = _settled(lambda: None, news)
    assert ended == []
    assert lines == [
        "event=check_broken group=g said='ledger.release_once: no copy; broken 1 times'"
    ]
    assert news == []


@pytest.mark.parametrize(
    ("kind", "body", "problem"),
    [
        (MessageKind.PING, encode(Bye()), "a body of Bye; Ping is expected"),
        (MessageKind.FOLLOW, encode(Bye()), "a body of Bye; Ping is expected"),
        (MessageKind.BYE, encode(Ping()), "a body of Ping; Bye is expected"),
        (MessageKind.BYE, b"\x90", "control message of 1 bytes cannot be decoded"),
    ],
)
def test_a_header_whose_body_belongs_to_another_kind_is_damage_and_changes_nothing(
    kind: MessageKind, body: bytes, problem: str
) -> None:
    world = World(CheckLevel.STRICT)
    seat = world.attach("one")
    header = Header(kind, EPOCH, seat.welcome.token, seat.index, seat.position)
    ((_, answered, answer),) = world.message(seat.identity, [encode(header), body])
    error = decode_control(answer)
    assert isinstance(error, ErrorReply)
    assert (answered.kind, error.code) == (MessageKind.ERROR, "BAD_FRAME")
    assert problem in error.message
    assert seat.session.group.running is not None
    assert not seat.session.following


def test_a_group_of_many_ranks_names_a_few_of_those_that_it_misses() -> None:
    world = World(CheckLevel.STRICT)
    hello = msgspec.structs.replace(world.hello("many"), tp=1024)
    assert world.message(b"one", [encode(Header(MessageKind.HELLO)), encode(hello)]) == []
    assert world.lobby.groups["many"].missing() == [
        *(f"stage 0 rank {rank}" for rank in range(1, 17)),
        "1007 more ranks",
    ]
    ((_, _, answer),) = world.pass_time(1.0)
    error = decode_control(answer)
    assert isinstance(error, ErrorReply)
    assert error.code == "GROUP_INCOMPLETE"
    assert len(error.message) < MESSAGE_CHARACTERS_MAX
    assert "many" not in world.lobby.groups
