"""What an allocator stream is put behind, each thing once."""

import pytest

from kvd.alloc.arena_order import ArenaOrder
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.clearance import Hazard
from kvd.alloc.signals import copy_signal, step_signal, transfer_signal


def _order(launched: int = 0) -> ArenaOrder:
    order = ArenaOrder(CheckMonitor(CheckLevel.STRICT))
    for step in range(1, launched + 1):
        order.steps.launch(step, 0)
    return order


def test_a_wait_for_a_step_covers_all_before_it_and_is_taken_once() -> None:
    order = _order(launched=3)
    order.wait([step_signal(1), step_signal(3), step_signal(2)])
    assert order.take_waits() == (step_signal(3),)
    assert order.take_waits() == ()
    assert order.steps.retired_count == 3


def test_what_retired_is_not_waited_for_again() -> None:
    order = _order(launched=2)
    order.wait_step(2)
    order.take_waits()
    order.wait_step(1)
    assert order.take_waits() == ()


def test_a_copy_is_waited_for_once_until_it_is_over() -> None:
    order = _order()
    order.wait([copy_signal(7), copy_signal(7)])
    assert order.take_waits() == (copy_signal(7),)
    order.wait([copy_signal(7)])
    assert order.take_waits() == ()
    order.release_copy(7)
    assert not order.waited


def test_no_stream_waits_for_a_transfer() -> None:
    with pytest.raises(AssertionError, match="no stream waits for a transfer"):
        _order().wait([transfer_signal(1)])


def test_retiring_a_step_ends_its_fences_and_tells_whoever_registered() -> None:
    order, told = _order(launched=2), list[int]()
    order.on_retire.append(told.append)
    order.fences.add(0, 8, Hazard.VACATED_READ, step_signal(1))
    order.fences.add(8, 16, Hazard.VACATED_READ, step_signal(2))
    order.wait_step(1)
    assert [signal for _, signal, _ in order.fences.records()] == [step_signal(2)]
    assert told == [1]
