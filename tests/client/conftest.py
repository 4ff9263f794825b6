"""Fixtures of the client's tests: a daemon in this process, and its one rank."""

from collections.abc import Iterator

import pytest

from kvd_client import Client
from tests.client.engine_daemon import EngineDaemon


@pytest.fixture
def daemon() -> EngineDaemon:
    """Return a daemon for one rank; tests of more have one of their own."""
    return EngineDaemon()


@pytest.fixture
def kv(daemon: EngineDaemon) -> Iterator[Client]:
    """Give the rank, attached and with nothing asked; other tests have one of their own."""
    with daemon.attach() as client:
        yield client
