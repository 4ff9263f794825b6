"""Which process this is, for what must not be used by a fork of its owner.

Several guards of every step ask. Asking the kernel costs 0.05 to 0.3 us each time; here it is asked
once, and again in the child of every fork that the interpreter makes. (A fork behind its back, made
by a library in C, leaves an interpreter that may not run Python at all.)
"""

import os
from typing import Final


class Process:
    """The process that this code runs in."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        """Ask the kernel."""
        self.pid = os.getpid()
        """Its number, which a fork sees change."""

    def renew(self) -> None:
        """Ask again, in the child of a fork."""
        self.pid = os.getpid()


PROCESS: Final = Process()
os.register_at_fork(after_in_child=PROCESS.renew)
