"""Which protocol versions a daemon answers, and what it says to the others."""

from collections.abc import Iterator

import pytest

from kvd_proto.version import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from tests.e2e.daemon_process import DaemonProcess
from tests.e2e.wire import Peer, peers


@pytest.fixture
def peer(daemon: DaemonProcess) -> Iterator[Peer]:
    """Give a peer that has not said hello."""
    with peers(daemon.address) as (one,):
        yield one


@pytest.mark.parametrize(
    ("version_min", "version_max"),
    [
        (PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 2),
        (1000, 1000),
        (0, 0),
        (1, PROTOCOL_VERSION_MIN - 1),
        (-5, -1),
        (PROTOCOL_VERSION, 1),
    ],
)
def test_a_client_of_another_version_is_refused_with_both_ranges(
    peer: Peer, group: str, version_min: int, version_max: int
) -> None:
    peer.say_hello(group, version_min=version_min, version_max=version_max)

    error = peer.error()
    assert error.code == "BAD_VERSION"
    assert f"client speaks protocol {version_min} to {version_max}" in error.message
    assert f"this daemon {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION}" in error.message


def test_a_newer_client_that_still_speaks_this_version_is_welcome(peer: Peer, group: str) -> None:
    assert peer.attach(group, version_min=1, version_max=PROTOCOL_VERSION + 6).version == (
        PROTOCOL_VERSION
    )
