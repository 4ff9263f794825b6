"""A holder for one daemon: a child process without a path, which dies with its parent.

It is for demonstrations and tests. Memory then survives nothing that the daemon does not survive;
`kvd hold` or a service manager keeps it over a restart.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from kvd.errors import ServeError
from kvd.hold.client import HolderClient
from kvd_client.device.descriptors import socket_pair

START_TIMEOUT_MS: Final = 10_000
"""An interpreter starts in tens of milliseconds; on a loaded machine it may take seconds."""


def spawn_holder(
    *, timeout_ms: int = START_TIMEOUT_MS, log: Callable[[str], None] | None = None
) -> HolderClient:
    """Start a holder and return a client of it, once it answers; raises ServeError.

    ``log`` is told when this holder is lost; nothing but a new daemon replaces it then.
    Call it from a thread that lives as long as the process: the kernel ties the child to the thread
    that started it.
    """
    here, there = socket_pair()
    try:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "kvd.hold.embedded",
                str(there.fileno()),
                str(os.getpid()),
            ],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            # Ctrl-C in a terminal is for the daemon, which still needs its holder while it drains.
            start_new_session=True,
        )
    except OSError as error:
        here.close()
        raise ServeError(f"cannot start a holder with {sys.executable}: {error}") from error
    finally:
        there.close()
    try:
        return HolderClient(here, timeout_ms=timeout_ms, process=process, log=log)
    except BaseException:
        here.close()
        process.kill()
        process.wait()
        raise
