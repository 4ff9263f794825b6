"""Prices found state by state are those that kvd's formulas give, and some by hand."""

from itertools import product

import pytest

from kvd.alloc.demand import DemandShape, RequestShape, request_demand, steady_demand
from kvd.alloc.purpose import DemandPurpose
from kvd.testing.stress.prices import peak_units, steady_pages
from kvd_proto.memory import Lifetime

CONTEXT_TOKENS = 40


def _shape(window_tokens: int, page_tokens: int, *, overlap: bool) -> DemandShape:
    return DemandShape(
        lifetimes=(Lifetime.STATE, Lifetime.WINDOW, Lifetime.FULL),
        window_tokens=(0, window_tokens, 0),
        page_tokens=page_tokens,
        slots_per_request_slots=1,
        overlap=overlap,
        context_tokens=CONTEXT_TOKENS,
    )


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page_tokens", [1, 3, 4])
@pytest.mark.parametrize("window_tokens", [1, 4, 7, 12])
def test_prices_found_state_by_state_are_those_of_the_formulas(
    window_tokens: int, page_tokens: int, overlap: bool
) -> None:
    shape = _shape(window_tokens, page_tokens, overlap=overlap)
    for prompt, new, chunk in product(range(1, 37, 3), (0, 1, 2, 3, 4), (1, 2, 5, 8, 64)):
        request = RequestShape(prompt_tokens=prompt, new_tokens=new)
        peak = peak_units(shape, prompt_tokens=prompt, new_tokens=new, chunk_tokens=chunk)
        steady = steady_pages(
            shape, window_tokens=window_tokens, prompt_tokens=prompt, new_tokens=new
        )
        given = {
            purpose: request_demand(
                shape, request, purpose=purpose, mode=shape.mode, chunk_tokens=chunk
            ).units
            for purpose in (DemandPurpose.CEILING, DemandPurpose.ADMIT)
        }
        later = steady_demand(shape, request, mode=shape.mode, chunk_tokens=chunk).units

        assert given == dict.fromkeys(given, peak)
        assert later == (1, min(peak[1], steady), peak[2])


@pytest.mark.parametrize(
    ("overlap", "units"),
    [
        # Of 6 tokens of window and 4 of chunk, one in its page's last place: 4 pages.
        pytest.param(False, (1, 4, 6), id="in order"),
        # Two chunks beside the window, and a step that is taken before the end is seen.
        pytest.param(True, (1, 5, 7), id="overlapped"),
    ],
)
def test_a_long_prompt_in_short_chunks(overlap: bool, units: tuple[int, ...]) -> None:
    shape = _shape(6, 4, overlap=overlap)
    assert peak_units(shape, prompt_tokens=20, new_tokens=4, chunk_tokens=4) == units


def test_no_step_passes_the_context() -> None:
    shape = _shape(6, 4, overlap=True)
    assert peak_units(shape, prompt_tokens=36, new_tokens=4, chunk_tokens=4)[2] == 10
