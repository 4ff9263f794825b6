"""The tables in a rank's memory as a forward reads them: when it runs, not when it is launched."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kvd.testing.modelled.memory import ModelledMemory
from kvd.testing.modelled.shadow import Accesses, Extent
from kvd_proto.memory import Lifetime, StoragePlan

Indices: TypeAlias = npt.NDArray[np.int64]

_INT32_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a forward looks up: rows of the request table, and the tokens that each one reaches."""

    rows: Indices
    lengths_tokens: Indices


@dataclass(frozen=True, slots=True)
class Translation:
    """What the tables said."""

    pages: Mapping[str, tuple[Indices, ...]]
    """Of each token band: the physical pages of every row that was looked up."""
    slots: Indices
    """The physical state slot of every row; nothing without a state band."""
    findings: tuple[str, ...]
    """Entries that cannot be right."""
    reads: Accesses


class DeviceTables:
    """Reads the tables of one rank in its memory."""

    def __init__(self, plan: StoragePlan, memory: ModelledMemory) -> None:
        self._plan = plan
        self._memory = memory
        self._maps = {band_map.band: band_map for band_map in plan.region.band_maps}

    def translate(self, lookup: Lookup) -> Translation:
        """Return what the tables say now."""
        plan, region = self._plan, self._plan.region
        counts = -(-lookup.lengths_tokens // plan.page_tokens)
        ends = np.cumsum(counts)
        places = np.repeat(lookup.rows * plan.row_pages - (ends - counts), counts)
        places += np.arange(int(counts.sum()), dtype=np.int64)
        findings: list[str] = []
        reads: list[Extent] = []
        row_lengths = self._read(region.row_lengths.offset_bytes, lookup.rows, reads)
        for row, says, reaches in zip(
            lookup.rows.tolist(),
            row_lengths.tolist(),
            (counts * plan.page_tokens).tolist(),
            strict=True,
        ):
            if says != reaches:
                findings.append(f"row {row} reaches {says} tokens in the table, not {reaches}")
        virtual = self._read(region.request_table.offset_bytes, places, reads)
        pages = {
            band.name: tuple(
                np.split(self._physical(band.name, virtual, reads, findings), ends[:-1])
            )
            for band in plan.bands
            if band.lifetime is not Lifetime.STATE
        }
        slots = self._slots(lookup.rows, reads, findings)
        return Translation(pages, slots, tuple(findings), Accesses(reads=reads))

    def _slots(self, rows: Indices, reads: list[Extent], findings: list[str]) -> Indices:
        table = self._plan.region.state_table
        band = next((one for one in self._plan.bands if one.lifetime is Lifetime.STATE), None)
        if table is None or band is None:
            return np.zeros(0, dtype=np.int64)
        virtual = self._read(table.offset_bytes, rows * table.column_count, reads)
        return self._physical(band.name, virtual, reads, findings)

    def _physical(
        self, band: str, virtual: Indices, reads: list[Extent], findings: list[str]
    ) -> Indices:
        band_map = self._maps[band]
        inside = (virtual >= 0) & (virtual < band_map.entry_count)
        for wrong in virtual[~inside].tolist():
            findings.append(f"the tables name id {wrong}, band {band} has {band_map.entry_count}")
        return self._read(band_map.offset_bytes, np.where(inside, virtual, 0), reads)

    def _read(self, offset_bytes: int, indices: Indices, reads: list[Extent]) -> Indices:
        reads.append(self._memory.extent(offset_bytes + indices * _INT32_BYTES, _INT32_BYTES))
        count = int(indices.max()) + 1 if len(indices) else 0
        table = self._memory.bytes[offset_bytes : offset_bytes + count * _INT32_BYTES]
        return table.view(np.int32)[indices].astype(np.int64)
