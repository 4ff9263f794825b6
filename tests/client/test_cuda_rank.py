"""A whole rank on the CUDA device with a fake GPU, beside the same rank on the host device."""

from collections.abc import Sequence

import numpy as np
import pytest

from kvd_client import STANDING, Client, TablesError, attach
from kvd_client.device.apply import read_progress
from kvd_client.device.cuda.device import CudaDevice
from kvd_client.device.fences import ALLOCATOR_LANE, STEP_LANE
from kvd_client.device.port import Device
from tests.client.cuda_fake import FakeDriver
from tests.client.engine_daemon import LAYERS, SIZING, EngineDaemon, admit_three_tokens_each

DEADLINE_MS = 5_000


def attached(device: Device | None, *, overlap: bool) -> Client:
    return attach(
        "ipc:///nowhere",
        group="g",
        declare=LAYERS,
        sizing=SIZING,
        deadline_ms=DEADLINE_MS,
        transport=EngineDaemon().transport(),
        device=device,
        overlap=overlap,
    )


def run(kv: Client, rounds: int, *, overlap: bool) -> None:
    """Let requests come, decode and end; with overlap a step is reported one step late."""
    admit_three_tokens_each(kv, [1, 2, 3])
    live, next_id, before = [1, 2, 3], 4, 0
    for number in range(rounds):
        with kv.launch() as step:
            step.reads_done()
        with kv.batch() as batch:
            if before or not overlap:
                batch.processed(before or step.number)
            batch.advance(STANDING, 3 if number == 0 else 1)
            if number % 5 == 4:
                batch.free([live.pop(0)])
            batch.take(STANDING)
        before = step.number if overlap else 0
        if number % 5 == 4:
            if before:
                with kv.batch() as batch:
                    batch.processed(before)
            before = 0
            admit_and_compute(kv, [next_id])
            live.append(next_id)
            next_id += 1
    kv.stream.synchronize(DEADLINE_MS)
    kv.forward_stream.synchronize(DEADLINE_MS)


def admit_and_compute(kv: Client, ids: Sequence[int]) -> None:
    with kv.batch() as batch:
        batch.admit(ids, prompt_tokens=[1], new_tokens_max=[30], take_tokens=[1])
        batch.standing(add=ids)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_rank_on_a_gpu_leaves_the_bytes_of_one_on_the_host(overlap: bool) -> None:
    host = attached(None, overlap=overlap)
    device = CudaDevice(FakeDriver(seed=3))
    cuda = attached(device, overlap=overlap)
    for kv in (host, cuda):
        run(kv, 23, overlap=overlap)
    size = host.plan.total_bytes

    ours = np.frombuffer(cuda.memory.read_bytes(0, size), dtype=np.uint8)
    theirs = np.frombuffer(host.memory.read_bytes(0, size), dtype=np.uint8)

    assert theirs.any()
    assert np.array_equal(ours, theirs)
    assert read_progress(cuda.memory, cuda.plan) == read_progress(host.memory, host.plan)
    assert cuda.check_tables() == host.check_tables() == 6
    host.close()
    cuda.close()


def test_a_wrong_table_entry_on_a_gpu_is_found() -> None:
    kv = attached(CudaDevice(FakeDriver(seed=4)), overlap=True)
    run(kv, 9, overlap=True)
    plan = next(one for one in kv.plan.region.band_maps if one.band == "full")
    wrong = kv.device.commands(kv.memory)
    wrong.write_int32(
        offset_bytes=plan.offset_bytes,
        entry_count=plan.entry_count,
        indices=np.array([plan.entry_count - 1]),
        values=np.array([7]),
    )
    kv.stream.enqueue(wrong)

    named = rf"tables\.match_books: .* map of band 'full' .* {plan.entry_count - 1} holds 7"
    with pytest.raises(TablesError, match=named):
        kv.check_tables()
    kv.close()


def test_a_ranks_launches_are_counted_in_a_lane_that_the_gpu_writes() -> None:
    driver = FakeDriver()
    kv = attached(CudaDevice(driver), overlap=False)
    run(kv, 5, overlap=False)

    assert kv.fences.lane(STEP_LANE).values() == (5, 5, 5)
    assert kv.fences.lane(ALLOCATOR_LANE).quiet
    kv.close()
    assert driver.registered == []


def test_a_ranks_mapping_ends_with_its_client() -> None:
    driver = FakeDriver()
    kv = attached(CudaDevice(driver), overlap=True)
    assert len(driver.mapped) == 1

    kv.close()

    assert driver.mapped == {}
