"""What steps and the end of a run need of it, whatever its ranks run on."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from kvd.testing.stress.checked_rank import CheckedRank
from kvd.testing.stress.hand import Hand
from kvd.testing.stress.model import Model
from kvd.testing.stress.pace import Pace
from kvd.testing.stress.played_rank import PlayedRank
from kvd.testing.stress.program import Program
from kvd.testing.stress.scheduler import Scheduler
from kvd.testing.stress.script import Part
from kvd.testing.stress.stage import StressRanks


class FinishedRun(Protocol):
    """A run that comes to its end, in one process or in one of several."""

    program: Program
    scheduler: Scheduler
    model: Model

    @property
    def ranks(self) -> Sequence[CheckedRank]:
        """Return the ranks that this process plays."""
        ...


class PlayedRun(Protocol):
    """A run whose ranks are all played here."""

    program: Program
    scheduler: Scheduler
    model: Model
    stage: StressRanks
    pace: Pace
    counts: Counter[str]
    script: list[Part]
    first_index: int
    """The rank that does everything first."""

    @property
    def ranks(self) -> Sequence[PlayedRank[Any]]:
        """Return all ranks."""
        ...

    def follow(self, hand: Hand[PlayedRank[Any]], count: int) -> int:
        """Have a rank do what the first one did; return how many parts that were."""
        ...

    def advance(self, actions_count: int) -> bool:
        """Let some actions of the devices run; return whether there were any."""
        ...

    def run_dry(self) -> None:
        """Let everything run that is enqueued."""
        ...

    def come_to_rest(self) -> None:
        """Let everything run that can: what a peer holds back may stay."""
        ...

    def die(self, killed: Sequence[int]) -> None:
        """Let ranks die where they are, and the next incarnation begin on their memory."""
        ...
