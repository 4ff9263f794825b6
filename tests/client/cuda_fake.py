"""A GPU made of host memory: the driver's seam, with a kernel written in numpy.

It reads submissions as `kernels.cu` does. What a launch leaves unordered it carries out in an order
drawn from a seed, so that a launch that holds what does not commute shows.
"""

import ctypes
import mmap
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kvd_client.device.cuda.submission import (
    ENTRIES,
    ENTRIES_PER_TILE,
    HEADER_WORDS,
    INLINE_WORDS,
    ITEM_WORDS,
    MOVE,
    MOVE_WORDS,
    ORDERED_ENTRIES_MAX,
    ZERO,
)
from kvd_client.errors import DeviceError

Words = npt.NDArray[np.int64]
GPU = "GPU-00000000-0000-0000-0000-000000000001"
GRAIN_BYTES = 4096


def view(address: int, size_bytes: int) -> npt.NDArray[np.uint8]:
    area = (ctypes.c_uint8 * size_bytes).from_address(address)
    return np.frombuffer(memoryview(area), dtype=np.uint8)


class FakeEvent:
    """Reached when it is recorded, unless its driver holds events back."""

    def __init__(self) -> None:
        self.recorded = False
        self.held = False


class FakeDriver:
    """Everything runs when it is enqueued; counts what the tests ask about."""

    gpu_uuid = GPU
    multiprocessor_count = 2
    granularity_bytes = GRAIN_BYTES

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.capturing = False
        self.holds_events = False
        self.holds_lanes = False
        self.events: list[FakeEvent] = []
        self.launches: list[Words] = []
        self.allocation_count = 0
        self.mapped: dict[int, mmap.mmap] = {}
        self.registered: list[int] = []
        self.memory: dict[int, Any] = {}
        self.word_writes: list[tuple[int, int]] = []
        self.word_waits: list[int] = []
        self.current_stream: Any = None
        self.fails_next = ""

    def enter(self) -> None:
        pass

    def import_memory(self, descriptor: int, size_bytes: int, *, writable: bool) -> int:
        mapping = mmap.mmap(descriptor, size_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        self.mapped[address] = mapping
        return address

    def unmap_memory(self, address: int, size_bytes: int) -> None:
        assert len(self.mapped.pop(address)) == size_bytes

    def allocate(self, size_bytes: int) -> int:
        self.allocation_count += 1
        area = (ctypes.c_uint8 * size_bytes)()
        address = ctypes.addressof(area)
        self.memory[address] = area
        return address

    def free(self, address: int) -> None:
        del self.memory[address]

    def allocate_host(self, size_bytes: int) -> int:
        return self.allocate(size_bytes)

    def free_host(self, host_address: int) -> None:
        self.free(host_address)

    def register(self, host_address: int, size_bytes: int) -> int:
        assert host_address not in self.registered
        self.registered.append(host_address)
        return host_address

    def unregister(self, host_address: int) -> None:
        self.registered.remove(host_address)

    def read(self, address: int, size_bytes: int) -> bytes:
        return view(address, size_bytes).tobytes()

    def new_stream(self) -> int:
        return 1

    def known_stream(self, raw: int) -> int:
        return raw

    def raw_stream(self, stream: int) -> int:
        return stream

    @contextmanager
    def current(self, stream: int) -> Generator[None]:
        before, self.current_stream = self.current_stream, stream
        yield
        self.current_stream = before

    def end_stream(self, stream: int) -> None:
        pass

    def capture_check(self, stream: int) -> Callable[[], bool]:
        return lambda: self.capturing

    def new_event(self) -> FakeEvent:
        self.events.append(FakeEvent())
        return self.events[-1]

    def end_event(self, event: FakeEvent) -> None:
        self.events.remove(event)

    def record(self, event: FakeEvent, stream: int) -> None:
        event.recorded = True
        event.held = self.holds_events

    def is_reached(self, event: FakeEvent) -> bool:
        return event.recorded and not event.held

    def wait_event(self, stream: int, event: FakeEvent) -> None:
        assert event.recorded

    def write_word(self, stream: int, address: int, value: int) -> None:
        self.word_writes.append((address, value))
        view(address, 8).view(np.uint64)[0] = value

    def wait_word(self, stream: int, address: int, value: int) -> None:
        self.word_waits.append(value)

    def upload(self, stream: int, address: int, host_address: int, size_bytes: int) -> None:
        view(address, size_bytes)[:] = view(host_address, size_bytes)

    def launcher(
        self, stream: int, *, moves: bool, inline: bool, arguments_address: int
    ) -> Callable[[int], None]:
        return partial(self.launch, moves, inline, arguments_address)

    def launch(self, moves: bool, inline: bool, arguments_address: int, block_count: int) -> None:
        if self.fails_next:
            message, self.fails_next = self.fails_next, ""
            raise DeviceError(message)
        (argument,) = view(arguments_address, 8).view(np.uint64).tolist()
        if moves and not inline:
            self._run_long_move(view(argument, 8 * MOVE_WORDS).view(np.int64))
            return
        address = argument if inline else int(view(argument, 8).view(np.uint64)[0])
        header = view(address, 8 * HEADER_WORDS).view(np.int64)
        items, lists = int(header[0] + header[1]), int(header[9])
        size = HEADER_WORDS + lists + 1
        size += ITEM_WORDS * items + int(view(address + 8 * (size - 1), 8).view(np.int64)[0])
        assert not inline or size <= INLINE_WORDS
        words = view(address, 8 * size).view(np.int64).copy()
        self.launches.append(words)
        assert block_count >= 1
        kinds = words[HEADER_WORDS + lists + 1 :][: ITEM_WORDS * items : ITEM_WORDS] & 255
        assert moves == (MOVE in kinds.tolist())
        assert not moves or (items == 1 and lists == 2 and not words[3] and not words[7])
        assert not (words[0] and words[2]) or block_count >= 2, "block 0 leaves tiles to others"
        if self.holds_lanes:
            words[7] = 0
        run(words, self.random)

    def _run_long_move(self, argument: Words) -> None:
        header = np.zeros(HEADER_WORDS, dtype=np.int64)
        tiles, count, address = argument[ITEM_WORDS:].tolist()
        header[[1, 2, 9]] = 1, tiles, 2
        starts = np.array([0, count, 2 * count], dtype=np.int64)
        lists = view(address, 16 * count).view(np.int64)
        words = np.concatenate([header, starts, argument[:ITEM_WORDS], lists])
        self.launches.append(words)
        run(words, self.random)

    def new_shared_event(self) -> tuple[FakeEvent, bytes]:
        return self.new_event(), len(self.events).to_bytes(64, "little")

    def open_shared_event(self, shared: bytes) -> FakeEvent:
        return self.events[int.from_bytes(shared, "little") - 1]

    def share_classic(self, address: int) -> bytes:
        return address.to_bytes(64, "little")

    def open_classic(self, shared: bytes) -> int:
        return int.from_bytes(shared, "little")

    def close_classic(self, address: int) -> None:
        pass


def run(words: Words, order: random.Random) -> None:
    """Carry a submission out; the pair of words at its end comes last."""
    ordered_count, spread_count, tiles_count = words[:3].tolist()
    starts = words[HEADER_WORDS:][: int(words[9]) + 1].tolist()
    behind = words[HEADER_WORDS + len(starts) :]
    items = behind[: ITEM_WORDS * (ordered_count + spread_count)]
    rows = items.reshape(-1, ITEM_WORDS).tolist()
    numbers = behind[len(items) :].tolist()
    lists = [numbers[start:end] for start, end in pairwise(starts)]
    pieces: list[Any] = [lambda: [run_ordered(lists, row) for row in rows[:ordered_count]]]
    begin = 0
    for row in rows[ordered_count:]:
        count = len(lists[row[1]])
        tiles = -(-count // ENTRIES_PER_TILE) if row[0] == ENTRIES else count * row[7]
        pieces += [partial(run_tile, lists, row, tile) for tile in range(tiles)]
        begin += tiles
    assert begin == tiles_count
    order.shuffle(pieces)
    for piece in pieces:
        piece()
    if words[3]:
        view(int(words[3]), 16).view(np.int64)[:] = words[4:6]
    if words[7]:
        view(int(words[7]), 8).view(np.int64)[0] = words[8]


def run_ordered(lists: list[list[int]], row: list[int]) -> None:
    kind, first, second, third, address, row_pages, lengths_address, page_tokens = row
    count = len(lists[first])
    assert count <= ORDERED_ENTRIES_MAX
    if kind == ENTRIES:
        values = [0] * count if second < 0 else lists[second]
        for index, value in zip(lists[first], values, strict=True):
            set_int32(address, index * row_pages, value)
        return
    for table_row, place, page in zip(lists[first], lists[second], lists[third], strict=True):
        set_int32(address, table_row * row_pages + place, page)
        set_int32(lengths_address, table_row, (place + 1) * page_tokens)


def run_tile(lists: list[list[int]], row: list[int], tile: int) -> None:
    kind, first, second, _, address, unit_bytes, tile_bytes, unit_tiles = row
    if kind == ENTRIES:
        some = slice(tile * ENTRIES_PER_TILE, (tile + 1) * ENTRIES_PER_TILE)
        for index, value in zip(lists[first][some], lists[second][some], strict=True):
            set_int32(address, index, value)
        return
    unit, part = divmod(tile, unit_tiles)
    offset = part * tile_bytes
    size = min(tile_bytes, unit_bytes - offset)
    width = kind >> 8
    assert size > 0
    assert not (address | offset | size | unit_bytes) % width
    source = view(address + lists[first][unit] * unit_bytes + offset, size)
    if kind & 255 == ZERO:
        source[:] = 0
    else:
        view(address + lists[second][unit] * unit_bytes + offset, size)[:] = source


def set_int32(address: int, place: int, value: int) -> None:
    view(address + 4 * place, 4).view(np.int32)[0] = value
