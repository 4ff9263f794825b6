"""Words of memory on a GPU, compared and written by kernels in the order of a stream.

A comparison has a subject, by which whoever enqueued it knows it again: what is found wrong comes
back later, with the place in the lists that it was given.
"""

import ctypes
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from kvd.testing.cuda_painter import forward_kernels
from kvd.testing.stress.contents import Indices, Tags
from kvd_client.device.cuda.driver import Driver

FINDINGS_MAX: Final = 1024
"""So many are kept until they are taken; more are only counted."""
FINDING_WORDS: Final = 3
THREADS: Final = 128
NS_PER_US: Final = 1_000
WordFinding: TypeAlias = tuple[int, int, int]
"""A word that is not what it should be: of which comparison, its place in the lists, the word."""
SOURCE_FILE: Final = Path(__file__).with_name("words.cu")


class DeviceWords(Protocol):
    """What can be done to words of memory inside `Stream.submit`, in that stream's order."""

    def check(
        self, address: int, places: Indices, expected: Tags, *, word_bytes: int, subject: int
    ) -> None:
        """Compare words of 4 or 8 bytes, counted from an address; UNKNOWN may be anything."""
        ...

    def write(self, address: int, places: Indices, tags: Tags) -> None:
        """Write words of 8 bytes, counted from an address."""
        ...

    def fill(self, address: int, word: int, words_count: int) -> None:
        """Write the same word of 8 bytes everywhere."""
        ...

    def spend(self, delay_us: int) -> None:
        """Keep the stream busy."""
        ...

    def found_any(self) -> bool:
        """Return whether anything was found wrong so far; waits for nothing."""
        ...

    def take_findings(self) -> Sequence[WordFinding]:
        """Return what was found wrong, and forget it; everything enqueued is over."""
        ...


class CudaWords:
    """Kernels on one GPU; see `DeviceWords`, whose methods these are."""

    def __init__(self, driver: Driver) -> None:
        """Compile the kernels, and take page-locked memory for findings."""
        self._cupy: Any = import_module("cupy")
        driver.enter()
        size_bytes = 8 * (1 + FINDING_WORDS * FINDINGS_MAX)
        address = driver.allocate_host(size_bytes)
        area = (ctypes.c_uint8 * size_bytes).from_address(address)
        self._findings = np.frombuffer(memoryview(area), dtype=np.int64)
        self._findings[:] = 0
        # Page-locked memory of the host has the same address for kernels.
        self._report_to = np.uint64(address), np.int64(FINDINGS_MAX)
        source = forward_kernels(SOURCE_FILE)
        module = self._cupy.RawModule(code=source, options=("-std=c++17",))
        names = ("check_int32", "check_int64", "write_int64", "fill_int64", "spend")
        self._kernels: dict[str, Callable[..., None]] = {
            name: module.get_function(name) for name in names
        }

    def check(
        self, address: int, places: Indices, expected: Tags, *, word_bytes: int, subject: int
    ) -> None:
        """Compare words of 4 or 8 bytes, counted from an address; UNKNOWN may be anything."""
        if places.size:
            lists = self._cupy.asarray(np.stack([places, expected]))
            self._launch(
                f"check_int{8 * word_bytes}",
                places.size,
                (
                    np.uint64(address),
                    lists[0],
                    lists[1],
                    np.int64(places.size),
                    np.int64(subject),
                    *self._report_to,
                ),
            )

    def write(self, address: int, places: Indices, tags: Tags) -> None:
        """Write words of 8 bytes, counted from an address."""
        if places.size:
            lists = self._cupy.asarray(np.stack([places, tags]))
            count = np.int64(places.size)
            self._launch(
                "write_int64", places.size, (np.uint64(address), lists[0], lists[1], count)
            )

    def fill(self, address: int, word: int, words_count: int) -> None:
        """Write the same word of 8 bytes everywhere."""
        arguments = (np.uint64(address), np.int64(word), np.int64(words_count))
        self._launch("fill_int64", words_count, arguments)

    def spend(self, delay_us: int) -> None:
        """Keep the stream busy."""
        self._launch("spend", 1, (np.int64(delay_us * NS_PER_US),))

    def found_any(self) -> bool:
        """Return whether anything was found wrong so far; waits for nothing."""
        return bool(self._findings[0])

    def take_findings(self) -> Sequence[WordFinding]:
        """Return what was found wrong, and forget it; everything enqueued is over."""
        count = min(int(self._findings[0]), FINDINGS_MAX)
        records = self._findings[1:].reshape(-1, FINDING_WORDS)[:count].tolist()
        self._findings[0] = 0
        return [(subject, place, found) for subject, place, found in records]

    def _launch(self, name: str, threads_count: int, arguments: tuple[Any, ...]) -> None:
        threads = min(threads_count, THREADS)
        self._kernels[name]((-(-threads_count // threads),), (threads,), arguments)
