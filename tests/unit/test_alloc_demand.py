"""What a request asks of every band, against playing the request through."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.alloc.demand import DemandShape, pages_touched_max, request_demand
from kvd_proto.memory import Lifetime


def _shape(window_tokens: int, page_tokens: int) -> DemandShape:
    return DemandShape(
        lifetimes=(Lifetime.STATE, Lifetime.WINDOW, Lifetime.FULL),
        window_tokens=(0, window_tokens, 0),
        page_tokens=page_tokens,
        slots_per_request_slots=2,
    )


def _touched(start: int, row_tokens: int, page_tokens: int) -> int:
    return len({token // page_tokens for token in range(start, start + row_tokens)})


def _window_peak(*, window: int, page: int, total: int, chunk: int) -> int:
    """Hold every page from the one with the oldest kept token on; take any chunk from anywhere."""
    peak = 0
    for computed in range(total):
        taken = min(total, computed + chunk)
        oldest = max(0, computed - window)
        peak = max(peak, (taken - 1) // page - oldest // page + 1)
    return peak


@given(st.integers(0, 40), st.integers(1, 9))
def test_rows_touch_the_most_pages_from_the_worst_start(row_tokens: int, page_tokens: int) -> None:
    worst = max(_touched(start, row_tokens, page_tokens) for start in range(page_tokens))
    assert pages_touched_max(row_tokens, page_tokens) == worst


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 60), st.integers(1, 20))
def test_a_request_never_holds_more_of_a_window_than_it_asked(
    window: int, page: int, total: int, chunk: int
) -> None:
    _, asked, _ = request_demand(_shape(window, page), total_tokens=total, chunk_tokens=chunk)
    assert asked >= _window_peak(window=window, page=page, total=total, chunk=chunk)


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(1, 7), st.integers(0, 40), st.integers(1, 20))
def test_a_long_request_asks_for_no_page_that_it_cannot_come_to_hold(
    window: int, page: int, more: int, chunk: int
) -> None:
    total = window + page - 1 + chunk + more
    _, asked, _ = request_demand(_shape(window, page), total_tokens=total, chunk_tokens=chunk)
    assert asked == _window_peak(window=window, page=page, total=total, chunk=chunk)


@given(st.integers(1, 9), st.integers(1, 60), st.integers(1, 20))
def test_a_request_asks_the_owner_for_all_its_tokens_and_a_fixed_number_of_slots(
    page: int, total: int, chunk: int
) -> None:
    slots, window, pages = request_demand(_shape(4, page), total_tokens=total, chunk_tokens=chunk)
    assert pages == _touched(0, total, page)
    assert slots == 2
    assert window <= pages


def test_a_window_shorter_than_a_page_may_straddle_two() -> None:
    assert _touched(39, 32, 64) == 2  # a window of 32 at token 70
    assert pages_touched_max(32, 64) == 2


def test_a_window_is_charged_what_it_keeps_and_one_chunk_not_the_prompt() -> None:
    shape = _shape(1024, 16)
    _, asked, full = request_demand(shape, total_tokens=16_016, chunk_tokens=8192)
    # (1024 + 8192) / 16 pages are full of rows; where they start inside a page costs one more.
    assert asked == 576 + 1
    assert full == 1001


@pytest.mark.parametrize(
    ("window", "chunk", "pages"),
    [(128, 8192, 131), (128, 1, 3), (128, 2, 4), (128, 64, 4), (1, 1, 2)],
)
def test_a_window_at_page_64(window: int, chunk: int, pages: int) -> None:
    _, asked, _ = request_demand(_shape(window, 64), total_tokens=100_000, chunk_tokens=chunk)
    assert asked == pages


def test_a_chunk_longer_than_the_request_is_the_request() -> None:
    shape = _shape(1024, 16)
    short = request_demand(shape, total_tokens=100, chunk_tokens=100)
    assert request_demand(shape, total_tokens=100, chunk_tokens=1 << 40) == short


def test_a_demand_has_the_bands_of_the_chain() -> None:
    shape = DemandShape(
        lifetimes=(Lifetime.FULL,), window_tokens=(0,), page_tokens=4, slots_per_request_slots=1
    )
    assert request_demand(shape, total_tokens=9, chunk_tokens=4) == (3,)
