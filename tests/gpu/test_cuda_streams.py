"""CUDA streams: order, lanes between processes, killed owners, captures, foreign streams."""

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kvd_client.device.cuda.stream import CudaStream
from kvd_client.device.fences import FencePage, LaneNumber, create_fence_page
from kvd_client.errors import DeviceError
from kvd_proto.errors import ErrorCode
from tests.client.cuda_pair import array
from tests.client.host_parts import fail
from tests.gpu.gpu_parts import (
    DEADLINE_MS,
    delay,
    new_arena,
    new_memory,
    run_program,
    tensor_of,
    the_device,
)

pytestmark = pytest.mark.gpu

SIZE_BYTES = 4 << 20
SHORT_MS = 20


@pytest.fixture
def page() -> Iterator[FencePage]:
    fd = create_fence_page("fence")
    page = FencePage(fd)
    os.close(fd)
    yield page
    page.close()


@pytest.fixture
def stream(page: FencePage) -> Iterator[CudaStream]:
    stream = the_device().stream("a", page.lane(0))
    yield stream
    stream.close(DEADLINE_MS)


def test_submitted_torch_work_and_commands_run_in_order(stream: CudaStream) -> None:
    memory = new_memory(SIZE_BYTES)
    tensor = tensor_of(memory)

    def work(milliseconds: float = 50) -> None:
        delay(milliseconds)
        tensor.fill_(5)

    # What is loaded on first use waits for the device.
    work(0.1)
    torch.cuda.synchronize()
    stream.submit(work)
    commands = the_device().commands(memory)
    commands.zero_units(base_bytes=0, unit_bytes=4096, units=array(1))
    stream.enqueue(commands)
    assert not stream.record().reached
    seen: list[torch.Tensor] = []
    stream.submit(lambda: seen.append(tensor.clone()))
    stream.synchronize(DEADLINE_MS)
    assert bool((seen[0][:4096] == 5).all())
    assert not bool(seen[0][4096:8192].any())
    assert bool((seen[0][8192:] == 5).all())


def test_a_lane_is_done_when_the_gpu_got_there(stream: CudaStream, page: FencePage) -> None:
    lane = page.lane(0)
    stream.submit(lambda: delay(50))
    assert lane.values() == (1, 1, 0)
    assert not page.quiet
    stream.synchronize(DEADLINE_MS)
    assert lane.values() == (1, 1, 1)
    assert page.quiet


def test_streams_wait_for_events_of_each_other(stream: CudaStream) -> None:
    other = the_device().stream("b")
    value = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()

    def slow() -> None:
        delay(50)
        value.fill_(3)

    other.submit(slow)
    event = other.record()
    stream.wait(event)
    seen: list[torch.Tensor] = []
    stream.submit(lambda: seen.append(value.clone()))
    assert not event.reached
    with pytest.raises(DeviceError, match="not reached within 1 ms") as late:
        event.synchronize(1)
    assert late.value.code is ErrorCode.TIMED_OUT
    stream.synchronize(DEADLINE_MS)
    assert event.reached
    assert bool((seen[0] == 3).all())
    other.close(DEADLINE_MS)


def test_work_that_raises_fails_the_stream_and_its_lane_says_so_until_it_closes(
    page: FencePage,
) -> None:
    stream = the_device().stream("failing", page.lane(3))
    with pytest.raises(ZeroDivisionError):
        stream.submit(fail)
    with pytest.raises(DeviceError, match="ZeroDivisionError: planted"):
        stream.record()
    assert not page.lane(3).quiet
    stream.close(DEADLINE_MS)
    assert page.lane(3).quiet


def test_a_wait_for_what_nobody_submitted_ends_on_the_host(
    stream: CudaStream, page: FencePage
) -> None:
    lane = page.lane(5)
    lane.begin()
    with pytest.raises(DeviceError, match="number 1 of lane 5 was not submitted") as late:
        stream.wait_lane(lane, LaneNumber(1), SHORT_MS)
    assert late.value.code is ErrorCode.TIMED_OUT
    timer = threading.Timer(0.05, lambda: lane.mark_submitted(LaneNumber(1)))
    timer.start()
    stream.wait_lane(lane, LaneNumber(1), DEADLINE_MS)
    timer.join()
    stream.submit(lambda: None)
    event = stream.record()
    with pytest.raises(DeviceError, match="not reached"):
        event.synchronize(SHORT_MS)
    lane.mark_done(LaneNumber(1))
    event.synchronize(DEADLINE_MS)


@pytest.mark.case("131")
def test_another_process_is_waited_for_through_its_lane() -> None:
    """The owner fills the arena slowly, several times; what is read behind each wait is whole."""
    arena, fence = new_arena(SIZE_BYTES), create_fence_page("fence")
    memory, page = the_device().map(arena, SIZE_BYTES), FencePage(fence)
    tensor = tensor_of(memory).view(torch.int32)
    owner = run_program(
        "tests.gpu.owner_program", "fill", str(arena), str(fence), fds=[arena, fence]
    )
    close = [os.close(fd) for fd in (arena, fence)]
    assert close == [None, None]
    stream = the_device().stream("reader", page.lane(1))
    seen: list[torch.Tensor] = []
    for number in range(1, 21):
        stream.wait_lane(page.lane(0), LaneNumber(number), DEADLINE_MS)
        stream.submit(lambda: seen.append((tensor != len(seen) + 1).sum()))
        # The owner goes on when this lane says that the round was read.
    stream.synchronize(DEADLINE_MS)
    assert [int(count) for count in seen] == [0] * 20
    owner.communicate(timeout=DEADLINE_MS / 1000)
    assert owner.returncode == 0
    stream.close(DEADLINE_MS)
    page.close()


def test_a_killed_owner_is_completed_by_a_process_without_a_context() -> None:
    arena, fence = new_arena(SIZE_BYTES), create_fence_page("fence")
    page = FencePage(fence)
    owner = run_program(
        "tests.gpu.owner_program", "hang", str(arena), str(fence), fds=[arena, fence]
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "hangs\n"
    stream = the_device().stream("waiter")
    stream.wait_lane(page.lane(0), LaneNumber(1), DEADLINE_MS)
    event = stream.record()
    owner.kill()
    owner.communicate()
    with pytest.raises(DeviceError, match="not reached"):
        event.synchronize(SHORT_MS)
    before = page.lane(0).complete()
    assert (before.begun, before.done) == (1, 0)
    event.synchronize(DEADLINE_MS)
    stream.close(DEADLINE_MS)
    page.close()
    os.close(arena)
    os.close(fence)


def test_a_capture_takes_nothing_of_kvd_and_ends_unharmed(page: FencePage) -> None:
    memory = new_memory(SIZE_BYTES)
    side = torch.cuda.Stream()
    stream = the_device().wrap(side.cuda_stream, "engine", page.lane(2))
    commands = the_device().commands(memory)
    commands.zero_units(base_bytes=0, unit_bytes=4096, units=array(0))
    value, graph = torch.zeros(16, device="cuda"), torch.cuda.CUDAGraph()
    event = stream.record()
    torch.cuda.synchronize()
    calls = (
        lambda: stream.enqueue(commands),
        lambda: stream.submit(lambda: None),
        stream.record,
        lambda: stream.wait(event),
        lambda: stream.wait_lane(page.lane(4), LaneNumber(0), SHORT_MS),
    )
    refused: list[str] = []
    with torch.cuda.graph(graph, stream=side):
        value.add_(1)
        for call in calls:
            try:
                call()
            except DeviceError as error:
                refused.append(error.message)
    assert len(refused) == len(calls)
    assert all("being captured" in message for message in refused)
    assert page.lane(2).values() == (0, 0, 0)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((value == 1).all())
    stream.enqueue(commands)
    stream.synchronize(DEADLINE_MS)
    assert page.lane(2).values() == (1, 1, 1)
    stream.close(DEADLINE_MS)


def test_an_engines_stream_is_wrapped_and_stays_the_engines() -> None:
    side = torch.cuda.Stream()
    stream = the_device().wrap(side.cuda_stream, "engine")
    memory = new_memory(SIZE_BYTES)
    tensor = tensor_of(memory)
    with torch.cuda.stream(side):
        delay(20)
        tensor.fill_(1)
    commands = the_device().commands(memory)
    commands.zero_bytes(start_bytes=0, end_bytes=100)
    stream.enqueue(commands)
    with torch.cuda.stream(side):
        total = tensor.sum(dtype=torch.int64)
    stream.close(DEADLINE_MS)
    assert int(total) == SIZE_BYTES - 100
    with torch.cuda.stream(side):
        tensor.fill_(2)
    side.synchronize()
    assert int(tensor[0]) == 2


def test_a_fence_page_is_registered_as_long_as_a_stream_uses_it() -> None:
    """Pages come and go at the same addresses; a stale registration would fail the next one."""
    for _ in range(20):
        fd = create_fence_page("fence")
        page = FencePage(fd)
        os.close(fd)
        streams = [the_device().stream("a", page.lane(0)), the_device().stream("b", page.lane(1))]
        for stream in streams:
            stream.submit(lambda: None)
        for stream in streams:
            stream.close(DEADLINE_MS)
        assert page.lane(0).values() == (1, 1, 1)
        page.close()


@pytest.mark.case("132")
def test_many_steps_reuse_their_events() -> None:
    stream = the_device().stream("steps")
    memory = new_memory(SIZE_BYTES)
    ends = [stream.record() for _ in range(1000)]
    stream.synchronize(DEADLINE_MS)
    assert all(end.reached for end in ends)
    commands = the_device().commands(memory)
    commands.write_words(offset_bytes=0, values=(1, 2))
    stream.enqueue(commands)
    stream.synchronize(DEADLINE_MS)
    assert memory.read_bytes(0, 16) == np.array([1, 2]).tobytes()
    stream.close(DEADLINE_MS)
