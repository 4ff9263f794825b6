"""The registry of invariants and the levels at which they fire."""

import pytest

from kvd.alloc.checks import CHECKS, Check, CheckLevel, CheckMonitor
from kvd.errors import InvariantError
from kvd_proto.errors import ErrorCode


def test_every_invariant_has_one_name_and_says_what_it_protects() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(check.protects for check in CHECKS)


FATAL = [check for check in CHECKS if check.fatal]
COUNTED = [check for check in CHECKS if not check.fatal]


@pytest.mark.parametrize("check", FATAL, ids=lambda check: check.name)
@pytest.mark.parametrize("level", list(CheckLevel))
def test_a_broken_fatal_invariant_stops_work_at_every_level(
    check: Check, level: CheckLevel
) -> None:
    with pytest.raises(InvariantError, match="^" + check.name) as caught:
        CheckMonitor(level).fail(check.name, "something else")
    assert caught.value.name == check.name
    assert caught.value.code is ErrorCode.INVARIANT


@pytest.mark.parametrize("check", COUNTED, ids=lambda check: check.name)
def test_a_broken_invariant_that_is_not_fatal_is_counted_and_raises_when_strict(
    check: Check,
) -> None:
    monitor = CheckMonitor(CheckLevel.WARN)
    monitor.fail(check.name, "something else")
    monitor.fail(check.name, "again")
    assert monitor.broken_count == {check.name: 2}
    with pytest.raises(InvariantError, match="^" + check.name):
        CheckMonitor(CheckLevel.STRICT).fail(check.name, "something else")


def test_levels_are_ordered() -> None:
    assert CheckLevel.OFF < CheckLevel.WARN < CheckLevel.STRICT


def test_an_unregistered_name_is_a_fault_of_the_caller() -> None:
    with pytest.raises(KeyError):
        CheckMonitor(CheckLevel.WARN).fail("band.no_such_thing", "")
