"""Which of the actions that may run comes next: the only freedom of a modelled device."""

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

EVEN_WEIGHT = 100
"""Weight of a stream whose pace nobody set."""


class Candidate(Protocol):
    """An action that may run now."""

    @property
    def stream_name(self) -> str:
        """Return the stream that the action is on."""
        ...

    @property
    def enqueued_index(self) -> int:
        """Return its place among all actions of its world, in the order of enqueueing."""
        ...


class Chooser(Protocol):
    """Chooses among candidates; the same calls get the same answers."""

    def choose(self, candidates: Sequence[Candidate]) -> int:
        """Return the index of the one that runs; there is at least one."""
        ...


class InOrder:
    """Runs actions as they were enqueued, as if nothing ever overlapped."""

    def choose(self, candidates: Sequence[Candidate]) -> int:
        """Return the one that was enqueued first."""
        return min(range(len(candidates)), key=lambda index: candidates[index].enqueued_index)


class Seeded:
    """Draws from a seed; a stream's weight says how often it is drawn beside others."""

    def __init__(self, seed: int, weights: Mapping[str, int] | None = None) -> None:
        """Begin at a seed.

        ``weights`` names streams, or the beginnings of their names: ``{"1/forward": 1}`` makes the
        forwards of rank 1 a hundred times slower than the rest. The longest beginning that fits
        counts, and every other stream weighs EVEN_WEIGHT.
        """
        self._random = random.Random(seed)
        self._weights = dict(weights or {})
        self._of_stream: dict[str, int] = {}

    def choose(self, candidates: Sequence[Candidate]) -> int:
        """Return one drawn by weight."""
        weights = [self._weight(candidate.stream_name) for candidate in candidates]
        drawn = self._random.randrange(sum(weights))
        for index, weight in enumerate(weights):
            drawn -= weight
            if drawn < 0:
                return index
        raise AssertionError("a number below the sum of the weights falls on one of them")

    def _weight(self, stream_name: str) -> int:
        weight = self._of_stream.get(stream_name)
        if weight is None:
            fitting = [start for start in self._weights if stream_name.startswith(start)]
            weight = self._weights[max(fitting, key=len)] if fitting else EVEN_WEIGHT
            self._of_stream[stream_name] = weight
        return weight


class Favour:
    """Runs one stream as far as it comes before any other: the worst case for who waits for it."""

    def __init__(self, *stream_names: str) -> None:
        """Favour streams by name or beginning of a name, the first most; others as enqueued."""
        self._names = stream_names

    def choose(self, candidates: Sequence[Candidate]) -> int:
        """Return the candidate of the most favoured stream, the oldest if there are several."""
        return min(
            range(len(candidates)),
            key=lambda index: (
                self._rank(candidates[index].stream_name),
                candidates[index].enqueued_index,
            ),
        )

    def _rank(self, stream_name: str) -> int:
        for index, start in enumerate(self._names):
            if stream_name.startswith(start):
                return index
        return len(self._names)
