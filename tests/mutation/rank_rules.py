"""Rules that ranks and the engine keep: each left out on modelled ranks that serve a workload."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kvd.alloc.arena_order import ArenaOrder
from kvd.alloc.band import Moves
from kvd.alloc.forward_steps import ForwardSteps
from kvd.engine.effects import EffectBuilder
from kvd.engine.stage import StageEngine
from kvd.errors import RaceError, WorkloadError
from kvd.testing.modelled.choice import Favour, InOrder
from kvd.testing.modelled.world import World
from kvd_client.cursor import Cursor
from kvd_client.device.apply import Applier
from kvd_client.device.assembly import Assembly, WaitFor
from kvd_client.launch import Step
from kvd_client.steps import StepBook
from kvd_proto.outcomes import Done, Outcome, WriteMap
from tests.mutation.guard import free_between_launch_and_notice, take_between_launch_and_notice
from tests.mutation.mutant import Kill, Mutant, Patch, do_nothing
from tests.mutation.served import (
    clear_a_slot_that_moved,
    leave_a_launch_by_an_exception,
    serve,
    serve_on_two_streams,
    serve_on_two_streams_without_overlap,
    serve_one_step_at_a_time,
    serve_without_declaring_reads,
)

if TYPE_CHECKING:
    from kvd_client.device.port import Event, Stream
    from kvd_proto.operations import Processed

Serve = Callable[[World], None]

ORDERS: dict[str, Callable[[], World]] = {
    "in order": lambda: World(InOrder()),
    "drawn": lambda: World(4),
    "forwards first": lambda: World(Favour("0/forward", "1/forward"), only_needed=True),
}
"""Whatever order the actions run in, what is not ordered is found."""


# ---- what is left out ------------------------------------------------------------------------


def no_read_end(patch: Patch) -> None:
    def forget(applier: Any, assembly: object, barrier: object) -> None:
        applier._barrier = None

    patch.setattr(Applier, "_add_barrier", forget)


def no_whole_end(patch: Patch) -> None:
    note_step = Applier.note_step

    def note(applier: Applier, step: int, end: "Event", *, barrier: "Event | None" = None) -> None:
        note_step(applier, step, end, barrier=None if barrier is end else barrier)

    patch.setattr(Applier, "note_step", note)


def reads_of_an_aborted_step(patch: Patch) -> None:
    order_allocator = getattr(Step, "_order_allocator")  # noqa: B009

    def trust(step: Any, end: "Event", reads_end: "Event | None") -> None:
        order_allocator(step, end, step._reads_end)

    patch.setattr(Step, "_order_allocator", trust)


def no_waiting_for_the_end_without_overlap(patch: Patch) -> None:
    order_allocator = getattr(Step, "_order_allocator")  # noqa: B009

    def order(step: Any, end: "Event", reads_end: "Event | None") -> None:
        if step._session.overlaps:
            order_allocator(step, end, reads_end)
        else:
            step._session.applier.note_ordered_step(step.number)

    patch.setattr(Step, "_order_allocator", order)


def no_step_waits(patch: Patch) -> None:
    def pass_over(applier: Any, assembly: object, step: int) -> None:
        applier._note_waited(step)

    patch.setattr(Applier, "_add_step_wait", pass_over)


def waits_behind_what_they_guard(patch: Patch) -> None:
    def add_wait(assembly: Assembly, event: "Event") -> None:
        assembly.pieces.append(WaitFor(event))

    patch.setattr(Assembly, "add_wait", add_wait)


def no_waiting_for_effects(patch: Patch) -> None:
    """Leave only the first step its wait, for the clearing of all tables."""
    order_forward = getattr(Step, "_order_forward")  # noqa: B009

    def order(step: Any) -> None:
        if step.number == 1:
            order_forward(step)

    patch.setattr(Step, "_order_forward", order)


def no_waiting_for_the_forward_before(patch: Patch) -> None:
    order_forward = getattr(Step, "_order_forward")  # noqa: B009

    def order(step: Any) -> None:
        last, step._session.last_forward = step._session.last_forward, None
        order_forward(step)
        step._session.last_forward = last

    patch.setattr(Step, "_order_forward", order)


def no_zeroing(patch: Patch) -> None:
    patch.setattr(Assembly, "_zero", do_nothing)


def no_moving(patch: Patch) -> None:
    patch.setattr(Assembly, "_move", do_nothing)


def no_rebinding(patch: Patch) -> None:
    move = EffectBuilder.move

    def only_move(effects: EffectBuilder, band_index: int, moves: Moves) -> None:
        move(effects, band_index, moves)
        assert isinstance(getattr(effects, "_current").pop(), WriteMap)  # noqa: B009

    patch.setattr(EffectBuilder, "move", only_move)


def no_clearing_of_slots(patch: Patch) -> None:
    def forget(applier: Applier, stream: "Stream") -> object:
        return applier.take_launch_work()

    patch.setattr(Applier, "enqueue_launch_work", forget)


def clears_that_stay_behind(patch: Patch) -> None:
    patch.setattr(Assembly, "_let_clears_follow", do_nothing)


def no_pending(patch: Patch) -> None:
    def no_step(steps: object) -> int:
        return 0

    patch.setattr(ForwardSteps, "pending_key", property(no_step, do_nothing), raising=False)


def pending_under_the_oldest_step(patch: Patch) -> None:
    def oldest(steps: ForwardSteps) -> int:
        return steps.processed_count + 1 if steps.in_flight_count else 0

    patch.setattr(ForwardSteps, "pending_key", property(oldest, do_nothing), raising=False)


def no_wait_of_the_processed(patch: Patch) -> None:
    def processed(engine: StageEngine, program: int, operation: "Processed") -> Outcome:
        engine.chain.process_step(operation.step)
        return Outcome(Done())

    patch.setattr(StageEngine, "_processed", processed)


def no_waits_of_the_books(patch: Patch) -> None:
    take_waits = ArenaOrder.take_waits

    def forget(order: ArenaOrder) -> tuple[()]:
        take_waits(order)
        return ()

    patch.setattr(ArenaOrder, "take_waits", forget)


def no_launch_queue(patch: Patch) -> None:
    queueing = Cursor.take_in

    def at_once(cursor: Cursor, *arguments: Any) -> object:
        def is_open(book: StepBook) -> bool:
            return False

        with Patch.context() as closed:
            # Neither queued nor noticed by the check that nothing is applied inside a launch.
            closed.setattr(StepBook, "open", property(is_open))
            return queueing(cursor, *arguments)

    patch.setattr(Cursor, "take_in", at_once)


def no_guard(patch: Patch) -> None:
    patch.setattr(Cursor, "_guard_of", do_nothing)


class RankRule(NamedTuple):
    """A rule, how to do without it, and what is served meanwhile."""

    name: str
    removes: str
    remove: Callable[[Patch], None]
    serve: Serve = serve

    def attack(self, order: str = "drawn") -> Kill | None:
        """Serve without the rule; returns how that was noticed, None if it was not."""
        with Patch.context() as patch:
            self.remove(patch)
            world = ORDERS[order]()
            try:
                self.serve(world)
            except (RaceError, WorkloadError) as error:
                return Kill(error.message, world.ran_count)
        return None

    @property
    def mutant(self) -> Mutant:
        """Return the rule's removal."""
        return Mutant(
            name=self.name,
            removes=self.removes,
            test=f"test_rank_rules.py::test_no_rule_can_be_left_out_unseen[drawn-{self.name}]",
            attack=self.attack,
        )


RULES: tuple[RankRule, ...] = (
    RankRule("read-end-barrier", "A waits the end of a launched forward's reads", no_read_end),
    RankRule(
        "whole-end-barrier",
        "A waits the whole end of a forward that declared no reads",
        no_whole_end,
        serve_without_declaring_reads,
    ),
    RankRule(
        "aborted-whole-end",
        "A waits the whole end of a step that was left by an exception",
        reads_of_an_aborted_step,
        leave_a_launch_by_an_exception,
    ),
    RankRule(
        "end-without-overlap",
        "without overlap A waits the end of a forward on another stream",
        no_waiting_for_the_end_without_overlap,
        serve_on_two_streams_without_overlap,
    ),
    RankRule(
        "launch-waits-a-without-overlap",
        "without overlap a forward on another stream waits A",
        no_waiting_for_effects,
        serve_on_two_streams_without_overlap,
    ),
    RankRule("step-waits", "A waits a step where an effect says so", no_step_waits),
    RankRule(
        "waits-in-front",
        "a wait stands in front of the effects that it guards",
        waits_behind_what_they_guard,
    ),
    RankRule(
        "processed-wait",
        "the outcome of processed has every rank's A wait its own step",
        no_wait_of_the_processed,
        serve_one_step_at_a_time,
    ),
    RankRule(
        "books-waits", "what the books have to be waited for becomes effects", no_waits_of_the_books
    ),
    RankRule("launch-waits-a", "F waits A at a launch", no_waiting_for_effects),
    RankRule(
        "forwards-in-order",
        "a forward on another stream waits the forward before it",
        no_waiting_for_the_forward_before,
        serve_on_two_streams,
    ),
    RankRule("zeroing", "pages are zeroed when they are handed out", no_zeroing),
    RankRule("moving", "what the books move is copied", no_moving),
    RankRule("rebinding", "the tables name the new place of what moved", no_rebinding),
    RankRule("slot-clears", "a launch clears the slots that were handed out", no_clearing_of_slots),
    RankRule(
        "clears-follow-moves",
        "what is to be cleared follows a slot that moves",
        clears_that_stay_behind,
        clear_a_slot_that_moved,
    ),
    RankRule("pending-rule", "a page freed under a step in flight pends", no_pending),
    RankRule(
        "pending-key",
        "it pends under the newest step in flight, not an older one",
        pending_under_the_oldest_step,
    ),
    RankRule(
        "launch-queue",
        "effects behind an open launch wait until it is recorded",
        no_launch_queue,
    ),
    RankRule(
        "unaware-guard",
        "effects decided without knowledge of a step wait its whole end",
        no_guard,
        free_between_launch_and_notice,
    ),
    RankRule(
        "unaware-guard-in-front",
        "and so do those in front of the step's own notice",
        no_guard,
        take_between_launch_and_notice,
    ),
)
SCENARIOS: tuple[Serve, ...] = tuple(dict.fromkeys(rule.serve for rule in RULES))
