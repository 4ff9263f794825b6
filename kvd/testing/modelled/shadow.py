"""Who touched which bytes of a memory last, and whether an order led there.

Bytes are kept in cells, as large as everything that is touched together allows. For every cell and
stream the number of the newest action that wrote it, and of the newest that read it, is kept. An
action that touches a cell must know, by its clock, that every stream's newest conflicting action is
over. Actions of one stream are ordered, so knowing the newest is knowing them all: no race escapes,
in whichever order the actions were played.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvd.errors import WorkloadError
from kvd.testing.modelled.clock import ActionNumber, Clock, StreamIndex
from kvd_client.errors import DeviceError

_Cells = npt.NDArray[np.int64]
_LINES_MIN: Final = 8
"""Streams that there is room for at first."""
_RUNS_NAMED_MAX: Final = 4
"""Runs of bytes that a finding lists; the others are counted."""


class Grain(NamedTuple):
    """Bytes up to ``end_bytes`` are kept in cells of ``cell_bytes``."""

    end_bytes: int
    cell_bytes: int


class Extent(NamedTuple):
    """Ranges ``[start, start + length_bytes)`` of one memory."""

    shadow: "Shadow"
    starts: npt.NDArray[np.int64]
    length_bytes: int


class Accesses(NamedTuple):
    """What an action read and wrote."""

    reads: Sequence[Extent] = ()
    writes: Sequence[Extent] = ()


NO_ACCESSES: Final = Accesses()


class Conflict(NamedTuple):
    """An earlier action that an action should have waited for."""

    stream_index: StreamIndex
    number: ActionNumber
    wrote: bool
    """Whether the earlier action wrote; otherwise it read."""
    where: str
    """The bytes that both touch."""


class _Part(NamedTuple):
    start_bytes: int
    end_bytes: int
    cell_bytes: int
    first_cell_index: int


class Shadow:
    """The newest readers and writers of every cell of one memory."""

    def __init__(self, size_bytes: int, grains: Sequence[Grain] = ()) -> None:
        """Begin untouched; without grains every byte is a cell. Raises WorkloadError."""
        self._parts: list[_Part] = []
        start_bytes = cell_index = 0
        for grain in (*grains, Grain(size_bytes, 1)):
            end_bytes = min(grain.end_bytes, size_bytes)
            length_bytes = end_bytes - start_bytes
            if length_bytes <= 0:
                continue
            if length_bytes % grain.cell_bytes:
                raise WorkloadError(
                    f"cells of {grain.cell_bytes} bytes do not fill "
                    f"bytes [{start_bytes}, {end_bytes})"
                )
            self._parts.append(_Part(start_bytes, end_bytes, grain.cell_bytes, cell_index))
            cell_index += length_bytes // grain.cell_bytes
            start_bytes = end_bytes
        self._size_bytes = size_bytes
        self._cell_count = cell_index
        # One line per stream that ever came here, in the order in which they came. There is room
        # for more lines than that, so that a new stream hardly ever copies what is there.
        self._line_of: dict[int, int] = {}
        self._streams = np.zeros(_LINES_MIN, dtype=np.int64)
        self._newest = np.zeros(_LINES_MIN, dtype=np.int64)
        self._read = np.zeros((_LINES_MIN, cell_index), dtype=np.int32)
        self._written = np.zeros((_LINES_MIN, cell_index), dtype=np.int32)

    def extent(self, starts: npt.ArrayLike, length_bytes: int) -> Extent:
        """Return ranges of this memory."""
        return Extent(self, np.asarray(starts, dtype=np.int64).reshape(-1), length_bytes)

    def note_reads(
        self, extent: Extent, stream: StreamIndex, number: ActionNumber, clock: Clock
    ) -> Conflict | None:
        """Keep that an action read; return the write that it was not ordered behind, if any."""
        cells = self._cells(extent)
        conflict = self._conflict(self._written, cells, clock, wrote=True)
        line = self._line(stream)
        self._read[line, cells] = number
        self._newest[line] = number
        return conflict

    def note_writes(
        self, extent: Extent, stream: StreamIndex, number: ActionNumber, clock: Clock
    ) -> Conflict | None:
        """Keep that an action wrote; return the access that it was not ordered behind, if any."""
        cells = self._cells(extent)
        conflict = self._conflict(self._written, cells, clock, wrote=True)
        if conflict is None:
            conflict = self._conflict(self._read, cells, clock, wrote=False)
        line = self._line(stream)
        self._written[line, cells] = number
        self._newest[line] = number
        return conflict

    def _conflict(
        self, newest: npt.NDArray[np.int32], cells: _Cells, clock: Clock, *, wrote: bool
    ) -> Conflict | None:
        if not len(cells):
            return None
        count = len(self._line_of)
        known = clock[self._streams[:count]]
        # Mostly the clock covers all that a stream ever did here: no need to look at its cells.
        lines = (self._newest[:count] > known).nonzero()[0]
        if not len(lines):
            return None
        unknown = (newest[lines[:, None], cells] > known[lines, None]).nonzero()
        if not len(unknown[0]):
            return None
        line = int(lines[unknown[0][0]])
        number = int(newest[line, cells[unknown[1][0]]])
        both = cells[newest[line, cells] == number]
        return Conflict(
            StreamIndex(int(self._streams[line])), ActionNumber(number), wrote, self._named(both)
        )

    def _line(self, stream: StreamIndex) -> int:
        line = self._line_of.get(stream)
        if line is not None:
            return line
        line = self._line_of[stream] = len(self._line_of)
        if line == self._streams.size:
            self._streams = np.concatenate((self._streams, np.zeros_like(self._streams)))
            self._newest = np.concatenate((self._newest, np.zeros_like(self._newest)))
            self._read = np.concatenate((self._read, np.zeros_like(self._read)))
            self._written = np.concatenate((self._written, np.zeros_like(self._written)))
        self._streams[line] = stream
        return line

    def _cells(self, extent: Extent) -> _Cells:
        """Return the cells of ranges; raises DeviceError for bytes that are not there."""
        starts, length_bytes = extent.starts, extent.length_bytes
        if not len(starts) or length_bytes <= 0:
            return np.zeros(0, dtype=np.int64)
        least, end = int(starts.min()), int(starts.max()) + length_bytes
        if least < 0 or end > self._size_bytes:
            raise DeviceError(
                f"bytes [{least}, {end}) are not within the {self._size_bytes} of the memory"
            )
        for part in self._parts:
            if part.start_bytes <= least and end <= part.end_bytes:
                return _cells_of(part, starts, length_bytes)
        raise DeviceError(
            f"ranges in bytes [{least}, {end}) lie in parts of the memory with different cells"
        )

    def _named(self, cells: _Cells) -> str:
        """Return runs of bytes as text."""
        cells = np.unique(cells)
        breaks = (np.diff(cells) != 1).nonzero()[0] + 1
        runs = np.split(cells, breaks)
        names = [
            f"[{self._start_bytes(int(run[0]))}, {self._end_bytes(int(run[-1]))})"
            for run in runs[:_RUNS_NAMED_MAX]
        ]
        more = len(runs) - len(names)
        return "bytes " + ", ".join(names) + (f" and {more} more runs" if more else "")

    def _part(self, cell: int) -> _Part:
        return next(part for part in reversed(self._parts) if cell >= part.first_cell_index)

    def _start_bytes(self, cell: int) -> int:
        part = self._part(cell)
        return part.start_bytes + (cell - part.first_cell_index) * part.cell_bytes

    def _end_bytes(self, cell: int) -> int:
        return self._start_bytes(cell) + self._part(cell).cell_bytes


def _cells_of(part: _Part, starts: _Cells, length_bytes: int) -> _Cells:
    """Return the cells of ranges within a part; raises DeviceError if one cuts through a cell."""
    firsts, cuts = np.divmod(starts - part.start_bytes, part.cell_bytes)
    if length_bytes % part.cell_bytes or cuts.any():
        raise DeviceError(
            f"a range of {length_bytes} bytes cuts through a cell of {part.cell_bytes}: "
            "it needs a finer grain"
        )
    firsts += part.first_cell_index
    count = length_bytes // part.cell_bytes
    if count == 1:
        return firsts
    return (firsts[:, None] + np.arange(count, dtype=np.int64)).reshape(-1)
