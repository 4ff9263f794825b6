"""Segments that a device takes as a whole, beside the same effects one by one on the host."""

import os
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from kvd.testing.small_rank import (
    DEADLINE_MS,
    FULL,
    PLAN,
    ROW_COUNT,
    ROW_PAGES,
    STATE,
    TOTAL_BYTES,
    SmallRank,
    outcome,
)
from kvd_client.device.apply import Applier
from kvd_client.device.cuda.commands import SHARED_NUMBERS_MAX
from kvd_client.device.cuda.device import CudaDevice
from kvd_client.device.cuda.submission import ORDERED_ENTRIES_MAX
from kvd_client.device.descriptors import create_memory
from kvd_client.device.places import PlanPlaces
from kvd_client.device.recipes import RECIPES_MAX, Recipes
from kvd_client.errors import ReplyError
from kvd_proto.outcomes import (
    NO_COLUMN,
    AnyEffect,
    ClearSlots,
    Column,
    Move,
    Outcome,
    ResetRows,
    Wait,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
    ZeroSink,
)
from tests.client.cuda_fake import FakeDriver

UNITS = {STATE: (2, 48), FULL: (4, 96)}
IDS = {STATE: (1, 10), FULL: (1, 96)}
COLUMNS = [Column(i) for i in range(5)]


class Ranks:
    """The same rank twice: on the host, and on a GPU that is a fake."""

    def __init__(self, seed: int = 0) -> None:
        self.host = SmallRank()
        self.driver = FakeDriver(seed)
        self.device = CudaDevice(self.driver)
        fd = create_memory("arena", TOTAL_BYTES)
        self.memory = self.device.map(fd, TOTAL_BYTES)
        os.close(fd)
        self.driver.mapped[self.memory.address][:] = self.host.memory.bytes.tobytes()
        self.stream = self.device.stream("allocator")
        self.cuda = Applier(device=self.device, memory=self.memory, plan=PLAN, stream=self.stream)
        self.driver.launches.clear()

    def apply(self, *outcomes: Outcome) -> int:
        """Apply a reply on both; returns the launches that it took, or raises what both raised."""
        self.driver.launches.clear()
        raised: list[ReplyError] = []
        for applier in (self.host.applier, self.cuda):
            try:
                applier.apply_reply(applier.applied + 1, outcomes)
            except ReplyError as error:
                raised.append(error)
        if raised:
            assert len({str(error) for error in raised}) == 1
            assert len(raised) == 2
            raise raised[0]
        return len(self.driver.launches)

    def check(self) -> None:
        """Fail unless memory and the work of the next launch are the same."""
        self.host.settle()
        ours = np.frombuffer(self.memory.read_bytes(0, TOTAL_BYTES), dtype=np.uint8)
        np.testing.assert_array_equal(ours, self.host.memory.bytes)
        wanted, work = self.host.applier.take_launch_work(), self.cuda.take_launch_work()
        np.testing.assert_array_equal(work.clear_slots, wanted.clear_slots)
        np.testing.assert_array_equal(work.reset_rows, wanted.reset_rows)

    def close(self) -> None:
        self.host.close()
        self.stream.close(DEADLINE_MS)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    yield ranks
    ranks.close()


class Drawn:
    """Columns and effects that are drawn; effects name columns of earlier ones where they can."""

    def __init__(self, draw: random.Random, wrong: float) -> None:
        self.draw = draw
        self.wrong = wrong
        self.columns: list[list[int]] = []

    def column(self, start: int, end: int, count: int) -> Column:
        """Return a new column of numbers in ``[start, end)``, mostly."""
        numbers = [self.draw.randrange(start, end) for _ in range(count)]
        if numbers and self.draw.random() < self.wrong:
            numbers[self.draw.randrange(count)] = self.draw.choice([start - 1, end, -1])
        if self.draw.random() < self.wrong:
            numbers = numbers[1:]
        self.columns.append(numbers)
        return Column(len(self.columns) - 1)

    def segment(self) -> list[AnyEffect]:
        kinds = [self._take, self._forget, self._admit, self._move, self._sink]
        weights = [5, 3, 3, 1, 1]
        (kind,) = self.draw.choices(kinds, weights)
        return kind(self.draw.choice([STATE, FULL]), self.draw.choice([0, 1, 1, 3, 7]))

    def _take(self, band: int, count: int) -> list[AnyEffect]:
        units = self.column(*UNITS[band], count)
        ids = self.column(*IDS[band], count)
        rows, places = self._cells(count)
        pages = self.column(0, PLAN.virtual_page_count, count)
        return [Zero(band, units), WriteMap(band, ids, units), WriteRows(rows, places, pages)]

    def _forget(self, band: int, count: int) -> list[AnyEffect]:
        return [WriteMap(band, self.column(*IDS[band], count))]

    def _admit(self, band: int, count: int) -> list[AnyEffect]:
        rows = self.column(1, ROW_COUNT, count)
        slots = self.column(*IDS[STATE], count)
        cleared = self.column(*UNITS[STATE], count)
        zeroed = self.column(*UNITS[band], count)
        return [
            ResetRows(rows),
            Zero(band, zeroed),
            WriteSlots(rows, slots),
            ClearSlots(cleared),
            *([Zero(band, zeroed)] if self.draw.random() < 0.5 else []),
        ]

    def _move(self, band: int, count: int) -> list[AnyEffect]:
        units = self.draw.sample(range(*UNITS[band]), 2 * count)
        self.columns += [units[:count], units[count:]]
        ids = self.column(*IDS[band], count)
        behind = Column(len(self.columns) - 2)
        return [Move(band, Column(behind - 1), behind), WriteMap(band, ids, behind)]

    def _sink(self, band: int, count: int) -> list[AnyEffect]:
        return [ZeroSink(), WriteMap(band, self.column(*IDS[band], count))]

    def _cells(self, count: int) -> tuple[Column, Column]:
        """Return rows, and places that ascend within each of them."""
        rows = self.column(1, ROW_COUNT, count)
        places = self.column(0, ROW_PAGES, count)
        if len(self.columns[rows]) == count == len(self.columns[places]):
            self.columns[places].sort()
        return rows, places


def drawn_outcome(draw: random.Random, wrong: float = 0.0) -> Outcome:
    drawn = Drawn(draw, wrong)
    segments = [drawn.segment() for _ in range(draw.choice([0, 1, 1, 2, 3]))]
    return outcome(*segments, columns=drawn.columns)


@pytest.mark.parametrize("seed", range(40))
def test_random_replies_leave_what_effects_one_by_one_leave(seed: int) -> None:
    draw, ranks = random.Random(seed), Ranks(seed)
    for _ in range(12):
        ranks.apply(*(drawn_outcome(draw) for _ in range(draw.randrange(1, 4))))
        if draw.random() < 0.3:
            ranks.check()
    ranks.check()
    ranks.close()


@pytest.mark.parametrize("seed", range(40))
def test_what_is_wrong_is_refused_in_the_same_words(seed: int) -> None:
    draw, ranks = random.Random(seed), Ranks(seed)

    def apply_until_refused() -> None:
        while True:
            ranks.apply(*(drawn_outcome(draw, 0.1) for _ in range(draw.randrange(1, 4))))

    with pytest.raises(ReplyError):
        apply_until_refused()
    ranks.close()


def decode_step(*entries: Sequence[int]) -> Outcome:
    """Return a take of one page each, given as row, place, page, unit."""
    rows, places, pages, units = (list(column) for column in zip(*entries, strict=True))
    return outcome(
        [
            Zero(FULL, COLUMNS[3]),
            WriteMap(FULL, COLUMNS[2], COLUMNS[3]),
            WriteRows(COLUMNS[0], COLUMNS[1], COLUMNS[2]),
        ],
        columns=[rows, places, pages, units],
    )


def test_a_decode_step_is_one_launch_that_holds_its_columns_once(ranks: Ranks) -> None:
    freed = outcome([WriteMap(FULL, COLUMNS[0])], columns=[[7, 8]])
    taken = decode_step((1, 0, 5, 20), (2, 0, 6, 21), (2, 1, 7, 22))

    assert ranks.apply(outcome(), freed, taken, outcome()) == 1

    (launch,) = ranks.driver.launches
    numbers = 2 + 4 * 3
    assert launch[-numbers:].tolist() == [7, 8, 1, 2, 2, 0, 0, 1, 5, 6, 7, 20, 21, 22]
    assert launch[9] == 5, "so many lists"
    ranks.check()


def test_a_segment_seen_before_may_stand_elsewhere_in_a_reply(ranks: Ranks) -> None:
    first, second = decode_step((1, 0, 5, 20)), decode_step((3, 0, 9, 30), (3, 1, 8, 31))

    for reply in ([first, second], [second], [outcome(columns=[[1], []]), first, first]):
        assert ranks.apply(*reply) == 1
        ranks.check()


def test_columns_are_copied_behind_the_lists_of_single_effects(ranks: Ranks) -> None:
    sink = outcome([ZeroSink()])

    assert ranks.apply(sink, decode_step((1, 0, 5, 20), (2, 0, 6, 21)), sink) == 1
    ranks.check()


@pytest.mark.parametrize("count", [ORDERED_ENTRIES_MAX, ORDERED_ENTRIES_MAX + 1, 3_000])
def test_lists_too_long_for_one_block_are_written_by_all(ranks: Ranks, count: int) -> None:
    ids = [1 + i % 95 for i in range(count)]
    units = [4 + (i * 7) % 92 for i in range(count)]
    ranks.apply(
        outcome([WriteMap(FULL, COLUMNS[0], COLUMNS[1])], columns=[ids, units]),
        decode_step((1, 0, 5, 20)),
    )
    ranks.check()


def test_a_long_reply_is_not_copied_for_a_short_list_of_it(ranks: Ranks) -> None:
    read_by_the_engine = [1] * (SHARED_NUMBERS_MAX + 1)
    ranks.apply(
        outcome([WriteMap(FULL, COLUMNS[1])], columns=[read_by_the_engine, [7]]),
    )
    assert sum(map(len, ranks.driver.launches)) < 100
    ranks.check()


def test_slots_to_be_cleared_are_forgotten_where_a_later_segment_zeroes(ranks: Ranks) -> None:
    # A state unit has 256 bytes and a full one 128: units 20 and 21 are slot 10.
    cleared = outcome([ClearSlots(COLUMNS[0])], columns=[[10, 11, 12]])
    ranks.apply(cleared, decode_step((1, 0, 5, 21)))
    assert ranks.cuda.take_launch_work().clear_slots.tolist() == [11, 12]


@pytest.mark.parametrize(
    "segment",
    [
        (),
        (Wait(step=1),),
        (ZeroSink(),),
        (WriteMap(FULL, COLUMNS[0]), Move(FULL, COLUMNS[1], COLUMNS[2])),
        (Zero(2, COLUMNS[0]),),
        (WriteMap(FULL, NO_COLUMN),),
        (Zero(FULL, Column(-2)),),
    ],
    ids=lambda segment: type(segment[0]).__name__ if segment else "nothing",
)
def test_what_a_recipe_cannot_hold_has_none(segment: tuple[AnyEffect, ...]) -> None:
    assert Recipes(PlanPlaces(PLAN)).of(segment) is None


def test_a_segment_has_one_recipe_however_often_it_comes() -> None:
    recipes = Recipes(PlanPlaces(PLAN))
    segments: list[Callable[[], tuple[AnyEffect, ...]]] = [
        lambda: (WriteMap(FULL, COLUMNS[0], COLUMNS[1]),),
        lambda: (WriteMap(FULL, COLUMNS[0]),),
    ]
    first, second = (recipes.of(segment()) for segment in segments)
    assert first is not None
    assert recipes.of(segments[0]()) is first
    assert second is not first


def test_recipes_do_not_pile_up() -> None:
    recipes = Recipes(PlanPlaces(PLAN))
    first = recipes.of((WriteMap(FULL, Column(0)),))
    for column in range(1, RECIPES_MAX + 1):
        recipes.of((WriteMap(FULL, Column(column)),))
    again = recipes.of((WriteMap(FULL, Column(0)),))
    assert again is not first
    assert again is not None


def test_columns_that_two_effects_tie_together_have_to_be_equally_long() -> None:
    recipe = Recipes(PlanPlaces(PLAN)).of(
        (
            WriteMap(FULL, COLUMNS[3], COLUMNS[4]),
            WriteRows(COLUMNS[0], COLUMNS[1], COLUMNS[2]),
            WriteMap(FULL, COLUMNS[2], COLUMNS[3]),
        )
    )
    assert recipe is not None
    assert {limit[0]: limit[3] for limit in recipe.limits} == dict.fromkeys(range(5), 0)
