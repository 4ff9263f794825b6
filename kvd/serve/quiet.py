"""When the memory of a rank that ended is quiet: nobody can touch it any more.

Two things prove it, and the clock is neither of them. Either nobody can submit work any more and
every lane of the rank's fence page is done with what was begun there, or no process is left that
can hold a context of the rank: its own process and those that were registered beside it have ended,
and the driver does not list them. On a GPU the end of a process alone proves nothing: while a
forked child of it held the device files, a dead process's kernel was seen to write on for 6 s.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kvd_client.device.fences import STEP_LANE, FencePage


class RankProcess(Protocol):
    """One process that could map a rank's memory, as its lifeline shows it."""

    @property
    def pid(self) -> int:
        """Return the number of the process, for people."""
        ...

    @property
    def process_ended(self) -> bool:
        """Return whether the process is gone."""
        ...

    @property
    def let_go(self) -> bool:
        """Return whether it hung up, which its library does after its streams ran dry."""
        ...

    @property
    def parted(self) -> bool:
        """Return whether it took its leave, by which it says that it is done with the memory."""
        ...


class DriverAnswer(NamedTuple):
    """What the driver says of processes: ``clear`` is proof, everything else is not."""

    clear: bool
    text: str
    """Why it is no proof, for people; empty for a proof."""


class DriverCheck(Protocol):
    """Asks a driver which processes hold contexts; never blocks."""

    def ask(self, pids: Sequence[int]) -> DriverAnswer:
        """Return whether the driver lists none of these processes, as of an answer after now."""
        ...


class Verdict(NamedTuple):
    """Whether memory is quiet, and what proves it or stands against it."""

    quiet: bool
    text: str


def judge(page: FencePage, processes: Sequence[RankProcess], driver: DriverCheck | None) -> Verdict:
    """Say whether a rank's memory is quiet; ``driver`` is None where a process's end is proof.

    A process on the host device takes its streams along when it ends.
    """
    living = [one for one in processes if not (one.process_ended or one.parted)]
    keeping = [one for one in living if not one.let_go]
    if not living and driver is None:
        return Verdict(True, "its processes have ended")
    if not keeping:
        problem = _lanes_problem(page, ended=not living)
        if not problem:
            return Verdict(True, "nobody submits any more and its lanes are done")
    else:
        problem = ", ".join(f"process {one.pid} lives and keeps its mapping" for one in keeping)
    if living or driver is None:
        return Verdict(False, problem)
    answer = driver.ask([one.pid for one in processes if one.process_ended])
    if answer.clear:
        return Verdict(True, "its processes have ended and the driver lists none of them")
    return Verdict(False, f"{problem}; {answer.text}")


def _lanes_problem(page: FencePage, *, ended: bool) -> str:
    """Return why the lanes prove nothing, or nothing.

    A process that let go waited for its streams itself. Of one that was killed only what it counted
    is known, so lanes prove something only if its launches were counted, too: a stream's own lane
    knows nothing of kernels that the engine put on it.
    """
    lanes = page.read_lanes()
    busy = [
        f"lane {index} began {lane.begun} and did {lane.done}"
        for index, lane in enumerate(lanes)
        if not lane.quiet
    ]
    if busy:
        return ", ".join(busy)
    if ended and not lanes[STEP_LANE].begun:
        return "its launches were not counted in its lanes"
    return ""
