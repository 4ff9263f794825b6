"""The reserved region behind the arena."""

from itertools import pairwise

import pytest

from kvd.size.region import (
    ALLOCATION_GRAIN_BYTES,
    DRAFT_STATES,
    PROGRESS,
    REQUEST_TABLE,
    STATE_TABLE,
    TABLE_GRAIN_BYTES,
    Region,
    RegionShape,
    lay_out_region,
)


def region(*, slot_bytes: int = 0, draft_tokens: int = 0, row_count: int = 3) -> Region:
    return lay_out_region(
        RegionShape(
            row_count=row_count,
            row_pages=7,
            state_row_slots=2 if slot_bytes else 0,
            draft_tokens=draft_tokens,
            slot_bytes=slot_bytes,
        ),
        map_entries=(("window_8", 11), ("full", 11)),
    )


def test_tables_do_not_overlap_and_end_inside_the_region() -> None:
    tables = region(slot_bytes=512, draft_tokens=2).tables
    assert all(
        before.offset_bytes + before.table_bytes <= after.offset_bytes
        for before, after in pairwise(tables)
    )
    last = tables[-1]
    assert (
        last.offset_bytes + last.table_bytes <= region(slot_bytes=512, draft_tokens=2).region_bytes
    )


def test_tables_start_on_their_grain_and_the_region_ends_on_a_host_page() -> None:
    layout = region(slot_bytes=512, draft_tokens=2)
    assert {table.offset_bytes % TABLE_GRAIN_BYTES for table in layout.tables} == {0}
    assert layout.region_bytes % ALLOCATION_GRAIN_BYTES == 0


def test_the_progress_word_has_128_bytes_for_itself() -> None:
    tables = region().tables
    place = next(index for index, table in enumerate(tables) if table.name == PROGRESS)
    assert tables[place].offset_bytes % 128 == 0
    assert tables[place + 1].offset_bytes - tables[place].offset_bytes >= 128


def test_the_request_table_is_rows_times_pages_of_32_bits() -> None:
    table = region().table(REQUEST_TABLE)
    assert table is not None
    assert table.table_bytes == 3 * 7 * 4


@pytest.mark.parametrize(("slot_bytes", "present"), [(0, False), (512, True)])
def test_the_state_table_is_there_only_with_states(slot_bytes: int, present: bool) -> None:
    assert (region(slot_bytes=slot_bytes).table(STATE_TABLE) is not None) == present


def test_verify_steps_keep_a_state_per_row_and_draft_token() -> None:
    table = region(slot_bytes=512, draft_tokens=4).table(DRAFT_STATES)
    assert table is not None
    assert table.table_bytes == 3 * 4 * 512


def test_speculation_without_states_keeps_none() -> None:
    assert region(draft_tokens=4).table(DRAFT_STATES) is None


def test_more_rows_never_take_fewer_bytes() -> None:
    sizes = [region(row_count=count).region_bytes for count in range(1, 400, 7)]
    assert sizes == sorted(sizes)
