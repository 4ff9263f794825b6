"""The fence page: two processes registering it at once, a third releasing a wait, capture."""

import time
from typing import Any, Final

from tests.gpu.probes import cuda
from tests.gpu.probes.findings import Count, Finding, Verdict, report, spread
from tests.gpu.probes.processes import (
    LANE_WORDS,
    WORD_BYTES,
    Arguments,
    Page,
    expect_end,
    pause,
    start_role,
    wait_ready,
    wait_until,
)

READY: Final = (0, 1)
"""Where either process says that it is ready, with the number of its round."""
GO: Final = 2
LANES: Final = (LANE_WORDS, 2 * LANE_WORDS)
REGISTER_NS: Final = (3 * LANE_WORDS, 3 * LANE_WORDS + 1)
ROUNDS_COUNT: Final = 100
WRITES_PER_ROUND: Final = 20
TURNS_COUNT: Final = 1000

WAITED: Final = LANE_WORDS
RELEASED_NS: Final = 3 * LANE_WORDS
STORE_ROUNDS_COUNT: Final = 20
KILLED_ROUNDS_COUNT: Final = 5
UNRELEASED_S: Final = 0.2


def registrar(arguments: Arguments) -> None:
    """Register the page at the same moment as the other process, write a lane, unregister; repeat.

    Then take turns with the other process over stream waits on its lane.
    """
    cuda.open_gpu(arguments["gpu"])
    me: int = arguments["index"]
    page = Page(arguments["page"])
    stream = cuda.new_stream()
    written = 0
    for round_index in range(1, ROUNDS_COUNT + 1):
        page[READY[me]] = round_index
        while page[GO] < round_index:
            pass
        start = time.perf_counter_ns()
        address = cuda.register(page)
        page[REGISTER_NS[me]] = max(page[REGISTER_NS[me]], time.perf_counter_ns() - start)
        for _ in range(WRITES_PER_ROUND):
            written += 1
            cuda.write_word(stream, address + LANES[me] * WORD_BYTES, written)
        cuda.checked(cuda.driver.cuStreamSynchronize(stream))
        if page[LANES[me]] != written:
            raise RuntimeError(f"the lane holds {page[LANES[me]]} after a write of {written}")
        cuda.checked(cuda.driver.cuMemHostUnregister(page.address))
    address = cuda.register(page)
    page[READY[me]] = ROUNDS_COUNT + 1
    page.wait(READY[1 - me], ROUNDS_COUNT + 1)
    for turn in range(1, TURNS_COUNT + 1):
        # Process 0 writes first and waits for the answer; process 1 waits and answers.
        if me == 1:
            cuda.wait_word(stream, address + LANES[0] * WORD_BYTES, written + turn)
        cuda.write_word(stream, address + LANES[me] * WORD_BYTES, written + turn)
        if me == 0:
            cuda.wait_word(stream, address + LANES[1] * WORD_BYTES, written + turn)
        if turn % 100 == 0:
            cuda.checked(cuda.driver.cuStreamSynchronize(stream))
    cuda.checked(cuda.driver.cuStreamSynchronize(stream))


def run_register(gpu: int) -> None:
    """Let two processes register one page at once, on one GPU."""
    register_on("register", (gpu, gpu))


def register_on(probe: str, gpus: tuple[int, int]) -> None:
    """Let two processes, each on a GPU, register one page at once and take turns over its lanes."""
    page = Page()
    processes = [
        start_role(
            "pages:registrar",
            {"gpu": gpu, "index": index, "page": page.descriptor},
            (page.descriptor,),
        )
        for index, gpu in enumerate(gpus)
    ]
    try:
        for round_index in range(1, ROUNDS_COUNT + 1):
            for process, ready in zip(processes, READY, strict=True):
                wait_ready(process, page, ready)
                page.wait(ready, round_index)
            page[GO] = round_index
        page.wait(READY[0], ROUNDS_COUNT + 1)
        start = time.perf_counter()
        for process in processes:
            expect_end(process, deadline_s=30)
        turns_us = (time.perf_counter() - start) / TURNS_COUNT * 1e6
    finally:
        for process in processes:
            process.kill()
            process.wait()
    expected = ROUNDS_COUNT * WRITES_PER_ROUND + TURNS_COUNT
    right = all(page[lane] == expected for lane in LANES)
    counts: dict[str, Count] = {
        "registrations": 2 * ROUNDS_COUNT,
        "register_max_us": max(page[word] for word in REGISTER_NS) / 1e3,
        "turns": TURNS_COUNT,
        "turn_us_with_process_end": turns_us,
        "lane_0": page[LANES[0]],
        "lane_1": page[LANES[1]],
        "expected": expected,
    }
    report(
        Finding(
            probe=probe,
            seen=f"two processes on GPUs {gpus[0]} and {gpus[1]} registered one memfd page at the"
            f" same moment {ROUNDS_COUNT} times without an error; stream writes of both arrived and"
            " each one's stream waits were met by the other's writes",
            counts=counts,
            rule="fence page: each process of a rank registers the page by itself",
            verdict=Verdict.CONFIRMS if right else Verdict.CONTRADICTS,
        )
    )


def waiter(arguments: Arguments) -> None:
    """Wait on a stream for one number after the other; store when the host saw each wait met."""
    cuda.open_gpu(arguments["gpu"])
    page = Page(arguments["page"])
    address = cuda.register(page)
    stream = cuda.new_stream()
    for number in range(arguments["first"], arguments["last"] + 1):
        cuda.wait_word(stream, address + WAITED * WORD_BYTES, number)
        page[READY[0]] = number
        while not cuda.is_idle(stream):
            pass
        page[RELEASED_NS] = time.monotonic_ns()


def writer(arguments: Arguments) -> None:
    """Write a number to the lane by its stream, then wait to be killed."""
    cuda.open_gpu(arguments["gpu"])
    page = Page(arguments["page"])
    stream = cuda.new_stream()
    cuda.write_word(stream, cuda.register(page) + WAITED * WORD_BYTES, arguments["number"])
    cuda.checked(cuda.driver.cuStreamSynchronize(stream))
    page[READY[1]] = arguments["number"]
    pause(60)


def release_by_store(page: Page, number: int) -> tuple[bool, float]:
    """Store the awaited number as the host; return whether the wait held before, and the time.

    This process has no CUDA context. Times are in microseconds, up to the waiter's own look.
    """
    page.wait(READY[0], number)
    before_ns = page[RELEASED_NS]
    pause(UNRELEASED_S)
    held = page[RELEASED_NS] == before_ns
    stored_ns = time.monotonic_ns()
    page[WAITED] = number
    wait_until(
        lambda: page[RELEASED_NS] != before_ns, deadline_s=5, what="the stream wait to be met"
    )
    return held, (page[RELEASED_NS] - stored_ns) / 1e3


def run_store(gpu: int) -> None:
    """Meet stream waits by a plain store, first with no writer, then after a killed one's."""
    page = Page()
    arguments = {"gpu": gpu, "page": page.descriptor, "first": 1, "last": STORE_ROUNDS_COUNT}
    process = start_role("pages:waiter", arguments, (page.descriptor,))
    try:
        wait_ready(process, page, READY[0])
        outcomes = [release_by_store(page, n) for n in range(1, STORE_ROUNDS_COUNT + 1)]
        expect_end(process, deadline_s=10)
    finally:
        process.kill()
        process.wait()
    report_store("store", "no process writes the lane", outcomes)
    after_kill = [killed_writer(gpu, gpu) for _ in range(KILLED_ROUNDS_COUNT)]
    report_store("store", "the lane's writer was killed", after_kill)


def killed_writer(writer_gpu: int, waiter_gpu: int) -> tuple[bool, float]:
    """Kill the process that writes a lane while another waits for its next number."""
    page = Page()
    writing = start_role(
        "pages:writer",
        {"gpu": writer_gpu, "page": page.descriptor, "number": 4},
        (page.descriptor,),
    )
    waiting = start_role(
        "pages:waiter",
        {"gpu": waiter_gpu, "page": page.descriptor, "first": 5, "last": 5},
        (page.descriptor,),
    )
    try:
        wait_ready(writing, page, READY[1])
        wait_ready(waiting, page, READY[0])
        writing.kill()
        writing.wait()
        outcome = release_by_store(page, 5)
        expect_end(waiting, deadline_s=10)
    finally:
        for process in (writing, waiting):
            process.kill()
            process.wait()
    return outcome


def report_store(probe: str, title: str, outcomes: list[tuple[bool, float]]) -> None:
    """Report whether waits held until a plain store met them."""
    held = sum(outcome for outcome, _ in outcomes)
    times_us = sorted(microseconds for _, microseconds in outcomes)
    report(
        Finding(
            probe=probe,
            seen=f"{title}: {held} of {len(outcomes)} stream waits held for"
            f" {UNRELEASED_S * 1e3:.0f} ms and all were then met by a plain store of a process"
            " without a CUDA context",
            counts={
                "waits": len(outcomes),
                "held": held,
                **spread("met", [microseconds / 1e3 for microseconds in times_us]),
            },
            rule="quiet: the daemon completes a dead rank's lanes by plain stores",
            verdict=Verdict.CONFIRMS if held == len(outcomes) else Verdict.CONTRADICTS,
        )
    )


def run_capture(gpu: int) -> None:
    """Capture a stream write and a stream wait into graphs, and replay the write."""
    cuda.open_gpu(gpu)
    page = Page()
    address = cuda.register(page) + WAITED * WORD_BYTES
    driver = cuda.driver
    write_error, write_graph = _capture(driver.cuStreamWriteValue64, address, 5)
    wait_error, wait_graph = _capture(driver.cuStreamWaitValue64, address, 5)
    effect = "there was no graph to replay"
    values: list[int] = []
    if write_graph is not None:
        graph = cuda.checked(driver.cuGraphInstantiate(write_graph, 0))
        stream = cuda.new_stream()
        for start in (0, 9):
            page[WAITED] = start
            cuda.checked(driver.cuGraphLaunch(graph, stream))
            cuda.checked(driver.cuStreamSynchronize(stream))
            values.append(page[WAITED])
        effect = f"replays set a lane of 0 to {values[0]} and a lane of 9 back to {values[1]}"
    resets = values == [5, 5]
    report(
        Finding(
            probe="capture",
            seen=f"a stream write of 5 inside a capture: {write_error}; {effect}; a stream wait"
            f" inside a capture: {wait_error}",
            counts={"replays": len(values), "wait_graph": int(wait_graph is not None)},
            rule="stream writes and waits are never captured into graphs",
            verdict=Verdict.CONFIRMS if resets or write_graph is None else Verdict.CONTRADICTS,
        )
    )


def _capture(call: Any, address: int, value: int) -> tuple[str, Any]:
    """Return how a stream memory operation is answered inside a capture, and the graph or None."""
    driver = cuda.driver
    stream = cuda.new_stream()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    cuda.checked(driver.cuStreamBeginCapture(stream, mode))
    (error,) = call(stream, address, value, 0)
    end_error, graph = driver.cuStreamEndCapture(stream)
    usable = int(error) == 0 and int(end_error) == 0
    return f"{error.name}, end of capture {end_error.name}", graph if usable else None
