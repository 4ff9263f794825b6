"""The books' digests are those of tables that follow the effects, at every position."""

# pyright: reportPrivateUsage=false

import numpy as np
import pytest

from kvd.engine.books import books
from kvd_proto.codec import digest_of, encode
from kvd_proto.control import BooksReply
from kvd_proto.operations import Admit, Advance, Free, Idle, Operation, RankFailed, Take
from tests.stateful.program import TIGHT, batches
from tests.stateful.ranks import PAGE_TOKENS, Rank, incarnation, int32s, int64s, lone, stage


def admit(*requests: int, tokens: int) -> Admit:
    each = [tokens] * len(requests)
    return Admit(int64s(requests), int32s(each), int32s([20] * len(requests)), int32s(each), 0)


LIFE: tuple[tuple[Operation, ...], ...] = (
    (admit(1, 2, 3, tokens=16),),
    (Take(int64s([1, 2, 3]), 1), Advance(int64s([1, 2, 3]), 17)),
    (Take(int64s([1, 3]), 6), Advance(int64s([1, 3]), 6), Free(int64s([2]))),
    (admit(4, tokens=3),),
    (Free(int64s([1])), Idle()),
    (admit(5, 6, tokens=9), Free(int64s([3]))),
    (Free(int64s([4, 5, 6])),),
)
"""Batches in which pages slide out of windows, and rows and names are handed out again."""


def check(answer: BooksReply, rank: Rank) -> None:
    """Compare the books with the tables that the rank's effects wrote."""
    tables = rank.tables
    assert answer.map_digests == tuple(digest_of(one.tobytes()) for one in tables.maps)
    rows = np.frombuffer(answer.rows, dtype="<i4").tolist()
    counts = np.frombuffer(answer.page_counts, dtype="<i4").tolist()
    for row, count, digest in zip(rows, counts, answer.row_digests, strict=True):
        assert digest == digest_of(tables.rows[row, :count].tobytes())
    assert answer.slots_digest == digest_of(tables.slots[rows].tobytes())


def test_the_books_are_the_tables_after_every_batch() -> None:
    rank = lone()
    seen: list[tuple[int, ...]] = []
    for batch in LIFE:
        rank.send(*batch)
        answer = rank.world.books(0)
        check(answer, rank)
        seen.append(answer.map_digests)
    assert len(set(seen)) > len(LIFE) // 2
    assert rank.world.books(0).rows == b""


@pytest.mark.parametrize("seed", range(4))
def test_the_books_are_the_tables_whatever_a_scheduler_does(seed: int) -> None:
    rank = lone(TIGHT)
    live_max = 0
    for operations in batches(seed, 80):
        rank.send(*operations)
        answer = rank.world.books(0)
        check(answer, rank)
        live_max = max(live_max, len(answer.row_digests))
    assert live_max >= 2


def test_live_rows_come_with_the_pages_that_they_name() -> None:
    rank = lone()
    rank.send(admit(1, 2, tokens=2 * PAGE_TOKENS + 1))
    rank.send(Free(int64s([1])))
    answer = rank.world.books(0)
    assert np.frombuffer(answer.rows, dtype="<i4").tolist() == [2]
    assert np.frombuffer(answer.page_counts, dtype="<i4").tolist() == [3]


def test_a_stage_without_states_has_no_digest_of_slots() -> None:
    rank = lone()
    rank.world.engine.chain.state_index = None
    answer = books(rank.world.engine.requests, position_min=3, position=4)
    assert (answer.slots_digest, answer.position_min, answer.position) == (0, 3, 4)


def test_the_books_hold_from_the_last_effect_that_a_rank_lacks() -> None:
    storage = stage()
    world = incarnation(ranks=2, storage=storage)
    ahead, behind = (Rank(world, rank, storage=storage) for rank in range(2))
    ahead.send(admit(1, tokens=5))  # the admit has effects, the batch's end has none
    assert (world.books(1).position_min, world.books(1).position) == (1, 2)
    behind.send(admit(1, tokens=5))
    world.confirm(1, behind.position)
    world.fact(0, encode(RankFailed("has no effects")))
    assert (world.books(1).position_min, world.books(1).position) == (2, 3)


@pytest.mark.parametrize("band_index", range(4))
def test_a_book_that_is_wrong_has_another_digest(band_index: int) -> None:
    rank = lone()
    rank.send(admit(1, tokens=5))
    before = rank.world.books(0).map_digests
    band = rank.world.engine.chain.bands[band_index]
    assert band.physical_map()[0] == 0
    band._physical_of[1] += 1
    after = rank.world.books(0).map_digests
    assert [a == b for a, b in zip(before, after, strict=True)].index(False) == band_index
