"""The host's copy of the tables says what the arena's tables will say, and kernels get it right."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from kvd_client import STANDING, Client, KvdClientError, UnknownRequestError, UsageError
from kvd_client.tables import TableMirror
from kvd_proto.memory import TablePlan
from tests.client.engine_daemon import (
    CONTEXT_TOKENS,
    PAGE_TOKENS,
    WINDOW_TOKENS,
    EngineDaemon,
    build_storage,
)


@pytest.fixture
def kv() -> Iterator[Client]:
    with EngineDaemon().attach() as client:
        yield client


def admit(kv: Client, lengths: dict[int, int]) -> None:
    tokens = list(lengths.values())
    with kv.batch() as batch:
        batch.admit(
            list(lengths),
            prompt_tokens=tokens,
            new_tokens_max=[CONTEXT_TOKENS - count for count in tokens],
            take_tokens=tokens,
        )
        batch.standing(add=list(lengths))


def decode(kv: Client, steps: int) -> None:
    for _ in range(steps):
        with kv.batch() as batch:
            batch.take(STANDING)
            batch.advance(STANDING)


def arena_map(kv: Client, band: str) -> NDArray[np.int32]:
    kv.stream.synchronize(5_000)
    plan = next(one for one in kv.plan.region.band_maps if one.band == band)
    return np.frombuffer(kv.memory.buffer, "<i4", plan.entry_count, plan.offset_bytes)


def arena_table(kv: Client, plan: TablePlan) -> NDArray[np.int32]:
    kv.stream.synchronize(5_000)
    count = plan.row_count * plan.column_count
    flat = np.frombuffer(kv.memory.buffer, "<i4", count, plan.offset_bytes)
    return flat.reshape(plan.row_count, plan.column_count)


def expected_pages(kv: Client, band: str, request: int) -> list[int]:
    """Read the arena's own tables the slow way."""
    row = int(kv.rows([request])[0])
    pages = -(-int(kv.lengths([request])[0]) // PAGE_TOKENS)
    virtual = arena_table(kv, kv.plan.region.request_table)[row, :pages]
    return arena_map(kv, band)[virtual].tolist()


def check_mirror(kv: Client) -> None:
    mirror = kv.session.mirror
    for band in kv.plan.bands:
        assert mirror.virtual_to_physical(band.name).tolist() == arena_map(kv, band.name).tolist()
    table = arena_table(kv, kv.plan.region.request_table)
    for row in range(kv.plan.row_count):
        assert mirror.request_row(row).tolist() == table[row].tolist()
    kv.check()


def test_the_copy_equals_the_arena_through_a_life_of_requests(kv: Client) -> None:
    admit(kv, {1: 3, 2: 9, 3: 16})
    decode(kv, 9)
    with kv.batch() as batch:
        batch.free([2])
    admit(kv, {4: 5})
    decode(kv, 5)

    check_mirror(kv)


@pytest.mark.parametrize("band", ["full", "window_8"])
def test_page_table_lists_the_pages_of_each_request(kv: Client, band: str) -> None:
    admit(kv, {1: 3, 2: 9, 3: 16})
    decode(kv, 7)

    table = kv.page_table(band, [3, 1, 2])

    assert table.values.dtype == np.int32
    assert table.indptr.dtype == np.int32
    for place, request in enumerate([3, 1, 2]):
        pages = table.values[table.indptr[place] : table.indptr[place + 1]]
        assert pages.tolist() == expected_pages(kv, band, request)


@pytest.mark.case("59")
def test_pages_that_slid_out_of_the_window_read_as_the_sink(kv: Client) -> None:
    admit(kv, {1: 4})
    decode(kv, 24)

    pages = kv.page_table("window_8", [1]).values

    kept = WINDOW_TOKENS // PAGE_TOKENS + 1
    assert pages[:-kept].tolist() == [0] * (len(pages) - kept)
    assert np.count_nonzero(pages[-2:]) == 2
    assert np.count_nonzero(kv.page_table("full", [1]).values) == len(pages)


def test_block_table_is_the_page_table_padded_with_the_sink(kv: Client) -> None:
    admit(kv, {1: 3, 2: 9, 3: 16})
    ragged = kv.page_table("full", STANDING)

    table = kv.block_table("full", STANDING)
    wide = kv.block_table("full", STANDING, columns=7)

    assert table.shape == (3, 4)
    assert wide.shape == (3, 7)
    assert not wide[:, 4:].any()
    for place in range(3):
        pages = ragged.values[ragged.indptr[place] : ragged.indptr[place + 1]].tolist()
        assert table[place].tolist() == pages + [0] * (4 - len(pages))


def test_a_reused_row_shows_nothing_of_its_former_request(kv: Client) -> None:
    admit(kv, {1: 16})
    with kv.batch() as batch:
        batch.free([1])
    admit(kv, {2: 3, 3: 16})

    table = kv.block_table("full", [2, 3])

    assert np.count_nonzero(table[0]) == 1


@pytest.mark.parametrize("columns", [3, 1_000])
def test_a_block_table_of_the_wrong_width_is_refused(kv: Client, columns: int) -> None:
    admit(kv, {1: 16})

    with pytest.raises(UsageError, match=str(columns)):
        kv.block_table("full", [1], columns=columns)


def test_write_slots_are_where_the_last_take_put_the_tokens(kv: Client) -> None:
    admit(kv, {1: 3, 2: 9})
    with kv.batch() as batch:
        batch.take([1, 2], [6, 1])

    slots = kv.write_slots("full", [2, 1])

    assert slots.indptr.tolist() == [0, 1, 7]
    for request, start, end in ((2, 9, 10), (1, 3, 9)):
        pages = expected_pages(kv, "full", request)
        wanted = [
            pages[t // PAGE_TOKENS] * PAGE_TOKENS + t % PAGE_TOKENS for t in range(start, end)
        ]
        place = [2, 1].index(request)
        assert slots.values[slots.indptr[place] : slots.indptr[place + 1]].tolist() == wanted


def test_write_slots_of_a_decode_step_are_one_per_request(kv: Client) -> None:
    admit(kv, {1: 3, 2: 4, 3: 5})
    decode(kv, 1)

    slots = kv.write_slots("window_8", STANDING)

    assert slots.indptr.tolist() == [0, 1, 2, 3]
    assert len(set(slots.values.tolist())) == 3
    assert (slots.values % PAGE_TOKENS).tolist() == [3, 0, 1]


def test_write_slots_of_a_request_that_took_nothing_are_none(kv: Client) -> None:
    with kv.batch() as batch:
        batch.admit([1], prompt_tokens=[4], new_tokens_max=[4])

    assert not len(kv.write_slots("full", [1]).values)


def test_a_token_without_a_page_in_the_owner_is_never_written() -> None:
    mirror = TableMirror(build_storage().storage)
    rows, start, end = np.array([1]), np.array([0]), np.array([1])

    with pytest.raises(KvdClientError, match=r"tables\.write_bound"):
        mirror.write_slots(mirror.token_band("full"), rows, start, end)


def test_state_slots_are_the_physical_slots_of_the_rows(kv: Client) -> None:
    admit(kv, {1: 3, 2: 9})
    states = kv.plan.region.state_table
    assert states is not None

    slots = kv.state_slots([2, 1])

    virtual = arena_table(kv, states)[kv.rows([2, 1]), 0]
    assert slots.tolist() == arena_map(kv, "state")[virtual].tolist()
    assert slots.all()


def test_virtual_pages_are_those_of_the_request_table(kv: Client) -> None:
    admit(kv, {1: 9})

    pages = kv.virtual_pages([1]).values

    row = int(kv.rows([1])[0])
    assert pages.tolist() == arena_table(kv, kv.plan.region.request_table)[row, :3].tolist()


def test_rows_are_looked_up_anew_after_a_request_ended(kv: Client) -> None:
    admit(kv, {1: 3, 2: 3})
    ids = np.array([1, 2], dtype=np.int64)
    before = kv.rows(ids).tolist()
    assert kv.rows(ids).tolist() == before
    with kv.batch() as batch:
        batch.free([1])

    with pytest.raises(UnknownRequestError, match="request 1 "):
        kv.rows(ids)
    assert kv.rows([2]).tolist() == before[1:]


@pytest.mark.parametrize("band", ["state", "window_9"])
def test_a_band_without_tokens_is_refused_by_name(kv: Client, band: str) -> None:
    with pytest.raises(UsageError, match=band):
        kv.page_table(band, [])


def test_tables_of_nobody_are_empty(kv: Client) -> None:
    assert kv.page_table("full", []).indptr.tolist() == [0]
    assert kv.write_slots("full", []).indptr.tolist() == [0]
    assert kv.block_table("full", []).shape == (0, 0)
    assert kv.state_slots([]).tolist() == []
