"""Window prices against requests that are played through, token by token."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.alloc.window import (
    Extent,
    WindowMode,
    WindowPace,
    pages_touched_max,
    pass_pages,
    peak_pages,
    steady_pages,
    tail_pages,
    window_pace,
)

Choose = Callable[[int], int]
"""Picks how many tokens a take asks for, from 1 to what is allowed."""


@dataclass(frozen=True, slots=True)
class Life:
    """One request and how its windows slide, as a specification would say it."""

    mode: WindowMode
    window_tokens: int
    page_tokens: int
    prompt_tokens: int
    new_tokens: int
    chunk_tokens: int
    step_tokens: int = 1
    overlap: bool = False
    slide_tokens: int = 0
    grid_tokens: int = 0

    @property
    def cut_tokens(self) -> int:
        return self.grid_tokens or self.page_tokens

    def pace(self) -> WindowPace:
        return window_pace(
            self.mode,
            window_tokens=self.window_tokens,
            page_tokens=self.page_tokens,
            step_tokens=self.step_tokens,
            overlap=self.overlap,
            slide_tokens=self.slide_tokens,
            grid_tokens=self.grid_tokens,
        )

    def extent(self) -> Extent:
        return Extent(
            self.prompt_tokens, self.new_tokens, min(self.chunk_tokens, self.prompt_tokens)
        )

    def priced_pages(self) -> int:
        return peak_pages(self.pace(), self.extent())

    def peak_pages(self, choose: Choose, *, behind_tokens: int = 0) -> int:
        """Play the request and return the most pages it held.

        ``behind_tokens`` is how far the tree's newest checkpoint is behind the chunk it took.
        """
        page, total = self.page_tokens, self.prompt_tokens + self.new_tokens
        taken = cursor = peak = decode_count = 0
        in_flight: list[int] = []
        while taken < total:
            decoding = taken >= self.prompt_tokens
            late = self.mode is WindowMode.LAG or (self.overlap and decoding)
            outstanding = sum(in_flight[-1:]) if late else 0
            stated = taken - outstanding
            first_steps = decode_count < 2 if self.mode is WindowMode.TREE else decode_count == 1
            if not (decoding and self.overlap and first_steps):
                cursor = self._slid(cursor, stated, decoding, behind_tokens)
            if decoding:
                count = choose(min(self.step_tokens, total - taken))
                decode_count += 1
            else:
                count = self._chunk(taken, choose)
            in_flight.append(count)
            taken += count
            peak = max(peak, -(-taken // page) - cursor // page)
        return peak

    def _chunk(self, taken: int, choose: Choose) -> int:
        rest = self.prompt_tokens - taken
        if self.mode is not WindowMode.TREE:
            return choose(min(self.chunk_tokens, rest))
        whole = min(self.chunk_tokens, rest) // self.cut_tokens
        if rest <= self.chunk_tokens and (whole == 0 or choose(2) == 2):
            return rest
        return choose(whole) * self.cut_tokens

    def _slid(self, cursor: int, stated: int, decoding: bool, behind_tokens: int) -> int:
        page, window = self.page_tokens, self.window_tokens
        if self.mode is not WindowMode.TREE:
            floor = stated - window
        else:
            rounded = -(-max(window, page) // page) * page
            key = stated if decoding else stated - behind_tokens
            floor = key - 1 - rounded
            if self.grid_tokens and decoding:
                recorded = stated - (self.step_tokens if self.overlap else 0)
                floor = min(floor, recorded // self.grid_tokens * self.grid_tokens - window)
        if decoding and floor - cursor < max(self.slide_tokens, page):
            return cursor
        return max(cursor, floor // page * page)


def ones_then_most(ones_count: int) -> Choose:
    """Take single tokens a number of times, then always as many as allowed."""
    left = [ones_count]

    def choose(most: int) -> int:
        left[0] -= 1
        return 1 if left[0] >= 0 else most

    return choose


@st.composite
def lives(draw: st.DrawFn, mode: WindowMode) -> Life:
    page = draw(st.integers(1, 6))
    grid = page * draw(st.integers(0, 4)) if mode is WindowMode.TREE else 0
    return Life(
        mode=mode,
        window_tokens=draw(st.integers(1, 20)),
        page_tokens=page,
        prompt_tokens=draw(st.integers(1, 60)),
        new_tokens=draw(st.integers(0, 50)),
        chunk_tokens=draw(st.integers(max(grid, page), 30)),
        step_tokens=draw(st.integers(1, 5)),
        overlap=mode is WindowMode.LAG or draw(st.booleans()),
        slide_tokens=draw(st.integers(0, 12)),
        grid_tokens=grid,
    )


@given(st.integers(0, 40), st.integers(1, 9))
def test_rows_touch_the_most_pages_from_the_worst_start(row_tokens: int, page_tokens: int) -> None:
    touched = (
        len({token // page_tokens for token in range(start, start + row_tokens)})
        for start in range(page_tokens)
    )
    assert pages_touched_max(row_tokens, page_tokens) == max(touched)


# ---- no life exceeds its price ------------------------------------------------------------------


@pytest.mark.parametrize("mode", WindowMode)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_no_life_holds_more_than_its_price(mode: WindowMode, data: st.DataObject) -> None:
    life = data.draw(lives(mode))
    behind = data.draw(st.integers(0, life.grid_tokens // life.page_tokens)) * life.page_tokens
    peak = life.peak_pages(lambda most: data.draw(st.integers(1, most)), behind_tokens=behind)
    assert peak <= life.priced_pages()


@pytest.mark.parametrize("mode", WindowMode)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_no_greedy_life_holds_more_than_its_price(mode: WindowMode, data: st.DataObject) -> None:
    life = data.draw(lives(mode))
    ones = data.draw(st.integers(0, 70))
    behind = data.draw(st.sampled_from((0, life.grid_tokens)))
    assert life.peak_pages(ones_then_most(ones), behind_tokens=behind) <= life.priced_pages()


@pytest.mark.parametrize("mode", WindowMode)
@settings(deadline=None)
@given(data=st.data())
def test_no_window_asks_for_more_pages_than_the_request_has(
    mode: WindowMode, data: st.DataObject
) -> None:
    life = data.draw(lives(mode))
    own_pages = -(-(life.prompt_tokens + life.new_tokens) // life.page_tokens)
    assert 0 < life.priced_pages() <= own_pages


# ---- prices are reached -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [WindowMode.STEP, WindowMode.LAG])
@settings(deadline=None, max_examples=40)
@given(
    window=st.integers(1, 20),
    page=st.integers(1, 7),
    prompt=st.integers(1, 60),
    chunk=st.integers(1, 20),
)
def test_some_way_of_cutting_a_prompt_reaches_its_price(
    mode: WindowMode, window: int, page: int, prompt: int, chunk: int
) -> None:
    life = Life(mode, window, page, prompt, 0, chunk, overlap=mode is WindowMode.LAG)
    peaks = [life.peak_pages(ones_then_most(ones)) for ones in range(prompt)]
    assert max(peaks) == life.priced_pages()


@pytest.mark.case("73")
@pytest.mark.parametrize("grid_pages", [0, 1, 3])
@settings(deadline=None, max_examples=40)
@given(
    window=st.integers(1, 20),
    page=st.integers(1, 7),
    chunk_cuts=st.integers(1, 4),
    more=st.integers(0, 30),
)
def test_a_shared_prompt_reaches_its_price_while_the_tree_is_one_checkpoint_behind(
    grid_pages: int, window: int, page: int, chunk_cuts: int, more: int
) -> None:
    grid = page * grid_pages
    chunk = chunk_cuts * (grid or page)
    # After this many tokens a chunk follows with the cursor clear of the first token.
    prompt = 3 * chunk + -(-window // (grid or page)) * (grid or page) + 3 * (grid or page) + more
    life = Life(WindowMode.TREE, window, page, prompt, 0, chunk, grid_tokens=grid)
    peaks = [life.peak_pages(ones_then_most(ones), behind_tokens=grid) for ones in range(prompt)]
    assert max(peaks) == life.priced_pages()


@pytest.mark.parametrize("overlap", [False, True])
@settings(deadline=None, max_examples=40)
@given(
    window=st.integers(1, 20),
    page=st.integers(1, 7),
    step=st.integers(1, 6),
    slide=st.integers(0, 15),
    more=st.integers(0, 20),
)
def test_a_long_output_reaches_its_price(
    overlap: bool, window: int, page: int, step: int, slide: int, more: int
) -> None:
    mode = WindowMode.LAG if overlap else WindowMode.STEP
    new = window + 3 * (max(slide, page) + step + page) + more
    life = Life(mode, window, page, 1, new, 1, step, overlap, slide)
    peaks = [life.peak_pages(ones_then_most(ones)) for ones in range(new)]
    assert max(peaks) == life.priced_pages() == steady_pages(life.pace(), life.extent())


def test_a_second_chunk_stands_beside_the_window_that_the_first_one_left() -> None:
    life = Life(WindowMode.STEP, 128, 64, 3 * 8192, 0, 8192)
    assert life.peak_pages(lambda most: most) == (128 + 8192) // 64
    # Chunks that end inside a page touch one more.
    assert life.priced_pages() == (128 + 8192) // 64 + 1


# ---- worked figures -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid_tokens", "pages"), [pytest.param(0, 131, id="plain"), pytest.param(256, 135, id="grid")]
)
def test_a_shared_window_of_128_at_page_64_with_chunks_of_8192(
    grid_tokens: int, pages: int
) -> None:
    life = Life(WindowMode.TREE, 128, 64, 100_000, 0, 8192, grid_tokens=grid_tokens)
    assert life.priced_pages() == pages


@pytest.mark.parametrize(
    ("mode", "pages"),
    [(WindowMode.STEP, 131), (WindowMode.TREE, 131), (WindowMode.LAG, 131 + 128)],
)
def test_a_late_window_holds_one_chunk_more(mode: WindowMode, pages: int) -> None:
    life = Life(mode, 128, 64, 100_000, 0, 8192, overlap=mode is WindowMode.LAG)
    assert life.priced_pages() == pages


@pytest.mark.parametrize("mode", WindowMode)
def test_a_prompt_of_one_chunk_costs_its_own_pages(mode: WindowMode) -> None:
    assert Life(mode, 128, 64, 8000, 0, 8192).priced_pages() == 125


@pytest.mark.parametrize(
    ("step_tokens", "overlap", "pages"), [(1, False, 3), (1, True, 4), (4, False, 4), (70, True, 6)]
)
def test_decoding_holds_the_window_and_what_its_steps_take(
    step_tokens: int, overlap: bool, pages: int
) -> None:
    life = Life(WindowMode.STEP, 128, 64, 1, 9000, 1, step_tokens, overlap)
    assert steady_pages(life.pace(), life.extent()) == pages


@pytest.mark.case("69")
def test_decoding_keeps_the_window_behind_the_newest_checkpoint() -> None:
    life = Life(WindowMode.TREE, 128, 64, 1, 9000, 1, grid_tokens=256)
    assert steady_pages(life.pace(), life.extent()) == -(-(128 + 256 + 1) // 64)


def test_decoding_without_checkpoints_keeps_a_page_beside_the_window() -> None:
    life = Life(WindowMode.TREE, 128, 64, 1, 9000, 1)
    assert steady_pages(life.pace(), life.extent()) == -(-(128 + 64 + 1) // 64)


@pytest.mark.parametrize(
    ("chunk_tokens", "pages"),
    [pytest.param(8192, 128, id="chunk"), pytest.param(64, 3, id="window")],
)
def test_a_pass_needs_its_chunk_or_the_window_it_will_leave(chunk_tokens: int, pages: int) -> None:
    life = Life(WindowMode.STEP, 128, 64, 100_000, 0, chunk_tokens)
    assert pass_pages(life.pace(), life.extent()) == pages
    assert pass_pages(life.pace(), life.extent(), loaded_pages=2) == pages + 2


def test_a_late_pass_needs_the_chunk_before_it_too() -> None:
    life = Life(WindowMode.LAG, 128, 64, 100_000, 0, 64, overlap=True)
    assert pass_pages(life.pace(), life.extent()) == pages_touched_max(128 + 64, 64)


# ---- loads and transfers ------------------------------------------------------------------------


def test_loaded_rows_stand_in_front_of_the_first_chunk() -> None:
    life = Life(WindowMode.TREE, 128, 64, 640, 0, 8192)
    assert peak_pages(life.pace(), life.extent(), loaded_pages=2) == 2 + 10


def test_loaded_rows_are_part_of_the_window_of_later_chunks() -> None:
    life = Life(WindowMode.TREE, 128, 64, 100_000, 0, 8192)
    assert peak_pages(life.pace(), life.extent(), loaded_pages=2) == 131


def test_loaded_rows_stay_while_a_short_output_does_not_outgrow_the_window() -> None:
    life = Life(WindowMode.TREE, 128, 64, 60, 10, 8192)
    assert peak_pages(life.pace(), life.extent()) == 2
    assert peak_pages(life.pace(), life.extent(), loaded_pages=2) == 4


@pytest.mark.parametrize(
    ("mode", "prompt", "resident", "reserve", "pages"),
    [
        pytest.param(WindowMode.STEP, 1000, 0, 0, 3, id="tail in three pages"),
        pytest.param(WindowMode.STEP, 1024, 0, 0, 2, id="tail on page edges"),
        pytest.param(WindowMode.TREE, 1024, 0, 0, 3, id="sharing keeps the token before"),
        pytest.param(WindowMode.STEP, 100, 0, 0, 2, id="prompt inside the window"),
        pytest.param(WindowMode.STEP, 1000, 960, 0, 1, id="most of it is resident"),
        pytest.param(WindowMode.STEP, 1024, 0, 1, 3, id="reserve opens a page"),
        pytest.param(WindowMode.STEP, 1000, 0, 24, 3, id="reserve fills the last page"),
        pytest.param(WindowMode.STEP, 1000, 0, 5000, 3, id="reserve slides"),
    ],
)
def test_a_transferred_window_is_its_tail_and_what_it_may_grow(
    mode: WindowMode, prompt: int, resident: int, reserve: int, pages: int
) -> None:
    pace = Life(mode, 128, 64, prompt, 0, 1).pace()
    priced = tail_pages(
        pace, prompt_tokens=prompt, resident_tokens=resident, reserve_tokens=reserve
    )
    assert priced == pages


@settings(deadline=None)
@given(data=st.data())
def test_a_transferred_window_decodes_its_reserve_within_its_price(data: st.DataObject) -> None:
    life = data.draw(lives(WindowMode.STEP))
    pace, reserve = life.pace(), life.new_tokens
    page, window = life.page_tokens, life.window_tokens
    priced = tail_pages(
        pace, prompt_tokens=life.prompt_tokens, resident_tokens=0, reserve_tokens=reserve
    )
    cursor = max(0, life.prompt_tokens - window) // page * page
    taken, total = life.prompt_tokens, life.prompt_tokens + reserve
    peak = -(-taken // page) - cursor // page
    while taken < total:
        if taken - window - cursor >= max(life.slide_tokens, page):
            cursor = (taken - window) // page * page
        taken += data.draw(st.integers(1, min(life.step_tokens, total - taken)))
        peak = max(peak, -(-taken // page) - cursor // page)
    assert peak <= priced
