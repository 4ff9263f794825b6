"""Page moves beside a plain copy.

They run on either device. The targets are about a GPU; the host device is there to see that the
benchmark itself works.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter_ns
from typing import Any, Final, Protocol

import numpy as np

from kvd.errors import WorkloadError
from kvd.testing.bench_figures import REPEAT_COUNT, Figure
from kvd_client.device.descriptors import create_memory
from kvd_client.device.fences import FencePage, create_fence_page
from kvd_client.device.host.device import host_device
from kvd_client.device.port import Device, IntArray, Memory, Stream

KiB: Final = 1 << 10
PAGES_BYTES: Final = (8 * KiB, 64 * KiB, 256 * KiB, 2048 * KiB)
TARGET_PAGE_BYTES_MIN: Final = 64 * KiB
COPY_SHARE_MIN: Final = 0.92
"""What moves of large pages have to reach of a copy's bandwidth."""
APPLY_US_MAX: Final = 40.0
FULL_SIZE_COUNT: Final = 256
DRAIN_STEPS: Final = 32
DEADLINE_MS: Final = 60_000
BUSY_COUNT: Final = 4
"""So often the arena is filled ahead of what is timed: several times what enqueuing takes."""
NS_PER_MS: Final = 1e6


@dataclass(frozen=True, slots=True)
class Place:
    """A device with memory on it, a stream, and a plain copy to compare with."""

    device: Device
    memory: Memory
    stream: Stream
    fences: FencePage
    copy_ms: Callable[[int], float]
    """Copies so many bytes from one half of the memory to the other; returns milliseconds."""
    timed_ms: Callable[[Callable[[], None]], float]
    """Returns how long what a call enqueues on the stream keeps the device busy."""

    def close(self) -> None:
        """Give everything back."""
        self.stream.close(DEADLINE_MS)
        self.fences.close()
        self.memory.close()


class OpenPlace(Protocol):
    """Opens a device with so much memory on it."""

    def __call__(self, size_bytes: int) -> Place:
        """Return it, with nothing in it."""
        ...


def open_host(size_bytes: int) -> Place:
    """Return memory of the host."""
    device, fences = host_device(), _new_fences()
    descriptor = create_memory("kvd-bench", size_bytes)
    memory = device.map(descriptor, size_bytes)
    os.close(descriptor)
    stream = device.stream("bench", fences.lane(0))

    def timed_ms(enqueue: Callable[[], None]) -> float:
        started_ns = perf_counter_ns()
        enqueue()
        stream.synchronize(DEADLINE_MS)
        return (perf_counter_ns() - started_ns) / NS_PER_MS

    def copy_ms(copied_bytes: int) -> float:
        everything = np.frombuffer(memory.buffer, dtype=np.uint8)
        half = len(everything) // 2

        def copy() -> None:
            everything[half : half + copied_bytes] = everything[:copied_bytes]

        return timed_ms(lambda: stream.submit(copy))

    return Place(device, memory, stream, fences, copy_ms, timed_ms)


def open_cuda(size_bytes: int) -> Place:
    """Return memory of the first GPU; raises DeviceError without one."""
    torch: Any = import_module("torch")

    from kvd_client.device.cuda.device import cuda_device

    device, fences = cuda_device(), _new_fences()
    # Loads the bindings, of which the device says in its own words that they are not there.
    from kvd_client.device.cuda.arena import create_arena

    descriptor = create_arena(device.gpu_uuid, size_bytes)
    memory = device.map(descriptor, size_bytes)
    os.close(descriptor)
    stream = device.stream("bench", fences.lane(0))
    everything = torch.as_tensor(memory.device_array)
    half = len(everything) // 2

    def timed_ms(enqueue: Callable[[], None]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        engine = torch.cuda.ExternalStream(stream.raw)
        # The device is busy until all is enqueued, so that what enqueuing costs is not measured.
        with torch.cuda.stream(engine):
            for _ in range(BUSY_COUNT):
                everything.zero_()
        start.record(engine)
        enqueue()
        end.record(engine)
        stream.synchronize(DEADLINE_MS)
        return float(start.elapsed_time(end))

    def copy_ms(copied_bytes: int) -> float:
        # Between contiguous tensors torch calls cudaMemcpyAsync, device to device.
        target, source = everything[half : half + copied_bytes], everything[:copied_bytes]

        def copy() -> None:
            target.copy_(source)

        return timed_ms(lambda: stream.submit(copy))

    return Place(device, memory, stream, fences, copy_ms, timed_ms)


PLACES: Final[dict[str, OpenPlace]] = {"host": open_host, "cuda": open_cuda}


def measure_moves(
    device_name: str,
    *,
    moved_bytes: int,
    pages_bytes: tuple[int, ...] = PAGES_BYTES,
    seed_index: int = 1,
) -> list[Figure]:
    """Return how long moves of random pages to random places take against one plain copy.

    The allocator lists what a band moves by ascending source, and so do these; what the same
    moves take in any order is a figure of its own.
    """
    if moved_bytes < max(pages_bytes):
        raise WorkloadError(f"{moved_bytes} bytes are less than a page of {max(pages_bytes)}")
    place = PLACES[device_name](4 * moved_bytes)
    try:
        place.copy_ms(moved_bytes)
        copies: list[float] = []
        moves: dict[int, list[float]] = {page_bytes: [] for page_bytes in pages_bytes}
        shuffled: dict[int, list[float]] = {page_bytes: [] for page_bytes in pages_bytes}
        drawn = np.random.default_rng(seed_index)
        # In turns, so that what slows the device down for a while slows both.
        for _ in range(REPEAT_COUNT):
            copies.append(place.copy_ms(moved_bytes))
            for page_bytes in pages_bytes:
                moves[page_bytes].append(_move_ms(place, page_bytes, moved_bytes, drawn))
                shuffled[page_bytes].append(
                    _move_ms(place, page_bytes, moved_bytes, drawn, shuffled=True)
                )
    finally:
        place.close()
    copy_ms = min(copies)
    name = f"{device_name}_copy"
    figures = [
        Figure(f"{name}", copy_ms, "ms"),
        Figure(f"{name}_bandwidth", _terabytes(moved_bytes, copy_ms), "TB/s read + write"),
    ]
    for page_bytes, times in moves.items():
        name = f"{device_name}_moves_{page_bytes // KiB}KiB"
        ratio = min(times) / copy_ms
        has_target = device_name == "cuda" and page_bytes >= TARGET_PAGE_BYTES_MIN
        figures += [
            Figure(name, min(times), "ms"),
            Figure(f"{name}_bandwidth", _terabytes(moved_bytes, min(times)), "TB/s read + write"),
            Figure(f"{name}_ratio", ratio, "x copy", 1 / COPY_SHARE_MIN if has_target else None),
            Figure(f"{name}_shuffled_ratio", min(shuffled[page_bytes]) / copy_ms, "x copy"),
        ]
    return figures


def _move_ms(
    place: Place,
    page_bytes: int,
    moved_bytes: int,
    drawn: np.random.Generator,
    *,
    shuffled: bool = False,
) -> float:
    count = moved_bytes // page_bytes
    pages: IntArray = drawn.permutation(place.memory.size_bytes // page_bytes)
    if not shuffled:
        pages[:count].sort()
    commands = place.device.commands(place.memory)
    commands.move_units(
        base_bytes=0,
        unit_bytes=page_bytes,
        sources=pages[:count],
        destinations=pages[count : 2 * count],
    )
    return place.timed_ms(lambda: place.stream.enqueue(commands))


def _terabytes(moved_bytes: int, milliseconds: float) -> float:
    return 2 * moved_bytes / milliseconds / 1e9


def _new_fences() -> FencePage:
    descriptor = create_fence_page("kvd-bench-fence")
    fences = FencePage(descriptor)
    os.close(descriptor)
    return fences
