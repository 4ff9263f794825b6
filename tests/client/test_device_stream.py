"""Host streams: what they do beyond the port."""

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from kvd_client.device.fences import FencePage, create_fence_page
from kvd_client.device.host import stream as host_stream
from kvd_client.device.host.stream import HostStream
from kvd_client.errors import DeviceError
from tests.client.host_parts import DEADLINE_MS, Gate, fail, in_fork


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


def test_a_stream_that_nobody_refers_to_ends_its_thread() -> None:
    stream = HostStream("forgotten")
    (worker,) = [t for t in threading.enumerate() if t.name == "kvd-stream-forgotten"]

    del stream
    gc.collect()

    worker.join(DEADLINE_MS / 1000)
    assert not worker.is_alive()


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
