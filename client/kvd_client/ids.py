"""Ids as kernels take them: translated once per step, into buffers that never move.

A virtual id becomes a physical one exactly once on its way into a kernel. `IterationIds` does it
for what a step writes, once for each band; `RunnerIds` for what one model runner reads. Both write
into arrays that are made once, at the size of the largest batch, so a captured graph may hold their
addresses and replay with any batch: how many entries are valid stands in an array as well, and the
entries behind them name the sink, where a kernel may write and reads nothing that matters.

These are the host's forms, over the copy of the tables that the client keeps. The forms in
`kvd_client.device_ids` read the arena's own tables on the device, in stream order.

Invariants:
    ids.resolved_once: ids of a step are resolved once, while it is launched, and steps ascend
    ids.maps_span: the map of every token band spans the owner's virtual pages
"""

from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from kvd_client.calls import Ids
from kvd_client.errors import KvdClientError, StepOrderError, UsageError
from kvd_client.launch import Step
from kvd_client.rank import Rank
from kvd_client.results import Int32s, Int64s
from kvd_proto.errors import ErrorCode
from kvd_proto.memory import BandPlan, LayerView, Lifetime, StoragePlan

Buffer = TypeVar("Buffer")
INT32_MAX: Final = (1 << 31) - 1


class StepCursor:
    """Which step's ids are resolved: each step once, and only while it is being launched."""

    def __init__(self, rank: Rank, what: str) -> None:
        check_maps_span(rank.plan)
        self._rank = rank
        self._what = what
        self.step = 0
        """The step whose ids were resolved last; 0 before the first."""

    def check(self, step: Step) -> None:
        """Raise StepOrderError unless the step is being launched and was not resolved yet.

        While it is launched no effects of later positions are enqueued, so what is resolved stays
        true until the step's end.
        """
        steps = self._rank.session.steps
        if not steps.open or steps.launched != step.number:
            raise StepOrderError(
                f"{self._what} of step {step.number} are resolved inside its launch; "
                f"step {steps.launched} is {'open' if steps.open else 'the last one, and over'}"
            )
        steps.check_readable(self._what)
        if step.number <= self.step:
            raise StepOrderError(
                f"ids.resolved_once: {self._what} of step {step.number} were resolved already; "
                f"read the same buffers again"
            )


class IterationIds:
    """Where a step writes: token slots of every token band, and the state slots of its batch.

    A token slot is the physical page times the page's tokens plus the offset: an index into
    dimension 0 of the band's views. Slots are those of each request's last take.
    """

    def __init__(
        self, rank: Rank, *, tokens_max: int, rows_max: int, int32_slots: bool = False
    ) -> None:
        """Make the buffers, for so many new tokens and requests in one step.

        ``int32_slots`` makes token slots 32 bits wide; raises UsageError if the arena has more
        places than that, and for sizes below 1.
        """
        check_sizes(tokens_max=tokens_max, rows_max=rows_max)
        if int32_slots:
            check_int32_slots(rank.plan)
        self._rank = rank
        self._cursor = StepCursor(rank, "write ids")
        self._bands = token_bands(rank.plan)
        kind = np.int32 if int32_slots else np.int64
        self._slots: dict[str, npt.NDArray[Any]] = {
            band.name: np.zeros(tokens_max, dtype=kind) for _, band in self._bands
        }
        self.state_slots: Int64s = np.zeros(rows_max, dtype=np.int64)
        """Physical working slot of each request; all zero in a plan without states."""
        self.token_count: Int64s = np.zeros(1, dtype=np.int64)
        """How many token slots are valid."""
        self.row_count: Int64s = np.zeros(1, dtype=np.int64)
        """How many requests the batch has."""

    @property
    def step(self) -> int:
        """Return the step whose ids the buffers hold; 0 before the first."""
        return self._cursor.step

    def resolve(self, step: Step, ids: Ids) -> None:
        """Fill the buffers for a batch, in the order of ``ids``.

        Raises StepOrderError outside the step's launch or for the second time, UnknownRequestError,
        UsageError if the batch is larger than the buffers, KvdClientError for a token without a
        page. Nothing is changed then.
        """
        self._cursor.check(step)
        rows, mirror, book = (
            self._rank.rows(ids),
            self._rank.session.mirror,
            self._rank.session.book,
        )
        tokens = mirror.tokens(rows, book.starts(rows), book.lengths(rows))
        check_fits("new tokens", len(tokens.positions), len(next(iter(self._slots.values()))))
        check_fits("requests", len(rows), len(self.state_slots))
        slots = [mirror.slots(index, tokens) for index, _ in self._bands]
        for (_, band), values in zip(self._bands, slots, strict=True):
            _fill(self._slots[band.name], values, self.token_count)
        if has_states(self._rank.plan):
            _fill(self.state_slots, mirror.state_slots(rows), self.row_count)
        self.token_count[0] = len(tokens.positions)
        self.row_count[0] = len(rows)
        self._cursor.step = step.number

    def slots(self, band: str) -> npt.NDArray[Any]:
        """Return a band's token slots, always the same array; raises UsageError for no such band.

        The entries behind ``token_count`` are 0, the first token of the sink.
        """
        return named(self._slots, band)


class RunnerIds:
    """What one model runner reads: each request's pages in every token band.

    Two forms, each made if its size is given: end to end with borders (``indices`` and ``indptr``),
    and as a table with a line per request (``block_table``). Pages that slid out of a window, or
    are not bound in a band, read 0: the sink.
    """

    def __init__(
        self, rank: Rank, *, rows_max: int, pages_max: int = 0, columns_max: int = 0
    ) -> None:
        """Make the buffers for so many requests.

        ``pages_max`` bounds the pages of a batch in the first form, ``columns_max`` those of one
        request in the second. Raises UsageError if neither is given.
        """
        check_sizes(rows_max=rows_max)
        check_forms(rank.plan, pages_max=pages_max, columns_max=columns_max)
        self._rank = rank
        self._cursor = StepCursor(rank, "read ids")
        self._bands = token_bands(rank.plan)
        self._pages_max, self._columns_max = pages_max, columns_max
        self._indices: dict[str, Int32s] = {}
        self._blocks: dict[str, Int32s] = {}
        for _, band in self._bands:
            if pages_max:
                self._indices[band.name] = np.zeros(pages_max, dtype=np.int32)
            if columns_max:
                self._blocks[band.name] = np.zeros((rows_max, columns_max), dtype=np.int32)
        self.indptr: Int32s = np.zeros(rows_max + 1, dtype=np.int32)
        """Where each request's indices begin, the same in all bands; lines behind are empty."""
        self.lengths: Int32s = np.zeros(rows_max, dtype=np.int32)
        """Tokens of each request; 0 behind the last."""
        self.row_count: Int64s = np.zeros(1, dtype=np.int64)
        """How many requests the batch has."""
        self._columns = np.arange(columns_max, dtype=np.int64)
        self._used = (0, 0)

    @property
    def step(self) -> int:
        """Return the step whose ids the buffers hold; 0 before the first."""
        return self._cursor.step

    def resolve(self, step: Step, ids: Ids) -> None:
        """Fill the buffers for a batch, in the order of ``ids``.

        Raises StepOrderError outside the step's launch or for the second time, UnknownRequestError,
        UsageError if the batch is larger than the buffers. Nothing is changed then.
        """
        self._cursor.check(step)
        rows, mirror = self._rank.rows(ids), self._rank.session.mirror
        lengths = self._rank.session.book.lengths(rows)
        check_fits("requests", len(rows), len(self.lengths))
        virtual, edges = mirror.pages(rows, lengths)
        counts = np.diff(edges)
        longest = int(counts.max(initial=0))
        if self._pages_max:
            check_fits("pages", len(virtual), self._pages_max)
        if self._columns_max:
            check_fits("pages of one request", longest, self._columns_max)
        # One line per request, true where it has a page: end to end, they are the first form.
        places = self._columns[:longest] < counts[:, None] if self._columns_max else None
        for index, band in self._bands:
            physical = mirror.physical(index, virtual)
            if self._pages_max:
                self._fill_indices(self._indices[band.name], physical)
            if places is not None:
                self._fill_block(self._blocks[band.name], physical, places)
        self._used = len(rows), longest
        self.indptr[: len(edges)] = edges
        self.indptr[len(edges) :] = edges[-1]
        _fill(self.lengths, lengths, self.row_count)
        self.row_count[0] = len(rows)
        self._cursor.step = step.number

    def indices(self, band: str) -> Int32s:
        """Return a band's pages end to end, always the same array; see `indptr`.

        Raises UsageError for no such band, or if this form was not asked for.
        """
        return form_of(self._indices, band, "pages_max")

    def block_table(self, band: str) -> Int32s:
        """Return a band's table with a line per request, always the same array.

        Raises UsageError for no such band, or if this form was not asked for.
        """
        return form_of(self._blocks, band, "columns_max")

    def _fill_indices(self, buffer: Int32s, physical: Int64s) -> None:
        buffer[: len(physical)] = physical
        buffer[len(physical) : max(len(physical), int(self.indptr[-1]))] = 0

    def _fill_block(self, buffer: Int32s, physical: Int64s, places: npt.NDArray[np.bool_]) -> None:
        rows_used, columns_used = self._used
        buffer[:rows_used, :columns_used] = 0
        buffer[: places.shape[0], : places.shape[1]][places] = physical


def byte_offsets(view: LayerView, slots: npt.NDArray[np.integer[Any]]) -> Int64s:
    """Return the arena byte at which each slot of a layer's tensor begins, in 64 bits.

    Slots may be 32 bits wide, their bytes never are: a slot of some tens of megabytes passes two
    gigabytes at its hundredth. Raises UsageError for a slot outside the view.
    """
    if slots.size and not 0 <= int(slots.min()) <= int(slots.max()) < view.index_end_count:
        raise UsageError(
            f"slots {int(slots.min())} to {int(slots.max())} of layer {view.layer_index}, "
            f"{view.role}: the view has {view.index_end_count}"
        )
    return slots.astype(np.int64) * view.index_stride_bytes + view.offset_bytes


def token_bands(plan: StoragePlan) -> list[tuple[int, BandPlan]]:
    """Return the token bands with their places in the chain, low to high."""
    return [
        (index, band) for index, band in enumerate(plan.bands) if band.lifetime != Lifetime.STATE
    ]


def owner_index(plan: StoragePlan) -> int:
    """Return the place in the chain of the band that holds full attention."""
    return [band.lifetime for band in plan.bands].index(Lifetime.FULL)


def has_states(plan: StoragePlan) -> bool:
    """Return whether requests have a state slot."""
    return any(band.lifetime == Lifetime.STATE for band in plan.bands)


def check_maps_span(plan: StoragePlan) -> None:
    """Raise KvdClientError unless every token band's map spans the owner's virtual pages."""
    entries = {one.band: one.entry_count for one in plan.region.band_maps}
    for _, band in token_bands(plan):
        if entries[band.name] < plan.virtual_page_count:
            raise KvdClientError(
                f"ids.maps_span: the map of band {band.name!r} has {entries[band.name]} entries, "
                f"virtual pages go up to {plan.virtual_page_count}",
                code=ErrorCode.INVARIANT,
            )


def check_int32_slots(plan: StoragePlan) -> None:
    """Raise UsageError if a token slot of some band does not fit 32 bits."""
    for _, band in token_bands(plan):
        last = band.unit_index_end_count * band.page_tokens - 1
        if last > INT32_MAX:
            raise UsageError(
                f"band {band.name!r} has token slots up to {last}, 32 bits hold {INT32_MAX}; "
                f"use 64-bit slots"
            )


def check_sizes(**sizes: int) -> None:
    """Raise UsageError naming a buffer size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"{name} is {size}; 1 or more is needed")


def check_forms(plan: StoragePlan, *, pages_max: int, columns_max: int) -> None:
    """Raise UsageError unless a form is asked for, no wider than a row of the plan."""
    if pages_max < 0 or columns_max < 0 or pages_max + columns_max == 0:
        raise UsageError(
            f"pages_max is {pages_max} and columns_max {columns_max}; give one or both"
        )
    if columns_max > plan.row_pages:
        raise UsageError(
            f"columns_max is {columns_max}; a row of the plan has {plan.row_pages} pages"
        )


def check_fits(what: str, count: int, count_max: int) -> None:
    """Raise UsageError if a batch is larger than the buffers made for it."""
    if count > count_max:
        raise UsageError(f"a batch of {count} {what}: the buffers hold {count_max}")


def named(buffers: dict[str, Buffer], band: str) -> Buffer:
    """Return a token band's buffer; raises UsageError naming the bands there are."""
    found = buffers.get(band)
    if found is None:
        raise UsageError(f"no token band {band!r}; this plan has {list(buffers)}")
    return found


def form_of(buffers: dict[str, Buffer], band: str, size: str) -> Buffer:
    """Return a band's buffer of one form; raises UsageError if the form was not asked for."""
    if not buffers:
        raise UsageError(f"this form of the read ids was not asked for; give {size}")
    return named(buffers, band)


def _fill(buffer: npt.NDArray[Any], values: Int64s, before: Int64s) -> None:
    """Write values and clear what the batch before left behind them."""
    buffer[: len(values)] = values
    buffer[len(values) : max(len(values), int(before[0]))] = 0
