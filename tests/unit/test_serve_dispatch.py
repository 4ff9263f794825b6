"""Batches that wait for slow ranks."""

from types import SimpleNamespace
from typing import Any

from kvd.errors import InvariantError
from kvd.serve.dispatch import Dispatcher
from kvd_proto.control import Header, MessageKind
from kvd_proto.errors import ErrorCode


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
