"""Each rule that keeps pages apart, taken out of the product by itself: ranks must notice."""

from collections.abc import Callable
from typing import Any

import pytest

from kvd.alloc.forward_steps import ForwardSteps
from kvd.errors import RaceError, WorkloadError
from kvd.testing.modelled.choice import Favour, InOrder
from kvd.testing.modelled.replay import StageReplay
from kvd.testing.modelled.world import World
from kvd_client.cursor import Cursor
from kvd_client.device.apply import Applier
from kvd_client.device.assembly import Assembly
from kvd_client.launch import Step
from kvd_client.steps import StepBook
from kvd_proto.control import Mode
from tests.simulate.test_modelled_ranks import LIMITS, attached, requests

Mutant = Callable[[pytest.MonkeyPatch], None]


def without_read_end(patch: pytest.MonkeyPatch) -> None:
    def forget(applier: Any, assembly: object, barrier: object) -> None:
        applier._barrier = None

    patch.setattr(Applier, "_add_barrier", forget)


def without_step_waits(patch: pytest.MonkeyPatch) -> None:
    def pass_over(applier: Any, assembly: object, step: int) -> None:
        applier._note_waited(step)

    patch.setattr(Applier, "_add_step_wait", pass_over)


def do_nothing(*arguments: object, **named: object) -> None:
    """Stand in for what a mutant leaves out."""


def without_waiting_for_effects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Step, "_order_forward", do_nothing)


def without_zeroing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Assembly, "_zero", do_nothing)


def without_moving(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Assembly, "_move", do_nothing)


def without_clearing_slots(patch: pytest.MonkeyPatch) -> None:
    def forget(applier: Applier, stream: object) -> object:
        return applier.take_launch_work()

    patch.setattr(Applier, "enqueue_launch_work", forget)


def without_pending(patch: pytest.MonkeyPatch) -> None:
    def no_step(steps: object) -> int:
        return 0

    patch.setattr(ForwardSteps, "pending_key", property(no_step, do_nothing), raising=False)


def without_launch_queue(patch: pytest.MonkeyPatch) -> None:
    queueing = Cursor.take_in

    def at_once(cursor: Cursor, *arguments: Any) -> object:
        def is_open(book: StepBook) -> bool:
            return False

        with pytest.MonkeyPatch.context() as closed:
            # Neither queued nor noticed by the check that nothing is applied inside a launch.
            closed.setattr(StepBook, "open", property(is_open))
            return queueing(cursor, *arguments)

    patch.setattr(Cursor, "take_in", at_once)


MUTANTS: tuple[Mutant, ...] = (
    without_read_end,
    without_step_waits,
    without_waiting_for_effects,
    without_zeroing,
    without_moving,
    without_clearing_slots,
    without_pending,
    without_launch_queue,
)
WORLDS: dict[str, Callable[[], World]] = {
    "in order": lambda: World(InOrder()),
    "drawn": lambda: World(4),
    "forwards first": lambda: World(Favour("0/forward", "1/forward"), only_needed=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("order", WORLDS)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[one.__name__ for one in MUTANTS])
def test_no_rule_can_be_left_out_unseen(
    monkeypatch: pytest.MonkeyPatch, mutant: Mutant, order: str
) -> None:
    mutant(monkeypatch)
    stage = attached(WORLDS[order](), mode=Mode.LEADER, overlap=True)
    replay = StageReplay(
        stage, requests(24, seed=4), LIMITS, seed=4, mode=Mode.LEADER, steps_ahead=2
    )

    with pytest.raises((RaceError, WorkloadError)) as found:
        replay.run()

    print(f"{mutant.__name__}: {found.value}")
