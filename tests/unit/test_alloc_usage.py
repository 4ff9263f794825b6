"""What a ledger answers: whom to wait for, what to choose, what to leave where it is."""

import numpy as np
import pytest

from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.clearance import (
    CLEARANCE,
    CLOSED,
    READ_CLEARANCE,
    WAITS,
    Cell,
    Clearance,
    Consumer,
    Hazard,
    ReadClearance,
    Reader,
    Rule,
    Writer,
)
from kvd.alloc.signals import Signal, SignalKind, SignalNumber, copy_signal, step_signal
from kvd.alloc.signals import transfer_signal as transfer
from kvd.alloc.unit_sets import Mask, Units
from kvd.alloc.usage import PageUsage
from kvd.alloc.uses import HAZARD_OF, OVER_WITH, WRITER_OF, UseKind
from kvd.errors import InvariantError

NEXT_WRITES = [(consumer, kind) for consumer in Consumer for kind in UseKind]
"""Every cell of the clearance table that a use can lead to. Pending pages and allocator work are no
uses: the band asks the table about the first, the order of effects sees to the second."""

NEXT_READS = [(reader, writer) for reader in Reader for writer in Writer]


def _units(*units: int) -> Units:
    return np.array(units, dtype=np.int64)


def _usage(level: CheckLevel = CheckLevel.STRICT) -> PageUsage:
    return PageUsage("window", CheckMonitor(level))


def _opened(kind: UseKind) -> tuple[PageUsage, Signal]:
    usage = _usage()
    signal = Signal(OVER_WITH[kind], SignalNumber(5))
    usage.open(kind, signal, _units(30, 31))
    return usage, signal


def _with(cell: Cell, consumer: Consumer, hazard: Hazard) -> Clearance:
    return CLEARANCE | {(consumer, hazard): Rule(cell, "a mutant")}


# ---- writers: every cell ------------------------------------------------------------------------


@pytest.mark.parametrize(("consumer", "kind"), NEXT_WRITES)
def test_the_next_writer_does_what_the_cell_says(consumer: Consumer, kind: UseKind) -> None:
    usage, signal = _opened(kind)
    cell = CLEARANCE[consumer, HAZARD_OF[kind]].cell
    assert usage.hazards(_units(29, 32), consumer) == ()
    if cell in CLOSED:
        with pytest.raises(InvariantError, match=r"band.take_cleared: band window: unit 31"):
            usage.hazards(_units(40, 31, 1), consumer)
    elif cell in WAITS:
        assert usage.hazards(_units(40, 31, 1), consumer) == (signal,)
    else:
        assert cell is Cell.NOTHING
        assert usage.hazards(_units(40, 31, 1), consumer) == ()


@pytest.mark.parametrize(("consumer", "kind"), NEXT_WRITES)
def test_the_next_writer_asks_the_table_it_is_given(consumer: Consumer, kind: UseKind) -> None:
    usage, signal = _opened(kind)
    hazard, units = HAZARD_OF[kind], _units(31)
    assert usage.hazards(units, consumer, _with(Cell.NOTHING, consumer, hazard)) == ()
    assert usage.hazards(units, consumer, _with(Cell.WAIT, consumer, hazard)) == (signal,)
    following = _with(Cell.WAIT_AND_FOLLOW, consumer, hazard)
    assert usage.hazards(units, consumer, following) == (signal,)
    with pytest.raises(InvariantError, match=r"band.take_cleared"):
        usage.hazards(units, consumer, _with(Cell.NEVER_OPEN, consumer, hazard))


@pytest.mark.parametrize(
    ("consumer", "waits"),
    [
        (Consumer.FORWARD_WRITE, (copy_signal(1), copy_signal(2))),
        (Consumer.ZEROING, (copy_signal(1), copy_signal(2), step_signal(9))),
        (Consumer.MOVE_DESTINATION, (copy_signal(1), copy_signal(2), step_signal(9))),
        (Consumer.HOST_LOAD, (copy_signal(1), copy_signal(2), step_signal(9))),
        (Consumer.PEER_WRITE, (copy_signal(1), copy_signal(2), step_signal(9))),
        (Consumer.STATE_WRITE, (copy_signal(1), copy_signal(2))),
    ],
)
def test_waits_are_distinct_and_ordered_and_of_steps_the_newest(
    consumer: Consumer, waits: tuple[Signal, ...]
) -> None:
    usage = _usage()
    usage.vacate(_units(5), step=9)
    usage.open(UseKind.COPY_WRITE, copy_signal(2), _units(5, 6))
    usage.vacate(_units(6), step=8)
    usage.open(UseKind.COPY_READ, copy_signal(1), _units(6, 7))
    usage.open(UseKind.COPY_READ, copy_signal(3), _units(8))
    assert usage.hazards(_units(7, 6, 5), consumer) == waits


def test_what_the_allocator_waited_for_is_not_waited_again() -> None:
    usage = _usage()
    usage.open(UseKind.COPY_READ, copy_signal(1), _units(6))
    usage.open(UseKind.COPY_READ, copy_signal(2), _units(6))
    waited = {copy_signal(1)}
    assert usage.hazards(_units(6), Consumer.ZEROING, waited=waited) == (copy_signal(2),)
    usage.open(UseKind.COPY_WRITE, copy_signal(3), _units(7))
    assert usage.writers(_units(7), waited={copy_signal(3)}) == ()


def test_having_waited_opens_nothing_that_is_closed() -> None:
    usage, signal = _opened(UseKind.NETWORK_SEND)
    with pytest.raises(InvariantError, match=r"band.take_cleared"):
        usage.hazards(_units(30), Consumer.ZEROING, waited={signal})


@pytest.mark.parametrize(
    ("kind", "consumer"),
    [
        (UseKind.LOAD_RESERVATION, Consumer.HOST_LOAD),
        (UseKind.RECEIVE_HOLD, Consumer.PEER_WRITE),
    ],
)
def test_the_own_pin_is_no_hazard_and_another_is(kind: UseKind, consumer: Consumer) -> None:
    usage, signal = _opened(kind)
    assert usage.hazards(_units(30), consumer, own=signal) == ()
    other = signal._replace(number=SignalNumber(6))
    with pytest.raises(InvariantError, match=r"band.take_cleared"):
        usage.hazards(_units(30), consumer, own=other)


def test_only_the_pin_of_the_own_signal_is_left_out() -> None:
    usage, signal = _opened(UseKind.COPY_READ)
    assert usage.hazards(_units(30), Consumer.HOST_LOAD, own=signal) == (signal,)


def test_a_step_with_an_unknown_write_set_is_no_hazard_to_who_takes_holes() -> None:
    usage = _usage()
    usage.open(UseKind.FORWARD_WRITE, step_signal(1), None)
    assert usage.hazards(_units(30), Consumer.ZEROING) == ()
    assert usage.openness(_units(30), Consumer.ZEROING).tolist() == [0]


def test_a_vacated_unit_is_closed_by_its_transfer_even_to_a_forward() -> None:
    usage = _usage()
    usage.open(UseKind.NETWORK_SEND, transfer(1), _units(4))
    usage.vacate(_units(4), step=3)
    with pytest.raises(InvariantError, match=r"unit 4 .*transfer 1 has it \(network send\)"):
        usage.hazards(_units(4), Consumer.FORWARD_WRITE)


# ---- the order of choice ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("consumer", "expected"),
    [
        (Consumer.FORWARD_WRITE, [0, 1, 0, 1, 4]),
        (Consumer.ZEROING, [0, 1, 2, 3, 6]),
        (Consumer.MOVE_DESTINATION, [0, 1, 2, 3, 6]),
        (Consumer.STATE_WRITE, [0, 1, 0, 1, 4]),
    ],
)
def test_openness_tells_what_a_consumer_would_wait_for(
    consumer: Consumer, expected: list[int]
) -> None:
    usage = _usage()
    usage.open(UseKind.COPY_READ, copy_signal(1), _units(11, 13))
    usage.open(UseKind.NETWORK_SEND, transfer(1), _units(14))
    usage.vacate(_units(12, 13, 14), step=3)
    assert usage.openness(_units(10, 11, 12, 13, 14), consumer).tolist() == expected
    assert usage.openness(_units(13, 10), consumer).tolist() == [expected[3], expected[0]]


@pytest.mark.parametrize(("consumer", "kind"), NEXT_WRITES)
def test_openness_and_hazards_agree_on_every_cell(consumer: Consumer, kind: UseKind) -> None:
    usage, signal = _opened(kind)
    openness = int(usage.openness(_units(31), consumer)[0])
    if kind is UseKind.FORWARD_WRITE:  # live units are not among the holes to choose from
        assert openness == 0
    else:
        cell = CLEARANCE[consumer, HAZARD_OF[kind]].cell
        wait = 2 if signal.kind is SignalKind.STEP else 1
        assert openness == (4 if cell in CLOSED else wait if cell in WAITS else 0)


def test_holes_no_step_is_waited_for_come_first_then_those_without_a_fence() -> None:
    usage = _usage()
    usage.vacate(_units(1, 2), step=3)
    usage.open(UseKind.COPY_READ, copy_signal(1), _units(2, 3))
    holes = _units(1, 2, 3, 4, 5)
    order = np.argsort(usage.openness(holes, Consumer.ZEROING), kind="stable")
    assert holes[order].tolist() == [4, 5, 3, 1, 2]


# ---- readers: every cell ------------------------------------------------------------------------


def _written(writer: Writer) -> tuple[PageUsage, Signal] | None:
    """Return a ledger in which a writer has unit 31, or None where no use stands for it."""
    if writer is Writer.ALLOCATOR_WORK:
        return None
    if writer is Writer.FORWARD_WRITE:
        return _opened(UseKind.FORWARD_WRITE)
    if writer is Writer.UNKNOWN_WRITE:
        usage = _usage()
        usage.open(UseKind.FORWARD_WRITE, step_signal(5), None)
        return usage, step_signal(5)
    return _opened(next(kind for kind, is_a in WRITER_OF.items() if is_a is writer))


@pytest.mark.parametrize(("reader", "writer"), NEXT_READS)
def test_a_reader_does_what_the_cell_says(reader: Reader, writer: Writer) -> None:
    cell = READ_CLEARANCE[reader, writer].cell
    opened = _written(writer)
    if opened is None:
        assert cell in (Cell.NOTHING, Cell.FOLLOW)
        return
    usage, signal = opened
    if cell in CLOSED:
        with pytest.raises(InvariantError, match=r"band.move_cleared: band window: unit 31"):
            usage.writers(_units(31, 40), reader)
    else:
        assert usage.writers(_units(31, 40), reader) == ((signal,) if cell in WAITS else ())


@pytest.mark.parametrize(("reader", "writer"), NEXT_READS)
def test_a_reader_asks_the_table_it_is_given(reader: Reader, writer: Writer) -> None:
    opened = _written(writer)
    if opened is None:
        return
    usage, signal = opened

    def mutant(cell: Cell) -> ReadClearance:
        return READ_CLEARANCE | {(reader, writer): Rule(cell, "a mutant")}

    assert usage.writers(_units(31), reader, mutant(Cell.NOTHING)) == ()
    assert usage.writers(_units(31), reader, mutant(Cell.WAIT)) == (signal,)
    with pytest.raises(InvariantError, match=r"band.move_cleared"):
        usage.writers(_units(31), reader, mutant(Cell.IMPOSSIBLE))


def test_a_move_waits_the_newest_step_that_writes_a_source_and_no_newer_one() -> None:
    usage = _usage()
    usage.open(UseKind.FORWARD_WRITE, step_signal(1), _units(5, 6))
    usage.open(UseKind.FORWARD_WRITE, step_signal(2), _units(6))
    usage.open(UseKind.FORWARD_WRITE, step_signal(3), _units(9))
    usage.open(UseKind.COPY_WRITE, copy_signal(4), _units(6, 7))
    assert usage.writers(_units(5)) == (step_signal(1),)
    assert usage.writers(_units(7, 6, 5)) == (copy_signal(4), step_signal(2))
    assert usage.writers(_units(8)) == ()
    usage.retire_through(2)
    assert usage.writers(_units(5)) == ()


def test_a_step_with_an_unknown_write_set_may_write_any_source() -> None:
    usage = _usage()
    usage.open(UseKind.FORWARD_WRITE, step_signal(1), _units(5))
    usage.open(UseKind.FORWARD_WRITE, step_signal(2), None)
    usage.open(UseKind.FORWARD_WRITE, step_signal(3), _units(6))
    assert usage.has_unknown_writes
    assert usage.writers(_units(5)) == (step_signal(2),)
    assert usage.writers(_units(5, 6)) == (step_signal(3),)
    assert usage.writers(_units(77)) == (step_signal(2),)
    usage.retire_through(2)
    assert not usage.has_unknown_writes


def test_readers_of_a_unit_do_not_hold_a_move_up() -> None:
    usage = _usage()
    usage.open(UseKind.COPY_READ, copy_signal(1), _units(5))
    usage.open(UseKind.NETWORK_SEND, transfer(1), _units(5))
    usage.open(UseKind.RECEIVE_HOLD, transfer(2), _units(5))
    assert usage.writers(_units(5)) == ()


def test_a_unit_that_a_lost_transfer_reads_is_never_moved() -> None:
    usage = _usage()
    usage.open(UseKind.NETWORK_SEND, transfer(1), _units(5))
    usage.quarantine(transfer(1))
    with pytest.raises(InvariantError, match=r"band.move_cleared"):
        usage.writers(_units(5))
    assert usage.writers(_units(5), Reader.BACKUP) == ()
    usage.release(transfer(1))
    assert usage.writers(_units(5)) == ()


def test_a_move_that_waits_for_nothing_leaves_what_is_written_touched_or_pinned() -> None:
    usage = _usage()
    usage.open(UseKind.FORWARD_WRITE, step_signal(1), _units(1))
    usage.open(UseKind.COPY_READ, copy_signal(1), _units(2))
    usage.open(UseKind.COPY_WRITE, copy_signal(2), _units(3))
    usage.open(UseKind.LOAD_RESERVATION, copy_signal(3), _units(4))
    usage.open(UseKind.NETWORK_SEND, transfer(1), _units(5))
    usage.open(UseKind.NETWORK_RECEIVE, transfer(2), _units(6))
    usage.open(UseKind.RECEIVE_HOLD, transfer(3), _units(7))
    asked = _units(8, 1, 2, 3, 4, 5, 6, 7)
    assert usage.may_move(asked).tolist() == [True, False, True, *[False] * 5]
    usage.open(UseKind.FORWARD_WRITE, step_signal(2), None)
    assert not usage.may_move(asked).any()


# ---- facts --------------------------------------------------------------------------------------


def test_the_host_waits_for_every_transfer_that_touches_the_units() -> None:
    usage = _usage()
    usage.open(UseKind.NETWORK_RECEIVE, transfer(7), _units(6))
    usage.open(UseKind.NETWORK_SEND, transfer(3), _units(5, 6))
    usage.open(UseKind.NETWORK_SEND, transfer(4), _units(8))
    usage.open(UseKind.RECEIVE_HOLD, transfer(5), _units(6))
    assert usage.transfers(_units(6, 5)) == (transfer(3), transfer(7))


def test_counts_and_extents_are_those_of_the_records() -> None:
    usage = _usage()
    assert (usage.hard_extent(), usage.soft_extent()) == (None, None)
    usage.open(UseKind.LOAD_RESERVATION, copy_signal(1), _units(3, 4))
    usage.open(UseKind.NETWORK_SEND, transfer(1), _units(20, 21, 22))
    usage.open(UseKind.NETWORK_SEND, transfer(2), _units(30))
    usage.vacate(_units(20, 25, 26, 30), step=4)
    usage.quarantine(transfer(2))
    assert usage.hard_extent() == (3, 31)
    assert usage.soft_extent() == (21, 23)
    assert usage.vacated_forward_units == 2
    assert usage.vacated_network_units == 1
    assert usage.astray_units == 1


def test_a_fenced_hole_is_counted_once() -> None:
    usage = _usage()
    usage.open(UseKind.COPY_READ, copy_signal(1), _units(3, 4, 9))
    usage.open(UseKind.COPY_WRITE, copy_signal(2), _units(4, 5))
    usage.open(UseKind.NETWORK_SEND, transfer(1), _units(6))

    def is_hole(units: Units) -> Mask:
        return units < 6

    assert usage.fenced_units(is_hole) == 3
    assert _usage().fenced_units(is_hole) == 0


def test_a_write_set_is_held_against_takers_when_checks_are_strict() -> None:
    usage = _usage(CheckLevel.WARN)
    usage.open(UseKind.FORWARD_WRITE, step_signal(1), _units(5))
    assert usage.hazards(_units(5), Consumer.ZEROING) == ()
    usage.open(UseKind.COPY_READ, copy_signal(1), _units(5))
    assert usage.hazards(_units(5), Consumer.ZEROING) == (copy_signal(1),)
