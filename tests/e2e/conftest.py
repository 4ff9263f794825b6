"""Fixtures of the end-to-end tests: folders with short paths, and daemons."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.e2e.daemon_process import DaemonProcess, serving
from tests.e2e.ranks import Ranks

_group_numbers = count()

SHARED = (
    *("--group-wait-ms", "300"),
    *("--lag-wait-ms", "300"),
    *("--drain-wait-ms", "500"),
    *("--rank-lag-count-max", "16"),
    *("--frame-bytes-max", "64KiB"),
    *("--check-level", "strict"),
)
"""Settings of the daemon that tests share: short waits, small bounds, every check."""


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Have the processes of tests see Ctrl-C, however this one was started.

    A shell without job control starts what it puts into the background with SIGINT ignored, and
    whatever is ignored stays so in all processes below.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a path whose sockets stay below the 107 bytes that an address takes."""
    return tmp_path_factory.mktemp("r") / "run"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Give a daemon that the tests of a module share; it must have survived them all."""
    with serving(tmp_path_factory.mktemp("r") / "run", *SHARED) as running:
        yield running
        assert running.lives(), running.log()
        assert "internal_error" not in running.log()
        assert running.stop() == 0


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Give a function that starts a daemon of the test's own, with further options."""
    with ExitStack() as stack:

        def start_one(*arguments: str) -> DaemonProcess:
            return stack.enter_context(serving(folder, *arguments))

        yield start_one


@pytest.fixture
def group() -> str:
    """Return a group's name that no other test uses."""
    return f"g{next(_group_numbers)}"


@pytest.fixture
def ranks(daemon: DaemonProcess, group: str) -> Iterator[Ranks]:
    """Give what attaches ranks of a new group to the shared daemon and closes them all."""
    with Ranks(daemon.address, group) as found:
        yield found
