"""Memory of ranks that ended, until it is quiet: waiting, then in quarantine, then given back.

Past its time memory is not given back but set aside, with the reason: it may still be written to.
It comes back when it falls quiet later, or when an administrator states what proves that it is.
"""

from kvd.serve.lifeline import Lifeline
from kvd.serve.memory import RankMemory
from kvd.serve.quiet import DriverCheck, judge


class Leaving:
    """Memory of one rank that ended."""

    def __init__(
        self,
        *,
        memory: RankMemory,
        processes: tuple[Lifeline, ...],
        rank: str,
        key: tuple[int, int],
        ended_at_s: float,
        driver: DriverCheck | None,
    ) -> None:
        self.memory = memory
        self.processes = processes
        """The rank's own process and those registered beside it."""
        self.rank = rank
        """Stage, rank and process in words."""
        self.key = key
        """Stage and rank."""
        self.quarantined_at_s: float | None = None
        """On the monotonic clock, like ``ended_at_s``."""
        self.reason = "not looked at yet"
        """What stands against its being quiet; what proved it, once it is."""
        self._ended_at_s = ended_at_s
        self._driver = driver
        self._quiet = False

    @property
    def bytes(self) -> int:
        """Return the bytes of the arena, which nobody can use meanwhile."""
        return self.memory.arena.size_bytes

    def look(self) -> bool:
        """Return whether the memory is quiet now, and remember why or why not."""
        if not self._quiet:
            self._quiet, self.reason = judge(self.memory.page, self.processes, self._driver)
        return self._quiet

    def overdue(self, now_s: float, *, wait_ms: int) -> bool:
        """Put the memory into quarantine once its time is over; True if that happened now."""
        if self.quarantined_at_s is not None or now_s - self._ended_at_s <= wait_ms / 1000:
            return False
        self.quarantined_at_s = now_s
        return True

    def free_on_proof(self, evidence: str) -> None:
        """Take an administrator's word for it; the memory is given back at the next look."""
        self._quiet, self.reason = True, f"an administrator states: {evidence}"

    def describe(self) -> str:
        """Return who keeps the memory and why, in words."""
        return f"{self.rank}: {self.reason}"
