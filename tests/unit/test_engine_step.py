"""The order of forwards."""

import pytest

from kvd.engine.step import StepOrder
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode
from tests.stateful.chains import picture


def _order(*, launched: int = 0, processed: int = 0, position: int = 5) -> StepOrder:
    steps = StepOrder()
    for step in range(1, launched + 1):
        steps.launch(step, position)
        if step <= processed:
            steps.process(step)
    return steps


def test_a_step_is_launched_and_then_processed() -> None:
    steps = _order()
    steps.launch(1, 7)
    with pytest.raises(OperationError, match="take has to wait: step 1 is launched") as caught:
        steps.require_none_in_flight("take")
    assert caught.value.code is ErrorCode.STEP_IN_FLIGHT
    steps.process(1)
    steps.require_none_in_flight("take")


@pytest.mark.parametrize("step", [-1, 0, 2, 1 << 63])
def test_the_first_step_is_number_one(step: int) -> None:
    with pytest.raises(OperationError, match=r"step\.order: .*the next step is 1") as caught:
        _order().launch(step, 0)
    assert caught.value.code is ErrorCode.STEP_ORDER


@pytest.mark.parametrize("step", [1, 3])
def test_steps_are_launched_each_once_and_in_order(step: int) -> None:
    with pytest.raises(OperationError, match=r"step\.order: "):
        _order(launched=1, processed=1).launch(step, 9)


def test_the_message_names_step_order() -> None:
    with pytest.raises(OperationError) as caught:
        _order().process(1)
    assert caught.value.message.startswith("step.order: ")


def test_a_second_step_waits_until_the_first_is_processed() -> None:
    with pytest.raises(OperationError, match="launch of step 2 has to wait") as caught:
        _order(launched=1).launch(2, 9)
    assert caught.value.code is ErrorCode.STEP_IN_FLIGHT


@pytest.mark.parametrize("position", [-1, 4])
def test_a_step_is_not_launched_behind_less_than_the_one_before(position: int) -> None:
    with pytest.raises(OperationError, match=r"step\.order: .*behind position"):
        _order(launched=1, processed=1, position=5).launch(2, position)


@pytest.mark.parametrize(
    ("launched", "processed", "step", "words"),
    [
        (0, 0, 1, "no step is in flight, the newest was 0"),
        (1, 1, 1, "no step is in flight, the newest was 1"),
        (1, 1, 2, "no step is in flight"),
        (2, 1, 1, "step 2 is in flight"),
        (1, 0, 0, "step 1 is in flight"),
        (1, 0, 2, "step 1 is in flight"),
    ],
)
def test_only_the_step_in_flight_is_processed(
    launched: int, processed: int, step: int, words: str
) -> None:
    steps = _order(launched=launched, processed=processed)
    before = picture(steps)
    with pytest.raises(OperationError, match=words) as caught:
        steps.process(step)
    assert caught.value.code is ErrorCode.STEP_ORDER
    assert picture(steps) == before


@pytest.mark.parametrize("step", [0, -1, 3])
def test_a_step_that_nobody_launched_is_not_aborted(step: int) -> None:
    with pytest.raises(OperationError, match=r"step\.order: "):
        _order(launched=1).abort(step)


@pytest.mark.parametrize("step", [1, 2])
def test_a_step_may_be_aborted_before_its_launch_is_known(step: int) -> None:
    steps = _order(launched=1)
    steps.abort(step)
    assert steps.aborted_count == 1
