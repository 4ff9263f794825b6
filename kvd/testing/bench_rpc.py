"""One decode iteration through the daemon, beside a plain echo of the same frame sizes.

Blocks of both take turns, so that whatever the machine does meanwhile happens to both.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from kvd.errors import WorkloadError
from kvd.testing.bench_decode import (
    DEADLINE_MS,
    DECLARATION,
    DecodeLoop,
    at_once,
    decode_sizing,
)
from kvd.testing.bench_echo import EchoClient, EchoServer
from kvd.testing.bench_figures import Comparison, Figure, Times
from kvd_client import attach
from kvd_client.transport import Frames, ZmqTransport

TIGHT_BLOCK_COUNT: Final = 256
PACED_BLOCK_COUNT: Final = 32
WARM_UP_COUNT: Final = 64
BATCH_P50_MAX: Final = {64: 1.7, 1: 2.0}
"""Times echo, by the tokens of a page."""
BUSY_POLL_P50_MAX: Final = {64: 1.5}
P99_MAX: Final = 3.0
FULL_SIZE_COUNT: Final = 256
"""Requests that the targets are about."""
PUBLISH_WAIT_S: Final = 5.0
PUBLISH_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class CoreTotals:
    """What the daemon says of the time it spent on batches itself."""

    batch_count: int
    total_us: float
    p50_us: float
    p99_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcSpec:
    """What to measure."""

    requests_count: int
    page_tokens: int
    pace_ms: int
    """Between the starts of two iterations; 0: one follows the other."""
    seconds: float
    busy_poll: bool
    seed_index: int

    @property
    def name(self) -> str:
        """Return the name that all its figures begin with."""
        pace = f"paced_{self.pace_ms}ms" if self.pace_ms else "tight"
        return f"page{self.page_tokens}_{pace}{'_busy_poll' if self.busy_poll else ''}"


class FrameBytes(NamedTuple):
    """Sizes of the two frames of one message."""

    header_bytes: int
    body_bytes: int


class FrameSizes(ZmqTransport):
    """The real transport, which remembers the sizes of the newest frames."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.request = self.reply = FrameBytes(0, 0)

    def send(self, frames: Frames) -> None:
        """Send both frames."""
        self.request = FrameBytes(len(frames.header), len(frames.body))
        super().send(frames)

    def receive(self) -> Frames:
        """Return the message that is there."""
        frames = super().receive()
        self.reply = FrameBytes(len(frames.header), len(frames.body))
        return frames


class Pacer:
    """Waits for the next tick, so that iterations start at a steady pace."""

    def __init__(self, pace_ms: int) -> None:
        self._pace_s = pace_ms / 1000
        self._next_s = time.perf_counter()

    def wait(self) -> None:
        """Sleep until the next tick; one that has passed already is skipped."""
        if not self._pace_s:
            return
        now_s = time.perf_counter()
        self._next_s = max(self._next_s + self._pace_s, now_s)
        time.sleep(self._next_s - now_s)


def measure_rpc(
    spec: RpcSpec, *, socket_path: Path, core_totals: Callable[[], CoreTotals]
) -> list[Figure]:
    """Return the figures of one page size and pace, measured on the daemon at a socket.

    ``core_totals`` reads the daemon's statistics. Raises WorkloadError if the workload does not fit
    or the statistics do not come.
    """
    sizing = decode_sizing(requests_count=spec.requests_count, page_tokens=spec.page_tokens)
    transport = FrameSizes(str(socket_path))
    with attach(
        str(socket_path),
        group="bench",
        declare=DECLARATION,
        sizing=sizing,
        deadline_ms=DEADLINE_MS,
        transport=transport,
    ) as client:
        loop = DecodeLoop(client, requests_count=spec.requests_count, seed_index=spec.seed_index)
        pacer = Pacer(spec.pace_ms)
        request, reply = _typical_sizes(loop, transport)
        address = f"ipc://{socket_path}.echo"
        with (
            EchoServer(address, **reply._asdict()),
            EchoClient(address, **request._asdict()) as echo,
        ):
            gc.collect()
            gc.freeze()
            before = _published(core_totals, loop.batch_count)
            comparison = _take_turns(spec, loop, echo, pacer)
            core = _published(core_totals, loop.batch_count)
    full_size = spec.requests_count == FULL_SIZE_COUNT
    p50_max = (BUSY_POLL_P50_MAX if spec.busy_poll else BATCH_P50_MAX).get(spec.page_tokens)
    batch_count = core.batch_count - before.batch_count
    core_mean_us = (core.total_us - before.total_us) / batch_count
    return [
        *comparison.figures(
            spec.name,
            p50_max=p50_max if full_size else None,
            p99_max=P99_MAX if full_size else None,
        ),
        Figure(f"{spec.name}_core_mean", core_mean_us, "us"),
        Figure(f"{spec.name}_core_p50", core.p50_us, "us"),
        Figure(f"{spec.name}_core_p99", core.p99_us, "us"),
        Figure(f"{spec.name}_request_bytes", float(sum(request)), "B"),
        Figure(f"{spec.name}_reply_bytes", float(sum(reply)), "B"),
    ]


def _typical_sizes(loop: DecodeLoop, transport: FrameSizes) -> tuple[FrameBytes, FrameBytes]:
    """Warm up; return the median sizes of a request's frames and of a reply's."""
    requests: list[FrameBytes] = []
    replies: list[FrameBytes] = []
    for _ in range(WARM_UP_COUNT):
        loop.step(at_once)
        requests.append(transport.request)
        replies.append(transport.reply)
    return _median(requests), _median(replies)


def _median(sizes: list[FrameBytes]) -> FrameBytes:
    headers, bodies = zip(*sizes, strict=True)
    return FrameBytes(int(np.median(headers)), int(np.median(bodies)))


def _take_turns(spec: RpcSpec, loop: DecodeLoop, echo: EchoClient, pacer: Pacer) -> Comparison:
    """Measure blocks of both in turns until the time is over."""
    count = PACED_BLOCK_COUNT if spec.pace_ms else TIGHT_BLOCK_COUNT
    batches: list[Times] = []
    echoes: list[Times] = []
    end_s = time.perf_counter() + spec.seconds
    while not batches or time.perf_counter() < end_s:
        batches.append(np.array([loop.step(pacer.wait) for _ in range(count)], dtype=np.int64))
        plain: list[int] = []
        for _ in range(count):
            pacer.wait()
            plain.append(echo.round_trip())
        echoes.append(np.array(plain, dtype=np.int64))
    return Comparison(tuple(batches), tuple(echoes))


def _published(core_totals: Callable[[], CoreTotals], batch_count: int) -> CoreTotals:
    """Return the totals once the daemon has published them up to this batch."""
    end_s = time.perf_counter() + PUBLISH_WAIT_S
    while (newest := core_totals()).batch_count != batch_count:
        if time.perf_counter() > end_s:
            raise WorkloadError(
                f"the daemon's statistics show {newest.batch_count} batches of the {batch_count} "
                f"that were sent"
            )
        time.sleep(PUBLISH_POLL_S)
    return newest
