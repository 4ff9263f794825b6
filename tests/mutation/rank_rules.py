"""Rules that ranks and the engine keep: each left out on modelled ranks that serve a workload."""

from collections.abc import Callable
from typing import NamedTuple

from kvd.errors import RaceError, WorkloadError
from kvd.testing.modelled.choice import Favour, InOrder
from kvd.testing.modelled.world import World
from kvd.testing.mutants.fault import Fault, planted
from kvd.testing.mutants.registry import FAULTS
from tests.mutation.guard import free_between_launch_and_notice, take_between_launch_and_notice
from tests.mutation.mutant import Kill, Mutant
from tests.mutation.served import (
    clear_a_slot_that_moved,
    leave_a_launch_by_an_exception,
    serve,
    serve_on_two_streams,
    serve_on_two_streams_without_overlap,
    serve_one_step_at_a_time,
    serve_without_declaring_reads,
)

Serve = Callable[[World], None]

ORDERS: dict[str, Callable[[], World]] = {
    "in order": lambda: World(InOrder()),
    "drawn": lambda: World(4),
    "forwards first": lambda: World(Favour("0/forward", "1/forward"), only_needed=True),
}
"""Whatever order the actions run in, what is not ordered is found."""


class RankRule(NamedTuple):
    """A rule, the fault that is to be without it, and what is served meanwhile."""

    name: str
    fault: Fault
    serve: Serve = serve

    def attack(self, order: str = "drawn") -> Kill | None:
        """Serve without the rule; returns how that was noticed, None if it was not."""
        with planted(self.fault):
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
            removes=self.fault.rule,
            test=f"test_rank_rules.py::test_no_rule_can_be_left_out_unseen[drawn-{self.name}]",
            attack=self.attack,
        )


def _rule(name: str, serve: Serve = serve, *, fault: str = "") -> RankRule:
    return RankRule(name, FAULTS[fault or name], serve)


RULES: tuple[RankRule, ...] = (
    _rule("read-end-barrier"),
    _rule("whole-end-barrier", serve_without_declaring_reads),
    _rule("aborted-whole-end", leave_a_launch_by_an_exception),
    _rule("end-without-overlap", serve_on_two_streams_without_overlap),
    _rule(
        "launch-waits-a-without-overlap",
        serve_on_two_streams_without_overlap,
        fault="launch-waits-a",
    ),
    _rule("step-waits"),
    _rule("waits-in-front"),
    _rule("processed-wait", serve_one_step_at_a_time),
    _rule("books-waits"),
    _rule("launch-waits-a"),
    _rule("forwards-in-order", serve_on_two_streams),
    _rule("zeroing"),
    _rule("moving"),
    _rule("rebinding"),
    _rule("slot-clears"),
    _rule("clears-follow-moves", clear_a_slot_that_moved),
    _rule("pending-to-holes"),
    _rule("pending-under-oldest"),
    _rule("launch-queue"),
    _rule("unaware-guard", free_between_launch_and_notice),
    _rule("unaware-guard-in-front", take_between_launch_and_notice, fault="unaware-guard"),
)
SCENARIOS: tuple[Serve, ...] = tuple(dict.fromkeys(rule.serve for rule in RULES))
