"""The core alone: a decode step from body bytes to reply bytes, without processes and sockets.

The batches are recorded once from a client that runs the benchmarks' workload against the core in
this process. Every repeat replays the same bytes into a fresh core, so a repeat does exactly the
same work, and nothing of a client runs between two batches.
"""

import gc
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Final

import numpy as np

from kvd.alloc.checks import CheckLevel
from kvd.build import StageStorage, build_group
from kvd.engine.incarnation import Incarnation
from kvd.price.geometry import BandKind, ChainGeometry, chain_geometry
from kvd.price.plans import feasible
from kvd.price.snapshot import chain_snapshot
from kvd.testing.bench_decode import (
    DEADLINE_MS,
    DECLARATION,
    DecodeLoop,
    at_once,
    decode_sizing,
)
from kvd.testing.bench_echo import EchoClient, EchoServer
from kvd.testing.bench_figures import REPEAT_COUNT, Figure, Times, best_us, percentile_us
from kvd_client import MockTransport, attach
from kvd_client.mock import Answer
from kvd_proto.codec import encode
from kvd_proto.control import Ack, Header, MessageKind, Welcome
from kvd_proto.version import PROTOCOL_VERSION

STEP_US_MAX: Final = {64: 30.0, 1: 65.0}
FULL_SIZE_COUNT: Final = 256
FEASIBLE_US_MAX: Final = {3: 15.0, 6: 40.0}
WARM_UP_COUNT: Final = 64
RING_ENTRIES: Final = 4096
STRICT_STEPS_COUNT: Final = 4


@dataclass(frozen=True, slots=True)
class Recording:
    """The batches of one run: the first ``setup_count`` of them are not measured."""

    storage: StageStorage
    bodies: tuple[bytes, ...]
    setup_count: int


def measure_core(
    *, requests_count: int, page_tokens: int, steps_count: int, seed_index: int
) -> list[Figure]:
    """Return the figures of one page size, with an echo of the same frame sizes beside them."""
    recording = record(
        requests_count=requests_count,
        page_tokens=page_tokens,
        steps_count=steps_count,
        seed_index=seed_index,
    )
    body_bytes = int(np.median([len(body) for body in recording.bodies[recording.setup_count :]]))
    reply_bytes = _reply_bytes(recording)
    header_bytes = len(encode(Header(MessageKind.REPLY, 1 << 62, 1 << 62, 1 << 20, 1 << 20)))
    steps: list[Times] = []
    echoes: list[Times] = []
    with tempfile.TemporaryDirectory(prefix="kvd-") as folder:
        address = f"ipc://{Path(folder) / 'echo'}"
        with (
            EchoServer(address, header_bytes=header_bytes, body_bytes=reply_bytes),
            EchoClient(address, header_bytes=header_bytes, body_bytes=body_bytes) as echo,
        ):
            for _ in range(REPEAT_COUNT):
                steps.append(replay(recording))
                plain = [echo.round_trip() for _ in range(steps_count)]
                echoes.append(np.array(plain, dtype=np.int64))
    name = f"page{page_tokens}_core"
    best, plain_us = min(
        (percentile_us(ours, 50), percentile_us(plain, 50))
        for ours, plain in zip(steps, echoes, strict=True)
    )
    everything = np.concatenate(steps)
    target = STEP_US_MAX.get(page_tokens) if requests_count == FULL_SIZE_COUNT else None
    return [
        Figure(f"{name}_step_p50", best, "us", target),
        Figure(f"{name}_step_p5", percentile_us(everything, 5), "us"),
        Figure(f"{name}_step_p50_pooled", percentile_us(everything, 50), "us"),
        Figure(f"{name}_step_p99", percentile_us(everything, 99), "us"),
        Figure(f"{name}_echo_p50", plain_us, "us"),
        Figure(f"{name}_ratio_p50", best / plain_us, "x echo"),
        Figure(f"{name}_request_bytes", float(body_bytes), "B"),
        Figure(f"{name}_reply_bytes", float(reply_bytes), "B"),
    ]


def record(
    *, requests_count: int, page_tokens: int, steps_count: int, seed_index: int
) -> Recording:
    """Run the workload once against a core in this process and return its batches."""
    sizing = decode_sizing(requests_count=requests_count, page_tokens=page_tokens)
    storage = build_group(DECLARATION, inputs=sizing).stages[0]
    transport = MockTransport(_Daemon(storage).answer)
    with attach(
        "ipc:///in/this/process",
        group="bench",
        declare=DECLARATION,
        sizing=sizing,
        deadline_ms=DEADLINE_MS,
        transport=transport,
    ) as client:
        loop = DecodeLoop(client, requests_count=requests_count, seed_index=seed_index)
        setup_count = loop.batch_count + WARM_UP_COUNT
        for _ in range(WARM_UP_COUNT + steps_count):
            loop.step(at_once)
    bodies = tuple(body for header, body in transport.sent if header.kind is MessageKind.BATCH)
    return Recording(storage, bodies, setup_count)


def measure_levels(
    *, requests_count: int, page_tokens: int, steps_count: int, seed_index: int
) -> list[Figure]:
    """Return what a decode step takes at each level of checks, reply and all that is due behind it.

    Off and warn take turns, so that whatever else the machine does meets both alike. Strict goes
    through every map after every operation: a few of its steps, once, say enough.
    """
    recording = record(
        requests_count=requests_count,
        page_tokens=page_tokens,
        steps_count=steps_count,
        seed_index=seed_index,
    )
    found: dict[CheckLevel, list[Times]] = {level: [] for level in CheckLevel}
    for _ in range(REPEAT_COUNT):
        for level in (CheckLevel.OFF, CheckLevel.WARN):
            found[level].append(replay(recording, level=level, settled=True))
    few = recording.bodies[: recording.setup_count + STRICT_STEPS_COUNT]
    strict = replace(recording, bodies=few)
    found[CheckLevel.STRICT].append(replay(strict, level=CheckLevel.STRICT, settled=True))
    medians = {
        level: min(percentile_us(each, 50) for each in times) for level, times in found.items()
    }
    name = f"page{page_tokens}_checks"
    figures = [
        Figure(f"{name}_{level.word}_step_p50", median, "us") for level, median in medians.items()
    ]
    for level in (CheckLevel.WARN, CheckLevel.STRICT):
        ratio = medians[level] / medians[CheckLevel.OFF]
        figures.append(Figure(f"{name}_{level.word}_ratio", ratio, "x off"))
    means = {
        level: min(float(np.mean(each)) for each in times) / 1000 for level, times in found.items()
    }
    figures += [
        Figure(f"{name}_{level.word}_step_mean", mean, "us") for level, mean in means.items()
    ]
    return figures


def replay(
    recording: Recording, *, level: CheckLevel = CheckLevel.WARN, settled: bool = False
) -> Times:
    """Decide the recorded batches on a fresh core; return the nanoseconds of those measured.

    They end at the reply or, ``settled``, with what is done behind it.
    """
    incarnation = _incarnation(recording.storage)
    times: list[int] = []
    gc.collect()
    gc.freeze()
    for place, body in enumerate(recording.bodies):
        if place == recording.setup_count:
            incarnation.check_at(level)
        index = incarnation.next_index(0)
        started_ns = perf_counter_ns()
        incarnation.batch(rank=0, program=0, index=index, body=body)
        replied_ns = perf_counter_ns()
        # As in the daemon: behind the reply, and the rank has applied it before it asks again.
        incarnation.settle()
        times.append((perf_counter_ns() if settled else replied_ns) - started_ns)
        incarnation.confirm(0, incarnation.log.end_position)
    return np.array(times[recording.setup_count :], dtype=np.int64)


def measure_feasible() -> list[Figure]:
    """Return what one answer of the layout search takes for chains of three and of six bands."""
    return [
        Figure(
            f"feasible_{bands_count}_bands",
            best_us(_feasible_question(bands_count)),
            "us",
            FEASIBLE_US_MAX[bands_count],
        )
        for bands_count in FEASIBLE_US_MAX
    ]


def _feasible_question(bands_count: int) -> Callable[[], object]:
    """Return a question whose answer is yes, so that every band is placed before it is known."""
    geometry = _geometry(bands_count)
    live = tuple(band.room_units // (2 * bands_count) for band in geometry.bands)
    demand = tuple(band.room_units // (4 * bands_count) for band in geometry.bands)
    snapshot = chain_snapshot(geometry, live)
    assert feasible(snapshot, demand)
    return lambda: feasible(snapshot, demand)


def _geometry(bands_count: int) -> ChainGeometry:
    kinds = [BandKind.FLOAT] * bands_count
    kinds[0], kinds[-1] = BandKind.GROW_UP, BandKind.GROW_DOWN
    # Unit sizes without a common grid, as TP sharding of different layer counts gives them.
    unit_bytes = [(7 + 4 * place) << 12 for place in range(bands_count)]
    return chain_geometry(
        arena_bytes=40 << 30,
        sink_bytes=max(unit_bytes),
        bands=tuple(
            (f"band_{place}", kind, size)
            for place, (kind, size) in enumerate(zip(kinds, unit_bytes, strict=True))
        ),
    )


def replies(recording: Recording) -> Iterator[bytes]:
    """Yield the reply to each recorded batch, those of the set-up included."""
    incarnation = _incarnation(recording.storage)
    for body in recording.bodies:
        index = incarnation.next_index(0)
        _, reply = incarnation.batch(rank=0, program=0, index=index, body=body)
        yield reply
        incarnation.settle()
        incarnation.confirm(0, incarnation.log.end_position)


def _reply_bytes(recording: Recording) -> int:
    """Return the median size of the measured batches' replies."""
    sizes = [len(reply) for reply in replies(recording)]
    return int(np.median(sizes[recording.setup_count :]))


def _incarnation(storage: StageStorage) -> Incarnation:
    return Incarnation(
        storage,
        number=1,
        ranks=(0,),
        level=CheckLevel.WARN,
        ring_entries_max=RING_ENTRIES,
        lag_entries_max=RING_ENTRIES,
    )


class _Daemon:
    """Answers one rank as the daemon would, with a core in this process."""

    def __init__(self, storage: StageStorage) -> None:
        self._plan = storage.storage
        self._incarnation = _incarnation(storage)

    def answer(self, header: Header, body: bytes) -> list[Answer]:
        incarnation = self._incarnation
        if header.kind is MessageKind.HELLO:
            return [(Header(MessageKind.WELCOME), encode(self._welcome()))]
        if header.kind is not MessageKind.BATCH:
            return [(Header(MessageKind.ACK, 1, 1, header.index), encode(Ack()))]
        incarnation.confirm(0, header.position)
        end_index, reply = incarnation.batch(rank=0, program=0, index=header.index, body=body)
        incarnation.settle()
        position = incarnation.log.end_position
        return [(Header(MessageKind.REPLY, 1, 1, end_index, position), reply)]

    def _welcome(self) -> Welcome:
        return Welcome(
            version=PROTOCOL_VERSION,
            build="bench",
            epoch=1,
            token=1,
            incarnation=1,
            heartbeat_ms=DEADLINE_MS,
            frame_bytes_max=1 << 24,
            next_index=0,
            position=0,
            asked_bytes=self._plan.total_bytes,
            granted_bytes=self._plan.total_bytes,
            minimum_rank=0,
            plan=self._plan,
        )
