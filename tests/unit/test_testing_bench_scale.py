"""The scale benchmark: what it measures, on arenas small enough for a unit test."""

import pytest

from kvd.testing.bench_figures import Figure
from kvd.testing.bench_scale import FEASIBLE_US_MAX, GROWTH_MAX, PARTS, PATTERNS, measure_scale

SIZES = (600, 1_200)


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    return {figure.name: figure for figure in measure_scale(SIZES)}


def test_every_part_of_every_pattern_is_measured_at_every_size(figures: dict[str, Figure]) -> None:
    costs = [
        figures[f"{part}_{pattern.name}_{pages}_pages"]
        for part in PARTS
        for pattern in PATTERNS
        for pages in SIZES
    ]

    assert all(cost.value > 0 and cost.unit == "us" and cost.target is None for cost in costs)


def test_growth_is_that_of_the_largest_arena_over_the_cheapest(figures: dict[str, Figure]) -> None:
    small, large = (figures[f"take_256_random_{pages}_pages"].value for pages in SIZES)

    growth = figures["take_256_random_growth"]

    assert growth.value == pytest.approx(large / min(small, large))
    assert growth.target == GROWTH_MAX


@pytest.mark.parametrize("part", ["free", "settle"])
def test_only_takes_have_a_target(figures: dict[str, Figure], part: str) -> None:
    assert figures[f"{part}_4_by_age_growth"].target is None


@pytest.mark.parametrize("bands_count", FEASIBLE_US_MAX)
@pytest.mark.parametrize("pages", SIZES)
def test_the_capacity_question_is_asked_at_every_size(
    figures: dict[str, Figure], bands_count: int, pages: int
) -> None:
    figure = figures[f"feasible_{bands_count}_bands_{pages}_pages"]

    assert figure.value > 0
    assert figure.target == FEASIBLE_US_MAX[bands_count]
