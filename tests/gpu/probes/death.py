"""How long a killed process with a queue of kernels goes on writing."""

from typing import Final

from tests.gpu.probes import cuda
from tests.gpu.probes.findings import Count, Finding, report, spread, verdict_of
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
)

READY: Final = 0
KERNEL_WORD: Final = LANE_WORDS
DONE_WORD: Final = 2 * LANE_WORDS
QUEUED_KERNELS_COUNT: Final = 400
STEPS_PER_KERNEL: Final = 200
PAUSE_CLOCKS: Final = 10_000
"""About 6 us at 1.7 GHz, so a kernel takes about 1.2 ms and the queue half a second."""
KERNEL_SHIFT: Final = 20
ROUNDS_COUNT: Final = 8
LOADED_ROUNDS_COUNT: Final = 6
LOAD_COUNT: Final = 3


def queue(arguments: Arguments) -> None:
    """Queue kernels that count in a word, a stream write behind each, and wait to be killed."""
    cuda.open_gpu(arguments["gpu"])
    kernels = cuda.Kernels(arguments["kernels"])
    page = Page(arguments["page"])
    address = cuda.register(page)
    stream = cuda.new_stream()
    for index in range(1, QUEUED_KERNELS_COUNT + 1):
        kernels.count_up(
            stream,
            address + KERNEL_WORD * WORD_BYTES,
            index << KERNEL_SHIFT,
            STEPS_PER_KERNEL,
            PAUSE_CLOCKS,
        )
        cuda.write_word(stream, address + DONE_WORD * WORD_BYTES, index)
        if index == arguments["ready_after"]:
            page[READY] = 1
    cuda.checked(cuda.driver.cuStreamSynchronize(stream))
    pause(60)


def load(arguments: Arguments) -> None:
    """Keep the GPU busy with copies, allocations and frees until killed."""
    cuda.open_gpu(arguments["gpu"])
    kernels = cuda.Kernels(arguments["kernels"])
    page = Page(arguments["page"])
    stream = cuda.new_stream()
    driver, size_bytes = cuda.driver, 64 << 20
    while True:
        memory = int(cuda.checked(driver.cuMemAlloc(2 * size_bytes)))
        for _ in range(20):
            kernels.copy_next(stream, memory, memory + size_bytes, size_bytes // WORD_BYTES)
        cuda.checked(driver.cuStreamSynchronize(stream))
        cuda.checked(driver.cuMemFree(memory))
        page[READY] = 1


def kill_queues(gpu: int, kernels: int, rounds_count: int) -> list[Death]:
    """Kill processes in the middle of their queue, at a later place each, and return their ends."""
    deaths: list[Death] = []
    for round_index in range(rounds_count):
        page = Page()
        arguments = {
            "gpu": gpu,
            "kernels": kernels,
            "page": page.descriptor,
            "ready_after": QUEUED_KERNELS_COUNT // 2,
        }
        process = start_role("death:queue", arguments, (kernels, page.descriptor))
        try:
            wait_ready(process, page, READY)
            page.wait(KERNEL_WORD, (5 + 20 * round_index) << KERNEL_SHIFT)
            watched = (KERNEL_WORD, DONE_WORD)
            deaths.append(kill_and_watch(process.pid, page, watched, settle_s=0.3, limit_s=5))
        finally:
            process.kill()
            process.wait()
    return deaths


def report_deaths(probe: str, title: str, deaths: list[Death]) -> None:
    """Report when the killed processes wrote last, and whether that was before their pidfd."""
    last_ms = [max(death.last_write_ms) for death in deaths]
    pidfd_ms = [death.pidfd_ms for death in deaths if death.pidfd_ms is not None]
    latest_ms = max(last_ms, default=0.0)
    late = sum(death.wrote_after_pidfd for death in deaths)
    finished = sum(death.at_end[1] >= QUEUED_KERNELS_COUNT for death in deaths)
    further = [
        (death.at_end[0] >> KERNEL_SHIFT) - (death.at_kill[0] >> KERNEL_SHIFT) for death in deaths
    ]
    counts: dict[str, Count] = {
        "kills": len(deaths),
        **spread("last_write", last_ms),
        **spread("pidfd", pidfd_ms),
        "wrote_after_pidfd": late,
        "pidfd_not_readable": len(deaths) - len(pidfd_ms),
        "kernels_run_after_kill_max": max(further, default=0),
        "queues_run_to_the_end": finished,
    }
    complete = bool(deaths) and len(pidfd_ms) == len(deaths)
    report(
        Finding(
            probe=probe,
            seen=f"{title}: {late} of {len(deaths)} processes killed with kernels queued wrote"
            f" after their pidfd was readable; the last write came up to {latest_ms:.1f} ms"
            " after the kill",
            counts=counts,
            rule="quiet: without children, a readable pidfd follows the last write",
            verdict=verdict_of(complete, late == 0),
        )
    )


def run(gpu: int) -> None:
    """Kill queues on an idle GPU, then beside processes that keep it busy."""
    kernels = cuda.share_kernels(gpu)
    report_deaths("death", "otherwise idle", kill_queues(gpu, kernels, ROUNDS_COUNT))
    page = Page()
    arguments = {"gpu": gpu, "kernels": kernels, "page": page.descriptor}
    loads = [
        start_role("death:load", arguments, (kernels, page.descriptor)) for _ in range(LOAD_COUNT)
    ]
    try:
        for process in loads:
            wait_ready(process, page, READY)
        title = f"beside {LOAD_COUNT} processes that copy, allocate and free"
        report_deaths("death", title, kill_queues(gpu, kernels, LOADED_ROUNDS_COUNT))
    finally:
        for process in loads:
            process.kill()
            process.wait()
