"""The same program does the same: in one process, in another, on another machine."""

import json
import os
import subprocess
import sys

import pytest

from kvd.testing.stress.generator import program_of, steps_of
from kvd.testing.stress.program import Program, decode_program, encode_program
from kvd.testing.stress.run import run
from kvd.testing.stress.shapes import SHAPES
from kvd.testing.stress.sweep import run_seed
from tests.stress.golden import PATH, digest_of

DIGESTS = json.loads(PATH.read_text(encoding="utf-8"))
OTHERS = {"PYTHONHASHSEED": "77", "NPY_DISABLE_CPU_FEATURES": "AVX2 AVX512F"}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_has_the_digest_that_it_had(shape: str) -> None:
    assert digest_of(shape) == DIGESTS[shape]


def test_a_program_of_a_run_does_what_the_run_did() -> None:
    drawn = run_seed("state-window-full", 4, 80)

    again = run(decode_program(encode_program(drawn.program)))

    assert (again.digest, again.operations_count) == (drawn.digest, drawn.operations_count)


def test_another_seed_of_the_order_has_another_digest() -> None:
    steps = tuple(step for step, _ in zip(steps_of("full", 3), range(60), strict=False))
    digests = [run(Program(shape="full", seed_index=seed, steps=steps)).digest for seed in (1, 2)]

    assert digests[0] != digests[1]


def test_a_seed_draws_the_same_program_for_ever() -> None:
    assert program_of("full", 5) == program_of("full", 5)
    first, second = steps_of("full", 5), steps_of("full", 5)
    assert [next(first) for _ in range(50)] == [next(second) for _ in range(50)]


@pytest.mark.slow
@pytest.mark.parametrize("variable", OTHERS)
def test_a_digest_depends_on_no_process(variable: str) -> None:
    shape = "two-windows-full-coprime"
    code = f"from tests.stress.golden import digest_of; print(digest_of({shape!r}))"
    environment = {**os.environ, variable: OTHERS[variable]}

    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert told.stdout.split()[-1] == DIGESTS[shape]
