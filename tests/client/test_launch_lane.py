"""Launches are counted where their work outlives the process: begun before it, done behind it."""

from collections.abc import Iterator

import pytest

from kvd_client import Client, attach
from kvd_client.device.fences import STEP_LANE, Lane, LaneNumber
from kvd_client.device.host.stream import HostStream
from tests.client.engine_daemon import LAYERS, SIZING, EngineDaemon
from tests.client.host_parts import DEADLINE_MS, Gate


class WritingStream(HostStream):
    """A stream that stores numbers of lanes itself, as a GPU's does."""

    def write_done(self, lane: Lane, number: LaneNumber) -> None:
        self.submit(lambda: lane.mark_done(number))


@pytest.fixture
def forward() -> Iterator[WritingStream]:
    stream = WritingStream("forward")
    yield stream
    stream.close(DEADLINE_MS)


@pytest.fixture
def kv(forward: WritingStream) -> Iterator[Client]:
    daemon = EngineDaemon()
    with attach(
        "ipc:///nowhere",
        group="g",
        declare=LAYERS,
        sizing=SIZING,
        transport=daemon.transport(),
        stream=forward,
    ) as client:
        yield client


def test_a_launch_is_begun_at_once_and_done_behind_its_work(
    kv: Client, forward: WritingStream
) -> None:
    lane, gate = kv.fences.lane(STEP_LANE), Gate()
    with kv.launch() as step:
        assert lane.values() == (1, 0, 0)
        step.submit(gate)

    assert lane.values() == (1, 1, 0)
    gate.open()
    forward.synchronize(DEADLINE_MS)
    assert lane.values() == (1, 1, 1)


def test_a_launch_that_is_left_by_an_exception_ends_as_well(
    kv: Client, forward: WritingStream
) -> None:
    with pytest.raises(ZeroDivisionError), kv.launch():
        _ = 1 // 0
    forward.synchronize(DEADLINE_MS)

    assert kv.fences.lane(STEP_LANE).values() == (1, 1, 1)


def test_on_the_host_the_end_of_the_process_says_it_all() -> None:
    with EngineDaemon().attach() as client:
        with client.launch() as step:
            step.submit(lambda: None)

        assert client.fences.lane(STEP_LANE).values() == (0, 0, 0)
