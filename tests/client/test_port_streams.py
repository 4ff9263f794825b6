"""The port's streams on every device that a test can have: order, events, failures, lanes."""

import os
import sys
from collections.abc import Callable, Iterator

import pytest

from kvd_client.device.fences import FencePage, create_fence_page
from kvd_client.device.port import Event, Stream
from kvd_client.errors import DeviceError
from kvd_proto.errors import ErrorCode
from tests.client.device_benches import BENCHES, Bench
from tests.client.host_parts import DEADLINE_MS, fail

SHORT_MS = 20


@pytest.fixture(params=list(BENCHES))
def bench(request: pytest.FixtureRequest) -> Bench:
    return BENCHES[request.param]()


@pytest.fixture
def stream(bench: Bench) -> Iterator[Stream]:
    stream = bench.device.stream("a")
    yield stream
    stream.close(DEADLINE_MS)


@pytest.fixture
def fence_page() -> Iterator[FencePage]:
    fd = create_fence_page("fence")
    page = FencePage(fd)
    os.close(fd)
    yield page
    page.close()


def test_work_runs_in_the_order_of_its_submission(stream: Stream) -> None:
    ran: list[int] = []
    submissions = [lambda number=number: ran.append(number) for number in range(200)]

    for work in submissions:
        stream.submit(work)
    stream.synchronize(DEADLINE_MS)

    assert ran == list(range(200))


def test_submit_returns_while_earlier_work_still_runs(bench: Bench, stream: Stream) -> None:
    ran: list[str] = []
    open_gate = bench.occupy(stream)

    stream.submit(lambda: ran.append("later"))
    event = stream.record()

    assert not event.reached
    assert ran == []
    open_gate()
    stream.synchronize(DEADLINE_MS)
    assert event.reached
    assert ran == ["later"]


def test_a_stream_waits_for_the_event_of_another(bench: Bench, stream: Stream) -> None:
    other = bench.device.stream("b")
    ran: list[str] = []
    open_gate = bench.occupy(other)
    other.submit(lambda: ran.append("other"))
    event = other.record()

    stream.wait(event)
    stream.submit(lambda: ran.append("waiter"))
    with pytest.raises(DeviceError) as late:
        stream.synchronize(SHORT_MS)

    assert late.value.code is ErrorCode.TIMED_OUT
    assert ran == []
    open_gate()
    stream.synchronize(DEADLINE_MS)
    assert ran == ["other", "waiter"]
    other.close(DEADLINE_MS)


def test_the_host_waits_for_an_event_and_no_further(bench: Bench, stream: Stream) -> None:
    open_first = bench.occupy(stream)
    event = stream.record()
    open_second = bench.occupy(stream)

    with pytest.raises(DeviceError) as late:
        event.synchronize(SHORT_MS)
    assert late.value.code is ErrorCode.TIMED_OUT
    open_first()
    event.synchronize(DEADLINE_MS)

    assert event.reached
    open_second()


def test_waiting_for_an_event_behind_a_failure_raises_it(bench: Bench, stream: Stream) -> None:
    open_gate = bench.occupy(stream)
    stream.submit(fail)
    event = stream.record()
    open_gate()

    with pytest.raises(DeviceError, match="planted") as failure:
        event.synchronize(DEADLINE_MS)

    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert not event.reached


def test_a_failure_is_kept_and_stops_later_work(bench: Bench, stream: Stream) -> None:
    ran: list[str] = []
    open_gate = bench.occupy(stream)
    stream.submit(fail)
    stream.submit(lambda: ran.append("later"))
    open_gate()

    with pytest.raises(DeviceError, match="ZeroDivisionError: planted") as failure:
        stream.synchronize(DEADLINE_MS)

    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert ran == []


CALLS: dict[str, Callable[[Stream, Event], object]] = {
    "submit": lambda stream, event: stream.submit(fail),
    "record": lambda stream, event: stream.record(),
    "wait": lambda stream, event: stream.wait(event),
    "synchronize": lambda stream, event: stream.synchronize(DEADLINE_MS),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_every_call_after_a_failure_raises_it(
    bench: Bench, stream: Stream, call: Callable[[Stream, Event], object]
) -> None:
    other = bench.device.stream("b")
    event = other.record()
    stream.submit(fail)
    with pytest.raises(DeviceError, match="planted"):
        stream.synchronize(DEADLINE_MS)

    with pytest.raises(DeviceError, match="stream 'a' failed: ZeroDivisionError: planted"):
        call(stream, event)
    other.close(DEADLINE_MS)


def test_a_failure_reaches_the_stream_that_waits_for_an_event_behind_it(
    bench: Bench,
    stream: Stream,
) -> None:
    other = bench.device.stream("b")
    open_gate = bench.occupy(other)
    other.submit(fail)
    event = other.record()
    stream.wait(event)
    open_gate()

    with pytest.raises(DeviceError, match="planted"):
        stream.synchronize(DEADLINE_MS)

    assert not event.reached
    other.close(DEADLINE_MS)


def test_an_exit_raised_by_work_is_a_failure_and_not_a_silent_end(stream: Stream) -> None:
    stream.submit(lambda: sys.exit(3))

    with pytest.raises(DeviceError, match="SystemExit"):
        stream.synchronize(DEADLINE_MS)


def test_a_closed_stream_ran_what_was_enqueued_and_takes_nothing_more(bench: Bench) -> None:
    stream = bench.device.stream("closing")
    ran: list[int] = []
    stream.submit(lambda: ran.append(1))

    stream.close(DEADLINE_MS)

    assert ran == [1]
    with pytest.raises(DeviceError, match="closed"):
        stream.submit(fail)


def test_closing_a_stuck_stream_times_out(bench: Bench) -> None:
    stream = bench.device.stream("stuck")
    open_gate = bench.occupy(stream)

    with pytest.raises(DeviceError) as late:
        stream.close(SHORT_MS)

    assert late.value.code is ErrorCode.TIMED_OUT
    open_gate()


def test_work_that_waits_for_its_own_stream_fails_at_once(stream: Stream) -> None:
    stream.submit(lambda: stream.synchronize(DEADLINE_MS))

    with pytest.raises(DeviceError, match="own stream"):
        stream.synchronize(DEADLINE_MS)


def test_a_lane_counts_what_is_begun_submitted_and_done(
    bench: Bench, fence_page: FencePage
) -> None:
    lane = fence_page.lane(0)
    stream = bench.device.stream("laned", lane)
    open_gate = bench.occupy(stream)
    stream.submit(lambda: None)
    assert lane.values() == (2, 2, 0)
    assert not lane.quiet

    open_gate()
    stream.synchronize(DEADLINE_MS)

    assert lane.values() == (2, 2, 2)
    stream.close(DEADLINE_MS)


def test_a_lane_stays_unquiet_behind_a_failure(bench: Bench, fence_page: FencePage) -> None:
    lane = fence_page.lane(0)
    stream = bench.device.stream("laned", lane)
    stream.submit(lambda: None)
    stream.submit(fail)
    with pytest.raises(DeviceError):
        stream.synchronize(DEADLINE_MS)

    assert lane.values() == (2, 2, 1)
    stream.close(DEADLINE_MS)
