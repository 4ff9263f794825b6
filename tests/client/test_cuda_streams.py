"""CUDA streams and events on a fake GPU: lanes, failures, captures, staging, relayed events."""

import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvd_client.device.cuda import staging
from kvd_client.device.cuda.classic import ClassicHandle, open_classic
from kvd_client.device.cuda.device import EVENTS_READY_COUNT, CudaDevice
from kvd_client.device.cuda.relay import Acknowledged, EventExporter, EventImporter, Generation
from kvd_client.device.cuda.stream import CudaStream
from kvd_client.device.cuda.submission import HEADER_WORDS, INLINE_WORDS, ITEM_WORDS
from kvd_client.device.descriptors import create_memory
from kvd_client.device.fences import FencePage, Lane, LaneNumber, create_fence_page
from kvd_client.device.host.device import HostDevice
from kvd_client.device.port import LaneWriter
from kvd_client.errors import DeviceError, UsageError
from kvd_proto.errors import ErrorCode
from tests.client.cuda_fake import GPU, FakeDriver
from tests.client.host_parts import fail, in_fork

SIZE_BYTES = 1 << 20
DEADLINE_MS = 1_000
SHORT_MS = 2
ENTRIES_COUNT = 400
LAUNCH_WORDS = HEADER_WORDS + ITEM_WORDS + 3 + 2 * ENTRIES_COUNT
assert LAUNCH_WORDS > INLINE_WORDS


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def device(driver: FakeDriver) -> CudaDevice:
    return CudaDevice(driver)


@pytest.fixture
def page() -> Iterator[FencePage]:
    fd = create_fence_page("fence")
    page = FencePage(fd)
    os.close(fd)
    yield page
    page.close()


@pytest.fixture
def stream(device: CudaDevice, page: FencePage) -> CudaStream:
    return device.stream("a", page.lane(0))


def writing(device: CudaDevice, lane: Lane | None = None) -> "tuple[object, Callable[[], None]]":
    """Return a memory and what enqueues a submission that is no kernel argument."""
    fd = create_memory("arena", SIZE_BYTES)
    memory = device.map(fd, SIZE_BYTES)
    os.close(fd)
    stream = device.stream("staged", lane)

    def enqueue() -> None:
        commands = device.commands(memory)
        units = np.arange(ENTRIES_COUNT, dtype=np.int64)
        commands.write_int32(offset_bytes=0, entry_count=ENTRIES_COUNT, indices=units, values=units)
        stream.enqueue(commands)

    return memory, enqueue


def test_each_submission_counts_on_the_lane(
    device: CudaDevice, stream: CudaStream, page: FencePage
) -> None:
    lane = page.lane(0)
    stream.submit(lambda: None)
    assert lane.values() == (1, 1, 1)
    fd = create_memory("arena", SIZE_BYTES)
    memory = device.map(fd, SIZE_BYTES)
    os.close(fd)
    units = np.arange(2, dtype=np.int64)
    for number, name in enumerate(("zero_units", "move_units", "nothing"), start=2):
        commands = device.commands(memory)
        if name == "zero_units":
            commands.zero_units(base_bytes=0, unit_bytes=64, units=units)
        elif name == "move_units":
            commands.move_units(base_bytes=0, unit_bytes=64, sources=units, destinations=units + 2)
        stream.enqueue(commands)
        assert lane.values() == (number, number, number)


def test_a_launch_that_fails_poisons_the_stream_and_leaves_its_number_open(
    device: CudaDevice, driver: FakeDriver, page: FencePage
) -> None:
    stream = device.stream("b", page.lane(1))
    fd = create_memory("arena", SIZE_BYTES)
    commands = device.commands(device.map(fd, SIZE_BYTES))
    os.close(fd)
    commands.zero_bytes(start_bytes=0, end_bytes=8)
    driver.fails_next = "cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED"
    with pytest.raises(DeviceError, match="CUDA_ERROR_LAUNCH_FAILED"):
        stream.enqueue(commands)
    assert page.lane(1).values() == (1, 0, 0)
    with pytest.raises(DeviceError, match="work on stream 'b' failed: DeviceError: cuLaunch"):
        stream.record()
    stream.close(DEADLINE_MS)
    assert page.lane(1).quiet


def test_submitted_work_runs_at_once_with_the_stream_current(
    device: CudaDevice, driver: FakeDriver
) -> None:
    seen: list[object] = []
    device.wrap(77, "engine").submit(lambda: seen.append(driver.current_stream))
    assert seen == [77]
    assert driver.current_stream is None


def test_submitted_work_that_raises_is_raised_and_kept(stream: CudaStream) -> None:
    with pytest.raises(ZeroDivisionError):
        stream.submit(fail)
    with pytest.raises(DeviceError, match="ZeroDivisionError: planted"):
        stream.submit(lambda: None)


def test_a_capture_is_refused_before_anything_is_counted(
    device: CudaDevice, driver: FakeDriver, stream: CudaStream, page: FencePage
) -> None:
    event = stream.record()
    commands = device.commands(device.map(create_memory("arena", SIZE_BYTES), SIZE_BYTES))
    driver.capturing = True
    for call in (
        lambda: stream.enqueue(commands),
        lambda: stream.submit(lambda: None),
        stream.record,
        lambda: stream.wait(event),
        lambda: stream.wait_lane(page.lane(1), LaneNumber(0), SHORT_MS),
    ):
        with pytest.raises(DeviceError, match="'a' is being captured into a graph"):
            call()
    assert page.lane(0).values() == (0, 0, 0)
    driver.capturing = False
    stream.submit(lambda: None)


def test_only_what_was_submitted_is_waited_for_on_a_stream(
    driver: FakeDriver, stream: CudaStream, page: FencePage
) -> None:
    lane = page.lane(4)
    lane.begin()
    with pytest.raises(DeviceError, match="number 1 of lane 4 was not submitted") as late:
        stream.wait_lane(lane, LaneNumber(1), SHORT_MS)
    assert late.value.code is ErrorCode.TIMED_OUT
    assert driver.word_waits == []
    lane.mark_submitted(LaneNumber(1))
    stream.wait_lane(lane, LaneNumber(1), SHORT_MS)
    assert driver.word_waits == [1]


def test_a_fence_page_is_registered_once_and_until_its_last_stream_is_closed(
    device: CudaDevice, driver: FakeDriver, page: FencePage
) -> None:
    one, two = device.stream("a", page.lane(0)), device.stream("b", page.lane(1))
    page.lane(2).mark_submitted(LaneNumber(1))
    one.wait_lane(page.lane(2), LaneNumber(1), SHORT_MS)
    one.wait_lane(page.lane(2), LaneNumber(1), SHORT_MS)
    assert len(driver.registered) == 1
    one.close(DEADLINE_MS)
    assert len(driver.registered) == 1
    two.close(DEADLINE_MS)
    assert driver.registered == []


def test_a_stream_stores_another_lanes_number_itself(
    driver: FakeDriver, stream: CudaStream, page: FencePage
) -> None:
    assert isinstance(stream, LaneWriter)
    lane = page.lane(2)
    number = lane.begin()
    stream.write_done(lane, number)
    lane.mark_submitted(number)
    assert lane.values() == (1, 1, 1)
    stream.close(DEADLINE_MS)
    assert driver.registered == []


def test_a_read_only_fence_page_takes_no_stream(device: CudaDevice) -> None:
    fd = create_fence_page("fence")
    page = FencePage(fd, writable=False)
    os.close(fd)
    with pytest.raises(DeviceError, match="lane 0 lies in a read-only mapping"):
        device.stream("a", page.lane(0))
    page.close()


@pytest.mark.case("132")
def test_events_are_reused_and_nothing_is_allocated_later(
    device: CudaDevice, driver: FakeDriver, stream: CudaStream
) -> None:
    allocations = driver.allocation_count
    for _ in range(3 * EVENTS_READY_COUNT):
        stream.wait(stream.record())
        stream.submit(lambda: None)
    assert len(driver.events) == EVENTS_READY_COUNT
    assert driver.allocation_count == allocations


def test_a_late_event_is_an_error_with_its_time(driver: FakeDriver, stream: CudaStream) -> None:
    driver.holds_events = True
    event = stream.record()
    assert not event.reached
    with pytest.raises(DeviceError, match=f"not reached within {SHORT_MS} ms") as late:
        event.synchronize(SHORT_MS)
    assert late.value.code is ErrorCode.TIMED_OUT
    with pytest.raises(DeviceError, match="'a' did not come to its end"):
        stream.synchronize(SHORT_MS)


def test_an_event_of_another_device_is_refused(stream: CudaStream) -> None:
    other = HostDevice().stream("host")
    with pytest.raises(DeviceError, match="cannot wait for a HostEvent"):
        stream.wait(other.record())
    other.close(DEADLINE_MS)


def test_staging_memory_is_reused_only_behind_the_launch_that_read_it(
    device: CudaDevice, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PLACE_WAIT_MS", SHORT_MS)
    _, enqueue = writing(device)
    fits = staging.STAGING_BYTES // (8 * LAUNCH_WORDS)
    driver.holds_events = True
    for _ in range(fits):
        enqueue()
    with pytest.raises(DeviceError, match="staging memory is full") as full:
        enqueue()
    assert full.value.code is ErrorCode.TIMED_OUT


def test_a_lane_says_when_staging_memory_was_read(
    device: CudaDevice, driver: FakeDriver, page: FencePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PLACE_WAIT_MS", SHORT_MS)
    _, enqueue = writing(device, page.lane(0))
    fits = staging.STAGING_BYTES // (8 * LAUNCH_WORDS)
    driver.holds_events = True
    events_count = len(driver.events)

    def go_round() -> None:
        for _ in range(2 * fits):
            enqueue()

    go_round()
    assert len(driver.events) == events_count
    assert page.lane(0).values().done == 2 * fits

    driver.holds_lanes = True
    with pytest.raises(DeviceError, match="staging memory is full"):
        go_round()


def test_staging_memory_goes_round(device: CudaDevice) -> None:
    memory, enqueue = writing(device)
    for _ in range(3 * staging.STAGING_BYTES // (8 * LAUNCH_WORDS)):
        enqueue()
    assert memory is not None


def test_a_fork_is_told_so(device: CudaDevice, stream: CudaStream) -> None:
    fd = create_memory("arena", SIZE_BYTES)
    memory = device.map(fd, SIZE_BYTES)
    os.close(fd)
    event = stream.record()
    exporter = EventExporter(FakeDriver())
    for call in (
        lambda: memory.address,
        lambda: memory.read_bytes(0, 1),
        stream.record,
        lambda: stream.submit(lambda: None),
        lambda: stream.close(1),
        lambda: event.reached,
        lambda: event.synchronize(1),
        lambda: exporter.export(stream),
    ):
        assert in_fork(call) == 0


def test_a_mapping_lives_as_long_as_what_was_made_from_it(
    device: CudaDevice, driver: FakeDriver
) -> None:
    fd = create_memory("arena", SIZE_BYTES)
    memory = device.map(fd, SIZE_BYTES)
    os.close(fd)
    array = memory.device_array
    assert array.__cuda_array_interface__["data"] == (memory.address, False)
    assert array.__cuda_array_interface__["shape"] == (SIZE_BYTES,)
    memory.close()
    with pytest.raises(DeviceError, match="after it was closed"):
        memory.read_bytes(0, 1)
    assert driver.mapped
    del array
    assert not driver.mapped


@pytest.mark.case("129")
def test_a_relayed_event_is_used_again_only_when_it_was_acknowledged(
    driver: FakeDriver, stream: CudaStream
) -> None:
    exporter, importer = EventExporter(driver, slots_count=2), EventImporter(driver)
    first, second = exporter.export(stream), exporter.export(stream)
    with pytest.raises(DeviceError, match="all 2 interprocess events") as busy:
        exporter.export(stream)
    assert busy.value.code is ErrorCode.BUSY
    assert importer.reached(first)
    done = importer.wait(second, DEADLINE_MS)
    exporter.acknowledge(done)
    third = exporter.export(stream)
    assert (third.slot_index, third.generation) == (second.slot_index, 2)
    for stale in (done, Acknowledged(9, Generation(1))):
        with pytest.raises(UsageError):
            exporter.acknowledge(stale)
    with pytest.raises(UsageError, match="2 interprocess events are not acknowledged"):
        exporter.close()
    exporter.acknowledge(importer.wait(first, DEADLINE_MS))
    exporter.acknowledge(importer.wait(third, DEADLINE_MS))
    exporter.close()


def test_a_relayed_event_that_never_comes_ends_on_the_host(
    driver: FakeDriver, stream: CudaStream
) -> None:
    exporter, importer = EventExporter(driver), EventImporter(driver)
    driver.holds_events = True
    one = exporter.export(stream)
    with pytest.raises(DeviceError, match="use 1 of another process's event 0") as late:
        importer.wait(one, SHORT_MS)
    assert late.value.code is ErrorCode.TIMED_OUT
    with pytest.raises(UsageError, match="this process on another GPU"):
        importer.wait(one._replace(gpu_uuid="GPU-2"), SHORT_MS)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"gpu_uuid": "GPU-2"}, "the arena is on GPU-2"),
        ({"offset_bytes": -1}, "no arena lies at byte -1"),
        ({"offset_bytes": 8}, "start at multiples of 256"),
        ({"size_bytes": 0}, "with 0 bytes"),
    ],
)
def test_a_classic_handle_that_makes_no_sense_is_refused(
    device: CudaDevice, change: dict[str, object], problem: str
) -> None:
    handle = ClassicHandle(bytes(64), 0, SIZE_BYTES, GPU)
    with pytest.raises(DeviceError, match=problem):
        open_classic(device, handle._replace(**change))  # pyright: ignore[reportArgumentType]
