"""The fence page: lanes, quiet, completing the lanes of the dead."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from kvd_client.device.descriptors import create_memory
from kvd_client.device.fences import (
    LANE_BYTES,
    LANES_COUNT,
    PAGE_BYTES,
    FencePage,
    Lane,
    LaneNumber,
    create_fence_page,
    passed,
)
from kvd_client.errors import DeviceError
from tests.client.host_parts import in_fork

DEADLINE_S = 30

BEGIN_TWICE_AND_END = """
import sys
from kvd_client.device.fences import FencePage
lane = FencePage(int(sys.argv[1])).lane(3)
lane.mark_submitted(lane.begin())
lane.mark_done(lane.begin() - 1)
"""


@pytest.fixture
def page_fd() -> Iterator[int]:
    fd = create_fence_page("fence")
    yield fd
    os.close(fd)


@pytest.fixture
def page(page_fd: int) -> Iterator[FencePage]:
    page = FencePage(page_fd)
    yield page
    page.close()


def test_a_fresh_page_is_quiet_and_zero(page: FencePage) -> None:
    assert page.quiet
    assert page.read_lanes() == ((0, 0, 0),) * LANES_COUNT


def test_numbers_of_a_lane_start_at_one_and_grow(page: FencePage) -> None:
    lane = page.lane(0)

    assert [lane.begin(), lane.begin(), lane.begin()] == [1, 2, 3]


def test_a_lane_is_quiet_when_all_that_was_begun_is_done(page: FencePage) -> None:
    lane = page.lane(1)
    first = lane.begin()
    second = lane.begin()
    lane.mark_submitted(second)
    lane.mark_done(first)
    assert not lane.quiet
    assert not page.quiet

    lane.mark_done(second)

    assert lane.quiet
    assert lane.values() == (2, 2, 2)


@pytest.mark.case("131")
def test_words_lie_where_other_processes_expect_them(page: FencePage, page_fd: int) -> None:
    lane = page.lane(2)
    number = lane.begin()
    lane.mark_submitted(number)
    lane.begin()
    lane.mark_done(number)

    words = os.pread(page_fd, 24, 2 * LANE_BYTES)

    assert words == b"".join(word.to_bytes(8, "little") for word in (2, 1, 1))
    assert os.fstat(page_fd).st_size == PAGE_BYTES == 4096


def test_lanes_of_a_process_that_ended_are_read_and_completed(
    page: FencePage, page_fd: int
) -> None:
    subprocess.run(
        [sys.executable, "-c", BEGIN_TWICE_AND_END, str(page_fd)],
        pass_fds=[page_fd],
        timeout=DEADLINE_S,
        check=True,
    )
    assert page.lane(3).values() == (2, 1, 1)
    assert not page.quiet

    before = page.complete()

    assert before[3] == (2, 1, 1)
    assert page.lane(3).values() == (2, 2, 2)
    assert page.quiet


def test_a_read_only_page_can_be_read_but_not_written(page: FencePage, page_fd: int) -> None:
    watched = FencePage(page_fd, writable=False)
    page.lane(0).begin()

    assert watched.lane(0).values().begun == 1
    with pytest.raises(TypeError, match="read-only"):
        watched.lane(0).begin()
    watched.close()


@pytest.mark.parametrize("lane_index", [-1, LANES_COUNT])
def test_a_lane_that_does_not_exist_is_an_error(page: FencePage, lane_index: int) -> None:
    with pytest.raises(DeviceError, match=str(lane_index)):
        page.lane(lane_index)


def test_memory_too_small_for_a_page_is_an_error_with_its_size() -> None:
    fd = create_memory("small", 128)
    with pytest.raises(DeviceError, match="128"):
        FencePage(fd)
    os.close(fd)


@pytest.mark.parametrize(
    ("current", "wanted", "answer"),
    [(5, 5, True), (6, 5, True), (4, 5, False), (3, (1 << 64) - 2, True), (0, 1 << 62, False)],
)
def test_numbers_compare_cyclically(current: int, wanted: int, answer: bool) -> None:
    assert passed(LaneNumber(current), LaneNumber(wanted)) is answer


USES: dict[str, Callable[[FencePage, Lane], object]] = {
    "lane": lambda page, _: page.lane(1),
    "begin": lambda _, lane: lane.begin(),
    "complete": lambda _, lane: lane.complete(),
    "complete_all": lambda page, _: page.complete(),
}


@pytest.mark.parametrize("use", USES)
def test_a_fork_counts_nothing_and_completes_nothing(page: FencePage, use: str) -> None:
    lane = page.lane(0)
    lane.begin()

    assert in_fork(lambda: USES[use](page, lane)) == 0

    assert lane.values() == (1, 0, 0)
