"""The memory clip and the chunk search against trying every length."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.alloc.clip import chunk_search, memory_clip
from kvd.alloc.demand import DemandShape, RequestShape, request_demand
from kvd.alloc.purpose import DemandPurpose
from kvd.alloc.window import WindowMode
from kvd_proto.memory import Lifetime

SHAPE = DemandShape(
    lifetimes=(Lifetime.STATE, Lifetime.WINDOW, Lifetime.FULL),
    window_tokens=(0, 8, 0),
    page_tokens=4,
    slots_per_request_slots=1,
    checkpoint_tokens=12,
)


def _ceiling(request: RequestShape, new_tokens: int, mode: WindowMode) -> tuple[int, ...]:
    clipped = RequestShape(prompt_tokens=request.prompt_tokens, new_tokens=new_tokens)
    return request_demand(
        SHAPE, clipped, purpose=DemandPurpose.CEILING, mode=mode, chunk_tokens=12
    ).units


@pytest.mark.parametrize("mode", WindowMode)
@settings(deadline=None)
@given(prompt=st.integers(1, 60), new=st.integers(0, 60), room=st.integers(0, 600))
def test_the_clip_is_the_largest_output_that_fits_an_empty_arena(
    mode: WindowMode, prompt: int, new: int, room: int
) -> None:
    request = RequestShape(prompt_tokens=prompt, new_tokens=new)

    def fits(units: tuple[int, ...]) -> bool:
        slots, window, full = units
        return slots * 20 + window * 7 + full * 11 <= room

    fitting = [count for count in range(new + 1) if fits(_ceiling(request, count, mode))]
    clipped = memory_clip(SHAPE, request, mode=mode, chunk_tokens=12, fits_empty=fits)
    assert clipped == (max(fitting) if fitting else None)


def test_a_clip_ignores_what_is_resident_since_it_may_be_gone() -> None:
    asked: list[tuple[int, ...]] = []

    def fits(units: tuple[int, ...]) -> bool:
        asked.append(units)
        return True

    request = RequestShape(prompt_tokens=40, new_tokens=10, resident_tokens=36)
    assert memory_clip(SHAPE, request, mode=WindowMode.STEP, chunk_tokens=12, fits_empty=fits) == 10
    assert asked[-1] == _ceiling(request, 10, WindowMode.STEP)


def test_a_clip_asks_a_logarithm_of_the_output() -> None:
    asked: list[int] = []

    def fits(units: tuple[int, ...]) -> bool:
        asked.append(units[-1])
        return units[-1] <= 1000

    request = RequestShape(prompt_tokens=4, new_tokens=1 << 20)
    clipped = memory_clip(SHAPE, request, mode=WindowMode.STEP, chunk_tokens=12, fits_empty=fits)
    assert clipped == 3996
    assert len(asked) <= 22


@pytest.mark.parametrize("mode", WindowMode)
@settings(deadline=None)
@given(
    resident=st.integers(0, 6),
    host=st.integers(0, 6),
    extend=st.integers(1, 80),
    chunk=st.integers(1, 90),
    limit=st.integers(0, 90),
)
def test_the_search_finds_the_longest_chunk_on_the_grid(
    mode: WindowMode, resident: int, host: int, extend: int, chunk: int, limit: int
) -> None:
    start = 4 * (resident + host)
    request = RequestShape(
        prompt_tokens=start + extend, resident_tokens=4 * resident, host_tokens=4 * host
    )
    grid = 12 if mode is WindowMode.TREE else 4
    allowed = [
        count
        for count in range(1, min(chunk, extend, limit) + 1)
        if count == extend or (start + count) % grid == 0
    ]
    found = chunk_search(
        SHAPE, request, mode=mode, chunk_tokens=chunk, holds=lambda count: count <= limit
    )
    assert found == (max(allowed) if allowed else None)


def test_the_chunk_that_ends_the_prompt_need_not_end_on_the_grid() -> None:
    request = RequestShape(prompt_tokens=30)
    found = chunk_search(
        SHAPE, request, mode=WindowMode.TREE, chunk_tokens=100, holds=lambda count: count <= 30
    )
    assert found == 30


def test_a_fully_resident_prompt_has_no_chunk() -> None:
    request = RequestShape(prompt_tokens=8, resident_tokens=8)
    found = chunk_search(
        SHAPE, request, mode=WindowMode.STEP, chunk_tokens=8, holds=lambda count: count > 0
    )
    assert found is None


def test_shrinking_a_chunk_lowers_its_window_only() -> None:
    request = RequestShape(prompt_tokens=60, new_tokens=20)
    room = (2, 6, 20)

    def holds(chunk_tokens: int) -> bool:
        demand = request_demand(
            SHAPE,
            request,
            purpose=DemandPurpose.ADMIT,
            mode=WindowMode.STEP,
            chunk_tokens=chunk_tokens,
        )
        return all(asked <= have for asked, have in zip(demand.units, room, strict=True))

    found = chunk_search(SHAPE, request, mode=WindowMode.STEP, chunk_tokens=40, holds=holds)
    # A window of 8 and a chunk of 12 touch 6 pages at most, a chunk of 16 touches 7.
    assert found == 12
