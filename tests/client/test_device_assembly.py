"""Effects that do not fit the plan are refused before anything is done."""

import os
from collections.abc import Iterator

import numpy as np
import pytest

from kvd.testing.small_rank import (
    ARENA_BYTES,
    DEADLINE_MS,
    FULL,
    PLAN,
    TOTAL_BYTES,
    SmallRank,
    outcome,
)
from kvd_client.device.apply import Applier
from kvd_client.device.columns import NO_COLUMNS, decode_columns
from kvd_client.device.descriptors import create_memory
from kvd_client.device.host.device import HostDevice
from kvd_client.device.host.memory import HostMemory
from kvd_client.device.host.stream import HostStream
from kvd_client.errors import ReplyError
from kvd_proto.outcomes import (
    NO_COLUMN,
    AnyEffect,
    ClearSlots,
    Column,
    Copy,
    CopyStream,
    Done,
    Move,
    Outcome,
    ResetRows,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
)


@pytest.fixture
def rank() -> Iterator[SmallRank]:
    rank = SmallRank()
    yield rank
    rank.close()


@pytest.mark.parametrize(
    ("effect", "columns", "message"),
    [
        (Zero(FULL, Column(0)), [[9, 96]], r"unit 96 is not within \[4, 96\)"),
        (Zero(FULL, Column(0)), [[3]], r"unit 3 is not within \[4, 96\)"),
        (Zero(FULL, Column(0)), [[-1]], r"unit -1 is not within"),
        (Zero(2, Column(0)), [[9]], "band 2 of 2"),
        (Zero(-1, Column(0)), [[9]], "band -1 of 2"),
        (Zero(FULL, Column(1)), [[9]], "column 1 of 1"),
        (Zero(FULL, NO_COLUMN), [[9]], "column -1 of 1"),
        (WriteMap(FULL, Column(0)), [[0]], r"virtual id 0 is not within \[1, 96\)"),
        (WriteMap(FULL, Column(0), Column(1)), [[5], [0]], r"unit 0 is not within"),
        (WriteMap(FULL, Column(0), Column(1)), [[5, 6], [9]], "2 places in a table and 1 values"),
        (
            WriteRows(Column(0), Column(1), Column(2)),
            [[0], [0], [1]],
            r"request row 0 is not within \[1, 5\)",
        ),
        (
            WriteRows(Column(0), Column(1), Column(2)),
            [[1], [6], [1]],
            r"place in a row 6 is not within \[0, 6\)",
        ),
        (
            WriteRows(Column(0), Column(1), Column(2)),
            [[1], [0], [96]],
            r"virtual page 96 is not within \[0, 96\)",
        ),
        (WriteRows(Column(0), Column(1), Column(2)), [[1, 2], [0], [1]], "2 rows and 1 places"),
        (WriteRows(Column(0), Column(1), Column(2)), [[1], [0], [1, 2]], "with 2 pages"),
        (
            WriteSlots(Column(0), Column(1)),
            [[1], [10]],
            r"state slot id 10 is not within \[0, 10\)",
        ),
        (Move(FULL, Column(0), Column(1)), [[9], [10, 11]], "1 units cannot move to 2 places"),
        (Move(FULL, Column(0), Column(1)), [[9, 10], [10, 11]], "source and target"),
        (ClearSlots(Column(0)), [[48]], r"unit 48 is not within \[2, 48\)"),
        (ResetRows(Column(0)), [[5]], r"request row 5 is not within"),
        (Copy(1, CopyStream.LOAD, FULL, Column(0), Column(0)), [[9]], "needs a host pool"),
    ],
)
def test_an_effect_that_does_not_fit_the_plan_is_refused_before_anything_is_done(
    rank: SmallRank, effect: AnyEffect, columns: list[list[int]], message: str
) -> None:
    before = rank.memory.bytes.copy()
    good = outcome([Zero(FULL, Column(0))], columns=[[20]])

    with pytest.raises(ReplyError, match=message):
        rank.applier.apply_reply(1, [good, outcome([effect], columns=columns)])
    rank.settle()

    np.testing.assert_array_equal(rank.memory.bytes, before)
    assert rank.applier.applied == 0
    assert rank.applier.poisoned is not None


def test_columns_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ReplyError, match="hold 2 numbers, their lengths say 3"):
        decode_columns([Outcome(result=Done(), lengths=(1, 2), columns=bytes(8))])
    with pytest.raises(ReplyError, match="7 bytes"):
        decode_columns([Outcome(result=Done(), lengths=(1,), columns=bytes(7))])
    with pytest.raises(ReplyError, match="-1 numbers"):
        decode_columns([Outcome(result=Done(), lengths=(3, -1), columns=bytes(8))])
    with pytest.raises(ReplyError, match="hold 1 numbers, their lengths say 0"):
        decode_columns([Outcome(result=Done(), lengths=(), columns=bytes(4))])


def test_what_one_entry_has_too_much_is_not_lent_to_the_next() -> None:
    short = Outcome(result=Done(), lengths=(2,), columns=bytes(4))
    long = Outcome(result=Done(), lengths=(1,), columns=bytes(8))

    with pytest.raises(ReplyError, match="hold 1 numbers, their lengths say 2"):
        decode_columns([short, long])


def test_every_entry_gets_its_own_columns() -> None:
    entries = [
        outcome(),
        outcome(columns=[[9], [], [1, 2]]),
        outcome(),
        outcome(columns=[[], [-7]]),
    ]

    decoded = decode_columns(entries)

    assert [[one[i].tolist() for i in range(len(one))] for one in decoded] == [
        [],
        [[9], [], [1, 2]],
        [],
        [[], [-7]],
    ]
    assert decoded[3].within(1, -7, -6, "number").tolist() == [-7]
    with pytest.raises(ReplyError, match=r"number 2 is not within \[0, 2\)"):
        decoded[1].within(2, 0, 2, "number")


def test_columns_are_cut_in_order_and_empty_ones_stay_empty() -> None:
    (columns,) = decode_columns([outcome(columns=[[], [4, -2], [], [7], []])])

    assert [columns[i].tolist() for i in range(len(columns))] == [[], [4, -2], [], [7], []]
    assert columns.within(1, -2, 5, "number").tolist() == [4, -2]
    assert columns.within(0, 0, 0, "number").tolist() == []
    with pytest.raises(ReplyError, match=r"number 7 is not within \[0, 7\)"):
        columns.within(3, 0, 7, "number")
    assert len(NO_COLUMNS) == 0


def test_memory_smaller_than_the_plan_is_refused() -> None:
    fd = create_memory("arena", ARENA_BYTES)
    memory = HostMemory(fd, ARENA_BYTES, writable=True)
    os.close(fd)
    stream = HostStream("allocator")

    with pytest.raises(ReplyError, match=f"needs {TOTAL_BYTES} bytes"):
        Applier(device=HostDevice(), memory=memory, plan=PLAN, stream=stream)

    stream.close(DEADLINE_MS)
