"""The records of a ledger: what opens, what ends, what a unit's owner leaves behind."""

# pyright: reportPrivateUsage=false

import numpy as np
import pytest

from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.signals import Signal, copy_signal, step_signal, transfer_signal
from kvd.alloc.unit_sets import Units
from kvd.alloc.use_records import UseRecords
from kvd.alloc.uses import UseKind, UseRecord
from kvd.errors import InvariantError

SPAN = (1, 100)


def _units(*units: int) -> Units:
    return np.array(units, dtype=np.int64)


def _records(level: CheckLevel = CheckLevel.STRICT) -> UseRecords:
    return UseRecords("window", CheckMonitor(level))


def _told(records: UseRecords) -> list[tuple[UseKind, Signal, int | None]]:
    return [(kind, signal, count) for kind, signal, count in records.records()]


def test_a_ledger_starts_empty_and_is_empty_again_after_what_was_opened_ended() -> None:
    records = _records()
    assert records.is_empty
    records.open(UseKind.FORWARD_WRITE, step_signal(1), None)
    assert not records.is_empty
    assert records.is_clear
    records.open(UseKind.COPY_READ, copy_signal(1), _units(3))
    assert not records.is_clear
    assert records.retire_through(1).size == 0
    assert records.release(copy_signal(1)).size == 0
    assert records.is_empty
    assert records.records() == ()


def test_one_record_holds_all_units_of_a_use_and_signal() -> None:
    records = _records()
    records.open(UseKind.COPY_WRITE, copy_signal(1), _units(9, 4))
    records.open(UseKind.COPY_WRITE, copy_signal(1), _units(4, 6))
    records.open(UseKind.COPY_READ, copy_signal(1), _units(4))
    records.open(UseKind.FORWARD_WRITE, step_signal(2), _units(8, 7))
    records.open(UseKind.FORWARD_WRITE, step_signal(1), _units(8))
    records.open(UseKind.FORWARD_WRITE, step_signal(1), None)
    records.open(UseKind.FORWARD_WRITE, step_signal(1), _units(8))
    records.check(SPAN)
    assert records.records() == (
        UseRecord(UseKind.FORWARD_WRITE, step_signal(1), None),
        UseRecord(UseKind.FORWARD_WRITE, step_signal(2), 2),
        UseRecord(UseKind.COPY_WRITE, copy_signal(1), 3),
        UseRecord(UseKind.COPY_READ, copy_signal(1), 1),
    )
    assert records.close(UseKind.COPY_WRITE, copy_signal(1)).tolist() == [4, 6, 9]


def test_a_forward_that_writes_nothing_here_leaves_no_record() -> None:
    records = _records()
    records.open(UseKind.FORWARD_WRITE, step_signal(1), _units())
    assert records.is_empty


@pytest.mark.parametrize("kind", list(UseKind))
def test_a_use_is_over_with_one_kind_of_signal(kind: UseKind) -> None:
    wrong = copy_signal(1) if kind is not UseKind.COPY_READ else step_signal(1)
    if kind in (UseKind.COPY_WRITE, UseKind.LOAD_RESERVATION):
        wrong = transfer_signal(1)
    with pytest.raises(AssertionError):
        _records().open(kind, wrong, _units(1))


def test_retiring_ends_every_step_up_to_the_one_named_and_no_other() -> None:
    records = _records()
    for step in (1, 2, 3):
        records.open(UseKind.FORWARD_WRITE, step_signal(step), None)
    records.vacate(_units(5), step=2)
    records.vacate(_units(7), step=3)
    assert records.retire_through(2).tolist() == [5]
    assert records.retired_step == 2
    assert _told(records) == [
        (UseKind.FORWARD_WRITE, step_signal(3), None),
        (UseKind.VACATED_READ, step_signal(3), 1),
    ]
    assert records.retire_through(1).size == 0  # late news of an older step changes nothing
    assert records.retired_step == 2


def test_a_step_that_retired_cannot_write_or_read_again() -> None:
    records = _records()
    records.retire_through(4)
    with pytest.raises(AssertionError):
        records.open(UseKind.FORWARD_WRITE, step_signal(4), None)
    with pytest.raises(AssertionError):
        records.vacate(_units(3), step=4)


def test_a_unit_nobody_reads_is_a_hole_as_soon_as_its_owner_leaves() -> None:
    records = _records()
    assert records.vacate(_units(9, 3), step=None).tolist() == [9, 3]
    records.open(UseKind.NETWORK_SEND, transfer_signal(1), _units(20))
    assert records.vacate(_units(9, 3), step=None).tolist() == [9, 3]
    assert records.facts.vacated_forward.size == 0


@pytest.mark.case("89")
def test_a_unit_only_a_backup_reads_is_a_hole_at_once_and_keeps_its_fence() -> None:
    records = _records()
    records.open(UseKind.COPY_READ, copy_signal(1), _units(3, 4))
    assert records.vacate(_units(3, 5), step=None).tolist() == [3, 5]
    assert _told(records) == [(UseKind.COPY_READ, copy_signal(1), 2)]


def test_a_unit_a_step_reads_comes_back_with_its_fence_when_the_step_retires() -> None:
    records = _records()
    records.open(UseKind.COPY_READ, copy_signal(1), _units(3))
    assert records.vacate(_units(3), step=6).size == 0
    assert records.facts.vacated_forward.tolist() == [3]
    assert records.retire_through(6).tolist() == [3]
    assert _told(records) == [(UseKind.COPY_READ, copy_signal(1), 1)]


@pytest.mark.parametrize("kind", [UseKind.NETWORK_SEND, UseKind.NETWORK_RECEIVE])
def test_a_unit_a_step_and_a_transfer_touch_comes_back_after_both(kind: UseKind) -> None:
    records = _records()
    records.open(kind, transfer_signal(1), _units(3, 4))
    records.vacate(_units(3, 8), step=6)
    assert records.facts.vacated_network.tolist() == [3]
    assert records.facts.vacated_forward.tolist() == [8]
    assert records.retire_through(6).tolist() == [8]
    records.check(SPAN)
    assert records.release(transfer_signal(1)).tolist() == [3]

    records.open(kind, transfer_signal(2), _units(3, 4))
    records.open(UseKind.VACATED_READ, step_signal(7), _units(3, 8))
    assert records.release(transfer_signal(2)).size == 0
    assert records.facts.vacated_forward.tolist() == [3, 8]
    assert records.retire_through(7).tolist() == [3, 8]


def test_a_unit_two_transfers_touch_comes_back_after_the_second() -> None:
    records = _records()
    records.open(UseKind.NETWORK_SEND, transfer_signal(1), _units(3))
    records.open(UseKind.NETWORK_SEND, transfer_signal(2), _units(3))
    assert records.vacate(_units(3), step=None).size == 0
    assert records.release(transfer_signal(2)).size == 0
    assert records.release(transfer_signal(1)).tolist() == [3]


def test_releasing_ends_all_of_a_signal_and_nothing_else() -> None:
    records = _records()
    records.open(UseKind.RECEIVE_HOLD, transfer_signal(1), _units(2))
    records.open(UseKind.NETWORK_RECEIVE, transfer_signal(1), _units(3))
    records.open(UseKind.NETWORK_SEND, transfer_signal(2), _units(4))
    records.open(UseKind.COPY_READ, copy_signal(1), _units(4))
    records.release(transfer_signal(1))
    assert _told(records) == [
        (UseKind.NETWORK_SEND, transfer_signal(2), 1),
        (UseKind.COPY_READ, copy_signal(1), 1),
    ]
    before = records.epoch_count
    assert records.release(copy_signal(7)).size == 0
    assert records.epoch_count == before


def test_a_pin_ends_on_its_own_and_tells_its_units() -> None:
    records = _records()
    records.open(UseKind.LOAD_RESERVATION, copy_signal(1), _units(9, 3))
    assert records.facts.hard_fixed == (3, 10)
    assert records.close(UseKind.LOAD_RESERVATION, copy_signal(1)).tolist() == [3, 9]
    assert records.facts.hard_fixed is None


def test_closing_what_is_not_open_is_counted_and_stops_strict_work() -> None:
    records = _records(CheckLevel.WARN)
    records.open(UseKind.RECEIVE_HOLD, transfer_signal(1), _units(3))
    records.close(UseKind.RECEIVE_HOLD, transfer_signal(1))
    assert records.close(UseKind.RECEIVE_HOLD, transfer_signal(1)).size == 0
    with pytest.raises(InvariantError, match=r"ledger.release_once.*receive hold of transfer 1"):
        _records().close(UseKind.RECEIVE_HOLD, transfer_signal(1))


def test_a_lost_transfer_makes_hard_what_it_touches_until_it_is_released() -> None:
    records = _records()
    records.open(UseKind.NETWORK_RECEIVE, transfer_signal(1), _units(3, 4))
    records.vacate(_units(4), step=None)
    assert (records.facts.hard_fixed, records.facts.soft_fixed) == (None, (3, 4))
    before = records.epoch_count
    records.quarantine(transfer_signal(1))
    assert records.epoch_count > before
    assert (records.facts.hard_fixed, records.facts.soft_fixed) == ((3, 5), None)
    assert records.facts.astray.tolist() == [4]
    assert records.facts.vacated_network.size == 0
    records.check(SPAN)
    assert records.release(transfer_signal(1)).tolist() == [4]
    assert records.facts.hard_fixed is None
    records.check(SPAN)


def test_a_lost_transfer_that_touches_nothing_here_is_not_remembered() -> None:
    records = _records()
    records.quarantine(transfer_signal(1))
    records.open(UseKind.NETWORK_SEND, transfer_signal(1), _units(3))
    assert records.facts.hard_fixed is None


def test_holds_follow_units_that_move_and_other_uses_stay() -> None:
    records = _records()
    records.open(UseKind.RECEIVE_HOLD, transfer_signal(1), _units(20, 21, 30))
    records.open(UseKind.COPY_READ, copy_signal(1), _units(30))
    records.carry_holds(_units(30, 25, 20), _units(7, 6, 5))
    assert records.facts.soft_fixed == (5, 22)
    assert records.close(UseKind.RECEIVE_HOLD, transfer_signal(1)).tolist() == [5, 7, 21]
    assert [unit for left in records.leave(30, 40) for unit in left.units] == [30]


def test_units_that_leave_take_what_is_open_along() -> None:
    records = _records()
    records.open(UseKind.COPY_READ, copy_signal(1), _units(10, 50, 51, 60))
    records.open(UseKind.NETWORK_SEND, transfer_signal(1), _units(52, 53))
    records.open(UseKind.FORWARD_WRITE, step_signal(4), None)
    records.vacate(_units(50, 52, 12), step=4)
    left = [(use.units.tolist(), use.kind, use.signal) for use in records.leave(50, 53)]
    assert left == [
        ([50, 51], UseKind.COPY_READ, copy_signal(1)),
        ([52], UseKind.NETWORK_SEND, transfer_signal(1)),
        ([50, 52], UseKind.VACATED_READ, step_signal(4)),
    ]
    records.check(SPAN)
    assert records.facts.vacated_forward.tolist() == [12]
    assert _told(records) == [
        (UseKind.FORWARD_WRITE, step_signal(4), None),
        (UseKind.COPY_READ, copy_signal(1), 2),
        (UseKind.NETWORK_SEND, transfer_signal(1), 1),
        (UseKind.VACATED_READ, step_signal(4), 1),
    ]
    assert records.retire_through(4).tolist() == [12]
    assert records.release(transfer_signal(1)).size == 0


def test_a_range_without_uses_leaves_without_any_and_moves_no_epoch() -> None:
    records = _records()
    records.open(UseKind.COPY_READ, copy_signal(1), _units(10))
    before = records.epoch_count
    assert records.leave(11, 40) == []
    assert records.epoch_count == before


@pytest.mark.parametrize(
    ("kind", "signal"),
    [
        (UseKind.LOAD_RESERVATION, copy_signal(1)),
        (UseKind.RECEIVE_HOLD, transfer_signal(1)),
        (UseKind.FORWARD_WRITE, step_signal(1)),
    ],
)
def test_a_pinned_or_written_unit_does_not_leave(kind: UseKind, signal: Signal) -> None:
    records = _records(CheckLevel.OFF)
    records.open(kind, signal, _units(10))
    with pytest.raises(InvariantError, match=r"ledger.no_orphan"):
        records.leave(10, 11)


def test_a_unit_of_a_lost_transfer_does_not_leave() -> None:
    records = _records(CheckLevel.OFF)
    records.open(UseKind.NETWORK_SEND, transfer_signal(1), _units(10))
    records.vacate(_units(10), step=None)
    records.quarantine(transfer_signal(1))
    with pytest.raises(InvariantError, match=r"ledger.no_orphan"):
        records.leave(10, 11)


@pytest.mark.parametrize("unit", [0, 100])
def test_a_record_outside_the_span_is_found(unit: int) -> None:
    records = _records()
    records.open(UseKind.COPY_READ, copy_signal(1), _units(50, unit))
    with pytest.raises(InvariantError, match=r"ledger.no_orphan"):
        records.check(SPAN)


def _retire_behind_its_back(records: UseRecords) -> None:
    records.retired_step = 9


def _repeat_a_unit(records: UseRecords) -> None:
    records._uses[UseKind.COPY_READ, copy_signal(1)] = _units(3, 3)


def _lose_the_transfer(records: UseRecords) -> None:
    del records._uses[UseKind.NETWORK_SEND, transfer_signal(1)]


def _send_astray_what_is_not(records: UseRecords) -> None:
    records._astray[transfer_signal(7)] = None


def _change_without_saying_so(records: UseRecords) -> None:
    assert records.facts.soft_fixed == (6, 7)
    records._uses[UseKind.NETWORK_SEND, transfer_signal(1)] = _units(5, 6, 8)


@pytest.mark.parametrize(
    "breakage",
    [
        _retire_behind_its_back,
        _repeat_a_unit,
        _lose_the_transfer,
        _send_astray_what_is_not,
        _change_without_saying_so,
    ],
)
def test_broken_records_are_found(breakage: object) -> None:
    records = _records()
    records.open(UseKind.FORWARD_WRITE, step_signal(9), None)
    records.open(UseKind.NETWORK_SEND, transfer_signal(1), _units(5, 6))
    records.vacate(_units(5), step=9)
    records.check(SPAN)
    assert callable(breakage)
    breakage(records)
    with pytest.raises(InvariantError, match=r"ledger.records_exact"):
        records.check(SPAN)


def test_every_change_of_what_an_answer_depends_on_moves_the_epoch() -> None:
    records = _records()
    epochs = [records.epoch_count]
    records.open(UseKind.RECEIVE_HOLD, transfer_signal(1), _units(3))
    epochs.append(records.epoch_count)
    records.carry_holds(_units(3), _units(2))
    epochs.append(records.epoch_count)
    records.close(UseKind.RECEIVE_HOLD, transfer_signal(1))
    epochs.append(records.epoch_count)
    records.open(UseKind.NETWORK_RECEIVE, transfer_signal(1), _units(2))
    epochs.append(records.epoch_count)
    records.vacate(_units(2), step=1)
    epochs.append(records.epoch_count)
    records.retire_through(1)
    epochs.append(records.epoch_count)
    records.leave(2, 3)
    epochs.append(records.epoch_count)
    assert epochs == sorted(set(epochs))
    records.open(UseKind.FORWARD_WRITE, step_signal(2), None)
    records.retire_through(2)
    assert records.epoch_count == epochs[-1]  # write sets change no answer
