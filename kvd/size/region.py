"""The reserved region: tables that lie behind the arena in the same allocation.

    [ band maps | request table | row lengths | state table | draft states | progress | scratch )

Offsets here count from the region's start, which is the arena's end.
"""

from dataclasses import dataclass
from typing import Final

from kvd.units import align_up
from kvd_proto.memory import DType

TABLE_GRAIN_BYTES: Final = 256
"""Tables start on boundaries that suit every device's copies; the progress word needs 128."""
ALLOCATION_GRAIN_BYTES: Final = 4096
"""The arena's end and the allocation's end are multiples of a host page."""
PROGRESS_BLOCK_BYTES: Final = 128
"""The progress word has a cache line pair for itself: other processes poll it."""
SCRATCH_BYTES: Final = 1 << 20
"""Staging for 65,536 moves of (source, destination) in 64-bit ids: 65,536 * 2 * 8."""

REQUEST_TABLE: Final = "request_table"
ROW_LENGTHS: Final = "row_lengths"
STATE_TABLE: Final = "state_table"
DRAFT_STATES: Final = "draft_states"
PROGRESS: Final = "progress"
SCRATCH: Final = "scratch"
MAP_PREFIX: Final = "map_"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTable:
    """One dense table at its place in the region."""

    name: str
    offset_bytes: int
    dtype: DType
    row_count: int
    column_count: int

    @property
    def table_bytes(self) -> int:
        """Return the bytes the table takes."""
        return self.row_count * self.column_count * self.dtype.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionShape:
    """What decides the region's size."""

    row_count: int
    """Request rows, the padding row included."""
    row_pages: int
    state_row_slots: int
    """Slots that a row of the state table names; 0 without a state band."""
    draft_tokens: int
    slot_bytes: int
    """Bytes of a state slot; 0 without a state band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """All tables of one stage and the bytes they take."""

    tables: tuple[RegionTable, ...]
    region_bytes: int

    def table(self, name: str) -> RegionTable | None:
        """Return a table by its name, None where the stage has none of that name."""
        return next((table for table in self.tables if table.name == name), None)


def lay_out_region(shape: RegionShape, *, map_entries: tuple[tuple[str, int], ...]) -> Region:
    """Return the tables of a stage.

    ``map_entries`` gives each band's name and the size of its id space, which for token bands is
    the owner's: window bands bind to the owner's pages.
    """
    wanted = [(MAP_PREFIX + name, DType.INT32, 1, count) for name, count in map_entries]
    wanted.append((REQUEST_TABLE, DType.INT32, shape.row_count, shape.row_pages))
    wanted.append((ROW_LENGTHS, DType.INT32, shape.row_count, 1))
    if shape.state_row_slots:
        wanted.append((STATE_TABLE, DType.INT32, shape.row_count, shape.state_row_slots))
    if shape.draft_tokens and shape.slot_bytes:
        rows = shape.row_count * shape.draft_tokens
        wanted.append((DRAFT_STATES, DType.UINT8, rows, shape.slot_bytes))
    wanted.append((PROGRESS, DType.UINT64, 1, 2))
    wanted.append((SCRATCH, DType.UINT8, 1, SCRATCH_BYTES))
    tables: list[RegionTable] = []
    place_bytes = 0
    for name, dtype, rows, columns in wanted:
        place_bytes = align_up(place_bytes, TABLE_GRAIN_BYTES)
        table = RegionTable(
            name=name, offset_bytes=place_bytes, dtype=dtype, row_count=rows, column_count=columns
        )
        tables.append(table)
        place_bytes += max(table.table_bytes, PROGRESS_BLOCK_BYTES)
    return Region(tables=tuple(tables), region_bytes=align_up(place_bytes, ALLOCATION_GRAIN_BYTES))
