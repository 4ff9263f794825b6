"""Whether programs that are drawn come to everything that they are there for."""

from collections import Counter

import pytest

from kvd.testing.stress.coverage import EXPECTED, lines_of, missing
from kvd.testing.stress.generator import PROFILES, WEIGHTS
from kvd.testing.stress.program import STEP_TYPES
from kvd.testing.stress.shapes import SHAPES
from kvd.testing.stress.sweep import jobs_of, play, run_seed

OPERATIONS_COUNT = 900


@pytest.mark.slow
def test_a_slice_over_all_profiles_sees_everything_at_least_once() -> None:
    counts: Counter[str] = Counter()
    shapes = list(SHAPES)
    for index, profile in enumerate(PROFILES):
        shape = shapes[index % len(shapes)]
        result = run_seed(shape, index, OPERATIONS_COUNT, profile=profile, oracle_permille=0)
        assert result.failure is None, f"{shape}, seed {index}, {profile}"
        counts.update(result.counts)

    assert missing(counts) == []


def test_every_step_has_a_weight() -> None:
    assert dict.fromkeys(STEP_TYPES) == dict.fromkeys(WEIGHTS)


def test_what_never_happened_is_said() -> None:
    counts = Counter(dict.fromkeys(EXPECTED[1:], 1))

    assert missing(counts) == [EXPECTED[0]]
    assert lines_of(counts)[-1].split() == ["never", EXPECTED[0]]


def test_jobs_take_all_shapes_by_turns() -> None:
    jobs = jobs_of(seeds_count=len(SHAPES) + 1, operations_max=5, first_seed=0)

    assert [job.shape for job in jobs] == [*SHAPES, next(iter(SHAPES))]
    assert [job.seed_index for job in jobs] == list(range(len(SHAPES) + 1))


def test_a_report_says_what_was_played() -> None:
    (job,) = jobs_of(seeds_count=1, operations_max=20, shape="full", first_seed=3)

    report = play(job)

    assert (report.shape, report.seed_index, report.check) == ("full", 3, "")
    assert report.operations_count == 20
