"""An onlooker of one group: its arena at its fullest, what moved, and what is left at the end."""

from pathlib import Path
from time import monotonic, sleep
from typing import Final

from kvd.cli.query import StageStatistics, fetch_statistics, read_statistics
from kvd.errors import ServeError
from kvd.testing.report import BandMotion, StageMotion

LOOK_INTERVAL_S: Final = 0.5
"""How often the arena is looked at, so that its fullest moment can be shown."""
DRAIN_WAIT_S: Final = 3.0
"""How long the daemon's published statistics may lag behind its last answer; normally 0.1 s."""
DRAIN_INTERVAL_S: Final = 0.05


class Watch:
    """Looks at the first stage of a group through the daemon's read-only socket."""

    def __init__(self, stats_path: Path, group: str) -> None:
        self._stats_path = stats_path
        self._group = group
        self._looked_s = -LOOK_INTERVAL_S
        self.fullest: StageStatistics | None = None
        self.left_units: dict[str, int] | None = None
        self.motion: StageMotion | None = None

    def look(self) -> None:
        """Take a look, unless the last one was a moment ago.

        A daemon that does not answer is not reported here: the ranks will say what happened.
        """
        if monotonic() - self._looked_s < LOOK_INTERVAL_S:
            return
        self._looked_s = monotonic()
        try:
            stage = self._stage()
        except ServeError:
            return
        if stage is not None and _live_bytes(stage) > _live_bytes(self.fullest):
            self.fullest = stage

    def settle(self) -> None:
        """Note what is live after the last request; a late document is given time to catch up.

        Raises ServeError if no daemon answers.
        """
        deadline_s = monotonic() + DRAIN_WAIT_S
        while True:
            stage = self._stage()
            if stage is not None:
                self.left_units = {band.name: band.live_units for band in stage.bands}
                self.motion = _motion(stage)
                if not any(self.left_units.values()):
                    return
            if monotonic() >= deadline_s:
                return
            sleep(DRAIN_INTERVAL_S)

    def _stage(self) -> StageStatistics | None:
        found = read_statistics(fetch_statistics(self._stats_path))
        stages = next((group.stages for group in found.groups if group.name == self._group), ())
        return stages[0] if stages else None


def _motion(stage: StageStatistics) -> StageMotion:
    return StageMotion(
        layouts=dict(stage.layouts),
        bands=tuple(
            BandMotion(
                name=band.name,
                is_float=band.chain_kind == "float",
                moved_units=band.moved_units_total,
                moved_bytes=band.moved_bytes_total,
                batches_count=band.move_count_total,
            )
            for band in stage.bands
        ),
        retracted_count=int(stage.counters.get("retracted", 0)),
        lapsed_count=int(stage.counters.get("lapsed", 0)),
    )


def _live_bytes(stage: StageStatistics | None) -> int:
    if stage is None:
        return 0
    return sum(band.live_units * band.unit_bytes for band in stage.bands)
