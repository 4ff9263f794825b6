"""Batches of units that pend under steps in flight."""

import numpy as np
import pytest

from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.forward_steps import ForwardSteps
from kvd.alloc.pending import NO_KEY, PendingPages, Units
from kvd.errors import InvariantError


def _units(*units: int) -> Units:
    return np.array(units, dtype=np.int64)


def _pending() -> PendingPages:
    """Return units 1 to 3 under step 4, and 7 and 8 under step 6."""
    pending = PendingPages()
    pending.add(4, _units(3, 1))
    pending.add(4, _units(2))
    pending.add(6, _units(7, 8))
    return pending


def _flat(parts: list[Units]) -> list[int]:
    return [unit for part in parts for unit in part.tolist()]


def test_nothing_pends_at_first() -> None:
    pending = PendingPages()
    assert (pending.unit_count, pending.oldest_key) == (0, NO_KEY)
    assert pending.release_through(1 << 40) == []


@pytest.mark.parametrize(
    ("step", "released", "left", "oldest"),
    [(3, [], 5, 4), (4, [3, 1, 2], 2, 6), (5, [3, 1, 2], 2, 6), (6, [3, 1, 2, 7, 8], 0, NO_KEY)],
)
def test_a_processed_step_releases_its_batch_and_all_before_it(
    step: int, released: list[int], left: int, oldest: int
) -> None:
    pending = _pending()
    assert _flat(pending.release_through(step)) == released
    assert (pending.unit_count, pending.oldest_key) == (left, oldest)


@pytest.mark.parametrize(
    ("units_min", "key", "settled"),
    [(1, 4, [3, 1, 2]), (3, 4, [3, 1, 2]), (4, 6, [3, 1, 2, 7, 8]), (5, 6, [3, 1, 2, 7, 8])],
)
def test_settling_takes_whole_batches_oldest_first(
    units_min: int, key: int, settled: list[int]
) -> None:
    pending = _pending()
    newest, parts = pending.settle(units_min)
    assert (newest, _flat(parts)) == (key, settled)
    assert pending.unit_count == 5 - len(settled)


def test_units_freed_after_a_settle_pend_under_the_same_step_again() -> None:
    pending = PendingPages()
    pending.add(2, _units(5))
    assert pending.settle(1)[0] == 2
    pending.add(2, _units(6))
    assert (pending.unit_count, pending.oldest_key) == (1, 2)


def _check(pending: PendingPages, marked: Units, *, launched: int, processed: int) -> None:
    steps = ForwardSteps()
    for step in range(1, launched + 1):
        steps.launch(step, 0)
    for step in range(1, processed + 1):
        steps.process(step)
    flags = np.zeros(10, dtype=bool)
    flags[marked] = True
    pending.check(CheckMonitor(CheckLevel.STRICT), "full", flags, steps)


def test_batches_that_agree_with_the_unit_map_pass() -> None:
    _check(_pending(), _units(1, 2, 3, 7, 8), launched=6, processed=3)


@pytest.mark.parametrize(("launched", "processed"), [(5, 3), (6, 4), (0, 0)])
def test_a_batch_under_a_step_that_is_not_in_flight_is_found(launched: int, processed: int) -> None:
    with pytest.raises(InvariantError, match=r"step.pending_keyed"):
        _check(_pending(), _units(1, 2, 3, 7, 8), launched=launched, processed=processed)


@pytest.mark.parametrize("marked", [[1, 2, 3, 7], [1, 2, 3, 7, 8, 9]])
def test_a_unit_that_the_map_and_the_batches_tell_apart_is_found(marked: list[int]) -> None:
    with pytest.raises(InvariantError, match=r"band\.conservation"):
        _check(_pending(), _units(*marked), launched=6, processed=3)
