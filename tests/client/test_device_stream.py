"""Host streams: order, events, failures, lanes."""

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from kvd_client.device.descriptors import create_memory
from kvd_client.device.fences import FencePage, create_fence_page
from kvd_client.device.host import stream as host_stream
from kvd_client.device.host.memory import HostMemory
from kvd_client.device.host.stream import HostStream
from kvd_client.errors import DeviceError
from kvd_proto.errors import ErrorCode
from tests.client.host_parts import DEADLINE_MS, Gate, fail, in_fork

SHORT_MS = 20
UNIT_BYTES = 48
UNITS_COUNT = 100
SIZE_BYTES = 8192


@pytest.fixture
def memory() -> Iterator[HostMemory]:
    fd = create_memory("arena", SIZE_BYTES)
    memory = HostMemory(fd, SIZE_BYTES, writable=True)
    os.close(fd)
    yield memory
    memory.close()


@pytest.fixture
def stream() -> Iterator[HostStream]:
    stream = HostStream("a")
    yield stream
    stream.close(DEADLINE_MS)


@pytest.fixture
def fence_page() -> Iterator[FencePage]:
    fd = create_fence_page("fence")
    page = FencePage(fd)
    os.close(fd)
    yield page
    page.close()


def test_work_runs_in_the_order_of_its_submission(stream: HostStream) -> None:
    ran: list[int] = []
    submissions = [lambda number=number: ran.append(number) for number in range(200)]

    for work in submissions:
        stream.submit(work)
    stream.synchronize(DEADLINE_MS)

    assert ran == list(range(200))


def test_submit_returns_while_earlier_work_still_runs(stream: HostStream) -> None:
    gate = Gate()
    ran: list[str] = []
    stream.submit(gate)
    assert gate.entered.wait(DEADLINE_MS / 1000)

    stream.submit(lambda: ran.append("later"))
    event = stream.record()

    assert not event.reached
    assert ran == []
    gate.open()
    stream.synchronize(DEADLINE_MS)
    assert event.reached
    assert ran == ["later"]


def test_a_stream_waits_for_the_event_of_another(stream: HostStream) -> None:
    other = HostStream("b")
    gate = Gate()
    ran: list[str] = []
    other.submit(gate)
    other.submit(lambda: ran.append("other"))
    event = other.record()

    stream.wait(event)
    stream.submit(lambda: ran.append("waiter"))
    with pytest.raises(DeviceError) as late:
        stream.synchronize(SHORT_MS)

    assert late.value.code is ErrorCode.TIMED_OUT
    assert ran == []
    gate.open()
    stream.synchronize(DEADLINE_MS)
    assert ran == ["other", "waiter"]
    other.close(DEADLINE_MS)


def test_the_host_waits_for_an_event_and_no_further(stream: HostStream) -> None:
    first, second = Gate(), Gate()
    stream.submit(first)
    event = stream.record()
    stream.submit(second)

    with pytest.raises(DeviceError) as late:
        event.synchronize(SHORT_MS)
    assert late.value.code is ErrorCode.TIMED_OUT
    first.open()
    event.synchronize(DEADLINE_MS)

    assert event.reached
    second.open()


def test_waiting_for_an_event_behind_a_failure_raises_it(stream: HostStream) -> None:
    gate = Gate()
    stream.submit(gate)
    stream.submit(fail)
    event = stream.record()
    gate.open()

    with pytest.raises(DeviceError, match="planted") as failure:
        event.synchronize(DEADLINE_MS)

    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert not event.reached


def test_a_failure_is_kept_and_stops_later_work(stream: HostStream) -> None:
    ran: list[str] = []
    gate = Gate()
    stream.submit(gate)
    stream.submit(fail)
    stream.submit(lambda: ran.append("later"))
    gate.open()

    with pytest.raises(DeviceError, match="ZeroDivisionError: planted") as failure:
        stream.synchronize(DEADLINE_MS)

    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert ran == []


CALLS: dict[str, Callable[[HostStream], object]] = {
    "submit": lambda stream: stream.submit(fail),
    "record": lambda stream: stream.record(),
    "wait": lambda stream: stream.wait(host_stream.HostEvent()),
    "synchronize": lambda stream: stream.synchronize(DEADLINE_MS),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_every_call_after_a_failure_raises_it(
    stream: HostStream, call: Callable[[HostStream], object]
) -> None:
    stream.submit(fail)
    with pytest.raises(DeviceError, match="planted"):
        stream.synchronize(DEADLINE_MS)

    with pytest.raises(DeviceError, match="stream 'a' failed: ZeroDivisionError: planted"):
        call(stream)


def test_a_failure_reaches_the_stream_that_waits_for_an_event_behind_it(
    stream: HostStream,
) -> None:
    other = HostStream("b")
    gate = Gate()
    other.submit(gate)
    other.submit(fail)
    event = other.record()
    stream.wait(event)
    gate.open()

    with pytest.raises(DeviceError, match="planted"):
        stream.synchronize(DEADLINE_MS)

    assert not event.reached
    other.close(DEADLINE_MS)


def test_an_exit_raised_by_work_is_a_failure_and_not_a_silent_end(stream: HostStream) -> None:
    stream.submit(lambda: sys.exit(3))

    with pytest.raises(DeviceError, match="SystemExit"):
        stream.synchronize(DEADLINE_MS)


def test_a_full_queue_is_an_error_that_names_the_bound(
    stream: HostStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_stream, "QUEUE_ITEMS_MAX", 2)
    gate = Gate()
    stream.submit(gate)
    assert gate.entered.wait(DEADLINE_MS / 1000)
    stream.submit(fail)
    stream.record()

    with pytest.raises(DeviceError, match="QUEUE_ITEMS_MAX = 2"):
        stream.submit(fail)
    gate.open()


def test_a_closed_stream_ran_what_was_enqueued_and_takes_nothing_more() -> None:
    stream = HostStream("closing")
    ran: list[int] = []
    stream.submit(lambda: ran.append(1))

    stream.close(DEADLINE_MS)

    assert ran == [1]
    with pytest.raises(DeviceError, match="closed"):
        stream.submit(fail)


def test_closing_a_stuck_stream_times_out() -> None:
    stream = HostStream("stuck")
    gate = Gate()
    stream.submit(gate)

    with pytest.raises(DeviceError) as late:
        stream.close(SHORT_MS)

    assert late.value.code is ErrorCode.TIMED_OUT
    gate.open()


def test_a_stream_that_nobody_refers_to_ends_its_thread() -> None:
    stream = HostStream("forgotten")
    (worker,) = [t for t in threading.enumerate() if t.name == "kvd-stream-forgotten"]

    del stream
    gc.collect()

    worker.join(DEADLINE_MS / 1000)
    assert not worker.is_alive()


def test_work_that_waits_for_its_own_stream_fails_at_once(stream: HostStream) -> None:
    stream.submit(lambda: stream.synchronize(DEADLINE_MS))

    with pytest.raises(DeviceError, match="own stream"):
        stream.synchronize(DEADLINE_MS)


def test_a_lane_counts_what_is_begun_submitted_and_done(fence_page: FencePage) -> None:
    lane = fence_page.lane(0)
    stream = HostStream("laned", lane)
    gate = Gate()
    stream.submit(gate)
    stream.submit(lambda: None)
    assert gate.entered.wait(DEADLINE_MS / 1000)
    assert lane.values() == (2, 2, 0)
    assert not lane.quiet

    gate.open()
    stream.synchronize(DEADLINE_MS)

    assert lane.values() == (2, 2, 2)
    stream.close(DEADLINE_MS)


def test_a_lane_stays_unquiet_behind_a_failure(fence_page: FencePage) -> None:
    lane = fence_page.lane(0)
    stream = HostStream("laned", lane)
    stream.submit(lambda: None)
    stream.submit(fail)
    with pytest.raises(DeviceError):
        stream.synchronize(DEADLINE_MS)

    assert lane.values() == (2, 2, 1)
    stream.close(DEADLINE_MS)


def test_numbers_follow_the_queue_when_threads_submit_together(fence_page: FencePage) -> None:
    lane = fence_page.lane(0)
    stream = HostStream("shared", lane)
    seen: list[int] = []

    def submit_many() -> None:
        for _ in range(200):
            stream.submit(lambda: seen.append(lane.values().done))

    threads = [threading.Thread(target=submit_many) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_MS / 1000)
    stream.synchronize(DEADLINE_MS)

    assert seen == list(range(600))
    stream.close(DEADLINE_MS)


def test_a_fork_cannot_use_a_stream(stream: HostStream) -> None:
    assert in_fork(lambda: stream.submit(fail)) == 0
