"""When promises lapse: counted in the batches of the program that was given them."""


class Lapses:
    """Requests whose promise ends with a later batch of their program."""

    def __init__(self) -> None:
        self._ended_count: dict[int, int] = {}
        self._due: dict[tuple[int, int], list[int]] = {}

    def add(self, program: int, requests: list[int], *, batches: int) -> None:
        """Let promises given in the running batch live for ``batches`` batches, this one first."""
        due = self._ended_count.get(program, 0) + batches
        self._due.setdefault((program, due), []).extend(requests)

    def end_batch(self, program: int) -> list[int]:
        """Count a batch that ended; return the requests whose promise is over with it."""
        ended = self._ended_count.get(program, 0) + 1
        self._ended_count[program] = ended
        return self._due.pop((program, ended), [])
