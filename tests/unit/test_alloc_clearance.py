"""The clearance tables, cell by cell, as the design writes them down."""

import pytest

from kvd.alloc.clearance import (
    CLEARANCE,
    CLOSED,
    READ_CLEARANCE,
    WAITS,
    Cell,
    Consumer,
    Hazard,
    Reader,
    Rule,
    Writer,
    can_choose,
    consumer_follows,
)

# Columns: h1 to h8, load reservation, receive hold. Rows: c1 to c6.
WRITERS = """
0   S  X  A   A   N  X  0   X  X
A   S  X  A   A   N  X  0   X  X
A   S  X  A   A   N  X  0   X  X
A*  S  X  A*  A*  N  X  A*  X  X
A*  S  X  A*  A*  N  N  A*  X  X
0   S  X  A   A   N  X  0   X  X
"""

# Columns: forward, unknown, load, receive, allocator, load reservation, receive hold. Rows: r1 to
# r5. F is a wait of the reader's own stream, or of the host for a peer, that leaves A alone.
READERS = """
A  A  A   N  0  X  0
F  F  A*  N  F  X  X
N  N  N   X  F  X  X
0  0  F   N  F  X  X
0  0  0   0  F  0  0
"""


def _cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


EXPECTED_WRITERS = [
    (consumer, hazard, code)
    for consumer, row in zip(Consumer, _cells(WRITERS), strict=True)
    for hazard, code in zip(Hazard, row, strict=True)
]
EXPECTED_READERS = [
    (reader, writer, code)
    for reader, row in zip(Reader, _cells(READERS), strict=True)
    for writer, code in zip(Writer, row, strict=True)
]


@pytest.mark.parametrize(("consumer", "hazard", "code"), EXPECTED_WRITERS)
def test_a_writer_meets_each_hazard_as_designed(
    consumer: Consumer, hazard: Hazard, code: str
) -> None:
    assert CLEARANCE[consumer, hazard].cell == code


@pytest.mark.parametrize(("reader", "writer", "code"), EXPECTED_READERS)
def test_a_reader_meets_each_writer_as_designed(reader: Reader, writer: Writer, code: str) -> None:
    assert READ_CLEARANCE[reader, writer].cell == code


def test_the_tables_have_no_other_cell_and_each_says_why() -> None:
    assert list(CLEARANCE) == [(consumer, hazard) for consumer, hazard, _ in EXPECTED_WRITERS]
    assert list(READ_CLEARANCE) == [(reader, writer) for reader, writer, _ in EXPECTED_READERS]
    rules = [*CLEARANCE.values(), *READ_CLEARANCE.values()]
    assert all(len(rule.reason.split()) >= 3 for rule in rules)


def test_only_a_forward_may_overwrite_what_an_older_forward_reads() -> None:
    without_wait = [
        consumer
        for consumer in Consumer
        if CLEARANCE[consumer, Hazard.VACATED_READ].cell is Cell.NOTHING
    ]
    assert without_wait == [Consumer.FORWARD_WRITE, Consumer.STATE_WRITE]


@pytest.mark.parametrize("consumer", list(Consumer))
def test_loads_and_peers_alone_are_placed_behind_the_allocator(consumer: Consumer) -> None:
    assert consumer_follows(consumer) is (consumer in (Consumer.HOST_LOAD, Consumer.PEER_WRITE))


def test_a_consumer_without_a_following_cell_follows_nobody() -> None:
    table = CLEARANCE | {
        (Consumer.HOST_LOAD, hazard): Rule(Cell.WAIT, "a mutant") for hazard in Hazard
    }
    assert not consumer_follows(Consumer.HOST_LOAD, table)
    table |= {(Consumer.HOST_LOAD, Hazard.ALLOCATOR_WORK): Rule(Cell.WAIT_AND_FOLLOW, "it alone")}
    assert consumer_follows(Consumer.HOST_LOAD, table)


@pytest.mark.parametrize("consumer", list(Consumer))
def test_a_pending_unit_is_nobodys_choice_unless_the_table_says_so(consumer: Consumer) -> None:
    assert not can_choose(consumer, Hazard.PENDING)
    assert can_choose(consumer, Hazard.COPY_READ)
    table = CLEARANCE | {(consumer, Hazard.PENDING): Rule(Cell.NOTHING, "a mutant")}
    assert can_choose(consumer, Hazard.PENDING, table)


def test_no_cell_both_waits_and_closes() -> None:
    assert set(WAITS) | set(CLOSED) | {Cell.NOTHING, Cell.FOLLOW} == set(Cell)
    assert len(WAITS) + len(CLOSED) + 2 == len(Cell)
