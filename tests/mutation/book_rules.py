"""Rules of the books beside the tables: what pends until when, what a wait covers, what is fenced.

Each scenario is clean as long as the rule stands and races without it.
"""

from collections.abc import Callable
from copy import copy
from typing import NamedTuple

from kvd.alloc.arena_order import ArenaOrder
from kvd.alloc.band import Band
from kvd.alloc.band_units import BandUnits, Units
from kvd.alloc.byte_fences import ByteFences
from kvd.alloc.chain import ChainAllocator
from kvd.alloc.clearance import Consumer
from kvd.alloc.forward_steps import ForwardSteps
from kvd.alloc.signals import Signal, SignalKind, copy_signal, step_signal
from kvd.alloc.use_records import UseRecords
from kvd.errors import RaceError
from tests.mutation.bench import ROOM_UNITS, Bench
from tests.mutation.mutant import Kill, Mutant, Patch, do_nothing
from tests.mutation.scenes import Scene, W, X, back_up, left, nothing_pends, pending, vacated


class BookRule(NamedTuple):
    """A rule, how to do without it, and the scenario in which that shows."""

    name: str
    removes: str
    scene: Scene
    waits: tuple[Signal, ...]
    """What A waits for while the rule stands."""
    remove: Callable[[Patch, Bench], None]

    def play(self) -> Bench:
        """Play the scenario; raises RaceError."""
        bench = Bench()
        self.scene(bench)
        bench.run()
        return bench

    def attack(self) -> Kill | None:
        """Play without the rule; returns how that was noticed, None if it was not."""
        with Patch.context() as patch:
            bench = Bench()
            self.remove(patch, bench)
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


# ---- what is left out ------------------------------------------------------------------------


def pending_goes_to_holes(patch: Patch, bench: Bench) -> None:
    nothing_pends(bench)


def pending_under_the_oldest_step(patch: Patch, bench: Bench) -> None:
    def oldest(steps: ForwardSteps) -> int:
        return steps.processed_count + 1 if steps.in_flight_count else 0

    patch.setattr(ForwardSteps, "pending_key", property(oldest, do_nothing), raising=False)


def pending_comes_back_at_a_launch(patch: Patch, bench: Bench) -> None:
    launch_step = ChainAllocator.launch_step

    def launch(chain: ChainAllocator, step: int, position: int, writes: list[Units] | None) -> None:
        launch_step(chain, step, position, writes)
        for band in chain.bands:
            band.release_pending_through(step)

    patch.setattr(ChainAllocator, "launch_step", launch)


def settling_without_its_wait(patch: Patch, bench: Bench) -> None:
    patch.setattr(ArenaOrder, "wait_step", ArenaOrder.retire)


def the_oldest_of_several_steps_is_waited(patch: Patch, bench: Bench) -> None:
    def take_waits(order: ArenaOrder) -> tuple[Signal, ...]:
        waits: dict[Signal, None] = getattr(order, "_waits")  # noqa: B009
        taken = tuple(waits)
        waits.clear()
        steps = [signal for signal in taken if signal.kind is SignalKind.STEP]
        return tuple(signal for signal in taken if signal not in steps[1:])

    patch.setattr(ArenaOrder, "take_waits", take_waits)


def moves_leave_no_fence(patch: Patch, bench: Bench) -> None:
    patch.setattr(Band, "_fence", do_nothing)


def uses_stay_behind(patch: Patch, bench: Bench) -> None:
    leave = UseRecords.leave

    def forget(records: UseRecords, low: int, high: int) -> list[object]:
        leave(records, low, high)
        return []

    patch.setattr(UseRecords, "leave", forget)


def fences_end_with_the_oldest_step(patch: Patch, bench: Bench) -> None:
    retire_through = ByteFences.retire_through

    def retire(fences: ByteFences, step: int) -> None:
        retire_through(fences, step + 1)

    patch.setattr(ByteFences, "retire_through", retire)


def fences_of_each_band(patch: Patch, bench: Bench) -> None:
    """Let the other band know of no fence but its own."""
    order = copy(bench.order)
    order.fences = ByteFences(bench.chain.monitor)
    patch.setattr(bench.chain.bands[1], "_order", order)


def unknown_is_nothing(patch: Patch, bench: Bench) -> None:
    open_writes = BandUnits.open_writes

    def known(band: BandUnits, step: int, virtual: Units | None) -> None:
        if virtual is not None:
            open_writes(band, step, virtual)

    patch.setattr(BandUnits, "open_writes", known)


def aborted_steps_keep_their_word(patch: Patch, bench: Bench) -> None:
    patch.setattr(ChainAllocator, "abort_step", do_nothing)


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
RULES: tuple[BookRule, ...] = (
    BookRule(
        "pending-to-holes",
        "a page freed under a step in flight pends",
        pending(Consumer.ZEROING),
        (STEP_1,),
        pending_goes_to_holes,
    ),
    BookRule(
        "pending-under-oldest",
        "it pends under the newest step in flight, not an older one",
        freed_under_the_newer_of_two,
        (STEP_2,),
        pending_under_the_oldest_step,
    ),
    BookRule(
        "pending-back-at-launch",
        "it comes back when its step was processed, not when the next is launched",
        freed_and_launched_on,
        (STEP_1,),
        pending_comes_back_at_a_launch,
    ),
    BookRule(
        "settle-without-wait",
        "a take that settles a batch has A wait its step",
        pending(Consumer.ZEROING),
        (STEP_1,),
        settling_without_its_wait,
    ),
    BookRule(
        "oldest-step-waited",
        "of several steps that are in the way the newest is waited for",
        two_batches_are_taken,
        (STEP_2,),
        the_oldest_of_several_steps_is_waited,
    ),
    BookRule(
        "no-fence-behind-moves",
        "bytes that a running step reads and that left their band are fenced",
        vacated(Consumer.ZEROING),
        (STEP_1,),
        moves_leave_no_fence,
    ),
    BookRule(
        "copies-not-fenced",
        "bytes that leave a band take along the copies that are at work on them",
        COPY_BYTES,
        (copy_signal(1),),
        uses_stay_behind,
    ),
    BookRule(
        "fence-ends-early",
        "a fence stays until the newest step that reads there is over",
        two_steps_read_what_moved,
        (STEP_2,),
        fences_end_with_the_oldest_step,
    ),
    BookRule(
        "fences-of-each-band",
        "a fence is met by whichever band writes there next",
        another_band_grows_there,
        (copy_signal(1),),
        fences_of_each_band,
    ),
    BookRule(
        "unknown-is-nothing",
        "a step that states no write set may write every live unit",
        written_by_who_knows_whom,
        (STEP_1,),
        unknown_is_nothing,
    ),
    BookRule(
        "aborted-keeps-word",
        "a step that was left by an exception may write every live unit",
        written_after_an_exception,
        (STEP_1,),
        aborted_steps_keep_their_word,
    ),
)
