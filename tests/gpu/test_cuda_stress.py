"""Stress programs on a GPU: real streams, kernels that take their time, all ranks on one."""

import numpy as np
import pytest

from kvd.errors import StressFailure
from kvd.testing.stress.cuda_run import CudaRun, the_machine
from kvd.testing.stress.generator import program_of, steps_of
from kvd.testing.stress.shapes import SHAPES
from kvd.testing.stress.sweep import Backend, run_seed

DEADLINE_MS = 30_000


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_a_program_of_every_shape_holds_what_is_checked(shape: str) -> None:
    result = run_seed(shape, 1, 150, backend=Backend.CUDA)

    assert result.failure is None
    assert result.operations_count == 150


@pytest.mark.gpu
def test_kernels_find_what_is_wrong_and_say_where() -> None:
    machine = the_machine()
    stream, words = machine.device.stream("words"), machine.words
    driver = machine.device.driver
    address = driver.allocate(1 << 16)
    places = np.arange(100, 5_000, dtype=np.int64)

    stream.submit(lambda: words.spend(200))
    stream.submit(lambda: words.fill(address, -6, 1 << 13))
    stream.submit(lambda: words.write(address, places, places + 7))
    expected = places + 7
    expected[[3, 900]] = 1, -1  # the second is UNKNOWN, and so never wrong
    stream.submit(lambda: words.check(address, places, expected, word_bytes=8, subject=5))
    low = (places[:50] + 7).repeat(2)
    low[1::2] = 0
    halves = np.arange(200, 300, dtype=np.int64)
    low[10] = 77
    stream.submit(lambda: words.check(address, halves, low, word_bytes=4, subject=6))
    stream.synchronize(DEADLINE_MS)

    assert words.found_any()
    assert sorted(words.take_findings()) == [(5, 3, 110), (6, 10, 112)]
    assert not words.found_any()
    stream.close(DEADLINE_MS)
    driver.free(address)


@pytest.mark.gpu
def test_forwards_of_a_rank_whose_bytes_are_changed_say_so() -> None:
    program = program_of("state-window-full", 1)
    run = CudaRun(program)
    rank = run.ranks[0]
    machine = the_machine()
    stream = machine.device.stream("culprit")
    arena_words = run.built.storage.storage.arena_bytes // 8
    found = None
    try:
        for step in steps_of(program.shape, 1):
            run.play(step)
            if run.step_index == 120:
                stream.submit(
                    lambda: machine.words.fill(rank.client.memory.address, 9, arena_words)
                )
    except StressFailure as failure:
        found = failure
    finally:
        run.close()
        stream.close(DEADLINE_MS)
    assert "rank 0: step" in str(found)
