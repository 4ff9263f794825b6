"""The painter of a replay on a GPU: kernels that find pages through the tables in the arena.

A forward has two parts. `read_tables` runs ahead of the step's shared-read end and keeps what the
tables said; `run` writes, flips and checks by that. What the tables on the device say is compared
with what the client said on the host, so a table that was written too early or too late is found
even where the bytes happen to be right.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from kvd.testing.painter import (
    MISMATCHES_KEPT_MAX,
    Corruption,
    Mismatch,
    PageCheck,
    PaintJob,
    PaintStatistics,
    TokenWrite,
)
from kvd.testing.pattern import Indices, PatternOwner
from kvd_client.device.port import Device, Memory
from kvd_proto.memory import BandPlan, Lifetime, StoragePlan
from kvd_proto.scalars import RequestId

SPEND_FILE: Final = Path(__file__).with_name("spend.cu")
THREADS: Final = 128
RECORD_WORDS: Final = 6
_FINDINGS: Final = {
    1: "byte {byte} of the page or slot differs",
    2: "the page lies outside the band's pages",
    3: "the page is not bound",
    4: "a new slot does not read zero at byte {byte}",
    5: "the tables on the device name it, the client names page {byte}",
}
_WORD_BYTES: Final = (8, 4, 2, 1)


class RowSource(Protocol):
    """Where the painter learns which row a request has."""

    def rows(self, ids: Sequence[int]) -> Indices:
        """Return the request row of each id."""
        ...


class _Band(NamedTuple):
    plan: BandPlan
    band_index: int
    seed_index: int
    word_bytes: int
    map_offset_bytes: int
    map_count: int


class _Places(NamedTuple):
    """Pages of one band that a step found through the tables, in device memory."""

    band: _Band
    columns: Any
    """``[column, page]`` of int64; which columns there are depends on the use."""
    physical: Any


def open_gpu(rank_index: int) -> Device:
    """Return the GPU of a rank, and make it cupy's current one; ranks spread over all there are."""
    import cupy

    from kvd_client.device.cuda.calls import visible_gpus
    from kvd_client.device.cuda.device import cuda_device

    uuids = visible_gpus()
    place = rank_index % max(1, len(uuids))
    device = cuda_device(uuids[place] if uuids else "")
    cupy.cuda.Device(place).use()
    return device


def forward_kernels(path: Path) -> str:
    """Return the source of a file of kernels, with that which lets a forward take its time."""
    return path.read_text(encoding="ascii") + SPEND_FILE.read_text(encoding="ascii")


class CudaPainter:
    """Writes and checks patterns in one rank's arena with kernels on the forward's stream."""

    def __init__(
        self,
        plan: StoragePlan,
        memory: Memory,
        rows: RowSource,
        *,
        rank_index: int,
        forward_us: float = 0,
        corruption: Corruption | None = None,
    ) -> None:
        import cupy

        self._cupy = cupy
        self._plan = plan
        self._rows = rows
        self._rank_index = rank_index
        self._forward_us = forward_us
        self._corruption = None if corruption is None or corruption.after_move else corruption
        self._address = memory.address
        maps = {one.band: one for one in plan.region.band_maps}
        self._bands = {
            band.name: _Band(
                band,
                index,
                int(PatternOwner(index, plan.stage_index, rank_index).seed),
                next(size for size in _WORD_BYTES if band.entry_bytes % size == 0),
                maps[band.name].offset_bytes,
                maps[band.name].entry_count,
            )
            for index, band in enumerate(plan.bands)
        }
        source = forward_kernels(Path(__file__).with_name("paint.cu"))
        self._module = cupy.RawModule(code=source, backend="nvrtc")
        self._kernels: dict[str, Any] = {}
        self._counts = cupy.zeros(1, dtype=cupy.uint64)
        self._records = cupy.zeros((MISMATCHES_KEPT_MAX, RECORD_WORDS), dtype=cupy.int64)
        cupy.cuda.get_current_stream().synchronize()
        self._reading: list[_Places] = []
        self._written_bytes = 0
        self._checked_bytes = 0
        self._checked_units = 0
        self._corrupted_count = 0

    def statistics(self) -> PaintStatistics:
        """Return the counts; call it when no job runs."""
        count = int(self._counts.get()[0])
        records = self._records.get()[: min(count, MISMATCHES_KEPT_MAX)]
        return PaintStatistics(
            written_bytes=self._written_bytes,
            checked_bytes=self._checked_bytes,
            checked_units=self._checked_units,
            corrupted_count=self._corrupted_count,
            mismatch_count=count,
            mismatches=tuple(self._mismatch(record.tolist()) for record in records),
        )

    def read_tables(self, job: PaintJob) -> None:
        """Enqueue the part of a forward that reads tables; it goes ahead of the shared-read end."""
        self._reading = [
            *(self._find_writes(write) for write in job.token_writes if write.places.size),
            *self._find_checks(job.page_checks),
        ]

    def run(self, job: PaintJob) -> None:
        """Enqueue everything else of the job that `read_tables` was called with last."""
        if self._forward_us:
            self._launch("spend", 1, 1, (np.int64(round(self._forward_us * 1000)),))
        writes = [write for write in job.token_writes if write.places.size]
        for write, places in zip(writes, self._reading[: len(writes)], strict=True):
            self._write(write, places)
        self._write_states(job)
        for flip in job.flips:
            self._flip(self._bands[flip.band], flip.entry_index)
        for places in self._reading[len(writes) :]:
            self._check(places)
        self._check_states(job)
        self._reading = []

    # ---- tables -----------------------------------------------------------------------------

    def _find_writes(self, write: TokenWrite) -> _Places:
        page_tokens = self._plan.page_tokens
        return self._find(
            self._bands[write.band],
            write.requests,
            write.positions // page_tokens,
            write.places // page_tokens,
            write.positions,
        )

    def _find_checks(self, checks: Sequence[PageCheck]) -> list[_Places]:
        found: list[_Places] = []
        for name, band in self._bands.items():
            own = [check for check in checks if check.band == name and check.physical.size]
            if not own:
                continue
            sizes = np.array([check.physical.size for check in own])
            pages = np.concatenate(
                [check.first_page_index + np.arange(check.physical.size) for check in own]
            )
            bound = np.repeat([check.bound_page_index for check in own], sizes)
            found.append(
                self._find(
                    band,
                    np.repeat([int(check.request_id) for check in own], sizes),
                    pages,
                    np.concatenate([check.physical for check in own]),
                    np.repeat([check.written_tokens for check in own], sizes),
                    (pages >= bound).astype(np.int64),
                )
            )
        return found

    def _find(
        self, band: _Band, requests: Indices, pages: Indices, expected: Indices, *more: Indices
    ) -> _Places:
        """Enqueue the look-up of pages; the columns are requests, pages, then what else came."""
        cupy, region = self._cupy, self._plan.region
        rows = self._rows.rows(requests.tolist())
        columns = cupy.asarray(
            np.stack([requests, pages, rows, expected, *more]).astype(np.int64, copy=False)
        )
        count = pages.size
        physical = cupy.empty(count, dtype=cupy.int64)
        self._launch(
            "read_tables",
            -(-count // THREADS),
            THREADS,
            (
                np.uint64(self._address + region.request_table.offset_bytes),
                np.int64(self._plan.row_pages),
                np.uint64(self._address + band.map_offset_bytes),
                np.int64(band.map_count),
                np.int64(count),
                columns[2],
                columns[1],
                columns[0],
                columns[3],
                physical,
                np.int64(band.band_index),
                *self._report_to(),
            ),
        )
        return _Places(band, columns, physical)

    # ---- bytes ------------------------------------------------------------------------------

    def _write(self, write: TokenWrite, places: _Places) -> None:
        band = places.band
        entry_bytes, page_tokens = band.plan.entry_bytes, band.plan.page_tokens
        self._launch(
            "write_tokens",
            write.places.size,
            THREADS,
            (
                *self._arena(band),
                np.int64(page_tokens),
                places.columns[0],
                places.columns[4],
                places.physical,
            ),
        )
        self._written_bytes += write.places.size * entry_bytes
        corruption = self._corruption
        if corruption is not None and corruption.band == write.band:
            # The page's first token: written once, and never again.
            hit = (write.requests == corruption.request_id) & (
                write.positions == corruption.page_index * page_tokens
            )
            for place in write.places[hit].tolist():
                self._flip(band, place)

    def _write_states(self, job: PaintJob) -> None:
        for write in job.state_writes:
            band = self._bands[write.band]
            columns = self._cupy.asarray(
                np.stack(
                    [write.requests, write.versions, write.slots, write.is_fresh.astype(np.int64)]
                ).astype(np.int64, copy=False)
            )
            self._launch(
                "write_states",
                write.slots.size,
                1024,
                (*self._arena(band), *columns, np.int64(band.band_index), *self._report_to()),
            )
            self._written_bytes += write.slots.size * band.plan.entry_bytes
            corruption = self._corruption
            if corruption is not None and corruption.band == write.band:
                for slot in write.slots[write.requests == corruption.request_id].tolist():
                    self._flip(band, slot)

    def _check(self, places: _Places) -> None:
        band, columns = places.band, places.columns
        count = int(places.physical.size)
        self._launch(
            "check_pages",
            count,
            256,
            (
                *self._arena(band),
                np.int64(band.plan.page_tokens),
                np.int64(band.plan.unit_index_end_count),
                columns[0],
                columns[1],
                places.physical,
                columns[4],
                columns[5],
                np.int64(band.band_index),
                *self._report_to(),
            ),
        )
        self._checked_units += count
        self._checked_bytes += count * band.plan.unit_bytes

    def _check_states(self, job: PaintJob) -> None:
        if not job.state_checks:
            return
        band = self._bands[job.state_checks[0].band]
        checks = [(one.request_id, one.version_index, one.slot_index) for one in job.state_checks]
        columns = self._cupy.asarray(np.array(checks, dtype=np.int64).T.copy())
        self._launch(
            "check_states",
            len(checks),
            1024,
            (
                *self._arena(band),
                np.int64(band.plan.unit_index_end_count),
                *columns,
                np.int64(band.band_index),
                *self._report_to(),
            ),
        )
        self._checked_units += len(checks)
        self._checked_bytes += len(checks) * band.plan.unit_bytes

    def _flip(self, band: _Band, entry_index: int) -> None:
        address, _, entry_bytes, word_bytes = self._arena(band)
        self._launch("flip_byte", 1, 1, (address, entry_bytes, word_bytes, np.int64(entry_index)))
        self._corrupted_count += 1

    # ---- launching --------------------------------------------------------------------------

    def _arena(self, band: _Band) -> tuple[Any, ...]:
        return (
            np.uint64(self._address),
            np.uint64(band.seed_index),
            np.int64(band.plan.entry_bytes),
            np.int32(band.word_bytes),
        )

    def _report_to(self) -> tuple[Any, ...]:
        return self._counts, self._records, np.int32(MISMATCHES_KEPT_MAX)

    def _launch(self, name: str, blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
        kernel = self._kernels.get(name)
        if kernel is None:
            kernel = self._kernels[name] = self._module.get_function(name)
        kernel((blocks,), (threads,), arguments)

    def _mismatch(self, record: list[int]) -> Mismatch:
        request, page, physical, byte, kind, band_index = record
        band = self._plan.bands[band_index]
        if band.lifetime is Lifetime.STATE:
            page = 0
        return Mismatch(
            request_id=RequestId(request),
            band=band.name,
            page_index=page,
            physical_index=physical,
            rank_index=self._rank_index,
            finding=_FINDINGS[kind].format(byte=byte),
        )
