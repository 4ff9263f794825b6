"""What no seed draws by itself and a run has to ask for by name: meetings and shapes."""

import pytest

from kvd.testing.stress.generator import program_of, steps_of
from kvd.testing.stress.meetings import BY_NAME_ONLY, DEATHS, MEETINGS
from kvd.testing.stress.run import run_steps
from kvd.testing.stress.shapes import FURTHER_SHAPES, SHAPES, stress_stage

FEW_NAMES = "window-full-few-names"
RUNS = [
    *[("state-three-windows-full", meeting.__name__) for meeting in BY_NAME_ONLY],
    *[(shape, "crowded") for shape in FURTHER_SHAPES],
]


def test_no_seed_draws_them() -> None:
    assert not {*BY_NAME_ONLY} & {*MEETINGS, *DEATHS}
    assert not FURTHER_SHAPES.keys() & SHAPES.keys()


@pytest.mark.parametrize(("shape", "profile"), RUNS)
def test_runs_that_ask_for_them_find_nothing(shape: str, profile: str) -> None:
    steps = steps_of(shape, 1, profile=profile)

    result = run_steps(program_of(shape, 1), steps, operations_max=100)

    assert result.failure is None
    assert result.operations_count == 100


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stage_before_a_larger_one_has_fewer_names_than_pages(overlap: bool) -> None:
    plan = stress_stage(FEW_NAMES, overlap=overlap).storage.storage

    assert plan.virtual_page_count < plan.bands[-1].unit_index_end_count
