"""Ids translated on a CUDA device: the host's answers, without waiting, replayed by one graph."""

import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from kvd_client import STANDING, Client
from kvd_client.device_ids import DeviceIterationIds, DeviceRunnerIds
from tests.client.engine_daemon import EngineDaemon
from tests.client.ids_cases import (
    BANDS,
    COLUMNS_MAX,
    PAGES_MAX,
    ROWS_MAX,
    TOKENS_MAX,
    admit,
    as_list,
    decode,
    finish,
    free,
    read_ids,
    write_ids,
)

pytestmark = pytest.mark.gpu


@pytest.fixture
def kv() -> Iterator[Client]:
    assert torch.cuda.is_available(), "gpu tests need a CUDA device"
    with EngineDaemon().attach() as client:
        yield client


@contextmanager
def waits_are_errors() -> Generator[None, None, None]:
    """Raise from whatever waits for the device; torch warns that it does not see every wait."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Mirrored:
    """A rank on host memory whose bytes are copied to the device before each step's ids."""

    def __init__(self, kv: Client) -> None:
        self.kv = kv
        self.host = torch.frombuffer(kv.memory.buffer, dtype=torch.uint8)
        self.mapping = self.host.cuda()
        self.writes = DeviceIterationIds(
            kv, tokens_max=TOKENS_MAX, rows_max=ROWS_MAX, mapping=self.mapping
        )
        self.reads = DeviceRunnerIds(
            kv,
            rows_max=ROWS_MAX,
            pages_max=PAGES_MAX,
            columns_max=COLUMNS_MAX,
            mapping=self.mapping,
        )
        self.host_writes = write_ids(kv, device=False)
        self.host_reads = read_ids(kv, device=False)

    def step(self, ids: Any) -> None:
        """Resolve on both; the device must not be waited for."""
        self.kv.stream.synchronize(5_000)
        self.mapping.copy_(self.host)
        with self.kv.launch() as step:
            with waits_are_errors():
                self.writes.resolve(step, ids)
                self.reads.resolve(step, ids)
            self.host_writes.resolve(step, ids)
            self.host_reads.resolve(step, ids)
        finish(self.kv)

    def pairs(self) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = []
        for band in BANDS:
            found.append((self.writes.slots(band), self.host_writes.slots(band)))
            found.append((self.reads.indices(band), self.host_reads.indices(band)))
            found.append((self.reads.block_table(band), self.host_reads.block_table(band)))
        for name in ("state_slots", "token_count", "row_count"):
            found.append((getattr(self.writes, name), getattr(self.host_writes, name)))
        for name in ("indptr", "lengths", "row_count"):
            found.append((getattr(self.reads, name), getattr(self.host_reads, name)))
        return found

    def check(self) -> None:
        for device, host in self.pairs():
            assert device.is_cuda
            assert as_list(device) == as_list(host)


def test_the_device_gives_what_the_host_gives_and_waits_for_nothing(kv: Client) -> None:
    both = Mirrored(kv)
    for number, tokens in enumerate((3, 16, 9, 1), start=1):
        admit(kv, {number: tokens})
        both.step(STANDING)
        both.check()
        decode(kv, 5)
    free(kv, [2])
    both.step([3, 1])
    both.check()


def test_one_captured_graph_serves_every_batch(kv: Client) -> None:
    both = Mirrored(kv)
    admit(kv, {1: 3, 2: 9})
    both.step(STANDING)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    out = {band: torch.zeros(TOKENS_MAX, dtype=torch.int64, device="cuda") for band in BANDS}
    with torch.cuda.stream(side):
        both.writes.translate()
        both.reads.translate()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both.writes.translate()
        both.reads.translate()
        for band in BANDS:
            out[band].copy_(both.writes.slots(band))
    for number, tokens in enumerate((16, 1, 4), start=3):
        admit(kv, {number: tokens})
        decode(kv, 3)
        both.step(STANDING)
        for device, _ in both.pairs():
            if device.dtype == torch.int32:
                device.fill_(-7)  # the replay alone must fill it
        both.reads.indptr[0] = 0  # never written: every batch begins at 0
        graph.replay()
        both.check()
        for band in BANDS:
            assert as_list(out[band]) == as_list(both.host_writes.slots(band))


def test_uploads_of_steps_that_are_still_queued_do_not_mix(kv: Client) -> None:
    both = Mirrored(kv)
    admit(kv, {1: 3, 2: 9, 3: 1})
    kv.stream.synchronize(5_000)
    both.mapping.copy_(both.host)
    torch.cuda.synchronize()
    seen: list[torch.Tensor] = []
    torch.cuda._sleep(200_000_000)  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
    batches = ([1], [1, 2], [3], [2, 3, 1])
    for batch in batches:
        with kv.launch() as step:
            both.reads.resolve(step, batch)
        seen.append(both.reads.row_count.clone())
        with kv.batch() as notice:
            notice.processed(kv.step)
    torch.cuda.synchronize()
    assert [as_list(one) for one in seen] == [[len(batch)] for batch in batches]
