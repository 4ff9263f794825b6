"""Ids for kernels: translated once per step, into buffers that never move, on host and device."""

import random
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from kvd_client import STANDING, Client, KvdClientError, StepOrderError, UsageError
from kvd_client.ids import INT32_MAX, check_int32_slots, check_maps_span
from tests.client.engine_daemon import PAGE_TOKENS, EngineDaemon, build_storage
from tests.client.ids_cases import (
    BANDS,
    COLUMNS_MAX,
    FORMS,
    PAGES_MAX,
    ROWS_MAX,
    TOKENS_MAX,
    address,
    admit,
    as_list,
    decode,
    end_to_end,
    expected_pages,
    expected_slots,
    finish,
    free,
    read_ids,
    resolve,
    write_ids,
)


@pytest.fixture
def kv() -> Iterator[Client]:
    with EngineDaemon().attach() as client:
        yield client


# ---- what a step writes --------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("band", BANDS)
def test_token_slots_are_where_the_last_take_put_each_request(
    kv: Client, device: bool, band: str
) -> None:
    made = write_ids(kv, device=device)
    admit(kv, {1: 3, 2: 9})
    with kv.batch() as batch:
        batch.take([1, 2], [6, 1])

    resolve(kv, made, [2, 1])

    wanted = expected_slots(kv, band, 2, 1) + expected_slots(kv, band, 1, 6)
    assert as_list(made.slots(band)) == wanted + [0] * (TOKENS_MAX - 7)
    assert (as_list(made.token_count), as_list(made.row_count)) == ([7], [2])


@FORMS
def test_state_slots_are_the_working_slots_of_the_batch(kv: Client, device: bool) -> None:
    made = write_ids(kv, device=device)
    admit(kv, {1: 3, 2: 9, 3: 4})

    resolve(kv, made, [3, 1])

    slots = kv.state_slots([3, 1]).tolist()
    assert 0 not in slots
    assert as_list(made.state_slots) == slots + [0] * (ROWS_MAX - 2)


@FORMS
def test_a_smaller_batch_leaves_nothing_of_the_larger_one_before(kv: Client, device: bool) -> None:
    made = write_ids(kv, device=device)
    admit(kv, {1: 16, 2: 16, 3: 16})
    resolve(kv, made, [1, 2, 3])
    assert np.count_nonzero(as_list(made.slots("full"))) == 48
    decode(kv)

    resolve(kv, made, [2])

    assert as_list(made.slots("full")) == expected_slots(kv, "full", 2, 1) + [0] * (TOKENS_MAX - 1)
    assert np.count_nonzero(as_list(made.state_slots)) == 1
    assert (as_list(made.token_count), as_list(made.row_count)) == ([1], [1])


@FORMS
def test_a_batch_of_nobody_is_all_sink(kv: Client, device: bool) -> None:
    writes, reads = write_ids(kv, device=device), read_ids(kv, device=device)
    admit(kv, {1: 16})
    with kv.launch() as step:
        writes.resolve(step, STANDING)
        reads.resolve(step, STANDING)
    finish(kv)
    with kv.launch() as step:
        writes.resolve(step, [])
        reads.resolve(step, [])
    finish(kv)

    for buffer in (writes.slots("full"), writes.state_slots, reads.indices("full"), reads.indptr):
        assert set(as_list(buffer)) == {0}
    assert as_list(writes.token_count) == as_list(reads.row_count) == [0]


@FORMS
def test_buffers_never_move_and_are_read_as_often_as_one_likes(kv: Client, device: bool) -> None:
    writes, reads = write_ids(kv, device=device), read_ids(kv, device=device)

    def buffers() -> list[Any]:
        return [
            *(writes.slots(band) for band in BANDS),
            writes.state_slots,
            writes.token_count,
            writes.row_count,
            *(reads.indices(band) for band in BANDS),
            *(reads.block_table(band) for band in BANDS),
            reads.indptr,
            reads.lengths,
            reads.row_count,
        ]

    first = buffers()
    addresses = [address(one) for one in first]
    for number, count in enumerate((16, 3, 9), start=1):
        admit(kv, {number: count})
        with kv.launch() as step:
            writes.resolve(step, STANDING)
            reads.resolve(step, STANDING)
        finish(kv)
        assert all(
            a is b or address(a) == address(b) for a, b in zip(first, buffers(), strict=True)
        )
        assert [address(one) for one in buffers()] == addresses
    # What a captured graph holds is what was filled last: 16 + 3 + 9 tokens.
    assert np.count_nonzero(as_list(first[0])) == 28
    assert as_list(first[3]) == [28]


@FORMS
def test_32_bit_slots_hold_the_same_places(kv: Client, device: bool) -> None:
    narrow, wide = write_ids(kv, device=device, int32_slots=True), write_ids(kv, device=device)
    admit(kv, {1: 7})
    with kv.launch() as step:
        narrow.resolve(step, [1])
        wide.resolve(step, [1])
    finish(kv)

    assert narrow.slots("full").dtype in (np.int32, torch.int32)
    assert wide.slots("full").dtype in (np.int64, torch.int64)
    assert as_list(narrow.slots("full")) == as_list(wide.slots("full"))


@pytest.mark.parametrize(("pages", "fits"), [(1 << 29, True), ((1 << 29) + 1, False)])
def test_32_bit_slots_are_refused_where_the_arena_has_more_places(pages: int, fits: bool) -> None:
    plan = build_storage().storage
    bands = [msgspec.structs.replace(one, unit_index_end_count=pages) for one in plan.bands]
    huge = msgspec.structs.replace(plan, bands=tuple(bands))
    if fits:
        check_int32_slots(huge)
        return
    last = pages * PAGE_TOKENS - 1
    assert last > INT32_MAX
    with pytest.raises(UsageError, match=f"up to {last}, 32 bits hold 2147483647"):
        check_int32_slots(huge)


@FORMS
def test_a_token_without_a_page_is_refused_before_anything_is_written(
    kv: Client, device: bool
) -> None:
    made = write_ids(kv, device=device)
    admit(kv, {1: 3})
    kv.session.book._lengths[kv.rows([1])] = 30  # pyright: ignore[reportPrivateUsage]

    with pytest.raises(KvdClientError, match=r"tables\.write_bound"), kv.launch() as step:
        made.resolve(step, [1])

    kv.stream.synchronize(5_000)
    assert not any(as_list(made.slots("full")))


# ---- what a runner reads -------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("band", BANDS)
def test_indices_are_the_pages_of_each_request_end_to_end(
    kv: Client, device: bool, band: str
) -> None:
    made = read_ids(kv, device=device)
    admit(kv, {1: 3, 2: 9, 3: 16})
    decode(kv, 7)

    resolve(kv, made, [3, 1, 2])

    wanted = [expected_pages(kv, band, request) for request in (3, 1, 2)]
    pages = end_to_end(wanted)
    assert as_list(made.indices(band)) == pages + [0] * (PAGES_MAX - len(pages))
    borders = np.cumsum([0] + [len(one) for one in wanted]).tolist()
    assert as_list(made.indptr) == borders + [len(pages)] * (ROWS_MAX - 3)
    assert as_list(made.lengths) == [23, 10, 16, 0, 0, 0]
    assert as_list(made.row_count) == [3]


@FORMS
@pytest.mark.parametrize("band", BANDS)
def test_the_block_table_has_a_line_per_request_padded_with_the_sink(
    kv: Client, device: bool, band: str
) -> None:
    made = read_ids(kv, device=device)
    admit(kv, {1: 3, 2: 9, 3: 16})
    decode(kv, 7)

    resolve(kv, made, [3, 1, 2])

    lines = [expected_pages(kv, band, request) for request in (3, 1, 2)]
    padded = [line + [0] * (COLUMNS_MAX - len(line)) for line in lines]
    assert as_list(made.block_table(band)) == padded + [[0] * COLUMNS_MAX] * (ROWS_MAX - 3)


@pytest.mark.case("59")
@FORMS
def test_pages_that_slid_out_read_as_the_sink_and_the_owner_keeps_them(
    kv: Client, device: bool
) -> None:
    made = read_ids(kv, device=device)
    admit(kv, {1: 4})
    decode(kv, 24)

    resolve(kv, made, [1])

    assert as_list(made.indices("window_8"))[:4] == [0] * 4
    assert np.count_nonzero(as_list(made.indices("window_8"))[5:7]) == 2
    assert np.count_nonzero(as_list(made.indices("full"))) == 7


@FORMS
def test_a_reused_row_shows_nothing_of_its_former_request(kv: Client, device: bool) -> None:
    made = read_ids(kv, device=device)
    admit(kv, {1: 16})
    decode(kv, 20)
    resolve(kv, made, [1])
    row = kv.rows([1]).tolist()
    free(kv, [1])
    later = range(2, 18)
    admit(kv, dict.fromkeys(later, 2))
    reused = next(number for number in later if kv.rows([number]).tolist() == row)

    resolve(kv, made, [reused])

    assert np.count_nonzero(as_list(made.block_table("full"))) == 1
    assert np.count_nonzero(as_list(made.indices("full"))) == 1


@FORMS
@pytest.mark.parametrize("seed", range(3))
def test_a_random_life_of_requests_reads_and_writes_what_the_tables_say(
    kv: Client, device: bool, seed: int
) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    writes, reads = write_ids(kv, device=device), read_ids(kv, device=device)
    for number in range(1, 11):
        standing = kv.standing.tolist()
        if len(standing) == 4:
            free(kv, [dice.choice(standing)])
        admit(kv, {number: dice.randint(1, 12)})
        decode(kv, dice.randint(1, 3))
        batch = kv.standing.tolist()
        dice.shuffle(batch)
        with kv.launch() as step:
            writes.resolve(step, batch)
            reads.resolve(step, batch)
        finish(kv)
        for band in BANDS:
            slots = end_to_end([expected_slots(kv, band, one, 1) for one in batch])
            pages = end_to_end([expected_pages(kv, band, one) for one in batch])
            assert as_list(writes.slots(band)) == slots + [0] * (TOKENS_MAX - len(slots))
            assert as_list(reads.indices(band)) == pages + [0] * (PAGES_MAX - len(pages))


# ---- once per step -------------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("make", [write_ids, read_ids], ids=["write", "read"])
def test_resolving_a_step_twice_breaks_ids_resolved_once(
    kv: Client, device: bool, make: Any
) -> None:
    made = make(kv, device=device)
    admit(kv, {1: 4, 2: 4})
    with kv.launch() as step:
        made.resolve(step, [1, 2])
        with pytest.raises(StepOrderError, match=re.escape("ids.resolved_once: ")):
            made.resolve(step, [1])
    finish(kv)
    assert made.step == 1
    assert as_list(made.row_count) == [2]


@FORMS
@pytest.mark.parametrize("make", [write_ids, read_ids], ids=["write", "read"])
def test_ids_are_resolved_inside_the_launch_they_belong_to(
    kv: Client, device: bool, make: Any
) -> None:
    made = make(kv, device=device)
    admit(kv, {1: 4})
    with kv.launch() as step:
        pass
    with pytest.raises(StepOrderError, match="step 1 is the last one, and over"):
        made.resolve(step, [1])
    finish(kv)
    with kv.launch(), pytest.raises(StepOrderError, match=r"of step 1 are .*; step 2 is open"):
        made.resolve(step, [1])
    assert made.step == 0


def test_each_runner_resolves_for_itself(kv: Client) -> None:
    target, draft = read_ids(kv, device=False), read_ids(kv, device=False, columns_max=0)
    admit(kv, {1: 4})
    with kv.launch() as step:
        target.resolve(step, [1])
        draft.resolve(step, [1])
    assert as_list(target.indices("full")) == as_list(draft.indices("full"))


# ---- sizes and wrong use -------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize(
    ("make", "sizes", "said"),
    [
        (write_ids, {"tokens_max": 8}, "batch of 9 new tokens: the buffers hold 8"),
        (write_ids, {"rows_max": 1}, "batch of 2 requests: the buffers hold 1"),
        (read_ids, {"rows_max": 1}, "batch of 2 requests: the buffers hold 1"),
        (read_ids, {"pages_max": 2}, "batch of 3 pages: the buffers hold 2"),
        (read_ids, {"columns_max": 1}, "batch of 2 pages of one request: the buffers hold 1"),
    ],
)
def test_a_batch_larger_than_the_buffers_is_refused_and_changes_nothing(
    kv: Client, device: bool, make: Any, sizes: dict[str, int], said: str
) -> None:
    made = make(kv, device=device, **sizes)
    admit(kv, {1: 4, 2: 5})
    with kv.launch() as step, pytest.raises(UsageError, match=said):
        made.resolve(step, [1, 2])
    finish(kv)
    assert made.step == 0
    assert as_list(made.row_count) == [0]


@FORMS
@pytest.mark.parametrize(
    ("make", "sizes", "said"),
    [
        (write_ids, {"tokens_max": 0}, "tokens_max is 0"),
        (write_ids, {"rows_max": -1}, "rows_max is -1"),
        (read_ids, {"rows_max": 0}, "rows_max is 0"),
        (read_ids, {"pages_max": 0, "columns_max": 0}, "give one or both"),
        (read_ids, {"pages_max": -1}, "pages_max is -1"),
        (read_ids, {"columns_max": 18}, "columns_max is 18; a row of the plan has 17"),
    ],
)
def test_buffers_of_no_use_are_refused_by_name(
    kv: Client, device: bool, make: Any, sizes: dict[str, int], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        make(kv, device=device, **sizes)


@FORMS
@pytest.mark.parametrize("band", ["state", "window_9"])
def test_a_band_without_tokens_is_refused_by_name(kv: Client, device: bool, band: str) -> None:
    with pytest.raises(UsageError, match=f"no token band '{band}'"):
        write_ids(kv, device=device).slots(band)
    with pytest.raises(UsageError, match=f"no token band '{band}'"):
        read_ids(kv, device=device).indices(band)


@FORMS
def test_a_form_that_was_not_asked_for_is_refused_naming_its_size(kv: Client, device: bool) -> None:
    with pytest.raises(UsageError, match="give pages_max"):
        read_ids(kv, device=device, pages_max=0).indices("full")
    with pytest.raises(UsageError, match="give columns_max"):
        read_ids(kv, device=device, columns_max=0).block_table("full")


@pytest.mark.parametrize(
    "mapping",
    [torch.zeros(64, dtype=torch.uint8), torch.zeros(1 << 22, dtype=torch.int8)],
    ids=["too small", "no bytes"],
)
def test_a_mapping_of_the_wrong_kind_is_refused(kv: Client, mapping: torch.Tensor) -> None:
    with pytest.raises(UsageError, match="uint8 over 4194304 bytes is needed"):
        write_ids(kv, device=True, mapping=mapping)


def test_the_map_of_a_window_spans_the_owners_ids(kv: Client) -> None:
    spans = {one.band: one.entry_count for one in kv.plan.region.band_maps}
    assert spans["window_8"] >= kv.plan.virtual_page_count
    check_maps_span(kv.plan)


def test_a_map_that_is_shorter_than_the_owners_ids_breaks_ids_maps_span() -> None:
    plan = build_storage().storage
    window = plan.region.band_maps[1]
    short = msgspec.structs.replace(window, entry_count=plan.virtual_page_count - 1)
    maps = (plan.region.band_maps[0], short, plan.region.band_maps[2])
    region = msgspec.structs.replace(plan.region, band_maps=maps)
    with pytest.raises(KvdClientError, match=re.escape("ids.maps_span: ") + ".*'window_8'"):
        check_maps_span(msgspec.structs.replace(plan, region=region))
