"""Batches that wait for slow ranks."""

from types import SimpleNamespace
from typing import Any

from kvd.serve.dispatch import Dispatcher
from kvd_proto.control import Header, MessageKind


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
