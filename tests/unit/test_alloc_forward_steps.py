"""The order of forwards: launched, processed, retired."""

import pytest

from kvd.alloc.forward_steps import STEPS_IN_FLIGHT_MAX, ForwardSteps
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode
from tests.stateful.chains import picture


def _steps(*, launched: int = 0, processed: int = 0, position: int = 5) -> ForwardSteps:
    steps = ForwardSteps()
    for step in range(1, launched + 1):
        steps.launch(step, position)
        if step <= processed:
            steps.process(step)
    return steps


def test_a_step_is_launched_then_processed_and_retires_with_it() -> None:
    steps = _steps()
    steps.launch(1, 7)
    assert (steps.in_flight_count, steps.unretired, steps.pending_key) == (1, True, 1)
    steps.process(1)
    assert (steps.in_flight_count, steps.unretired, steps.pending_key) == (0, False, 0)


def test_several_steps_are_in_flight_and_the_newest_is_what_frees_pend_under() -> None:
    steps = _steps(launched=3, processed=1)
    assert (steps.in_flight_count, steps.pending_key) == (2, 3)
    steps.process(2)
    assert (steps.in_flight_count, steps.pending_key, steps.retired_count) == (1, 3, 2)


def test_a_step_that_was_waited_for_is_retired_and_still_in_flight() -> None:
    steps = _steps(launched=2)
    steps.retire_through(2)
    assert (steps.retired_count, steps.processed_count, steps.pending_key) == (2, 0, 2)
    steps.process(1)
    assert (steps.retired_count, steps.processed_count) == (2, 1)


def test_retirement_never_goes_back() -> None:
    steps = _steps(launched=3)
    steps.retire_through(3)
    steps.retire_through(1)
    assert steps.retired_count == 3


def test_the_number_of_steps_in_flight_is_bounded() -> None:
    steps = _steps(launched=STEPS_IN_FLIGHT_MAX)
    with pytest.raises(OperationError, match="step 1 has to be processed") as caught:
        steps.launch(STEPS_IN_FLIGHT_MAX + 1, 9)
    assert caught.value.code is ErrorCode.STEP_IN_FLIGHT
    steps.process(1)
    steps.launch(STEPS_IN_FLIGHT_MAX + 1, 9)


@pytest.mark.parametrize("step", [-1, 0, 2, 1 << 63])
def test_the_first_step_is_number_one(step: int) -> None:
    with pytest.raises(OperationError, match=r"step\.order: .*the next step is 1") as caught:
        _steps().launch(step, 0)
    assert caught.value.code is ErrorCode.STEP_ORDER


@pytest.mark.parametrize("step", [1, 3])
def test_steps_are_launched_each_once_and_in_order(step: int) -> None:
    with pytest.raises(OperationError, match=r"step\.order: "):
        _steps(launched=1).launch(step, 9)


def test_the_message_names_step_order() -> None:
    with pytest.raises(OperationError) as caught:
        _steps().process(1)
    assert caught.value.message.startswith("step.order: ")


@pytest.mark.parametrize("position", [-1, 4])
def test_a_step_is_not_launched_behind_less_than_the_one_before(position: int) -> None:
    with pytest.raises(OperationError, match=r"step\.order: .*behind position"):
        _steps(launched=1, processed=1, position=5).launch(2, position)


@pytest.mark.parametrize(
    ("launched", "processed", "step", "words"),
    [
        (0, 0, 1, "no step is in flight, the newest was 0"),
        (1, 1, 1, "no step is in flight, the newest was 1"),
        (1, 1, 2, "no step is in flight"),
        (2, 1, 1, "step 2 is the oldest in flight"),
        (1, 0, 0, "step 1 is the oldest in flight"),
        (2, 0, 2, "step 1 is the oldest in flight"),
    ],
)
def test_only_the_oldest_step_in_flight_is_processed(
    launched: int, processed: int, step: int, words: str
) -> None:
    steps = _steps(launched=launched, processed=processed)
    before = picture(steps)
    with pytest.raises(OperationError, match=words) as caught:
        steps.process(step)
    assert caught.value.code is ErrorCode.STEP_ORDER
    assert picture(steps) == before


@pytest.mark.parametrize("step", [0, -1, 2 + STEPS_IN_FLIGHT_MAX])
def test_a_step_that_nobody_can_have_launched_is_not_aborted(step: int) -> None:
    with pytest.raises(OperationError, match=r"step\.order: "):
        _steps(launched=1).abort(step)


@pytest.mark.parametrize("step", [1, 2])
def test_a_step_may_be_aborted_before_its_launch_is_known(step: int) -> None:
    steps = _steps(launched=1)
    steps.abort(step)
    assert steps.aborted_count == 1
    assert steps.was_aborted(step)
    assert not steps.was_aborted(step + 1)
