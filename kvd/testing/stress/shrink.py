"""Making a failing program small: fewer steps, then plainer arguments, then a plainer stage.

Whatever is left out or changed, the rest is a valid program again (`kvd.testing.stress.program`).
So a candidate is simply run; it counts if the check of the same name fails. That is delta debugging
over steps (ddmin) and a descent over numbers, and it ends after a number of runs, not after a time:
the same failing program is shrunk to the same one everywhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from msgspec import structs

from kvd.testing.stress.program import RANKS_MIN, AnyStep, Program
from kvd.testing.stress.run import run

RUNS_MAX: Final = 2000


class Failing(NamedTuple):
    """How a program failed."""

    check: str
    """Name of the check that did not hold."""
    steps_count: int
    """Steps that were played until then, the failing one included."""


Try = Callable[[Program], Failing | None]
"""Runs a program; returns None if every check held."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest failing program that was found."""

    program: Program
    check: str
    runs_count: int
    """Runs that it took."""
    exhausted: bool
    """Whether it ended because runs were used up: more of them might make it smaller still."""


class _ExhaustedError(Exception):
    """All runs are used up."""


def attempt(program: Program) -> Failing | None:
    """Play a program, whole, and say how it failed."""
    failure = run(program).failure
    return None if failure is None else Failing(failure.check, failure.step_index + 1)


def shrink(program: Program, played: Try, *, runs_max: int = RUNS_MAX) -> Shrunk:
    """Return a program of which nothing can be left out or made smaller, one change at a time.

    The first run is of the program as it is. Raises ValueError if that does not fail, or if there
    is no run to make.
    """
    if runs_max < 1:
        raise ValueError(f"runs_max is {runs_max}; a program has to be run once at least")
    failing = played(program)
    if failing is None:
        raise ValueError("the program does not fail, so there is nothing to shrink")
    shrinking = _Shrinking(program, failing, played, runs_max)
    exhausted = False
    try:
        shrinking.descend()
    except _ExhaustedError:
        exhausted = True
    return Shrunk(shrinking.program, failing.check, shrinking.runs_count, exhausted)


class _Shrinking:
    """One descent; ``program`` is always the smallest one known to fail."""

    def __init__(self, program: Program, failing: Failing, played: Try, runs_max: int) -> None:
        self.program = _cut(program, failing)
        self.runs_count = 1
        self._check = failing.check
        self._played = played
        self._runs_max = runs_max
        self._known = {program, self.program}
        """What was run already, or need not be."""

    def descend(self) -> None:
        """Make changes until none is left that keeps the failure."""
        while True:
            before = self.program
            self._drop_steps()
            self._plain_stage()
            self._plain_steps()
            if self.program == before:
                return

    def _keeps(self, candidate: Program) -> bool:
        """Return whether a candidate fails alike; it is the program from then on."""
        if candidate in self._known:
            return False
        if self.runs_count >= self._runs_max:
            raise _ExhaustedError
        self._known.add(candidate)
        self.runs_count += 1
        failing = self._played(candidate)
        if failing is None or failing.check != self._check:
            return False
        self.program = _cut(candidate, failing)
        self._known.add(self.program)
        return True

    # ---- steps ----------------------------------------------------------------------------------

    def _drop_steps(self) -> None:
        """Leave out ever shorter pieces, the last ones first: what comes late depends on more."""
        length = len(self.program.steps)
        while length:
            end = len(self.program.steps)
            while end > 0:
                start = max(0, end - length)
                steps = self.program.steps
                kept = steps[:start] + steps[end:]
                self._keeps(structs.replace(self.program, steps=kept))
                end = min(start, len(self.program.steps))
            length //= 2

    def _plain_steps(self) -> None:
        """Make arguments smaller, those of a step all at once first."""
        place = len(self.program.steps) - 1
        while place >= 0:
            for change in _changes(self.program.steps[place]):
                while place < len(self.program.steps):
                    step = change(self.program.steps[place])
                    steps = list(self.program.steps)
                    steps[place] = step
                    if not self._keeps(structs.replace(self.program, steps=tuple(steps))):
                        break
            place = min(place, len(self.program.steps)) - 1

    # ---- the stage ------------------------------------------------------------------------------

    def _plain_stage(self) -> None:
        """Try two ranks, mirrored, without overlap, and the first seed."""
        options: tuple[dict[str, Any], ...] = (
            {"ranks_count": RANKS_MIN, "leader": False, "overlap": False, "seed_index": 0},
            {"ranks_count": RANKS_MIN},
            {"leader": False},
            {"overlap": False},
            {"seed_index": 0},
        )
        for option in options:
            self._keeps(structs.replace(self.program, **option))


def _cut(program: Program, failing: Failing) -> Program:
    """Return a program without the steps that were not played."""
    return structs.replace(program, steps=program.steps[: failing.steps_count])


Change = Callable[[AnyStep], AnyStep]


def _changes(step: AnyStep) -> Iterator[Change]:
    """Yield changes that make a step plainer; each is made again while it helps."""
    yield lambda it: type(it)()
    for field in structs.fields(step):
        value: object = getattr(step, field.name)
        for smaller in (_plainest, _half, _one_less):
            yield _changed(field.name, smaller)
            if isinstance(value, tuple):
                for place in range(len(value)):
                    yield _changed(field.name, _at(place, smaller))


def _changed(name: str, smaller: Callable[[Any], Any]) -> Change:
    return lambda step: structs.replace(step, **{name: smaller(getattr(step, name))})


def _at(place: int, smaller: Callable[[Any], Any]) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """Return the change of one number of a list, if the list still has it."""
    return lambda numbers: tuple([
        smaller(number) if index == place else number for index, number in enumerate(numbers)
    ])  # fmt: skip


def _plainest(value: Any) -> Any:
    """Return 0, False or an empty list."""
    return type(value)()


def _half(value: Any) -> Any:
    """Return half of a number, rounded down, or the first half of a list."""
    if isinstance(value, tuple):
        return value[: len(value) // 2]
    return value if isinstance(value, bool) else value // 2


def _one_less(value: Any) -> Any:
    """Return one less, or a list without its last number."""
    if isinstance(value, tuple):
        return value[:-1]
    return value if isinstance(value, bool) else max(0, value - 1)
