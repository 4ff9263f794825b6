"""Child processes that cannot outlive the process that started them."""

import ctypes
import os
import signal
from typing import Final

from kvd.errors import WorkloadError

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends.

    Raises WorkloadError if the parent is gone already or the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise WorkloadError(f"cannot ask to end with the parent process: {reason}")
    # The parent may have ended before the call above, which then watches whoever adopted us.
    if os.getppid() != parent_pid:
        raise WorkloadError(f"parent process {parent_pid} ended before this one was ready")
