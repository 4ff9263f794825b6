"""When the memory of a rank that ended is quiet: nobody can touch it any more.

Two things prove it, and the clock is neither of them. Either nobody can submit work any more and
every lane of the rank's fence page is done with what was begun there, or no process is left that
can hold a context of the rank: its own process and those that were registered beside it have ended,
and the driver does not list them. On a GPU the end of a process alone proves nothing: while a
forked child of it held the device files, a dead process's kernel was seen to write on for 6 s. A
process that took its leave has waited for its streams itself.
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
        """Return whether it hung up: it submits nothing any more, and may be dying."""
        ...

    @property
    def parted(self) -> bool:
        """Return whether it said, after its streams ran dry, that it is done with the memory."""
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
    present = [one for one in processes if not one.parted]
    living = [one for one in present if not one.process_ended]
    keeping = [one for one in living if not one.let_go]
    if not present:
        return Verdict(True, "its processes have taken their leave")
    if keeping:
        names = ", ".join(f"process {one.pid}" for one in keeping)
        return Verdict(False, f"{names} lives and keeps its mapping")
    if not living and driver is None:
        return Verdict(True, "its processes have ended")
    problem = _lanes_problem(page, host=driver is None)
    if not problem:
        return Verdict(True, "nobody submits any more and its lanes are done")
    if living or driver is None:
        return Verdict(False, problem)
    answer = driver.ask([one.pid for one in present])
    if answer.clear:
        return Verdict(True, "its processes have ended and the driver lists none of them")
    return Verdict(False, f"{problem}; {answer.text}")


def _lanes_problem(page: FencePage, *, host: bool) -> str:
    """Return why the lanes prove nothing, or nothing.

    A connection ends before its process does: what hung up may be dying with work on the GPU. So
    lanes prove something there only if launches were counted, too; a stream's own lane knows
    nothing of kernels that the engine put on it.
    """
    lanes = page.read_lanes()
    busy = [
        f"lane {index} began {lane.begun} and did {lane.done}"
        for index, lane in enumerate(lanes)
        if not lane.quiet
    ]
    if busy:
        return ", ".join(busy)
    if not host and not lanes[STEP_LANE].begun:
        return "its launches were not counted in its lanes"
    return ""
