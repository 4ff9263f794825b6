"""Kernels and memory of the CUDA device: the bytes of the host device, views, mappings."""

import os
import random
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kvd_client.device.apply import read_progress
from kvd_client.device.cuda.staging import STAGING_BYTES
from kvd_client.device.descriptors import close_all
from kvd_client.errors import DeviceError
from tests.client.cuda_pair import SIZE_BYTES, UNITS_END_BYTES, Pair, add_random, array, table_write
from tests.client.engine_daemon import build_storage
from tests.client.host_parts import in_fork
from tests.gpu.gpu_parts import (
    DEADLINE_MS,
    fill,
    new_arena,
    new_memory,
    run_program,
    tensor_of,
    the_device,
    used_bytes,
)

if TYPE_CHECKING:
    from kvd_client.device.port import IntArray

pytestmark = pytest.mark.gpu


def new_pair(seed: int = 0) -> Pair:
    return Pair(the_device(), new_arena(SIZE_BYTES), fill, seed=seed)


@pytest.mark.parametrize("seed", range(40))
def test_random_commands_give_what_the_host_gives(seed: int) -> None:
    draw, pair = random.Random(seed), new_pair(seed)
    for _ in range(draw.randrange(1, 4)):
        for _ in range(draw.randrange(1, 12)):
            add_random(pair, draw)
        pair.run()
        pair.check()
    pair.stream.close(DEADLINE_MS)


@pytest.mark.parametrize("seed", range(30))
def test_units_of_random_sizes_are_zeroed_and_moved(seed: int) -> None:
    draw, pair = random.Random(seed), new_pair(seed)
    unit_bytes = 4 * draw.randrange(1, UNITS_END_BYTES // 64)
    base_bytes = 4 * draw.randrange(64)
    end = (SIZE_BYTES - base_bytes) // unit_bytes
    places = draw.sample(range(end), min(end // 2 * 2, 400))
    half = len(places) // 2
    units = {"base_bytes": base_bytes, "unit_bytes": unit_bytes}
    pair.add(
        "move_units", **units, sources=array(*places[:half]), destinations=array(*places[half:])
    )
    pair.add("zero_units", **units, units=array(*places[: half // 2]))
    pair.run()
    pair.check()
    pair.stream.close(DEADLINE_MS)


def test_long_lists_of_entries_and_rows_keep_the_last_of_each() -> None:
    pair = new_pair()
    drawn = np.random.default_rng(1)
    for count in (512, 513, 40_000):
        indices = drawn.integers(0, 4096, count)
        pair.add("write_int32", **table_write(indices, drawn.integers(0, 1 << 30, count)))
        pair.run()
        pair.check()
    pair.stream.close(DEADLINE_MS)


@pytest.mark.case("45")
def test_bytes_beyond_four_gigabytes_are_reached() -> None:
    unit_bytes = 2 << 20
    last = (12 << 30) // unit_bytes - 1
    memory, stream = new_memory(12 << 30), the_device().stream("far")
    tensor = tensor_of(memory).view(-1, unit_bytes)
    tensor[last].fill_(7)
    tensor[3000].fill_(9)
    torch.cuda.synchronize()
    commands = the_device().commands(memory)
    units = {"base_bytes": 0, "unit_bytes": unit_bytes}
    commands.move_units(**units, sources=array(last), destinations=array(2500))
    commands.zero_units(**units, units=array(3000))
    commands.write_words(offset_bytes=(12 << 30) - 16, values=(1 << 40, 3))
    stream.enqueue(commands)
    stream.synchronize(DEADLINE_MS)
    assert bool((tensor[2500] == 7).all())
    assert not bool(tensor[3000].any())
    assert memory.read_bytes((12 << 30) - 16, 12 << 30) == np.array([1 << 40, 3]).tobytes()
    stream.close(DEADLINE_MS)
    del tensor
    memory.close()


def test_nothing_is_allocated_on_the_device_once_a_stream_exists() -> None:
    memory, stream = new_memory(64 << 20), the_device().stream("warm")
    stream.synchronize(DEADLINE_MS)
    before = used_bytes()
    units: IntArray = np.arange(500, dtype=np.int64)
    for number in range(400):
        commands = the_device().commands(memory)
        for unit_bytes in (4, 20, 4096, 65_536):
            commands.move_units(
                base_bytes=0, unit_bytes=unit_bytes, sources=units, destinations=units + 500
            )
            commands.zero_units(base_bytes=0, unit_bytes=unit_bytes, units=units[: number + 1])
        commands.write_int32(offset_bytes=0, entry_count=1000, indices=units, values=units)
        commands.write_words(offset_bytes=4096, values=(number, 0))
        stream.enqueue(commands)
        stream.record()
    stream.synchronize(DEADLINE_MS)
    assert used_bytes() == before
    stream.close(DEADLINE_MS)


def test_staging_memory_that_is_full_holds_the_next_submission_back() -> None:
    """Lists of many times the ring arrive as they were, behind a stream that is busy."""
    memory, stream = new_memory(8 << 20), the_device().stream("full")
    count = 50_000
    indices: IntArray = np.arange(count, dtype=np.int64)
    commands = the_device().commands(memory)
    for _ in range(4 * STAGING_BYTES // (16 * count)):
        commands.write_int32(offset_bytes=0, entry_count=count, indices=indices, values=indices + 1)
    commands.write_int32(offset_bytes=0, entry_count=count, indices=indices, values=indices)
    stream.enqueue(commands)
    stream.synchronize(DEADLINE_MS)
    assert memory.read_bytes(0, 4 * count) == indices.astype(np.int32).tobytes()
    stream.close(DEADLINE_MS)


def test_tensors_lie_in_the_mapping_and_keep_it_alive() -> None:
    memory = new_memory(4 << 20)
    tensor = tensor_of(memory)
    assert tensor.data_ptr() == memory.address
    assert tensor.is_cuda
    tensor[5] = 77
    torch.cuda.synchronize()
    assert memory.read_bytes(5, 6) == b"M"
    memory.close()
    tensor[5] += 1
    assert tensor[5].item() == 78
    with pytest.raises(DeviceError, match="after it was closed"):
        memory.read_bytes(0, 1)


@pytest.mark.case("103")
def test_memory_goes_with_its_last_mapping_and_descriptor() -> None:
    torch.zeros(1, device="cuda")
    the_device()
    before = used_bytes()
    fd = new_arena(2 << 30)
    started = time.perf_counter()
    memory = the_device().map(fd, 2 << 30)
    print(f"import and map: {(time.perf_counter() - started) * 1e3:.2f} ms")
    assert used_bytes() >= before + (2 << 30)
    close_all([fd])
    assert used_bytes() >= before + (2 << 30)
    memory.close()
    assert used_bytes() <= before + (64 << 20)


def test_an_observer_reads_and_a_write_of_it_ends_only_itself() -> None:
    fd = new_arena(4 << 20)
    memory = the_device().map(fd, 4 << 20)
    fill(memory, b"seen" * 1024)
    reader = run_program("tests.gpu.observer_program", str(fd), str(4 << 20), fds=[fd])
    os.close(fd)
    told, _ = reader.communicate(timeout=DEADLINE_MS / 1000 * 4)
    assert told.splitlines() == [
        "reads seen",
        "tensor seen",
        "refuses commands",
        "write fails",
    ]
    assert memory.read_bytes(0, 4) == b"seen"
    fill(memory, b"live")
    assert memory.read_bytes(0, 4) == b"live"


def test_the_host_cannot_see_the_bytes_and_progress_is_read_all_the_same() -> None:
    plan = build_storage().storage
    memory, stream = new_memory(plan.total_bytes), the_device().stream("progress")
    with pytest.raises(DeviceError, match="the host cannot see"):
        memory.buffer  # noqa: B018 the property raises
    commands = the_device().commands(memory)
    commands.write_words(offset_bytes=plan.region.progress.offset_bytes, values=(12, 3))
    stream.enqueue(commands)
    stream.synchronize(DEADLINE_MS)
    assert read_progress(memory, plan) == (12, 3)
    stream.close(DEADLINE_MS)


def test_a_fork_is_told_so() -> None:
    memory, stream = new_memory(4 << 20), the_device().stream("forked")
    event = stream.record()
    for call in (
        lambda: memory.address,
        lambda: memory.read_bytes(0, 1),
        lambda: stream.enqueue(the_device().commands(memory)),
        stream.record,
        lambda: event.reached,
        lambda: event.synchronize(1),
        lambda: stream.close(1),
    ):
        assert in_fork(call) == 0
    stream.close(DEADLINE_MS)
