"""The process of a holder that belongs to one daemon: ``python -m kvd.hold.embedded FD PARENT``."""

import ctypes
import os
import signal
import socket
import sys
from typing import Final

from kvd.errors import ServeError
from kvd.hold.server import HolderServer

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; exit if it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise ServeError(f"cannot tie this process to its parent: errno {ctypes.get_errno()}")
    # A parent that ended before the call above sends no signal any more.
    if os.getppid() != parent_pid:
        sys.exit(0)


def main() -> None:
    """Serve the socket that was inherited until the daemon closes it or ends."""
    descriptor, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent_pid)
    server = HolderServer()
    server.adopt(socket.socket(fileno=descriptor))
    server.run()


if __name__ == "__main__":
    main()
