"""A bound on the work of one step, so that what never ends is a finding and not a hang.

Processor time is what counts: a machine that is busy with something else takes nothing from it. A
step that goes on for ever fails as that same step everywhere.
"""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from kvd.errors import StressFailure
from kvd.testing.stress.failure import CheckName

PROCESSOR_S_MAX: Final = 30.0
"""What one step may take: many times what the longest one does."""
_AGAIN_S: Final = 1.0
"""After which it is raised once more where the code under test catches everything."""


@contextmanager
def bounded(processor_s: float = PROCESSOR_S_MAX) -> Generator[None]:
    """Raise StressFailure inside once it took so much processor time.

    It bounds nothing in threads other than the main one, nor where somebody else has the signal.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGVTALRM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGVTALRM, _over)
    signal.setitimer(signal.ITIMER_VIRTUAL, processor_s, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)


def _over(number: int, frame: FrameType | None) -> None:
    where = "" if frame is None else f"; it is in {frame.f_code.co_qualname}"
    raise StressFailure(CheckName.ENDS, f"a step came to no end in the time it is given{where}")
