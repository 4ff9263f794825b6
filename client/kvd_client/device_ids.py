"""Ids translated on the device, by gathers from the arena's own tables in stream order.

The same buffers as in `kvd_client.ids`, made of torch tensors wherever the arena is. A step uploads
which rows take part and how long they are; the pages come from the request table and the band maps
that the allocator's effects write, so a page that moved just before is found where it is.

Every operation has a shape fixed at construction and waits for nothing: batch sizes are values, not
shapes. Entries behind the batch name row 0, which stays all zero, and so end in the sink by
themselves. torch is imported by the first object, not before.
"""

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kvd_client.calls import Ids
from kvd_client.errors import UsageError
from kvd_client.ids import (
    StepCursor,
    check_fits,
    check_forms,
    check_int32_slots,
    check_sizes,
    form_of,
    named,
    owner_index,
    token_bands,
)
from kvd_client.launch import Step
from kvd_client.rank import Rank
from kvd_client.results import Int64s
from kvd_client.views import mapping_tensor
from kvd_proto.memory import LayerView, Lifetime, TablePlan

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Tensor: TypeAlias = torch.Tensor
else:
    Tensor: TypeAlias = "torch.Tensor"


class DeviceTables:
    """A plan's tables as tensors over the rank's mapping, on whatever device that is."""

    def __init__(self, rank: Rank, mapping: "Tensor | None") -> None:
        """Make the views; ``mapping`` is uint8 over all bytes, the host's own if none is given.

        Raises UsageError for a tensor of another type or size.
        """
        import torch

        plan = rank.plan
        if mapping is None:
            mapping = mapping_tensor(rank.memory, plan.total_bytes)
        if mapping.dtype != torch.uint8 or mapping.dim() != 1 or len(mapping) < plan.total_bytes:
            raise UsageError(
                f"the mapping is {mapping.dtype} of shape {tuple(mapping.shape)}; "
                f"uint8 over {plan.total_bytes} bytes is needed"
            )
        self.device = mapping.device
        self.page_tokens = plan.page_tokens
        self.row_pages = plan.row_pages
        self._mapping = mapping
        self.bands = [band.name for _, band in token_bands(plan)]
        self._maps = {
            one.band: self._int32s(one.offset_bytes, one.entry_count)
            for one in plan.region.band_maps
        }
        self._virtual_count = plan.virtual_page_count
        self._rows = self._table(plan.region.request_table)
        states = plan.region.state_table
        self._states = None if states is None else self._table(states)
        self._state_columns = 0 if states is None else states.column_count
        self._state_map = next(
            (self._maps[one.name] for one in plan.bands if one.lifetime == Lifetime.STATE), None
        )

    def virtual(self, places: "Tensor") -> "Tensor":
        """Return the virtual pages at places of the request table.

        Whatever is no virtual page reads as the sink: an index out of range would end every later
        kernel of the process.
        """
        pages = self._rows.index_select(0, places)
        return pages * ((pages > 0) & (pages < self._virtual_count))

    def physical(self, band: str, virtual: "Tensor") -> "Tensor":
        """Return a band's physical pages; what is not bound in it reads 0."""
        return self._maps[band].index_select(0, virtual)

    def state_slots(self, rows: "Tensor") -> "Tensor":
        """Return the physical working slot of rows; all 0 in a plan without states."""
        if self._states is None or self._state_map is None:
            return rows * 0
        slots = self._states.index_select(0, rows * self._state_columns)
        slots = slots * ((slots > 0) & (slots < len(self._state_map)))
        return self._state_map.index_select(0, slots)

    def _table(self, plan: TablePlan) -> "Tensor":
        return self._int32s(plan.offset_bytes, plan.row_count * plan.column_count)

    def _int32s(self, offset_bytes: int, entry_count: int) -> "Tensor":
        import torch

        return self._mapping[offset_bytes : offset_bytes + 4 * entry_count].view(torch.int32)


class DeviceIterationIds:
    """`IterationIds` on the device: where a step writes."""

    def __init__(
        self,
        rank: Rank,
        *,
        tokens_max: int,
        rows_max: int,
        int32_slots: bool = False,
        mapping: "Tensor | None" = None,
    ) -> None:
        """Make the buffers on the mapping's device; see `IterationIds` and `DeviceTables`."""
        import torch

        check_sizes(tokens_max=tokens_max, rows_max=rows_max)
        if int32_slots:
            check_int32_slots(rank.plan)
        self._rank = rank
        self._cursor = StepCursor(rank, "write ids")
        self._tables = DeviceTables(rank, mapping)
        self._owner_index = owner_index(rank.plan)
        self._tokens_max, self._rows_max = tokens_max, rows_max
        kind = torch.int32 if int32_slots else torch.int64
        device = self._tables.device
        self._slots = {
            name: torch.zeros(tokens_max, dtype=kind, device=device) for name in self._tables.bands
        }
        self.state_slots = torch.zeros(rows_max, dtype=torch.int64, device=device)
        self._uploaded = torch.zeros(
            2 + 2 * tokens_max + rows_max, dtype=torch.int64, device=device
        )
        self.token_count = self._uploaded[0:1]
        self.row_count = self._uploaded[1:2]

    @property
    def step(self) -> int:
        """Return the step whose ids were enqueued last; 0 before the first."""
        return self._cursor.step

    def resolve(self, step: Step, ids: Ids) -> None:
        """Enqueue the translation for a batch, in the order of ``ids``; raises as the host's does.

        It runs in the step's order: on the stream that torch works on, which must be the step's, or
        for memory of the host as work of the step's stream.
        """
        self._cursor.check(step)
        rows, book = self._rank.rows(ids), self._rank.session.book
        tokens = self._rank.session.mirror.tokens(rows, book.starts(rows), book.lengths(rows))
        count = len(tokens.positions)
        check_fits("new tokens", count, self._tokens_max)
        check_fits("requests", len(rows), self._rows_max)
        # The host's copy says now what the arena will say, and raises without waiting for it.
        self._rank.session.mirror.slots(self._owner_index, tokens)
        upload = np.zeros(len(self._uploaded), dtype=np.int64)
        upload[0], upload[1] = count, len(rows)
        positions_start, rows_start = 2 + self._tokens_max, 2 + 2 * self._tokens_max
        upload[2 : 2 + count] = tokens.rows
        upload[positions_start : positions_start + count] = tokens.positions
        upload[rows_start : rows_start + len(rows)] = rows
        self._cursor.step = step.number
        run_in_order(step, self._tables.device, lambda: self._load(upload))

    def slots(self, band: str) -> "Tensor":
        """Return a band's token slots, always the same tensor; raises UsageError for no such band.

        The entries behind ``token_count`` are 0, the first token of the sink.
        """
        return named(self._slots, band)

    def translate(self) -> None:
        """Translate what was uploaded last; a graph may capture it, for it waits for nothing."""
        tables = self._tables
        rows = self._uploaded[2 : 2 + self._tokens_max]
        positions = self._uploaded[2 + self._tokens_max : 2 + 2 * self._tokens_max]
        batch = self._uploaded[2 + 2 * self._tokens_max :]
        pages = positions // tables.page_tokens
        offsets = positions - pages * tables.page_tokens
        virtual = tables.virtual(rows * tables.row_pages + pages)
        for name, buffer in self._slots.items():
            buffer.copy_(tables.physical(name, virtual).long() * tables.page_tokens + offsets)
        self.state_slots.copy_(tables.state_slots(batch))

    def _load(self, upload: Int64s) -> None:
        copy_up(self._uploaded, upload)
        self.translate()


class DeviceRunnerIds:
    """`RunnerIds` on the device: what one model runner reads."""

    def __init__(
        self,
        rank: Rank,
        *,
        rows_max: int,
        pages_max: int = 0,
        columns_max: int = 0,
        mapping: "Tensor | None" = None,
    ) -> None:
        """Make the buffers on the mapping's device; see `RunnerIds` and `DeviceTables`."""
        import torch

        check_sizes(rows_max=rows_max)
        check_forms(rank.plan, pages_max=pages_max, columns_max=columns_max)
        self._rank = rank
        self._cursor = StepCursor(rank, "read ids")
        self._tables = DeviceTables(rank, mapping)
        self._rows_max, self._pages_max, self._columns_max = rows_max, pages_max, columns_max
        device = self._tables.device

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        names = self._tables.bands
        self._indices = {name: zeros(pages_max) for name in names if pages_max}
        self._blocks = {name: zeros(rows_max, columns_max) for name in names if columns_max}
        self.indptr = zeros(rows_max + 1)
        self.lengths = zeros(rows_max)
        self._uploaded = torch.zeros(1 + 2 * rows_max, dtype=torch.int64, device=device)
        self.row_count = self._uploaded[0:1]
        self._pages = torch.arange(pages_max, dtype=torch.int64, device=device)
        self._columns = torch.arange(columns_max, dtype=torch.int64, device=device)

    @property
    def step(self) -> int:
        """Return the step whose ids were enqueued last; 0 before the first."""
        return self._cursor.step

    def resolve(self, step: Step, ids: Ids) -> None:
        """Enqueue the translation for a batch; order and errors as in `DeviceIterationIds`."""
        self._cursor.check(step)
        rows = self._rank.rows(ids)
        lengths = self._rank.session.book.lengths(rows)
        check_fits("requests", len(rows), self._rows_max)
        counts = -(-lengths // self._tables.page_tokens)
        if self._pages_max:
            check_fits("pages", int(counts.sum()), self._pages_max)
        if self._columns_max:
            check_fits("pages of one request", int(counts.max(initial=0)), self._columns_max)
        upload = np.zeros(len(self._uploaded), dtype=np.int64)
        upload[0] = len(rows)
        upload[1 : 1 + len(rows)] = rows
        upload[1 + self._rows_max : 1 + self._rows_max + len(rows)] = lengths
        self._cursor.step = step.number
        run_in_order(step, self._tables.device, lambda: self._load(upload))

    def indices(self, band: str) -> "Tensor":
        """Return a band's pages end to end, always the same tensor; see ``indptr``.

        Raises UsageError for no such band, or if this form was not asked for.
        """
        return form_of(self._indices, band, "pages_max")

    def block_table(self, band: str) -> "Tensor":
        """Return a band's table with a line per request, always the same tensor.

        Raises UsageError for no such band, or if this form was not asked for.
        """
        return form_of(self._blocks, band, "columns_max")

    def translate(self) -> None:
        """Translate what was uploaded last; a graph may capture it, for it waits for nothing."""
        import torch

        rows = self._uploaded[1 : 1 + self._rows_max]
        lengths = self._uploaded[1 + self._rows_max :]
        counts = (lengths + self._tables.page_tokens - 1) // self._tables.page_tokens
        ends = torch.cumsum(counts, 0)
        self.lengths.copy_(lengths)
        self.indptr[1:].copy_(ends)
        if self._pages_max:
            self._translate_indices(rows, counts, ends)
        if self._columns_max:
            self._translate_blocks(rows, counts)

    def _translate_indices(self, rows: "Tensor", counts: "Tensor", ends: "Tensor") -> None:
        import torch

        tables = self._tables
        # Which request each entry belongs to; entries behind the last belong to none.
        owners = torch.searchsorted(ends, self._pages, right=True)
        valid = owners < self._rows_max
        owners = owners.clamp(max=self._rows_max - 1)
        columns = self._pages - (ends - counts).index_select(0, owners)
        places = (rows.index_select(0, owners) * tables.row_pages + columns) * valid
        virtual = tables.virtual(places)
        for name, buffer in self._indices.items():
            buffer.copy_(tables.physical(name, virtual))

    def _translate_blocks(self, rows: "Tensor", counts: "Tensor") -> None:
        tables = self._tables
        places = rows[:, None] * tables.row_pages + self._columns[None, :]
        # Behind a row's end its places may still name pages of its former request.
        places = places * (self._columns[None, :] < counts[:, None])
        virtual = tables.virtual(places.flatten())
        for name, buffer in self._blocks.items():
            buffer.copy_(tables.physical(name, virtual).view_as(buffer))

    def _load(self, upload: Int64s) -> None:
        copy_up(self._uploaded, upload)
        self.translate()


def device_byte_offsets(view: LayerView, slots: "Tensor") -> "Tensor":
    """Return the arena byte at which each slot of a layer's tensor begins, in 64 bits.

    Slots are not checked, for that would wait for the device.
    """
    return slots.long() * view.index_stride_bytes + view.offset_bytes


def run_in_order(step: Step, device: "torch.device", work: "Callable[[], None]") -> None:
    """Run torch work where the step's stream is: at once on a device, in the stream on the host."""
    if device.type == "cpu":
        step.submit(work)
    else:
        work()


def copy_up(buffer: "Tensor", values: Int64s) -> None:
    """Copy host values into a buffer without waiting.

    The page-locked copy in between belongs to torch, which keeps it until the stream has read it,
    so the next step may upload while this one is still queued.
    """
    import torch

    source = torch.frombuffer(values, dtype=torch.int64)
    if buffer.device.type != "cpu":
        source = source.pin_memory()
    buffer.copy_(source, non_blocking=True)
