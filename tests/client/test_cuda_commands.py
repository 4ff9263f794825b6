"""Commands of the CUDA device against those of the host device, byte by byte."""

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvd_client.device.cuda.device import CudaDevice
from kvd_client.device.cuda.memory import CudaMemory
from kvd_client.device.cuda.stream import CudaStream
from kvd_client.device.cuda.submission import INLINE_WORDS, ORDERED_ENTRIES_MAX
from kvd_client.device.descriptors import create_memory
from kvd_client.errors import DeviceError
from tests.client.cuda_fake import FakeDriver
from tests.client.cuda_pair import (
    DEADLINE_MS,
    PROGRESS_BYTES,
    ROWS,
    SIZE_BYTES,
    TABLE_BYTES,
    UNITS_END_BYTES,
    Pair,
    add_random,
    array,
    table_write,
)


class FakePair(Pair):
    """A pair whose CUDA device is a fake, which counts launches."""

    def __init__(self, seed: int = 0) -> None:
        self.driver = FakeDriver(seed)

        def fill(memory: CudaMemory, content: bytes) -> None:
            self.driver.mapped[memory.address][:] = content

        device = CudaDevice(self.driver)
        super().__init__(device, create_memory("arena", SIZE_BYTES), fill, seed=seed)
        self.driver.launches.clear()

    def launch_count(self) -> int:
        """Run what was added; returns the number of launches."""
        self.run()
        count = len(self.driver.launches)
        self.driver.launches.clear()
        return count


@pytest.fixture
def pair() -> Iterator[FakePair]:
    made = FakePair()
    yield made
    made.stream.close(DEADLINE_MS)


@pytest.mark.parametrize("unit_bytes", [4, 12, 48, 4096, 4100, 33_000, 36_864])
def test_units_of_any_size_are_zeroed_and_moved(pair: FakePair, unit_bytes: int) -> None:
    end = UNITS_END_BYTES // unit_bytes
    pair.add("zero_units", base_bytes=0, unit_bytes=unit_bytes, units=array(0, end - 1))
    pair.add(
        "move_units",
        base_bytes=0,
        unit_bytes=unit_bytes,
        sources=array(0, 1),
        destinations=array(2, 1),
    )
    pair.run()
    pair.check()


@pytest.mark.parametrize("count", [1, ORDERED_ENTRIES_MAX, ORDERED_ENTRIES_MAX + 1, 5_000])
def test_an_entry_written_twice_keeps_the_last_value(pair: FakePair, count: int) -> None:
    random_numbers = np.random.default_rng(count)
    indices = random_numbers.integers(0, 50, count)
    pair.add("write_int32", **table_write(indices, random_numbers.integers(0, 1000, count)))
    pair.run()
    pair.check()


@pytest.mark.parametrize("count", [3, ORDERED_ENTRIES_MAX + 88])
def test_a_row_reaches_as_far_as_its_last_place(pair: FakePair, count: int) -> None:
    rows = np.arange(count, dtype=np.int64) % 7 + 1
    places = np.arange(count, dtype=np.int64) // 7
    pair.add("write_rows", table=ROWS, rows=rows, places=places, pages=rows + places)
    pair.run()
    pair.check()


def test_a_decode_step_is_one_launch_without_an_upload(pair: FakePair) -> None:
    for entry in range(4):
        pair.add("write_int32", **table_write(array(1, 2, 3 + entry), array(0, 0, entry)))
        pair.add(
            "write_rows",
            table=ROWS,
            rows=array(1, 2),
            places=array(entry, entry),
            pages=array(5, 6),
        )
        pair.add("zero_units", base_bytes=0, unit_bytes=4096, units=array(3, entry))
        pair.add("write_words", offset_bytes=PROGRESS_BYTES, values=(entry + 1, 0))
    pair.run()
    (launch,) = pair.driver.launches
    assert len(launch) <= INLINE_WORDS
    pair.check()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rows", [False, True])
def test_a_table_that_is_zeroed_first_is_written_by_a_later_launch(seed: int, rows: bool) -> None:
    pair = FakePair(seed)
    pair.add("zero_bytes", start_bytes=TABLE_BYTES, end_bytes=SIZE_BYTES)
    if rows:
        pair.add("write_rows", table=ROWS, rows=array(1), places=array(2), pages=array(3))
    else:
        pair.add("write_int32", **table_write(array(1), array(7)))
    assert pair.launch_count() == 2
    pair.check()
    pair.stream.close(DEADLINE_MS)


def test_words_behind_a_move_are_out_before_the_next_segment_begins(pair: FakePair) -> None:
    """Redoing a move whose source a later segment has zeroed would lose the page."""
    move = {"base_bytes": 0, "unit_bytes": 4096}
    pair.add("move_units", **move, sources=array(1), destinations=array(2))
    pair.launch_count()
    pair.add("zero_units", **move, units=array(4))
    pair.add("write_words", offset_bytes=PROGRESS_BYTES, values=(1, 0))
    pair.add("zero_units", **move, units=array(1))
    pair.add("write_words", offset_bytes=PROGRESS_BYTES, values=(1, 1))
    pair.add("write_words", offset_bytes=PROGRESS_BYTES, values=(2, 0))
    assert [launch.words for launch in pair.cuda.launches] == [(1, 0), (2, 0)]
    assert pair.launch_count() == 2
    pair.check()


@pytest.mark.parametrize("seed", range(40))
def test_random_commands_give_what_the_host_gives(seed: int) -> None:
    """Zeroing may hit tables and words, moves may hit anything: launches must keep the order."""
    draw, pair = random.Random(seed), FakePair(seed)
    for _ in range(draw.randrange(1, 4)):
        for _ in range(draw.randrange(1, 12)):
            add_random(pair, draw)
        pair.run()
        pair.check()
    pair.stream.close(DEADLINE_MS)


@pytest.mark.parametrize("count", [1, 240, 241, 1000])
def test_moves_of_short_and_long_lists_copy_the_same(pair: FakePair, count: int) -> None:
    places = np.random.default_rng(count).permutation(UNITS_END_BYTES // 64)
    pair.add(
        "move_units",
        base_bytes=64,
        unit_bytes=64,
        sources=places[:count],
        destinations=places[count : 2 * count],
    )
    assert pair.launch_count() == 1
    pair.check()


def test_long_lists_are_cut_into_launches_that_fit_the_staging_memory(pair: FakePair) -> None:
    count = 70_000
    units = np.arange(count, dtype=np.int64) % 1000
    pair.cuda.zero_units(base_bytes=0, unit_bytes=4, units=units)
    pair.plain.zero_units(base_bytes=0, unit_bytes=4, units=units)
    assert pair.launch_count() > 1
    pair.check()


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("zero_bytes", {"start_bytes": 0, "end_bytes": SIZE_BYTES + 1}, "not within"),
        ("zero_units", {"base_bytes": 0, "unit_bytes": 0, "units": array(1)}, "units of 0 bytes"),
        (
            "move_units",
            {
                "base_bytes": 0,
                "unit_bytes": 4,
                "sources": array(1),
                "destinations": array(1, 2),
            },
            "1 units cannot move to 2 places",
        ),
        (
            "write_int32",
            {
                "offset_bytes": SIZE_BYTES - 4,
                "entry_count": 2,
                "indices": array(0),
                "values": array(0),
            },
            "no table of 2 int32",
        ),
        ("write_int32", table_write(array(1), array()), "1 table entries cannot hold 0"),
        (
            "write_rows",
            {"table": ROWS, "rows": array(1), "places": array(), "pages": array(1)},
            "1 rows and 0 places",
        ),
        ("write_words", {"offset_bytes": 8, "values": (1, 1)}, "no pair of words"),
    ],
)
def test_what_does_not_lie_in_the_memory_is_refused_at_once(
    pair: FakePair, name: str, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DeviceError, match=problem):
        getattr(pair.cuda, name)(**arguments)


def test_a_read_only_mapping_takes_no_commands() -> None:
    device = CudaDevice(FakeDriver())
    fd = create_memory("arena", SIZE_BYTES)
    memory = device.map(fd, SIZE_BYTES, writable=False)
    os.close(fd)
    with pytest.raises(DeviceError, match="read-only"):
        device.commands(memory)


def test_commands_of_another_device_are_refused(pair: FakePair) -> None:
    assert isinstance(pair.stream, CudaStream)
    assert isinstance(pair.memory, CudaMemory)
    with pytest.raises(DeviceError, match="cannot run a HostCommands"):
        pair.stream.enqueue(pair.plain)
    with pytest.raises(DeviceError, match="cannot work on a HostMemory"):
        pair.device.commands(pair.host)
