"""Rules of the books beside the tables: what pends until when, what a wait covers, what is fenced.

Each scenario is clean as long as the rule stands and races without it.
"""

from typing import NamedTuple

from kvd.alloc.clearance import Consumer
from kvd.alloc.signals import Signal, copy_signal, step_signal
from kvd.errors import RaceError
from kvd.testing.mutants.fault import Fault, planted
from kvd.testing.mutants.registry import FAULTS
from tests.mutation.bench import ROOM_UNITS, Bench
from tests.mutation.mutant import Kill, Mutant
from tests.mutation.scenes import Scene, W, X, back_up, left, pending, vacated


class BookRule(NamedTuple):
    """A rule, the fault that is to be without it, and the scenario in which that shows."""

    name: str
    removes: str
    scene: Scene
    waits: tuple[Signal, ...]
    """What A waits for while the rule stands."""
    fault: Fault

    def play(self) -> Bench:
        """Play the scenario; raises RaceError."""
        bench = Bench()
        self.scene(bench)
        bench.run()
        return bench

    def attack(self) -> Kill | None:
        """Play without the rule; returns how that was noticed, None if it was not."""
        bench = Bench()
        with planted(self.fault):
            try:
                self.scene(bench)
                bench.run()
            except RaceError as error:
                return Kill(error.message, bench.world.ran_count)
        return None

    @property
    def mutant(self) -> Mutant:
        """Return the rule's removal."""
        return Mutant(
            name=self.name,
            removes=self.removes,
            test=f"test_book_rules.py::test_without_its_rule_two_actions_race[{self.name}]",
            attack=self.attack,
        )


# ---- where it shows --------------------------------------------------------------------------


def freed_under_the_newer_of_two(bench: Bench) -> None:
    """Two steps run; what the newer reads is freed, and the older one is processed."""
    bench.live(X)
    bench.launch()
    bench.launch(reads=[X], writes=[X])
    bench.free(X)
    bench.process()
    bench.hand_out(Consumer.ZEROING)


def freed_and_launched_on(bench: Bench) -> None:
    """A page is freed under a running step, and the next step is launched."""
    bench.live(X)
    bench.launch(reads=[X], writes=[X])
    bench.free(X)
    bench.launch()
    bench.hand_out(Consumer.ZEROING)


def two_batches_are_taken(bench: Bench) -> None:
    """Pages pend under two steps, and a take needs both."""
    bench.live(X, W)
    bench.launch(reads=[X])
    bench.free(X)
    bench.launch(reads=[W])
    bench.free(W)
    bench.hand_out(Consumer.ZEROING, count=2)


def two_steps_read_what_moved(bench: Bench) -> None:
    """What two running steps read moves away; the first of them is processed."""
    bench.live(W, X)
    bench.free(W)
    bench.launch(reads=[X])
    bench.launch(reads=[X])
    bench.draw_back()
    bench.process()
    bench.band.grow((1, 3))
    bench.hand_out(Consumer.ZEROING)


def another_band_grows_there(bench: Bench) -> None:
    """A backup reads the highest unit, which is freed and leaves for the other band."""
    bench.live(*range(X + 1, X + ROOM_UNITS), X)
    bench.back_up(X)
    bench.free(X)
    bench.chain.settle_freed()
    assert bench.hand_out_of_the_other_band()[0] == ROOM_UNITS


def written_by_who_knows_whom(bench: Bench) -> None:
    """A page moves while a step runs that may write anything."""
    bench.live(W, X)
    bench.free(W)
    bench.launch(writes=[X], states_writes=False)
    bench.draw_back()


def written_after_an_exception(bench: Bench) -> None:
    """A page moves while a step runs that was left by an exception and writes what it likes."""
    bench.live(W, X)
    bench.free(W)
    bench.launch(also_writes=bench.place_of(X))
    bench.chain.abort_step(1)
    bench.draw_back()


STEP_1, STEP_2 = step_signal(1), step_signal(2)
COPY_BYTES = left(Consumer.ZEROING, back_up)


def _rule(name: str, scene: Scene, waits: tuple[Signal, ...]) -> BookRule:
    return BookRule(name, FAULTS[name].rule, scene, waits, FAULTS[name])


RULES: tuple[BookRule, ...] = (
    _rule("pending-to-holes", pending(Consumer.ZEROING), (STEP_1,)),
    _rule("pending-under-oldest", freed_under_the_newer_of_two, (STEP_2,)),
    _rule("pending-back-at-launch", freed_and_launched_on, (STEP_1,)),
    _rule("settle-without-wait", pending(Consumer.ZEROING), (STEP_1,)),
    _rule("oldest-step-waited", two_batches_are_taken, (STEP_2,)),
    _rule("no-fence-behind-moves", vacated(Consumer.ZEROING), (STEP_1,)),
    _rule("copies-not-fenced", COPY_BYTES, (copy_signal(1),)),
    _rule("fence-ends-early", two_steps_read_what_moved, (STEP_2,)),
    _rule("growth-clears-fences", another_band_grows_there, (copy_signal(1),)),
    _rule("unknown-is-nothing", written_by_who_knows_whom, (STEP_1,)),
    _rule("aborted-keeps-word", written_after_an_exception, (STEP_1,)),
)
