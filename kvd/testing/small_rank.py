"""One rank over a storage plan small enough to be checked byte by byte.

A state band and a full band of a few dozen units share 12 KiB; all tables of the plan are there.
"""

import os
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kvd_client.device.apply import Applier
from kvd_client.device.descriptors import create_memory
from kvd_client.device.host.device import HostDevice
from kvd_proto.memory import (
    BandMap,
    BandPlan,
    DType,
    Lifetime,
    RegionPlan,
    StoragePlan,
    TablePlan,
)
from kvd_proto.outcomes import AnyEffect, Done, Outcome

DEADLINE_MS: Final = 30_000
"""For what has to happen: far more than it takes, so that it only ends a hang."""
ARENA_BYTES = 12_288
TOTAL_BYTES = 20_480
STATE, FULL = 0, 1
ROW_COUNT, ROW_PAGES, PAGE_TOKENS = 5, 6, 4
DRAFT_ROW_BYTES = 64
"""Request-scoped state of one row: two draft tokens of 32 bytes."""


def _table(name: str, offset_bytes: int, dtype: DType, rows: int, columns: int) -> TablePlan:
    return TablePlan(
        name=name,
        offset_bytes=offset_bytes,
        dtype=dtype,
        row_count=rows,
        column_count=columns,
    )


PLAN = StoragePlan(
    stage_index=0,
    arena_bytes=ARENA_BYTES,
    total_bytes=TOTAL_BYTES,
    sink_bytes=512,
    page_tokens=PAGE_TOKENS,
    context_tokens=ROW_PAGES * PAGE_TOKENS,
    row_count=ROW_COUNT,
    row_pages=ROW_PAGES,
    virtual_page_count=96,
    virtual_slot_count=10,
    bands=(
        BandPlan(
            name="state",
            lifetime=Lifetime.STATE,
            chain_index=0,
            entry_bytes=256,
            unit_bytes=256,
            page_tokens=1,
            unit_index_min=2,
            unit_index_end_count=48,
        ),
        BandPlan(
            name="full",
            lifetime=Lifetime.FULL,
            chain_index=1,
            entry_bytes=32,
            unit_bytes=128,
            page_tokens=PAGE_TOKENS,
            unit_index_min=4,
            unit_index_end_count=96,
        ),
    ),
    views=(),
    region=RegionPlan(
        band_maps=(
            BandMap(band="state", offset_bytes=12_288, entry_count=10),
            BandMap(band="full", offset_bytes=12_544, entry_count=96),
        ),
        request_table=_table("request_table", 13_056, DType.INT32, ROW_COUNT, ROW_PAGES),
        row_lengths=_table("row_lengths", 13_312, DType.INT32, ROW_COUNT, 1),
        state_table=_table("state_table", 13_568, DType.INT32, ROW_COUNT, 2),
        progress=_table("progress", 13_824, DType.UINT64, 1, 2),
        draft_states=_table(
            "draft_states", 14_080, DType.UINT8, ROW_COUNT * 2, DRAFT_ROW_BYTES // 2
        ),
        scratch=_table("scratch", 16_384, DType.UINT8, 1, 4096),
    ),
)


def outcome(*segments: Sequence[AnyEffect], columns: Sequence[Sequence[int]] = ()) -> Outcome:
    """Return an outcome without a result, with these effects and columns."""
    flat = np.array([n for column in columns for n in column], dtype="<i4")
    return Outcome(
        result=Done(),
        segments=tuple(tuple(segment) for segment in segments),
        lengths=tuple(len(column) for column in columns),
        columns=flat.tobytes(),
    )


class SmallRank:
    """Memory, stream and applier of one rank, and readers of its tables."""

    def __init__(self) -> None:
        """Map memory that is full of bytes nobody should rely on."""
        fd = create_memory("arena", TOTAL_BYTES)
        self.device = HostDevice()
        self.memory = self.device.map(fd, TOTAL_BYTES)
        os.close(fd)
        self.memory.bytes[:] = 0xAB
        self.stream = self.device.stream("allocator")
        self.applier = self.new_applier()

    def new_applier(self, *, applied: int = 0, segment_start_index: int = 0) -> Applier:
        """Return an applier that starts behind ``applied``."""
        return Applier(
            device=self.device,
            memory=self.memory,
            plan=PLAN,
            stream=self.stream,
            applied=applied,
            segment_start_index=segment_start_index,
        )

    def settle(self) -> None:
        """Block until everything enqueued is done."""
        self.stream.synchronize(DEADLINE_MS)

    def units(self, band: int) -> npt.NDArray[np.uint8]:
        """Return the units of a band, one in a row."""
        unit_bytes = PLAN.bands[band].unit_bytes
        return self.memory.bytes[:ARENA_BYTES].reshape(-1, unit_bytes)

    def int32(self, offset_bytes: int, count: int) -> list[int]:
        """Return the first entries of the table at an offset."""
        area = self.memory.bytes[offset_bytes : offset_bytes + 4 * count]
        return [int(number) for number in area.view(np.int32)]

    def close(self) -> None:
        """End the stream and give the mapping up."""
        self.stream.close(DEADLINE_MS)
        self.memory.close()
