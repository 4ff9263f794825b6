"""An arena of more than 100 GiB: creating, importing, mapping, unmapping and closing it."""

import importlib
import os
import socket
import time
from typing import Any, Final

from kvd_client.device.descriptors import receive_message, send_message
from tests.gpu.probes import cuda
from tests.gpu.probes.findings import Count, Finding, Verdict, report, verdict_of
from tests.gpu.probes.processes import (
    WORD_BYTES,
    Arguments,
    Page,
    expect_end,
    pause,
    start_role,
    wait_ready,
    wait_until,
)

WANTED_BYTES: Final = 120 << 30
SPARE_BYTES: Final = 8 << 30
"""Left free for contexts and for the load."""
LARGE_BYTES: Final = 100 << 30
GRAIN_BYTES: Final = 1 << 30
LOAD_BYTES: Final = 256 << 20
ROUNDS_COUNT: Final = 4
READY: Final = 0
LOAD_LONGEST_NS: Final = 1
LOAD_ITERATIONS: Final = 2
LOAD_WINDOW: Final = 3
"""The probe raises it to have the longest time start again; the load alone stores that time."""
WARM_UP_COUNT: Final = 100
PHASES: Final = ("import", "map", "first_touch", "unmap", "release")
"""Stored from word 16 on, in nanoseconds: the greatest of all rounds."""
PHASE_WORD: Final = 16
CREATE_WORD: Final = 32
RETURN_SLACK_BYTES: Final = 1 << 30


def creator(arguments: Arguments) -> None:
    """Create the arena, send its descriptor and end: the allocation helper's part."""
    cuda.open_gpu(arguments["gpu"])
    page = Page(arguments["page"])
    start = time.perf_counter_ns()
    descriptor, _ = cuda.create_arena(arguments["gpu"], arguments["bytes"])
    page[CREATE_WORD] = time.perf_counter_ns() - start
    with socket.socket(fileno=os.dup(arguments["socket"])) as sock:
        send_message(sock, b"arena", (descriptor,))


def importer(arguments: Arguments) -> None:
    """Import, map, touch both ends, unmap and release, several times; keep the longest times."""
    driver = cuda.driver
    gpu, size_bytes = arguments["gpu"], arguments["bytes"]
    cuda.open_gpu(gpu)
    page = Page(arguments["page"])
    stream = cuda.new_stream()
    for _ in range(ROUNDS_COUNT):
        moments = [time.perf_counter_ns()]
        handle = cuda.import_arena(arguments["arena"])
        moments.append(time.perf_counter_ns())
        address = cuda.map_arena(handle, size_bytes, gpu)
        moments.append(time.perf_counter_ns())
        for place in (address, address + size_bytes - 4096):
            cuda.checked(driver.cuMemsetD32Async(place, 7, 1024, stream))
        cuda.checked(driver.cuStreamSynchronize(stream))
        moments.append(time.perf_counter_ns())
        cuda.checked(driver.cuMemUnmap(address, size_bytes))
        moments.append(time.perf_counter_ns())
        cuda.checked(driver.cuMemAddressFree(address, size_bytes))
        cuda.checked(driver.cuMemRelease(handle))
        moments.append(time.perf_counter_ns())
        for index in range(len(PHASES)):
            took_ns = moments[index + 1] - moments[index]
            page[PHASE_WORD + index] = max(page[PHASE_WORD + index], took_ns)
    if arguments["keep"]:
        cuda.map_arena(cuda.import_arena(arguments["arena"]), size_bytes, gpu)
        page[READY] = 1
        pause(60)


def load(arguments: Arguments) -> None:
    """Run one copy kernel after the other and keep the longest time from launch to end."""
    cuda.open_gpu(arguments["gpu"])
    kernels = cuda.Kernels(arguments["kernels"])
    page = Page(arguments["page"])
    stream = cuda.new_stream()
    memory = int(cuda.checked(cuda.driver.cuMemAlloc(2 * LOAD_BYTES)))
    iterations = longest_ns = window = 0
    while True:
        start = time.perf_counter_ns()
        kernels.copy_next(stream, memory, memory + LOAD_BYTES, LOAD_BYTES // WORD_BYTES)
        cuda.checked(cuda.driver.cuStreamSynchronize(stream))
        iterations += 1
        longest_ns = max(longest_ns, time.perf_counter_ns() - start)
        if page[LOAD_WINDOW] != window or iterations == WARM_UP_COUNT:
            window, longest_ns = page[LOAD_WINDOW], 0
        page[LOAD_LONGEST_NS] = longest_ns
        page[LOAD_ITERATIONS] = iterations
        page[READY] = int(iterations >= WARM_UP_COUNT)


class Memory:
    """The memory in use on a GPU, asked of NVML: this process needs no context for it."""

    def __init__(self, gpu: int) -> None:
        self._nvml: Any = importlib.import_module("pynvml")
        self._nvml.nvmlInit()
        self._device = self._nvml.nvmlDeviceGetHandleByPciBusId(cuda.bus_id(gpu))

    @property
    def used_bytes(self) -> int:
        """Return the bytes in use now."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._device).used)

    @property
    def free_bytes(self) -> int:
        """Return the bytes free now."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._device).free)


def run(gpu: int) -> None:
    """Create the arena in a helper, import it idle and under load, then close it everywhere."""
    memory = Memory(gpu)
    at_start_bytes = memory.used_bytes
    size_bytes = min(WANTED_BYTES, memory.free_bytes - SPARE_BYTES) // GRAIN_BYTES * GRAIN_BYTES
    descriptor = _create(gpu, size_bytes, memory)
    _import(gpu, size_bytes, descriptor, under_load=False)
    _import(gpu, size_bytes, descriptor, under_load=True)
    _close(gpu, size_bytes, descriptor, memory, at_start_bytes)


def _create(gpu: int, size_bytes: int, memory: Memory) -> int:
    before_bytes = memory.used_bytes
    page = Page()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30)
    arguments = {
        "gpu": gpu,
        "page": page.descriptor,
        "bytes": size_bytes,
        "socket": theirs.fileno(),
    }
    process = start_role("arena:creator", arguments, (page.descriptor, theirs.fileno()))
    theirs.close()
    _, descriptors = receive_message(ours, 1)
    if not descriptors:
        raise RuntimeError("the helper ended without sending an arena")
    expect_end(process, deadline_s=30)
    ours.close()
    held_bytes = memory.used_bytes - before_bytes
    held = abs(held_bytes - size_bytes) <= RETURN_SLACK_BYTES
    report(
        Finding(
            probe="arena",
            seen=f"{size_bytes >> 30} GiB created by a helper that has ended stay in use through a"
            " descriptor in a process without a CUDA context",
            counts={
                "arena_gib": size_bytes >> 30,
                "create_ms": page[CREATE_WORD] / 1e6,
                "in_use_gib": held_bytes / (1 << 30),
            },
            rule="an arena is a file descriptor",
            verdict=_large(size_bytes, held),
        )
    )
    return descriptors[0]


def _import(gpu: int, size_bytes: int, descriptor: int, *, under_load: bool) -> None:
    loaded, page = Page(), Page()
    running = None
    try:
        if under_load:
            kernels = cuda.share_kernels(gpu)
            arguments = {"gpu": gpu, "kernels": kernels, "page": loaded.descriptor}
            running = start_role("arena:load", arguments, (kernels, loaded.descriptor))
            wait_ready(running, loaded, READY)
            loaded.wait(LOAD_ITERATIONS, 1000)
        alone_ms = loaded[LOAD_LONGEST_NS] / 1e6
        before = loaded[LOAD_ITERATIONS]
        loaded[LOAD_WINDOW] = 1
        process = start_role(
            "arena:importer",
            _arguments(gpu, page, size_bytes, descriptor, keep=False),
            (page.descriptor, descriptor),
        )
        expect_end(process, deadline_s=40)
        beside_ms = loaded[LOAD_LONGEST_NS] / 1e6
    finally:
        if running is not None:
            running.kill()
            running.wait()
    counts: dict[str, Count] = {"arena_gib": size_bytes >> 30, "rounds": ROUNDS_COUNT}
    for index, phase in enumerate(PHASES):
        counts[f"{phase}_max_ms"] = page[PHASE_WORD + index] / 1e6
    if under_load:
        counts["load_iterations"] = loaded[LOAD_ITERATIONS] - before
        counts["load_longest_alone_ms"] = alone_ms
        counts["load_longest_beside_ms"] = beside_ms
    title = "while another process keeps the GPU busy" if under_load else "on an idle GPU"
    report(
        Finding(
            probe="arena",
            seen=f"imported, mapped, touched, unmapped and released {ROUNDS_COUNT} times {title}",
            counts=counts,
            rule="last hello to welcome within 2 s; attach within 0.1 s",
            verdict=_large(size_bytes, page[PHASE_WORD + 1] < 100_000_000),
        )
    )


def _close(gpu: int, size_bytes: int, descriptor: int, memory: Memory, at_start_bytes: int) -> None:
    """Kill a process that maps the arena, then close the last descriptor."""
    page = Page()
    process = start_role(
        "arena:importer",
        _arguments(gpu, page, size_bytes, descriptor, keep=True),
        (page.descriptor, descriptor),
    )
    try:
        wait_ready(process, page, READY)
    finally:
        process.kill()
        process.wait()
    after_kill_bytes = memory.used_bytes
    start = time.perf_counter()
    os.close(descriptor)
    close_ms = (time.perf_counter() - start) * 1e3
    limit_bytes = after_kill_bytes - size_bytes + RETURN_SLACK_BYTES
    try:
        wait_until(
            lambda: memory.used_bytes <= limit_bytes, deadline_s=5, what="memory to come back"
        )
        returned = True
    except TimeoutError:
        returned = False
    returned_ms = (time.perf_counter() - start) * 1e3
    kept = after_kill_bytes - at_start_bytes >= size_bytes - RETURN_SLACK_BYTES
    report(
        Finding(
            probe="arena",
            seen=f"after SIGKILL of a process that mapped it the arena was {'' if kept else 'not '}"
            f"still there; closing the last descriptor {'returned' if returned else 'kept'} its"
            " memory",
            counts={
                "close_ms": close_ms,
                "returned_after_ms": returned_ms,
                "in_use_after_kill_gib": after_kill_bytes / (1 << 30),
                "in_use_at_end_gib": memory.used_bytes / (1 << 30),
            },
            rule="nothing has a name that outlives its owner: the last descriptor keeps an arena",
            verdict=_large(size_bytes, kept and returned),
        )
    )


def _arguments(gpu: int, page: Page, size_bytes: int, descriptor: int, *, keep: bool) -> Arguments:
    return {
        "gpu": gpu,
        "page": page.descriptor,
        "bytes": size_bytes,
        "arena": descriptor,
        "keep": keep,
    }


def _large(size_bytes: int, sound: bool) -> Verdict:
    """Return the verdict; an arena that had to be smaller than asked only informs."""
    return verdict_of(size_bytes > LARGE_BYTES, sound)
