"""Quiet: what proves that nobody touches a dead rank's memory, and what does not."""

import os
from collections.abc import Iterator

import pytest

from kvd.serve.quiet import judge
from kvd_client.device.fences import STEP_LANE, FencePage, create_fence_page
from tests.unit.serve_parts import FakeDriver, FakeProcess

LIVES = FakeProcess()
LEFT = FakeProcess(let_go=True)
DIED = FakeProcess(process_ended=True)
PARTED = FakeProcess(let_go=True, parted=True)
DIED_IN_ORDER = FakeProcess(process_ended=True, let_go=True)


@pytest.fixture
def page() -> Iterator[FencePage]:
    fd = create_fence_page("fence")
    page = FencePage(fd)
    os.close(fd)
    yield page
    page.close()


def count_launch(page: FencePage, *, done: bool) -> None:
    lane = page.lane(STEP_LANE)
    number = lane.begin()
    if done:
        lane.mark_done(number)


@pytest.mark.parametrize(
    ("processes", "busy", "quiet"),
    [
        ([LIVES], False, False),
        ([LIVES], True, False),
        ([LEFT], False, True),
        ([LEFT], True, False),
        ([DIED], False, True),
        ([DIED], True, True),
        ([DIED_IN_ORDER], True, True),
        ([DIED, LIVES], False, False),
        ([DIED, LEFT], False, True),
        ([DIED, LEFT], True, False),
        ([LEFT, LIVES], False, False),
        ([DIED, DIED], True, True),
        ([DIED, PARTED], True, True),
        ([LIVES, PARTED], False, False),
        ([PARTED], False, True),
        ([PARTED, LEFT], True, False),
    ],
)
def test_on_the_host_a_process_takes_its_streams_along(
    page: FencePage, processes: list[FakeProcess], busy: bool, quiet: bool
) -> None:
    if busy:
        page.lane(3).begin()

    assert judge(page, processes, None).quiet is quiet


@pytest.mark.parametrize(
    ("processes", "launch", "listed", "quiet"),
    [
        # The driver's word, whatever the lanes say.
        ([DIED], None, [], True),
        ([DIED], False, [], True),
        # The end of a process alone is no proof.
        ([DIED], None, [7], False),
        ([DIED], False, [7], False),
        # Lanes that were counted are.
        ([DIED], True, [7], True),
        # While one lives and keeps its mapping, nothing is.
        ([DIED, LIVES], True, [], False),
        ([LIVES], True, [], False),
        # One that hung up may be dying: its end is not known yet.
        ([LEFT], None, [], False),
        ([LEFT], False, [], False),
        ([LEFT], True, [7], True),
        ([DIED, LEFT], None, [], False),
        ([DIED, LEFT], True, [7], True),
        ([DIED, LEFT], False, [], False),
        # One that took its leave waited for its streams itself.
        ([PARTED], None, [7], True),
        ([DIED, PARTED], None, [], True),
        ([DIED, PARTED], None, [7], False),
    ],
)
def test_on_a_gpu_the_driver_or_the_lanes_have_to_agree(
    page: FencePage,
    processes: list[FakeProcess],
    launch: bool | None,
    listed: list[int],
    quiet: bool,
) -> None:
    if launch is not None:
        count_launch(page, done=launch)

    assert judge(page, processes, FakeDriver(listed)).quiet is quiet


def test_a_driver_that_cannot_be_asked_proves_nothing(page: FencePage) -> None:
    verdict = judge(page, [DIED], FakeDriver(reachable=False))

    assert verdict == (
        False,
        "its launches were not counted in its lanes; the driver cannot be asked",
    )


def test_what_stands_in_the_way_is_named(page: FencePage) -> None:
    page.lane(0).mark_done(page.lane(0).begin())
    page.lane(0).begin()
    page.lane(0).begin()

    assert judge(page, [LEFT], None).text == "lane 0 began 3 and did 1"
    assert judge(page, [FakeProcess(pid=12), LEFT], None).text == (
        "process 12 lives and keeps its mapping"
    )
    assert judge(page, [DIED], FakeDriver([7])).text == (
        "lane 0 began 3 and did 1; the driver lists [7]"
    )
