"""The ledger's words: what each kind of use is to a writer, a reader and a capacity answer."""

import numpy as np
import pytest

from kvd.alloc.clearance import Cell, Hazard
from kvd.alloc.signals import Signal, copy_signal, step_signal, transfer_signal
from kvd.alloc.unit_sets import Units
from kvd.alloc.uses import (
    COPY_WAIT,
    HAZARD_OF,
    NO_WAIT,
    NOT_CHOSEN,
    OVER_WITH,
    STEP_WAIT,
    WRITER_OF,
    UsageFacts,
    UseKind,
    facts_of,
    openness_bit,
)


def _units(*units: int) -> Units:
    return np.array(units, dtype=np.int64)


@pytest.mark.case("94")
def test_every_kind_of_use_is_a_hazard_of_its_own() -> None:
    assert set(HAZARD_OF) == set(OVER_WITH) == set(UseKind)
    assert len(set(HAZARD_OF.values())) == len(UseKind)
    assert set(Hazard) - set(HAZARD_OF.values()) == {Hazard.PENDING, Hazard.ALLOCATOR_WORK}


def test_uses_that_only_read_are_nothing_to_a_reader() -> None:
    assert set(UseKind) - set(WRITER_OF) == {
        UseKind.FORWARD_WRITE,  # asked about by write set, known or not
        UseKind.VACATED_READ,
        UseKind.COPY_READ,
        UseKind.NETWORK_SEND,
    }


@pytest.mark.parametrize(
    ("cell", "signal", "bit"),
    [
        (Cell.NOTHING, step_signal(1), NO_WAIT),
        (Cell.FOLLOW, step_signal(1), NO_WAIT),
        (Cell.WAIT, step_signal(1), STEP_WAIT),
        (Cell.WAIT_AND_FOLLOW, step_signal(1), STEP_WAIT),
        (Cell.WAIT, copy_signal(1), COPY_WAIT),
        (Cell.WAIT_AND_FOLLOW, copy_signal(1), COPY_WAIT),
        (Cell.SETTLE, step_signal(1), NOT_CHOSEN),
        (Cell.NEVER_OPEN, transfer_signal(1), NOT_CHOSEN),
        (Cell.IMPOSSIBLE, copy_signal(1), NOT_CHOSEN),
    ],
)
def test_a_choice_prefers_no_wait_then_a_copy_then_a_step(
    cell: Cell, signal: Signal, bit: int
) -> None:
    assert openness_bit(cell, signal) == bit
    assert NO_WAIT < COPY_WAIT < STEP_WAIT < (COPY_WAIT | STEP_WAIT) < NOT_CHOSEN


def _facts(uses: dict[tuple[UseKind, Signal], Units], *astray: Signal) -> list[object]:
    """Return the extents and what is vacated: for good, behind steps, behind transfers, astray."""
    facts = facts_of(uses, astray)[:5]
    return [fact.tolist() if isinstance(fact, np.ndarray) else fact for fact in facts]


def test_what_transfers_touch_is_told_apart_by_whether_they_are_known_to_end() -> None:
    facts = facts_of(
        {
            (UseKind.NETWORK_SEND, transfer_signal(1)): _units(3, 6),
            (UseKind.NETWORK_RECEIVE, transfer_signal(2)): _units(6, 7),
            (UseKind.RECEIVE_HOLD, transfer_signal(3)): _units(9),
        },
        [transfer_signal(2)],
    )
    assert (facts.touched.tolist(), facts.lost.tolist()) == ([3], [6, 7])


def test_nothing_in_use_fixes_nothing() -> None:
    assert _facts({}) == [None, None, [], [], []]
    assert UsageFacts().hard_fixed is None


def test_a_reservation_is_hard_and_transfers_and_holds_are_soft() -> None:
    assert _facts(
        {
            (UseKind.LOAD_RESERVATION, copy_signal(1)): _units(4, 9),
            (UseKind.NETWORK_SEND, transfer_signal(1)): _units(7),
            (UseKind.NETWORK_RECEIVE, transfer_signal(2)): _units(12),
            (UseKind.RECEIVE_HOLD, transfer_signal(3)): _units(3),
        }
    ) == [(4, 10), (3, 13), [], [], []]


def test_copies_and_reads_of_forwards_fix_nothing() -> None:
    assert _facts(
        {
            (UseKind.COPY_READ, copy_signal(1)): _units(1),
            (UseKind.COPY_WRITE, copy_signal(2)): _units(2),
            (UseKind.VACATED_READ, step_signal(5)): _units(3, 4),
        }
    ) == [None, None, [3, 4], [], []]


def test_a_vacated_unit_counts_under_the_transfer_that_holds_it_and_fixes_nothing() -> None:
    assert _facts(
        {
            (UseKind.NETWORK_SEND, transfer_signal(1)): _units(3, 6),
            (UseKind.VACATED_READ, transfer_signal(1)): _units(3),
            (UseKind.VACATED_READ, step_signal(5)): _units(2, 3),
        }
    ) == [None, (6, 7), [2], [3], []]


def test_a_lost_transfer_fixes_all_it_touches_for_good() -> None:
    assert _facts(
        {
            (UseKind.NETWORK_SEND, transfer_signal(1)): _units(3, 6),
            (UseKind.VACATED_READ, transfer_signal(1)): _units(3),
            (UseKind.VACATED_READ, step_signal(5)): _units(3),
            (UseKind.NETWORK_SEND, transfer_signal(2)): _units(3, 8),
            (UseKind.VACATED_READ, transfer_signal(2)): _units(3),
        },
        transfer_signal(1),
    ) == [(3, 7), (8, 9), [], [], [3]]
