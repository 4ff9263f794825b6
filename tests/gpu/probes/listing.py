"""Whether the driver's process list (NVML) knows when the last user of a context is gone."""

import contextlib
import importlib
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from tests.gpu.probes import cuda
from tests.gpu.probes.findings import Count, Finding, Verdict, report, spread
from tests.gpu.probes.processes import (
    LANE_WORDS,
    WORD_BYTES,
    Arguments,
    Death,
    Page,
    kill_and_watch,
    pause,
    start_role,
    wait_ready,
    wait_until,
)

READY: Final = 0
CHILD_PID: Final = 1
KERNEL_WORD: Final = LANE_WORDS
PAUSE_CLOCKS: Final = 20_000
KERNEL_STEPS: Final = 1_000_000
"""About 12 s: the kernel ends by itself if nothing else ends it."""
PLAIN_ROUNDS_COUNT: Final = 6
FORK_ROUNDS_COUNT: Final = 3
FORK_WATCH_S: Final = 2.0


def parent(arguments: Arguments) -> None:
    """Open the GPU, fork a child that holds the inherited files if asked, and run one kernel."""
    cuda.open_gpu(arguments["gpu"])
    kernels = cuda.Kernels(arguments["kernels"])
    page = Page(arguments["page"])
    address = cuda.register(page)
    if arguments["fork"]:
        child = os.fork()
        if child == 0:
            os.read(arguments["release"], 1)  # ends with the probe, which holds the other end
            os._exit(0)
        page[CHILD_PID] = child
    stream = cuda.new_stream()
    kernels.count_up(stream, address + KERNEL_WORD * WORD_BYTES, 0, KERNEL_STEPS, PAUSE_CLOCKS)
    page.wait(KERNEL_WORD, 100)
    page[READY] = 1
    pause(60)


class Listing:
    """Polls NVML for the processes of a GPU in a thread and keeps when a pid was listed last."""

    def __init__(self, gpu: int) -> None:
        self._nvml: Any = importlib.import_module("pynvml")
        self._nvml.nvmlInit()
        self._device = self._nvml.nvmlDeviceGetHandleByPciBusId(cuda.bus_id(gpu))
        self._stop = threading.Event()

    def pids(self) -> set[int]:
        """Return the pids that the driver lists now."""
        processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._device)
        return {process.pid for process in processes}

    def follow(self, pid: int, seen: "Listed") -> threading.Thread:
        """Start noting in ``seen`` when the pid is listed, until `stop`."""
        self._stop.clear()

        def poll() -> None:
            while not self._stop.is_set():
                asked = time.perf_counter()
                listed = pid in self.pids()
                seen.polls += 1
                if listed:
                    seen.last_listed = asked
                    seen.first_absent = None
                elif seen.first_absent is None:
                    seen.first_absent = time.perf_counter()

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        return thread

    def stop(self, thread: threading.Thread) -> None:
        """End following."""
        self._stop.set()
        thread.join(timeout=5)


@dataclass
class Listed:
    """When a pid was seen, on the clock of ``time.perf_counter``; None: not."""

    last_listed: float | None = None
    first_absent: float | None = None
    polls: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """One killed parent: its death, when it left the list, and the same for its child's end."""

    death: Death
    delisted_ms: float | None
    listed_before: bool
    polls: int
    child_listed: bool
    release: Death | None
    delisted_after_release_ms: float | None


def one_round(gpu: int, kernels: int, listing: Listing, *, fork: bool) -> Round:
    """Kill a parent with a running kernel, watch, then end its forked child, and watch again."""
    page = Page()
    ours, theirs = os.pipe()
    arguments = {
        "gpu": gpu,
        "kernels": kernels,
        "page": page.descriptor,
        "fork": fork,
        "release": ours,
    }
    process = start_role("listing:parent", arguments, (kernels, page.descriptor, ours))
    try:
        wait_ready(process, page, READY)
        # The driver may list a process late; a round in which it never does says so.
        with contextlib.suppress(TimeoutError):
            wait_until(
                lambda: process.pid in listing.pids(), deadline_s=2, what="the pid to be listed"
            )
        before = listing.pids()
        seen = Listed()
        thread = listing.follow(process.pid, seen)
        start = time.perf_counter()
        limit_s = FORK_WATCH_S if fork else 5.0
        death = kill_and_watch(process.pid, page, (KERNEL_WORD,), settle_s=0.5, limit_s=limit_s)
        delisted_ms = _since(seen.first_absent, start)
        release: Death | None = None
        delisted_later_ms: float | None = None
        if fork:
            start = time.perf_counter()
            child = page[CHILD_PID]
            release = kill_and_watch(child, page, (KERNEL_WORD,), settle_s=0.5, limit_s=8)
            delisted_later_ms = _since(seen.first_absent, start)
        listing.stop(thread)
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)
    return Round(
        death=death,
        delisted_ms=delisted_ms,
        listed_before=process.pid in before,
        polls=seen.polls,
        child_listed=page[CHILD_PID] in before,
        release=release,
        delisted_after_release_ms=delisted_later_ms,
    )


def run(gpu: int) -> None:
    """Compare the end of the listing with the last write, with and without a forked child."""
    kernels = cuda.share_kernels(gpu)
    listing = Listing(gpu)
    _report_plain([one_round(gpu, kernels, listing, fork=False) for _ in range(PLAIN_ROUNDS_COUNT)])
    _report_forked([one_round(gpu, kernels, listing, fork=True) for _ in range(FORK_ROUNDS_COUNT)])


def _report_plain(rounds: list[Round]) -> None:
    listed = sum(item.listed_before for item in rounds)
    early = sum(
        item.delisted_ms is not None and item.delisted_ms < item.death.last_write_ms[0]
        for item in rounds
    )
    counts: dict[str, Count] = {
        "kills": len(rounds),
        "listed_before_kill": listed,
        **spread("last_write", [item.death.last_write_ms[0] for item in rounds]),
        **spread("pidfd", [i.death.pidfd_ms for i in rounds if i.death.pidfd_ms is not None]),
        **spread("delisted", [i.delisted_ms for i in rounds if i.delisted_ms is not None]),
        "delisted_before_last_write": early,
        "polls": sum(item.polls for item in rounds),
    }
    usable = listed == len(rounds)
    report(
        Finding(
            probe="listing",
            seen=f"without a child: {listed} of {len(rounds)} running processes were listed;"
            f" {early} left the list before their last write",
            counts=counts,
            rule="quiet: the driver's list no longer names the process",
            verdict=_verdict(usable, early == 0),
        )
    )


def _report_forked(rounds: list[Round]) -> None:
    listed = sum(item.listed_before for item in rounds)
    wrote_on = [item for item in rounds if item.death.wrote_after_pidfd]
    stayed = sum(item.delisted_ms is None for item in wrote_on)
    ended = [item for item in rounds if item.release is not None]
    early = sum(
        item.delisted_after_release_ms is not None
        and item.release is not None
        and item.delisted_after_release_ms < item.release.last_write_ms[0]
        for item in ended
    )
    releases = [item.release for item in ended if item.release is not None]
    later = [item.delisted_after_release_ms for item in ended]
    counts: dict[str, Count] = {
        "kills": len(rounds),
        "listed_before_kill": listed,
        "child_listed": sum(item.child_listed for item in rounds),
        "wrote_after_pidfd": len(wrote_on),
        "of_these_still_listed": stayed,
        **spread("pidfd", [i.death.pidfd_ms for i in rounds if i.death.pidfd_ms is not None]),
        **spread("delisted", [i.delisted_ms for i in rounds if i.delisted_ms is not None]),
        **spread("last_write_after_child", [item.last_write_ms[0] for item in releases]),
        **spread("child_pidfd", [i.pidfd_ms for i in releases if i.pidfd_ms is not None]),
        **spread("delisted_after_child", [value for value in later if value is not None]),
    }
    report(
        Finding(
            probe="listing",
            seen=f"with a forked child that lives: {len(wrote_on)} of {len(rounds)} killed parents"
            f" wrote on after their pidfd was readable, and {stayed} of these were listed all that"
            f" time; after the child's end {early} left the list before the last write",
            counts=counts,
            rule="quiet: a pidfd alone is no proof; children are registered, the list is empty",
            verdict=_verdict(
                listed == len(rounds) and bool(wrote_on),
                stayed == len(wrote_on) and early == 0,
            ),
        )
    )


def _since(moment: float | None, start: float) -> float | None:
    """Return milliseconds from a start, at least 0: a pid may have left the list before it."""
    return None if moment is None else max(0.0, moment - start) * 1e3


def _verdict(usable: bool, sound: bool) -> Verdict:
    if not usable:
        return Verdict.INFORMS
    return Verdict.CONFIRMS if sound else Verdict.CONTRADICTS
