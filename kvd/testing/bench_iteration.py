"""What an engine's iteration on a GPU loses to kvd, against pages that were assigned beforehand.

Both loops are those of an engine with overlap: the host prepares the next forward while this one
runs, and each forward reads the same uploads and multiplies the same matrices for about 5 ms. One
asks the daemon for its pages, frees what slid out, and resolves its ids from the tables; the other
has everything from the start. Blocks of both take turns.
"""

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import numpy as np

import kvd_client
from kvd.errors import WorkloadError
from kvd.presets import preset_config
from kvd.testing.bench_decode import DEADLINE_MS, DECLARATION, DecodeLoop, decode_sizing
from kvd.testing.bench_figures import Figure
from kvd_client import STANDING, Client
from kvd_client.device.port import Event, Stream
from kvd_client.errors import DeviceError
from kvd_proto.memory import DeclaredConfig, DeclaredLayers, Lifetime, SizingInputs

ITERATION_MS: Final = 5.0
LOSS_PERCENT_MAX: Final = 1.0
ATTACH_MS_MAX: Final = 100.0
READY_MS_MAX: Final = 2000.0
BLOCK_COUNT: Final = 6
ITERATIONS_COUNT: Final = 120
WARM_UP_COUNT: Final = 20
ATTACH_COUNT: Final = 5
LARGE_BYTES: Final = 100 << 30
LARGE_PRESET: Final = "gpt-oss-20b"
PAGE_TOKENS: Final = 64
MATRIX_ROWS: Final = 4096


class _Model:
    """Matrix products that take about as long as a decode step of a large model."""

    def __init__(self, stream: Stream) -> None:
        import torch

        self._torch = torch
        self._left = torch.randn(MATRIX_ROWS, MATRIX_ROWS, dtype=torch.bfloat16, device="cuda")
        self._right = torch.randn(MATRIX_ROWS, MATRIX_ROWS, dtype=torch.bfloat16, device="cuda")
        self._out = torch.empty_like(self._left)
        self._product_count = 1
        stream.submit(self._multiply)  # the first product loads its kernel
        stream.synchronize(DEADLINE_MS)
        self._product_count = 100
        started = perf_counter()
        stream.submit(self._multiply)
        stream.synchronize(DEADLINE_MS)
        each_ms = (perf_counter() - started) * 1e3 / self._product_count
        self._product_count = max(1, round(ITERATION_MS / each_ms))

    def run(self, ids: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Enqueue one forward: the upload of its ids, then the products."""
        uploaded = self._torch.from_numpy(ids).to("cuda", non_blocking=True)
        self._out[0, 0] = uploaded[0]
        self._multiply()

    def _multiply(self) -> None:
        for _ in range(self._product_count):
            self._torch.mm(self._left, self._right, out=self._out)


def measure_iteration(address: str, *, requests_count: int, seed_index: int) -> list[Figure]:
    """Return what an iteration takes with kvd and without, and what attaching takes.

    Raises WorkloadError where there is no GPU.
    """
    from kvd_client.device.cuda.device import cuda_device

    try:
        device = cuda_device()
    except DeviceError as error:
        raise WorkloadError(f"an iteration is measured on a GPU: {error}") from error

    def attach(
        group: str, sizing: SizingInputs, declare: DeclaredLayers | DeclaredConfig = DECLARATION
    ) -> Client:
        return kvd_client.attach(
            address,
            group=group,
            declare=declare,
            sizing=sizing,
            deadline_ms=DEADLINE_MS,
            device=device,
            overlap=True,
        )

    sizing = decode_sizing(requests_count=requests_count, page_tokens=PAGE_TOKENS)
    with attach("iteration", sizing) as client:
        figures = _loss(client, requests_count=requests_count, seed_index=seed_index)
    attaching = [_attach_ms(lambda: attach("attach", sizing)) for _ in range(ATTACH_COUNT)]
    large = SizingInputs(budget_bytes=LARGE_BYTES, page_tokens=PAGE_TOKENS, context_tokens=4096)
    figures.append(Figure("attach_to_first_view", min(attaching), "ms", ATTACH_MS_MAX))
    # A model with pages large enough for so many bytes.
    model = DeclaredConfig(config_json=preset_config(LARGE_PRESET), name=LARGE_PRESET)
    ready_ms = _attach_ms(lambda: attach("large", large, model))
    figures.append(Figure("arena_of_100_gib_ready", ready_ms, "ms", READY_MS_MAX))
    return figures


def _loss(client: Client, *, requests_count: int, seed_index: int) -> list[Figure]:
    DecodeLoop(client, requests_count=requests_count, seed_index=seed_index)
    stream = client.forward_stream
    model = _Model(stream)
    bands = [band.name for band in client.plan.bands if band.lifetime is not Lifetime.STATE]
    in_flight: deque[tuple[int, Event]] = deque()

    def resolved() -> np.ndarray[Any, np.dtype[np.int64]]:
        slots = [np.asarray(client.write_slots(band, STANDING).values) for band in bands]
        return np.concatenate([*slots, np.asarray(client.state_slots(STANDING))])

    def with_kvd() -> None:
        with client.batch() as batch:
            while len(in_flight) > 1:
                batch.processed(in_flight.popleft()[0])
            batch.advance(STANDING)
            batch.take(STANDING)
        with client.launch(writes=STANDING) as step:
            ids = resolved()
            step.reads_done()
            step.submit(lambda: model.run(ids))
            in_flight.append((step.number, step.stream.record()))

    assigned = resolved()
    behind: deque[Event] = deque()

    def preassigned() -> None:
        while len(behind) > 1:
            behind.popleft().synchronize(DEADLINE_MS)
        stream.submit(lambda: model.run(assigned))
        behind.append(stream.record())

    def block_ms(iterate: Callable[[], None]) -> float:
        for _ in range(WARM_UP_COUNT):
            iterate()
        stream.synchronize(DEADLINE_MS)
        started = perf_counter()
        for _ in range(ITERATIONS_COUNT):
            iterate()
        stream.synchronize(DEADLINE_MS)
        return (perf_counter() - started) * 1e3 / ITERATIONS_COUNT

    pairs = [(block_ms(preassigned), block_ms(with_kvd)) for _ in range(BLOCK_COUNT)]
    with client.batch() as batch:
        for step, _ in in_flight:
            batch.processed(step)
    losses = [(ours - plain) / plain * 100 for plain, ours in pairs]
    return [
        Figure("iteration_preassigned", min(plain for plain, _ in pairs), "ms"),
        Figure("iteration_kvd", min(ours for _, ours in pairs), "ms"),
        Figure("iteration_loss_p50", float(np.median(losses)), "%", LOSS_PERCENT_MAX),
        Figure("iteration_loss_min", min(losses), "%"),
        Figure("iteration_loss_max", max(losses), "%"),
    ]


def _attach_ms(attach: Callable[[], Client]) -> float:
    """Return the milliseconds from attaching to the first view; the context is there already."""
    started = perf_counter()
    client = attach()
    client.views(0)
    elapsed_ms = (perf_counter() - started) * 1e3
    client.close()
    return elapsed_ms
