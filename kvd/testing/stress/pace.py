"""In which order the modelled actions of a run come: drawn from its seed, with a favour at times."""

import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeAlias

from kvd.testing.modelled.choice import Candidate

Rating: TypeAlias = Callable[[Candidate], int]
"""Rates a candidate; those of the lowest rating come first."""


def _kind(name: str) -> Rating:
    return lambda candidate: candidate.stream_name.split("/")[1] != name


def _of_rank(candidate: Candidate) -> int:
    return int(candidate.stream_name.split("/")[0])


FAVOURS: Final[tuple[Rating, ...]] = (
    lambda candidate: 0,
    _kind("forward"),
    _kind("allocator"),
    _kind("load"),
    _kind("backup"),
    _kind("network"),
    _of_rank,
    lambda candidate: -_of_rank(candidate),
    lambda candidate: candidate.enqueued_index,
    lambda candidate: -candidate.enqueued_index,
)
"""What may come first: nothing, streams of a kind, low ranks, high ranks, the oldest, the newest."""


class Pace:
    """Chooses among actions that may run; the same calls get the same answers."""

    def __init__(self, seed: int) -> None:
        """Begin at a seed, favouring nothing."""
        self._random = Random(seed)
        self.favour_index = 0
        """Place in `FAVOURS`."""
        self.digest = 0
        """Of all choices so far."""

    def choose(self, candidates: Sequence[Candidate]) -> int:
        """Return the index of the one that runs."""
        places: Sequence[int] = range(len(candidates))
        if self.favour_index:
            rating = FAVOURS[self.favour_index]
            ratings = [rating(candidate) for candidate in candidates]
            best = min(ratings)
            places = [place for place, rated in enumerate(ratings) if rated == best]
        chosen = places[self._random.randrange(len(places))]
        self.digest = zlib.crc32(b"%d" % candidates[chosen].enqueued_index, self.digest)
        return chosen
