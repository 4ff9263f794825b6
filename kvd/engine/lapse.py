"""When promises lapse: counted in the batches of the program that was given them."""


class Lapses:
    """Requests whose promise ends with a later batch of their program.

    A request that was retracted may be admitted again under its id, so only the newest word about
    an id counts.
    """

    def __init__(self) -> None:
        self._ended_count: dict[int, int] = {}
        self._due: dict[tuple[int, int], list[int]] = {}
        self._due_of: dict[int, tuple[int, int]] = {}

    def add(self, program: int, requests: list[int], *, batches: int) -> None:
        """Let promises given in the running batch live for ``batches`` batches, this one first.

        With 0 they live until their requests end.
        """
        due = (program, self._ended_count.get(program, 0) + batches)
        if not batches:
            for request in requests:
                self._due_of.pop(request, None)
            return
        self._due.setdefault(due, []).extend(requests)
        self._due_of.update(dict.fromkeys(requests, due))

    def end_batch(self, program: int) -> list[int]:
        """Count a batch that ended; return the requests whose promise is over with it."""
        ended = self._ended_count.get(program, 0) + 1
        self._ended_count[program] = ended
        due = (program, ended)
        lapsed = [request for request in self._due.pop(due, []) if self._due_of.get(request) == due]
        for request in lapsed:
            del self._due_of[request]
        return lapsed
