"""The memory of a group: arenas that outlive incarnations, and what is left of ranks that ended.

Nobody starts on an arena before every rank of the last incarnation is quiet. A plan that differs
gets new arenas, and only when the old ones are given back.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvd.engine.incarnation import Incarnation
from kvd.engine.legacy import Legacy
from kvd.serve.leaving import Leaving
from kvd.serve.memory import (
    Arena,
    ArenaMaker,
    DescriptorKeeper,
    LaneRecord,
    RankMemory,
    create_host_arena,
)
from kvd_proto.memory import StoragePlan

if TYPE_CHECKING:
    from kvd.serve.quiet import DriverCheck

RankKey = tuple[int, int]
"""Stage and rank."""

LANE_RECORDS_MAX = 1024
"""Lanes of ranks that ended, kept for whoever asks what was in flight."""


class GroupMemory:
    """Arenas by rank, and the ranks that ended and are not quiet yet."""

    def __init__(
        self, group: str, *, keeper: DescriptorKeeper, driver: "DriverCheck | None" = None
    ) -> None:
        """Start without memory; ``driver`` is None where a process takes its streams along."""
        self.leaving: list[Leaving] = []
        self.lane_records: list[LaneRecord] = []
        self.problems: list[str] = []
        """What went wrong while memory was given back, for the log."""
        self.driver = driver
        self._group = group
        self._keeper = keeper
        self._arenas: dict[RankKey, Arena] = {}
        self._plans: tuple[StoragePlan, ...] = ()
        self._places: dict[RankKey, str] = {}
        self._legacies: tuple[Legacy, ...] = ()

    @property
    def has_arenas(self) -> bool:
        """Return whether any arena is held."""
        return bool(self._arenas)

    @property
    def has_survivors(self) -> bool:
        """Return whether the arenas hold values for a later incarnation."""
        return any(legacy.engine is not None for legacy in self._legacies)

    @property
    def quarantined_bytes(self) -> int:
        """Return the bytes that are out of use because somebody may still touch them."""
        return sum(item.bytes for item in self.leaving if item.quarantined_at_s is not None)

    def create(
        self,
        plans: tuple[StoragePlan, ...],
        *,
        number: int,
        places: Mapping[RankKey, str],
        maker: ArenaMaker = create_host_arena,
    ) -> dict[RankKey, RankMemory]:
        """Return every rank's memory, or none; arenas of the same plan and place are used again.

        ``places`` says for each rank where its memory has to be: the GPU it works on, or nothing
        for the host. Raises KvdError when memory cannot be had; what there was before stays.
        """
        assert not self.leaving, "an arena that is not quiet is nobody's"
        if plans != self._plans or places != self._places:
            # New arenas may need the bytes of the old ones.
            self.release_arenas(at_once=True)
        arenas = dict(self._arenas)
        memories: dict[RankKey, RankMemory] = {}
        try:
            for key, place in places.items():
                stage, rank = key
                name = f"{self._group}.{number}.{stage}.{rank}"
                if key not in arenas:
                    arenas[key] = Arena(
                        name,
                        size_bytes=plans[stage].total_bytes,
                        keeper=self._keeper,
                        place=place,
                        maker=maker,
                    )
                memories[key] = RankMemory(name, arena=arenas[key], keeper=self._keeper)
        except BaseException:
            for memory in memories.values():
                memory.release_fences()
            for key, arena in arenas.items():
                if key not in self._arenas:
                    arena.release()
            raise
        self._arenas, self._plans, self._places = arenas, plans, dict(places)
        return memories

    def inherit(self) -> tuple[tuple[Legacy, ...], dict[RankKey, bytes]]:
        """Return what each stage takes over, and what each rank has to redo first; both once.

        Values survive in all ranks and stages or in none: their requests span them all.
        """
        legacies = self._legacies or tuple(Legacy(0) for _ in self._plans)
        self._legacies = ()
        progress: dict[RankKey, int] = {}
        for (stage, rank), arena in self._arenas.items():
            position = arena.progress_position(self._plans[stage])
            if position is None:
                # The rank reads the word itself, and starts behind it.
                position = legacies[stage].confirmed.get(rank)
            if position is not None and legacies[stage].reaches(position):
                progress[stage, rank] = position
        everybody = len(progress) == len(self._arenas)
        if not everybody or any(legacy.engine is None for legacy in legacies):
            return tuple(legacy.without_survivors() for legacy in legacies), {}
        return legacies, {
            key: legacies[key[0]].redo(position) for key, position in progress.items()
        }

    def note_confirmed(self, stages: tuple[Incarnation, ...]) -> None:
        """Tell running stages up to where the effects of each rank have run."""
        for (stage, rank), arena in self._arenas.items():
            position = arena.progress_position(self._plans[stage])
            if position is not None:
                stages[stage].note_confirmed(rank, position)

    def end(self, stages: tuple[Incarnation, ...], leaving: list[Leaving]) -> None:
        """Take in that an incarnation is over, and what its ranks leave."""
        self.note_confirmed(stages)  # as of now: what was sealed since the last look survives, too
        self._legacies = tuple(incarnation.legacy() for incarnation in stages)
        self.leaving += leaving

    def release_quiet(self) -> list[Leaving]:
        """Record and complete the lanes of memory that is quiet; returns it. Arenas stay."""
        quiet = [item for item in self.leaving if item.look()]
        for item in quiet:
            record = item.memory.release_fences()
            if record.problem:
                self.problems.append(record.problem)
            self.lane_records.append(record)
        del self.lane_records[:-LANE_RECORDS_MAX]
        self.leaving = [item for item in self.leaving if item not in quiet]
        return quiet

    def quarantine(self, now_s: float, *, wait_ms: int) -> list[Leaving]:
        """Set memory aside that is not quiet in time; returns what was set aside just now."""
        return [item for item in self.leaving if item.overdue(now_s, wait_ms=wait_ms)]

    def release_arenas(self, *, at_once: bool = False) -> None:
        """Give the arenas back; nobody runs on them, and all of them are quiet.

        With ``at_once`` their bytes are free when it returns.
        """
        assert not self.leaving
        for arena in self._arenas.values():
            problem = arena.release(at_once=at_once)
            if problem:
                self.problems.append(problem)
        self._arenas, self._plans, self._places, self._legacies = {}, (), {}, ()

    def forget_survivors(self) -> None:
        """Let nothing survive any more."""
        self._legacies = tuple(legacy.without_survivors() for legacy in self._legacies)

    def blockers(self) -> str:
        """Return who keeps the memory of the last incarnation and why, in words."""
        return ", ".join(item.describe() for item in self.leaving)
