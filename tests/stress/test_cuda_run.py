"""Stress runs on a GPU, as far as they can be played without one: nothing runs late here."""

from functools import partial

import numpy as np
import pytest

from kvd.errors import StressFailure
from kvd.testing.stress.cuda_rank import CudaRank
from kvd.testing.stress.cuda_run import CudaRun, Machine
from kvd.testing.stress.failure import CheckName
from kvd.testing.stress.generator import program_of, steps_of
from kvd.testing.stress.run import Result, run_steps
from kvd_client.device.cuda.launch import Launch
from tests.client.cuda_fake import FakeDriver
from tests.stress.cuda_fakes import NumpyWords, fake_machine


def play(shape: str, seed: int, operations_max: int, machine: Machine) -> Result:
    return run_steps(
        program_of(shape, seed),
        steps_of(shape, seed),
        operations_max=operations_max,
        begin=partial(CudaRun, machine=machine),
    )


@pytest.mark.parametrize(
    ("shape", "seed"),
    [("state-window-full", 1), ("two-windows-full", 2), ("full", 3), ("window-full", 4)],
)
def test_a_program_runs_on_the_cuda_device(shape: str, seed: int) -> None:
    machine = fake_machine(seed)

    result = play(shape, seed, 120, machine)

    assert result.failure is None
    assert result.operations_count == 120
    words = machine.words
    assert isinstance(words, NumpyWords)
    assert words.checked_count > 1_000
    assert words.written_count > 100
    assert words.spent_us > 0
    driver = machine.device.driver
    assert isinstance(driver, FakeDriver)
    assert not driver.registered, "lanes are given back"


def test_deaths_and_copies_to_host_pools_are_left_out() -> None:
    result = play("state-full", 4, 150, fake_machine())

    assert result.failure is None
    assert any(name.endswith("left out") for name in result.counts)
    assert not {"die", "backup", "load_submit"} & set(result.counts)


def test_nothing_dares_a_copy_that_the_device_cannot_make() -> None:
    assert play("full", 50, 120, fake_machine()).failure is None


def test_a_table_write_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def takes_nothing(*_: object) -> bool:
        return True

    monkeypatch.setattr(Launch, "try_recipe", takes_nothing)
    result = play("state-window-full", 1, 200, fake_machine())

    assert result.failure is not None
    assert result.failure.check in {CheckName.MAPS, CheckName.CLIENT}


def test_bytes_that_change_behind_a_forward_are_found_and_said_in_words() -> None:
    program = program_of("state-window-full", 1)
    machine = fake_machine()
    run = CudaRun(program, machine=machine)
    rank = run.ranks[0]
    assert isinstance(rank, CudaRank)

    def flip_and_play() -> None:
        for step in steps_of(program.shape, 1):
            run.play(step)
            if run.step_index == 120:
                content = np.frombuffer(
                    rank.client.memory.read_bytes(0, run.built.storage.storage.arena_bytes),
                    dtype=np.int64,
                )
                places = np.arange(content.size, dtype=np.int64)
                machine.words.write(rank.client.memory.address, places, content ^ 1)

    with pytest.raises(StressFailure, match=r"rank 0: step .* reads word"):
        flip_and_play()
    run.close()


def test_both_ranks_are_on_the_gpu() -> None:
    program = program_of("state-window-full", 1)
    runs: list[CudaRun] = []

    def begin(_: object) -> CudaRun:
        runs.append(CudaRun(program, machine=fake_machine()))
        return runs[0]

    assert (
        run_steps(program, steps_of(program.shape, 1), operations_max=60, begin=begin).failure
        is None
    )
    assert len(runs[0].ranks) == program.ranks_count >= 2
    assert all(rank.checked_words_count for rank in runs[0].ranks)
