"""Index arithmetic over request rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.alloc.band import IOTA
from kvd.alloc.rows import RequestRows, iota, ragged

RUNS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), max_size=12)


@given(RUNS)
def test_runs_are_laid_end_to_end(runs: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in runs], dtype=np.int64)
    counts = np.array([count for _, count in runs], dtype=np.int64)
    run, values = ragged(starts, counts)
    expected = [
        (index, start + step) for index, (start, count) in enumerate(runs) for step in range(count)
    ]
    assert list(zip(run.tolist(), values.tolist(), strict=True)) == expected


@pytest.mark.parametrize("count", [0, 1, IOTA.size - 1, IOTA.size, IOTA.size + 1])
def test_counting_works_beyond_the_shared_counter(count: int) -> None:
    assert iota(count).tolist() == list(range(count))


def test_the_shared_counter_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        iota(4)[0] = 7


def test_row_zero_is_for_padding() -> None:
    rows = RequestRows(row_count=4, row_pages=2, band_count=1)
    assert rows.free.take(3).tolist() == [1, 2, 3]
    assert len(rows.free) == 0


@settings(deadline=None)
@given(st.integers(0, 9), st.integers(0, 9))
def test_a_window_holds_the_pages_that_did_not_slide_out(pages: int, dropped: int) -> None:
    rows = RequestRows(row_count=3, row_pages=10, band_count=2)
    rows.page_count[1], rows.dropped_pages[0][1] = pages + dropped, dropped
    row = np.array([1])
    assert rows.held_units(0, row, is_window=True).tolist() == [pages]
    assert rows.held_units(1, row, is_window=False).tolist() == [pages + dropped]
