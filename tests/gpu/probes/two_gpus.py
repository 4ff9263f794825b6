"""Order and death between two GPUs of one host."""

from typing import Final

from tests.gpu.probes import cuda
from tests.gpu.probes.death import kill_queues, report_deaths
from tests.gpu.probes.findings import Finding, Verdict, report
from tests.gpu.probes.pages import killed_writer, register_on, report_store
from tests.gpu.probes.processes import (
    LANE_WORDS,
    WORD_BYTES,
    Arguments,
    Page,
    expect_end,
    start_role,
    wait_ready,
)

READY: Final = (0, 1)
WRITTEN: Final = LANE_WORDS
ACKNOWLEDGED: Final = 2 * LANE_WORDS
BAD: Final = 3 * LANE_WORDS
ARENA_BYTES: Final = 64 << 20
DATA_WORDS_COUNT: Final = (32 << 20) // WORD_BYTES
ROUNDS_COUNT: Final = 1500
KILLS_COUNT: Final = 5


def filler(arguments: Arguments) -> None:
    """Fill the arena by a kernel, write the round's number, wait for the acknowledgement."""
    gpu = arguments["gpu"]
    cuda.open_gpu(gpu)
    kernels = cuda.Kernels(arguments["kernels"])
    page = Page(arguments["page"])
    address = cuda.register(page)
    data = cuda.map_arena(cuda.import_arena(arguments["arena"]), ARENA_BYTES, gpu)
    stream = cuda.new_stream()
    page[READY[0]] = 1
    for number in range(1, ROUNDS_COUNT + 1):
        kernels.launch(
            "fill",
            stream,
            (264, 256),
            cuda.pointer(data),
            cuda.long(DATA_WORDS_COUNT),
            cuda.word(number),
        )
        cuda.write_word(stream, address + WRITTEN * WORD_BYTES, number)
        cuda.wait_word(stream, address + ACKNOWLEDGED * WORD_BYTES, number)
        if number % 100 == 0:
            cuda.checked(cuda.driver.cuStreamSynchronize(stream))
    cuda.checked(cuda.driver.cuStreamSynchronize(stream))


def checker(arguments: Arguments) -> None:
    """Wait for each round's number on another GPU and count the words that are not it."""
    gpu = arguments["gpu"]
    cuda.open_gpu(gpu)
    kernels = cuda.Kernels(arguments["kernels"])
    page = Page(arguments["page"])
    address = cuda.register(page)
    data = cuda.map_arena(cuda.import_arena(arguments["arena"]), ARENA_BYTES, gpu)
    bad = int(cuda.checked(cuda.driver.cuMemAlloc(WORD_BYTES)))
    cuda.checked(cuda.driver.cuMemsetD8(bad, 0, WORD_BYTES))
    stream = cuda.new_stream()
    page[READY[1]] = 1
    for number in range(1, ROUNDS_COUNT + 1):
        cuda.wait_word(stream, address + WRITTEN * WORD_BYTES, number)
        kernels.launch(
            "check",
            stream,
            (264, 256),
            cuda.pointer(data),
            cuda.long(DATA_WORDS_COUNT),
            cuda.word(number),
            cuda.pointer(bad),
        )
        cuda.write_word(stream, address + ACKNOWLEDGED * WORD_BYTES, number)
        if number % 100 == 0:
            cuda.checked(cuda.driver.cuStreamSynchronize(stream))
    cuda.checked(cuda.driver.cuStreamSynchronize(stream))
    cuda.checked(cuda.driver.cuMemcpyDtoH(page.address + BAD * WORD_BYTES, bad, WORD_BYTES))


def run(gpu: int) -> None:
    """Run all questions with the GPU and the next one, or say that there is only one."""
    cuda.find_device(gpu)
    visible_count = int(cuda.checked(cuda.driver.cuDeviceGetCount()))
    if visible_count < gpu + 2:
        report(
            Finding(
                probe="two_gpus",
                seen=f"{visible_count} GPU is visible; two are needed",
                counts={"gpus": visible_count},
                rule="order across processes and GPUs",
                verdict=Verdict.NOT_RUN,
            )
        )
        return
    first, second = gpu, gpu + 1
    register_on("two_gpus", (first, second))
    outcomes = [killed_writer(first, second) for _ in range(KILLS_COUNT)]
    title = f"waits on GPU {second} for a killed writer on GPU {first}"
    report_store("two_gpus", title, outcomes)
    kernels = cuda.share_kernels(gpu)
    _order(kernels, first, second)
    page = Page()
    arguments = {"gpu": second, "kernels": kernels, "page": page.descriptor}
    running = start_role("death:load", arguments, (kernels, page.descriptor))
    try:
        wait_ready(running, page, READY[0])
        deaths = kill_queues(first, kernels, KILLS_COUNT)
    finally:
        running.kill()
        running.wait()
    report_deaths("two_gpus", f"on GPU {first} while GPU {second} is busy", deaths)


def _order(kernels: int, first: int, second: int) -> None:
    driver = cuda.driver
    devices = [cuda.checked(driver.cuDeviceGet(ordinal)) for ordinal in (first, second)]
    peers = bool(cuda.checked(driver.cuDeviceCanAccessPeer(devices[1], devices[0])))
    if not peers:
        report(
            Finding(
                probe="two_gpus",
                seen=f"GPU {second} cannot read memory of GPU {first} here",
                counts={"peer_access": 0},
                rule="fence page: work before a stream write is visible after a wait for it",
                verdict=Verdict.NOT_RUN,
            )
        )
        return
    page = Page()
    descriptor, _ = cuda.create_arena(first, ARENA_BYTES)
    inherited = (kernels, page.descriptor, descriptor)
    base = {"kernels": kernels, "page": page.descriptor, "arena": descriptor}
    processes = [
        start_role("two_gpus:filler", {**base, "gpu": first}, inherited),
        start_role("two_gpus:checker", {**base, "gpu": second}, inherited),
    ]
    try:
        for process, ready in zip(processes, READY, strict=True):
            wait_ready(process, page, ready)
        for process in processes:
            expect_end(process, deadline_s=30)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    report(
        Finding(
            probe="two_gpus",
            seen=f"GPU {first} filled memory and wrote a lane, GPU {second} waited for the lane and"
            f" read that memory over its peer mapping: {page[BAD]} stale words",
            counts={
                "rounds": ROUNDS_COUNT,
                "words_per_round": DATA_WORDS_COUNT,
                "stale_words": page[BAD],
            },
            rule="fence page: work before a stream write is visible after a wait for it",
            verdict=Verdict.CONFIRMS if page[BAD] == 0 else Verdict.CONTRADICTS,
        )
    )
