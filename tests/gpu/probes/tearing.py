"""Whether the host ever sees half of a pair of words that the GPU stored.

The host copies each pair of 16 aligned bytes by ``memmove``, which on x86-64 with AVX is one load
of at least 16 bytes, and compares the halves. A kernel that stores the halves one after the other
shows that halves would be seen.
"""

import ctypes
import time
from typing import Any, Final

import numpy as np

from tests.gpu.probes import cuda
from tests.gpu.probes.findings import Finding, Verdict, report, verdict_of
from tests.gpu.probes.processes import (
    WORD_BYTES,
    Arguments,
    Page,
    start_role,
    wait_ready,
)

READY: Final = 0
STOP: Final = 1
PAIRS_OFFSET_BYTES: Final = 1024
PAIR_BYTES: Final = 16
PAIRS_COUNT: Final = 64
"""1 KiB: longer copies may be done by ``rep movsb``, whose loads promise nothing."""
STEPS: Final = 200_000
PAUSE_CLOCKS: Final = 300
SAMPLING_S: Final = 3.0
WHOLE: Final = -1
"""In place of the clocks between two stores: one store."""
ROWS_COUNT: Final = 256
RULE: Final = "segments: the progress word holds (position, segment)"


def storer(arguments: Arguments) -> None:
    """Run kernels that store pairs until told to stop."""
    cuda.open_gpu(arguments["gpu"])
    kernels = cuda.Kernels(arguments["kernels"])
    page = Page(arguments["page"])
    address = cuda.register(page) + PAIRS_OFFSET_BYTES
    stream = cuda.new_stream()
    while not page[STOP]:
        kernels.launch(
            "store_pairs",
            stream,
            (1, arguments["pairs"]),
            cuda.pointer(address),
            cuda.long(arguments["stride"]),
            cuda.long(STEPS),
            cuda.long(PAUSE_CLOCKS),
            cuda.long(arguments["apart"]),
        )
        page[READY] = 1
        cuda.checked(cuda.driver.cuStreamSynchronize(stream))


def stream_writer(arguments: Arguments) -> None:
    """Write both halves of a pair by stream writes until told to stop."""
    cuda.open_gpu(arguments["gpu"])
    page = Page(arguments["page"])
    address = cuda.register(page) + PAIRS_OFFSET_BYTES
    stream = cuda.new_stream()
    number = 0
    while not page[STOP]:
        for _ in range(200):
            number += 1
            cuda.write_word(stream, address, number)
            cuda.write_word(stream, address + WORD_BYTES, number)
        page[READY] = 1
        cuda.checked(cuda.driver.cuStreamSynchronize(stream))


def sample(page: Page, stride_bytes: int, pairs_count: int) -> tuple[int, int, int]:
    """Read pairs for a while; return how many were read, how many changed, and how many were torn.

    Pairs that lie apart are copied one by one, pairs that touch all at once; many copies are made
    before any is compared, because comparing takes longer.
    """
    copies_count = max(1, ROWS_COUNT // pairs_count)
    copies = np.zeros((copies_count, pairs_count, 2), np.uint64)
    last = np.zeros(pairs_count, np.uint64)
    source = page.address + PAIRS_OFFSET_BYTES
    target = copies.ctypes.data
    row_bytes = pairs_count * PAIR_BYTES
    if stride_bytes == PAIR_BYTES:
        moves = [(target + row * row_bytes, source, row_bytes) for row in range(copies_count)]
    else:
        moves = [
            (target + row * row_bytes + pair * PAIR_BYTES, source + pair * stride_bytes, PAIR_BYTES)
            for row in range(copies_count)
            for pair in range(pairs_count)
        ]
    move: Any = ctypes.memmove
    read = changed = torn = 0
    end = time.perf_counter() + SAMPLING_S
    while time.perf_counter() < end:
        for to, origin, size_bytes in moves:
            move(to, origin, size_bytes)
        read += copies_count * pairs_count
        torn += int(np.count_nonzero(copies[:, :, 0] != copies[:, :, 1]))
        changed += int(np.count_nonzero(copies[0, :, 0] != last))
        changed += int(np.count_nonzero(copies[1:, :, 0] != copies[:-1, :, 0]))
        last[:] = copies[-1, :, 0]
    return read, changed, torn


def observe(
    role: str, arguments: Arguments, kernels: int, *, stride_bytes: int, pairs_count: int
) -> tuple[int, int, int]:
    """Sample what a role stores; returns the numbers of `sample`."""
    page = Page()
    process = start_role(role, {**arguments, "page": page.descriptor}, (kernels, page.descriptor))
    try:
        wait_ready(process, page, READY)
        numbers = sample(page, stride_bytes, pairs_count)
        page[STOP] = 1
        process.wait(timeout=10)
    finally:
        process.kill()
        process.wait()
    return numbers


def run(gpu: int) -> None:
    """Look for torn pairs of one store, of two stores, and of two stream writes."""
    kernels = cuda.share_kernels(gpu)
    base: Arguments = {"gpu": gpu, "kernels": kernels}
    cases = (
        ("one 16-byte store per thread, pairs side by side", WHOLE, PAIR_BYTES, PAIRS_COUNT),
        ("one 16-byte store per thread, pairs 128 bytes apart", WHOLE, 128, 16),
        ("one 16-byte store of one thread", WHOLE, PAIR_BYTES, 1),
        ("two 8-byte stores back to back", 0, PAIR_BYTES, PAIRS_COUNT),
        ("two 8-byte stores with a pause between (tears must be seen)", 300, PAIR_BYTES, 16),
    )
    for title, apart, stride_bytes, pairs_count in cases:
        arguments = {**base, "apart": apart, "stride": stride_bytes, "pairs": pairs_count}
        numbers = observe(
            "tearing:storer",
            arguments,
            kernels,
            stride_bytes=stride_bytes,
            pairs_count=pairs_count,
        )
        _report(title, numbers, whole=apart == WHOLE)
    numbers = observe(
        "tearing:stream_writer", base, kernels, stride_bytes=PAIR_BYTES, pairs_count=1
    )
    _report("two stream writes of 8 bytes", numbers, whole=False)


def _report(title: str, numbers: tuple[int, int, int], *, whole: bool) -> None:
    read, changed, torn = numbers
    if not whole:
        # Halves written one after the other: seeing them apart is expected, not a surprise.
        verdict = Verdict.CONFIRMS if torn else Verdict.INFORMS
        rule = "two words written one after the other are no unit: readers need an order of reads"
    else:
        verdict = verdict_of(changed > 0, torn == 0)
        rule = RULE
    report(
        Finding(
            probe="tearing",
            seen=f"{title}: {torn} of {read} pairs that the host read were torn",
            counts={"read": read, "changed_since_last_read": changed, "torn": torn},
            rule=rule,
            verdict=verdict,
        )
    )
