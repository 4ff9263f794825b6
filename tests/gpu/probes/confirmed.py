"""Judging a progress word against the data it stands for; needs no GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class Word:
    """What kills showed about a progress word.

    Two regions are written in turn: segment n makes every word of region n mod 2 equal to n, by
    reading n - 1 from the other. With p the progress word after quiet, the region that segment p
    wrote must hold at least p everywhere, or the word is ahead of the data; and no word may exceed
    p + 1, or the word lags by more than the segment that was running.
    """

    exact: int = 0
    behind_by_one: int = 0
    behind_by_more: int = 0
    ahead: int = 0

    def judge(self, progress: int, regions: Sequence[Any]) -> None:
        """Count one kill: ``regions`` are the two regions' words (numpy arrays) after quiet."""
        newest = max(int(region.max()) for region in regions)
        if int(regions[progress % 2].min()) < progress:
            self.ahead += 1
        elif newest <= progress:
            self.exact += 1
        elif newest == progress + 1:
            self.behind_by_one += 1
        else:
            self.behind_by_more += 1
