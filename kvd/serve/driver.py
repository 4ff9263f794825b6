"""Asks the driver, through a helper process, whether dead processes still hold contexts.

Nothing here waits: the helper is started, looked at when the question comes again, and asked anew
while the answer is no proof. What it listed before a process had ended says nothing of it.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

import msgspec

from kvd.serve.quiet import DriverAnswer

HELPER: Final = ("-P", "-m", "kvd.serve.driver_list")
HELPER_WAIT_S: Final = 20.0
"""Loading a driver may take seconds; one that takes longer is not going to answer."""
PAUSE_S: Final = 0.25
"""Between two helpers: each costs a tenth of a second of a core."""
OUTPUT_BYTES_MAX: Final = 1 << 20


class Listing(msgspec.Struct, frozen=True):
    """What the helper says: the processes that the driver lists, or why it knows nothing."""

    pids: tuple[int, ...] = ()
    problem: str = ""


class DriverList:
    """The driver's list of processes, asked while somebody wants to know."""

    def __init__(
        self, *, helper: Sequence[str] = HELPER, clock: Callable[[], float] = monotonic
    ) -> None:
        """Remember how to ask; ``helper`` are the arguments of the Python interpreter."""
        self._helper = tuple(helper)
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at_s = 0.0
        self._asking: frozenset[int] = frozenset()
        """Processes that had ended when the helper that runs was started."""
        self._wanted: dict[int, None] = {}
        self._answers: dict[int, str] = {}
        """Newest answer on each process that is wanted: why it is no proof, or nothing."""

    def ask(self, pids: Sequence[int]) -> DriverAnswer:
        """Return whether the driver lists none of these processes, all of which have ended.

        Never blocks. A proof is forgotten once given: the number may be another process's next.
        """
        self._wanted.update(dict.fromkeys(pids))
        self._look()
        texts = [self._answers.get(pid, "the driver has not answered yet") for pid in pids]
        problem = next((text for text in texts if text), "")
        if problem:
            return DriverAnswer(False, problem)
        for pid in pids:
            self._wanted.pop(pid, None)
            self._answers.pop(pid, None)
        return DriverAnswer(True, "")

    def close(self) -> None:
        """End the helper, if one runs."""
        self._reap(kill=True)

    def _look(self) -> None:
        """Take in what the helper said, and start the next one when it is time."""
        age_s = self._clock() - self._started_at_s
        if self._process is not None:
            if self._process.poll() is not None:
                self._take_in()
            elif age_s > HELPER_WAIT_S:
                self._reap(kill=True)
                self._note(Listing(problem=f"the driver did not answer within {HELPER_WAIT_S} s"))
        elif any(self._answers.get(pid, "?") for pid in self._wanted) and age_s > PAUSE_S:
            self._start()

    def _start(self) -> None:
        self._started_at_s = self._clock()
        self._asking = frozenset(self._wanted)
        try:
            self._process = subprocess.Popen(
                (sys.executable, *self._helper),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._note(Listing(problem=f"the driver cannot be asked: {error}"))

    def _take_in(self) -> None:
        output = self._reap(kill=False)
        try:
            listing = msgspec.json.decode(output, type=Listing)
        except msgspec.MsgspecError:
            listing = Listing(problem="the helper that asks the driver ended without an answer")
        self._note(listing)

    def _note(self, listing: Listing) -> None:
        for pid in self._asking:
            if listing.problem:
                self._answers[pid] = listing.problem
            else:
                listed = pid in listing.pids
                self._answers[pid] = f"the driver still lists process {pid}" if listed else ""

    def _reap(self, *, kill: bool) -> bytes:
        """Be done with the helper; returns what it said."""
        process, self._process = self._process, None
        if process is None:
            return b""
        if kill:
            process.kill()
        assert process.stdout is not None
        with process.stdout:
            output = b"" if kill else process.stdout.read(OUTPUT_BYTES_MAX)
        process.wait()
        return output
