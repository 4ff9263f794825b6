"""Fences on bytes that left their band, met by whoever writes there next."""

# pyright: reportPrivateUsage=false

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvd.alloc.byte_fences import FENCES, ByteFences
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.clearance import CLEARANCE, CLOSED, WAITS, Cell, Consumer, Hazard, Rule
from kvd.alloc.signals import Signal, SignalNumber, copy_signal, step_signal, transfer_signal
from kvd.alloc.unit_sets import Units
from kvd.errors import InvariantError

CELLS = [(consumer, hazard) for consumer in Consumer for hazard in FENCES]


def _bytes(*starts: int) -> Units:
    return np.array(starts, dtype=np.int64)


def _fences() -> ByteFences:
    return ByteFences(CheckMonitor(CheckLevel.STRICT))


def _fenced(hazard: Hazard) -> tuple[ByteFences, Signal]:
    fences = _fences()
    signal = Signal(FENCES[hazard], SignalNumber(5))
    fences.add(100, 200, hazard, signal)
    return fences, signal


@pytest.mark.parametrize(("consumer", "hazard"), CELLS)
def test_the_next_writer_does_what_the_cell_says(consumer: Consumer, hazard: Hazard) -> None:
    fences, signal = _fenced(hazard)
    cell = CLEARANCE[consumer, hazard].cell
    assert fences.signals(_bytes(70, 200), 30, consumer) == ()
    if cell in CLOSED:
        with pytest.raises(InvariantError, match=r"band.take_cleared: bytes from 190 "):
            fences.signals(_bytes(70, 190), 30, consumer)
    else:
        expected = (signal,) if cell in WAITS else ()
        assert fences.signals(_bytes(70, 190), 30, consumer) == expected


@pytest.mark.parametrize(("consumer", "hazard"), CELLS)
def test_the_next_writer_asks_the_table_it_is_given(consumer: Consumer, hazard: Hazard) -> None:
    fences, signal = _fenced(hazard)
    at = _bytes(150)
    table = CLEARANCE | {(consumer, hazard): Rule(Cell.NOTHING, "a mutant")}
    assert fences.signals(at, 1, consumer, table) == ()
    assert fences.openness(at, 1, consumer, table).tolist() == [0]
    table |= {(consumer, hazard): Rule(Cell.WAIT_AND_FOLLOW, "a mutant")}
    assert fences.signals(at, 1, consumer, table) == (signal,)
    table |= {(consumer, hazard): Rule(Cell.IMPOSSIBLE, "a mutant")}
    assert fences.openness(at, 1, consumer, table).tolist() == [4]
    with pytest.raises(InvariantError, match=r"band.take_cleared"):
        fences.signals(at, 1, consumer, table)


@pytest.mark.parametrize(
    ("start", "length", "is_met"),
    [
        (99, 1, False),
        (99, 2, True),
        (100, 1, True),
        (150, 1, True),
        (0, 1000, True),
        (199, 1, True),
        (200, 50, False),
        (249, 1, False),
        (249, 2, True),
        (299, 9, True),
        (300, 9, False),
    ],
)
def test_a_fence_is_met_from_its_first_byte_to_its_last(
    start: int, length: int, is_met: bool
) -> None:
    fences = _fences()
    fences.add(250, 300, Hazard.COPY_READ, copy_signal(1))
    fences.add(100, 200, Hazard.COPY_READ, copy_signal(1))
    expected = (copy_signal(1),) if is_met else ()
    assert fences.signals(_bytes(start), length, Consumer.ZEROING) == expected


def test_units_of_another_size_meet_what_the_band_before_left() -> None:
    fences = _fences()
    fences.add_units(_bytes(7, 4, 5), 10, Hazard.COPY_READ, copy_signal(1))  # [40,60) and [70,80)
    starts = _bytes(7, 8, 9, 10, 11, 12) * 7  # units of 7 bytes: 49, 56, 63, 70, 77, 84
    assert fences.openness(starts, 7, Consumer.ZEROING).tolist() == [1, 1, 0, 1, 1, 0]
    assert fences.records() == ((Hazard.COPY_READ, copy_signal(1), 30),)


def test_waits_are_distinct_and_ordered_and_of_steps_the_newest() -> None:
    fences = _fences()
    fences.add(0, 10, Hazard.VACATED_READ, step_signal(8))
    fences.add(10, 20, Hazard.VACATED_READ, step_signal(9))
    fences.add(0, 30, Hazard.COPY_WRITE, copy_signal(2))
    fences.add(5, 30, Hazard.COPY_READ, copy_signal(1))
    fences.add(5, 30, Hazard.COPY_READ, copy_signal(2))
    assert fences.signals(_bytes(12, 0), 8, Consumer.ZEROING) == (
        copy_signal(1),
        copy_signal(2),
        step_signal(9),
    )
    assert fences.signals(_bytes(0), 5, Consumer.STATE_WRITE) == (copy_signal(2),)
    assert fences.openness(_bytes(0, 25, 40), 5, Consumer.ZEROING).tolist() == [3, 1, 0]


def test_a_growing_band_clears_nothing_and_a_wait_is_not_repeated() -> None:
    fences = _fences()
    fences.add(0, 100, Hazard.COPY_READ, copy_signal(1))
    assert fences.signals(_bytes(0), 10, Consumer.ZEROING) == (copy_signal(1),)
    assert fences.signals(_bytes(50), 10, Consumer.ZEROING) == (copy_signal(1),)
    waited = {copy_signal(1)}
    assert fences.signals(_bytes(0, 50), 10, Consumer.ZEROING, waited=waited) == ()
    fences.release(copy_signal(1))
    assert fences.is_empty
    assert fences.signals(_bytes(50), 10, Consumer.ZEROING) == ()


def test_having_waited_opens_nothing_that_is_closed() -> None:
    fences, signal = _fenced(Hazard.NETWORK_SEND)
    with pytest.raises(InvariantError, match=r"band.take_cleared"):
        fences.signals(_bytes(100), 1, Consumer.ZEROING, waited={signal})


def test_retiring_ends_every_step_up_to_the_one_named_and_nothing_else() -> None:
    fences = _fences()
    fences.add(0, 10, Hazard.VACATED_READ, step_signal(1))
    fences.add(0, 10, Hazard.VACATED_READ, step_signal(2))
    fences.add(0, 10, Hazard.VACATED_READ, step_signal(3))
    fences.add(0, 10, Hazard.COPY_READ, copy_signal(1))
    fences.retire_through(2)
    assert fences.records() == (
        (Hazard.VACATED_READ, step_signal(3), 10),
        (Hazard.COPY_READ, copy_signal(1), 10),
    )
    fences.check()
    with pytest.raises(AssertionError):
        fences.add(0, 10, Hazard.VACATED_READ, step_signal(2))


@pytest.mark.parametrize(
    "hazard", [Hazard.PENDING, Hazard.LIVE_WRITE, Hazard.RESERVATION, Hazard.HOLD]
)
def test_what_cannot_leave_a_band_is_no_fence(hazard: Hazard) -> None:
    with pytest.raises(KeyError):
        _fences().add(0, 10, hazard, step_signal(1))


def test_a_fence_is_over_with_one_kind_of_signal() -> None:
    with pytest.raises(AssertionError):
        _fences().add(0, 10, Hazard.COPY_READ, step_signal(1))


def test_bytes_that_transfers_touch_are_blocked_until_they_end() -> None:
    fences = _fences()
    assert fences.blocked() == ()
    fences.add(40, 50, Hazard.NETWORK_SEND, transfer_signal(2))
    fences.add(10, 20, Hazard.NETWORK_RECEIVE, transfer_signal(1))
    fences.add(15, 30, Hazard.NETWORK_SEND, transfer_signal(2))
    fences.add(30, 40, Hazard.COPY_READ, copy_signal(1))
    fences.add(0, 5, Hazard.VACATED_READ, step_signal(1))
    assert fences.blocked() == ((10, 30), (40, 50))
    # Units that bands keep back under transfers: [21, 28) and [56, 63), then [60, 70) and [30, 40).
    vacated = [(_bytes(3, 8), 7), (_bytes(), 7), (_bytes(6, 3), 10)]
    assert fences.blocked(vacated) == ((10, 50), (56, 70))
    fences.release(transfer_signal(2))
    assert fences.blocked() == ((10, 20),)
    fences.release(transfer_signal(1))
    assert fences.blocked() == ()


def test_bytes_of_a_lost_transfer_are_quarantined_and_stay_blocked() -> None:
    fences = _fences()
    fences.add(10, 20, Hazard.NETWORK_RECEIVE, transfer_signal(1))
    fences.add(40, 50, Hazard.NETWORK_SEND, transfer_signal(2))
    fences.quarantine(transfer_signal(1))
    fences.quarantine(transfer_signal(3))
    assert fences.quarantined() == ((10, 20),)
    assert fences.blocked() == ((10, 20), (40, 50))
    fences.release(transfer_signal(1))
    assert fences.quarantined() == ()
    assert fences.blocked() == ((40, 50),)


def test_ranges_that_overlap_or_touch_are_one() -> None:
    fences = _fences()
    fences.add(10, 20, Hazard.COPY_READ, copy_signal(1))
    fences.add(40, 50, Hazard.COPY_READ, copy_signal(1))
    fences.add(20, 25, Hazard.COPY_READ, copy_signal(1))
    fences.add(0, 60, Hazard.COPY_READ, copy_signal(1))
    fences.add(12, 13, Hazard.COPY_READ, copy_signal(1))
    fences.check()
    assert fences.records() == ((Hazard.COPY_READ, copy_signal(1), 60),)


def test_every_change_of_what_an_answer_depends_on_moves_the_epoch() -> None:
    fences = _fences()
    epochs = [fences.epoch_count]
    fences.add(0, 9, Hazard.NETWORK_SEND, transfer_signal(1))
    epochs.append(fences.epoch_count)
    fences.quarantine(transfer_signal(1))
    epochs.append(fences.epoch_count)
    fences.release(transfer_signal(1))
    epochs.append(fences.epoch_count)
    assert epochs == sorted(set(epochs))
    fences.retire_through(1)
    fences.release(transfer_signal(1))
    fences.quarantine(transfer_signal(1))
    assert fences.epoch_count == epochs[-1]


def test_broken_fences_are_found() -> None:
    fences = _fences()
    fences.add(0, 9, Hazard.VACATED_READ, step_signal(1))
    fences.retired_step = 1
    with pytest.raises(InvariantError, match=r"ledger.records_exact"):
        fences.check()
    fences = _fences()
    fences.add(0, 9, Hazard.COPY_READ, copy_signal(1))
    fences._fences[Hazard.COPY_READ, copy_signal(1)] = (_bytes(0, 5), _bytes(6, 9))
    with pytest.raises(InvariantError, match=r"ledger.records_exact"):
        fences.check()


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6), st.integers(1, 2)), max_size=8),
    st.lists(st.integers(0, 50), max_size=6),
    st.integers(1, 7),
)
def test_fences_are_those_of_sets_of_bytes(
    added: list[tuple[int, int, int]], starts: list[int], length: int
) -> None:
    fences = _fences()
    fenced: set[tuple[int, int]] = set()
    for start, count, copy in added:
        fences.add(start, start + count, Hazard.COPY_READ, copy_signal(copy))
        fenced |= {(byte, copy) for byte in range(start, start + count)}
    fences.check()
    met = [
        {copy for byte, copy in fenced if byte in range(start, start + length)} for start in starts
    ]
    found = fences.openness(_bytes(*starts), length, Consumer.ZEROING)
    assert found.tolist() == [int(bool(copies)) for copies in met]
    assert fences.signals(_bytes(*starts), length, Consumer.ZEROING) == tuple(
        copy_signal(copy) for copy in sorted({copy for copies in met for copy in copies})
    )
    assert [(signal.number, count) for _, signal, count in fences.records()] == [
        (copy, sum(other == copy for _, other in fenced))
        for copy in sorted({copy for _, copy in fenced})
    ]
