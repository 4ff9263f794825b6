"""When promises lapse: counted in the batches of the program that was given them.

Invariants:
    lapse.dues_match: a request has at most one due, it is listed there, and no due is past.
"""

from kvd.alloc.checks import CheckMonitor

Due = tuple[int, int]
"""A program, and how many of its batches have ended when the promise is over."""


class Lapses:
    """Requests whose promise ends with a later batch of their program."""

    def __init__(self) -> None:
        self._ended_count: dict[int, int] = {}
        self._requests_of: dict[Due, dict[int, None]] = {}
        self._due_of: dict[int, Due] = {}

    def add(self, program: int, requests: list[int], *, batches: int) -> None:
        """Let promises given in the running batch live for ``batches`` batches, this one first.

        0 lets them live until their request ends. A request that was retracted and came back has a
        new promise, which the time of the old one must not end: it takes that one's place.
        """
        for request in requests:
            earlier = self._due_of.pop(request, None)
            if earlier is not None:
                del self._requests_of[earlier][request]
        if batches == 0:
            return
        due = (program, self._ended_count.get(program, 0) + batches)
        self._requests_of.setdefault(due, {}).update(dict.fromkeys(requests))
        self._due_of.update(dict.fromkeys(requests, due))

    def end_batch(self, program: int) -> list[int]:
        """Count a batch that ended; return the requests whose promise is over with it.

        Each is returned once, in the order of their admission; it may have ended meanwhile.
        """
        ended = self._ended_count.get(program, 0) + 1
        self._ended_count[program] = ended
        lapsed = list(self._requests_of.pop((program, ended), {}))
        for request in lapsed:
            del self._due_of[request]
        return lapsed

    def check(self, monitor: CheckMonitor) -> None:
        """Check that requests and dues name each other: lapse.dues_match."""
        listed = [(request, due) for due, held in self._requests_of.items() for request in held]
        past = [
            (program, batch)
            for program, batch in self._requests_of
            if batch <= self._ended_count.get(program, 0)
        ]
        if past or sorted(listed) != sorted(self._due_of.items()):
            monitor.fail(
                "lapse.dues_match",
                f"{len(self._due_of)} promises are to lapse, {len(listed)} are listed for it, and "
                f"{len(past)} batches that they wait for are over",
            )
