"""The same bytes twice, on a CUDA device and on the host device, for commands given to both."""

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from kvd_client.device.cuda.commands import CudaCommands
from kvd_client.device.cuda.device import CudaDevice
from kvd_client.device.cuda.memory import CudaMemory
from kvd_client.device.descriptors import create_memory
from kvd_client.device.host.commands import HostCommands
from kvd_client.device.host.memory import HostMemory
from kvd_client.device.places import RowTable
from kvd_client.device.port import IntArray

SIZE_BYTES = 1 << 18
UNITS_END_BYTES = 1 << 17
TABLE_BYTES = UNITS_END_BYTES
TABLE_ENTRIES = 4096
ROWS = RowTable(
    pages_offset_bytes=TABLE_BYTES + 4 * TABLE_ENTRIES,
    lengths_offset_bytes=TABLE_BYTES + 4 * TABLE_ENTRIES + 4 * 64 * 100,
    row_count=64,
    row_pages=100,
    page_tokens=16,
)
PROGRESS_BYTES = SIZE_BYTES - 4096
DEADLINE_MS = 10_000


class Pair:
    """A CUDA memory and a host memory that are to hold the same."""

    def __init__(
        self,
        device: CudaDevice,
        descriptor: int,
        fill: Callable[[CudaMemory, bytes], None],
        *,
        seed: int = 0,
    ) -> None:
        """Map the descriptor, which is closed; ``fill`` writes to the mapping at once."""
        self.device = device
        self.memory = device.map(descriptor, SIZE_BYTES)
        os.close(descriptor)
        fd = create_memory("host", SIZE_BYTES)
        self.host = HostMemory(fd, SIZE_BYTES, writable=True)
        os.close(fd)
        self.host.bytes[:] = np.random.default_rng(seed).integers(
            0, 256, SIZE_BYTES, dtype=np.uint8
        )
        fill(self.memory, self.host.bytes.tobytes())
        self.stream = device.stream("a")
        self.cuda = device.commands(self.memory)
        self.plain = HostCommands(self.host)

    def add(self, name: str, **arguments: Any) -> None:
        """Add a command on both sides."""
        for commands in (self.cuda, self.plain):
            getattr(commands, name)(**arguments)

    def run(self) -> CudaCommands:
        """Run what was added on both; returns what the CUDA device ran."""
        ran = self.cuda
        self.stream.enqueue(ran)
        self.plain.run()
        self.cuda, self.plain = self.device.commands(self.memory), HostCommands(self.host)
        return ran

    def check(self) -> None:
        """Fail unless both hold the same bytes."""
        self.stream.synchronize(DEADLINE_MS)
        ours = np.frombuffer(self.memory.read_bytes(0, SIZE_BYTES), dtype=np.uint8)
        wrong = (ours != self.host.bytes).nonzero()[0]
        assert not len(wrong), f"{len(wrong)} bytes differ, from {wrong[0]} to {wrong[-1]}"


def array(*numbers: int) -> IntArray:
    return np.array(numbers, dtype=np.int64)


def table_write(indices: IntArray, values: IntArray) -> dict[str, Any]:
    return {
        "offset_bytes": TABLE_BYTES,
        "entry_count": TABLE_ENTRIES,
        "indices": indices,
        "values": values,
    }


def add_random(pair: Pair, draw: random.Random) -> None:
    match draw.randrange(6):
        case 0:
            start = draw.randrange(0, SIZE_BYTES)
            end = min(SIZE_BYTES, start + draw.choice([1, 64, 70_000]))
            pair.add("zero_bytes", start_bytes=start, end_bytes=end)
        case 1:
            unit = draw.choice([4, 48, 4096, 20_000])
            units = [draw.randrange(SIZE_BYTES // unit) for _ in range(draw.randrange(4))]
            pair.add("zero_units", base_bytes=0, unit_bytes=unit, units=array(*units))
        case 2:
            unit = draw.choice([4, 48, 4096, 20_000])
            places = draw.sample(range(SIZE_BYTES // unit), 2 * draw.randrange(1, 5))
            half = len(places) // 2
            pair.add(
                "move_units",
                base_bytes=0,
                unit_bytes=unit,
                sources=array(*places[:half]),
                destinations=array(*places[half:]),
            )
        case 3:
            count = draw.choice([0, 1, 5, 600])
            indices = [draw.randrange(TABLE_ENTRIES) for _ in range(count)]
            pair.add("write_int32", **table_write(array(*indices), array(*range(count))))
        case 4:
            rows = sorted(draw.choices(range(1, 64), k=draw.choice([1, 6, 600])))
            count = len(rows)
            places = [rows[:i].count(row) for i, row in enumerate(rows)]
            pair.add(
                "write_rows",
                table=ROWS,
                rows=array(*rows),
                places=array(*places),
                pages=array(*range(1, count + 1)),
            )
        case _:
            offset = draw.choice([PROGRESS_BYTES, PROGRESS_BYTES, PROGRESS_BYTES + 16, TABLE_BYTES])
            values = (draw.randrange(1 << 62), draw.randrange(100))
            pair.add("write_words", offset_bytes=offset, values=values)
