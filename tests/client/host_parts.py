"""What the tests of host memory and of host streams share."""

import os
import threading
from collections.abc import Callable

from kvd_client.errors import ForkedError

DEADLINE_MS = 30_000


class Gate:
    """Work that occupies a stream until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._opened = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self._opened.wait(DEADLINE_MS / 1000)

    def open(self) -> None:
        self._opened.set()


def fail() -> None:
    raise ZeroDivisionError("planted")


def in_fork(call: Callable[[], object]) -> int:
    """Return 0 if the call raises ForkedError in a forked child."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
        except ForkedError:
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
