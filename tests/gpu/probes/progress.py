"""Whether the progress word keeps up with the moves it stands for when their process is killed.

A victim copies one region into the other and back, one more in every word, and ends each such
segment with a stream write of its number to a word in the arena and to one in the fence page.
`confirmed.Word` judges what is left after quiet.
"""

import ctypes
import os
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tests.gpu.probes import cuda
from tests.gpu.probes.confirmed import Word
from tests.gpu.probes.findings import Count, Finding, report, spread, verdict_of
from tests.gpu.probes.processes import (
    LANE_WORDS,
    WORD_BYTES,
    Arguments,
    Page,
    kill_and_watch,
    pause,
    start_role,
    wait_ready,
)

WORKERS_COUNT: Final = 6
KILLING_S: Final = 50.0
SEED: Final = 20_261
REGION_BYTES_MAX: Final = 16 << 20
ARENA_BYTES: Final = 2 * REGION_BYTES_MAX + (2 << 20)
PROGRESS_OFFSET_BYTES: Final = 2 * REGION_BYTES_MAX
READY: Final = 0
PAGE_WORD: Final = LANE_WORDS
KILL_AFTER_S_MAX: Final = 0.05
RULE: Final = (
    "segments: a redo starts at the first segment the progress word does not confirm; redoing one"
    " is harmless"
)


def victim(arguments: Arguments) -> None:
    """Copy and confirm until killed."""
    cuda.open_gpu(arguments["gpu"])
    kernels = cuda.Kernels(arguments["kernels"])
    arena = cuda.map_arena(cuda.import_arena(arguments["arena"]), ARENA_BYTES, arguments["gpu"])
    page = Page(arguments["page"])
    page_word = cuda.register(page) + PAGE_WORD * WORD_BYTES
    stream = cuda.new_stream()
    words_count: int = arguments["words"]
    segment = 0
    while True:
        segment += 1
        target = arena + segment % 2 * REGION_BYTES_MAX
        source = arena + (segment + 1) % 2 * REGION_BYTES_MAX
        kernels.copy_next(stream, target, source, words_count)
        cuda.write_word(stream, arena + PROGRESS_OFFSET_BYTES, segment)
        cuda.write_word(stream, page_word, segment)
        if segment == 1:
            page[READY] = 1
        while segment - page[PAGE_WORD] >= arguments["depth"]:
            os.sched_yield()


@dataclass
class Tally:
    """What all workers saw; the lock is theirs."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    arena: Word = field(default_factory=Word)
    page: Word = field(default_factory=Word)
    kills: int = 0
    segments: int = 0
    half_written: int = 0
    wrote_after_pidfd: int = 0
    page_past_arena: int = 0
    never_over: int = 0
    pidfd_ms: list[float] = field(default_factory=list[float])
    errors: list[str] = field(default_factory=list[str])


class Worker:
    """Starts, kills and examines one victim after the other in an arena of its own."""

    def __init__(self, gpu: int, kernels: int, seed: int, tally: Tally) -> None:
        self._gpu, self._kernels, self._tally = gpu, kernels, tally
        self._random = random.Random(seed)
        self._descriptor, handle = cuda.create_arena(gpu, ARENA_BYTES)
        self._arena = cuda.map_arena(handle, ARENA_BYTES, gpu)

    def run(self, end: float) -> None:
        """Kill until the monotonic clock reaches ``end``; what goes wrong ends this worker only."""
        try:
            cuda.open_gpu(self._gpu)
            while time.monotonic() < end:
                self._kill_one()
        except (RuntimeError, TimeoutError, OSError) as error:
            with self._tally.lock:
                self._tally.errors.append(str(error))

    def _kill_one(self) -> None:
        cuda.checked(cuda.driver.cuMemsetD8(self._arena, 0, ARENA_BYTES))
        cuda.checked(cuda.driver.cuCtxSynchronize())
        page = Page()
        words_count = self._random.choice((1 << 12, 1 << 16, 1 << 19, REGION_BYTES_MAX // 8))
        arguments = {
            "gpu": self._gpu,
            "kernels": self._kernels,
            "arena": self._descriptor,
            "page": page.descriptor,
            "words": words_count,
            "depth": self._random.choice((1, 4, 64)),
        }
        inherited = (self._kernels, self._descriptor, page.descriptor)
        process = start_role("progress:victim", arguments, inherited)
        try:
            wait_ready(process, page, READY)
            pause(self._random.uniform(0, KILL_AFTER_S_MAX))
            death = kill_and_watch(process.pid, page, (PAGE_WORD,), settle_s=0.02, limit_s=10)
        finally:
            process.kill()
            process.wait()
            os.close(page.descriptor)
        progress = int(self._read(PROGRESS_OFFSET_BYTES, 1)[0])
        regions = [self._read(index * REGION_BYTES_MAX, words_count) for index in (0, 1)]
        with self._tally.lock:
            tally = self._tally
            tally.kills += 1
            tally.never_over += death.pidfd_ms is None
            tally.segments += progress
            tally.wrote_after_pidfd += death.wrote_after_pidfd
            tally.page_past_arena += death.at_end[0] > progress
            tally.half_written += any(int(part.min()) != int(part.max()) for part in regions)
            tally.arena.judge(progress, regions)
            tally.page.judge(death.at_end[0], regions)
            if death.pidfd_ms is not None:
                tally.pidfd_ms.append(death.pidfd_ms)

    def _read(self, offset_bytes: int, words_count: int) -> Any:
        host = np.empty(words_count, np.uint64)
        target = host.ctypes.data_as(ctypes.c_void_p).value
        size_bytes = words_count * WORD_BYTES
        cuda.checked(cuda.driver.cuMemcpyDtoH(target, self._arena + offset_bytes, size_bytes))
        return host


def run(gpu: int) -> None:
    """Kill victims for `KILLING_S` seconds and report on either progress word."""
    kernels = cuda.share_kernels(gpu)
    cuda.open_gpu(gpu)
    tally = Tally()
    workers = [Worker(gpu, kernels, SEED + index, tally) for index in range(WORKERS_COUNT)]
    end = time.monotonic() + KILLING_S
    threads = [threading.Thread(target=worker.run, args=(end,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, word in (("the arena", tally.arena), ("the fence page", tally.page)):
        _report_word(place, word, tally)
    counts: dict[str, Count] = {
        "kills": tally.kills,
        "seed": SEED,
        "segments_confirmed": tally.segments,
        "regions_half_written": tally.half_written,
        "page_past_arena": tally.page_past_arena,
        "wrote_after_pidfd": tally.wrote_after_pidfd,
        "pidfd_not_readable_in_10_s": tally.never_over,
        **spread("pidfd", tally.pidfd_ms),
    }
    seen_all = tally.kills > 0 and tally.never_over == 0
    report(
        Finding(
            probe="progress",
            seen=f"{tally.wrote_after_pidfd} of {tally.kills} victims, which had no children, wrote"
            f" after their pidfd was readable; the page's word was past the arena's, which is"
            f" written first, {tally.page_past_arena} times",
            counts=counts,
            rule="quiet: pidfds of all processes that can hold the context",
            verdict=verdict_of(seen_all, tally.wrote_after_pidfd == 0),
        )
    )
    if tally.errors:
        raise RuntimeError(f"{len(tally.errors)} workers stopped early: " + "; ".join(tally.errors))


def _report_word(place: str, word: Word, tally: Tally) -> None:
    report(
        Finding(
            probe="progress",
            seen=f"the word in {place} was ahead of the data after {word.ahead} of {tally.kills}"
            f" kills and lagged by more than the running segment after {word.behind_by_more}",
            counts={
                "exact": word.exact,
                "behind_by_one": word.behind_by_one,
                "behind_by_more": word.behind_by_more,
                "ahead": word.ahead,
            },
            rule=RULE,
            verdict=verdict_of(tally.kills > 0, not (word.ahead or word.behind_by_more)),
        )
    )
