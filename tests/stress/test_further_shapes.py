"""Shapes that no seed draws by itself and a run has to ask for by name."""

import pytest

from kvd.testing.stress.generator import program_of, steps_of
from kvd.testing.stress.run import run_steps
from kvd.testing.stress.shapes import FURTHER_SHAPES, SHAPES, stress_stage

FEW_NAMES = "window-full-few-names"


def test_no_seed_draws_them() -> None:
    assert not FURTHER_SHAPES.keys() & SHAPES.keys()


@pytest.mark.parametrize("shape", FURTHER_SHAPES)
def test_runs_that_ask_for_them_find_nothing(shape: str) -> None:
    steps = steps_of(shape, 1, profile="crowded")

    result = run_steps(program_of(shape, 1), steps, operations_max=100)

    assert result.failure is None
    assert result.operations_count == 100


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stage_before_a_larger_one_has_fewer_names_than_pages(overlap: bool) -> None:
    plan = stress_stage(FEW_NAMES, overlap=overlap).storage.storage

    assert plan.virtual_page_count < plan.bands[-1].unit_index_end_count
