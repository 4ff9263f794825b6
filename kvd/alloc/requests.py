"""Requests and what they hold: admission, takes, window slides and frees over whole sets of rows.

A request belongs to the group, not to a rank. It is introduced by admission, which promises it the
most units it will ever hold at once in every band, and ends by being freed.

Invariants:
    request.rows_match_bands: requests hold exactly the live units of every band;
    request.promises_add_up: a band's promises are the sum of what its requests may still take.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvd.alloc.band import Units
from kvd.alloc.chain import ChainAllocator, Shortage
from kvd.alloc.checks import CheckLevel
from kvd.alloc.demand import DemandShape, request_demand
from kvd.alloc.rows import RequestRows, ragged
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason, Verdict

REQUEST_ID_MAX = (1 << 63) - 1

WAITING_COUNT_MAX = 1 << 20
"""Requests that may be told to wait at once: enough for any queue, small enough to bound memory."""


class Grant(NamedTuple):
    """New pages, one entry each in the first columns, and new state slots."""

    page_rows: Units
    page_places: Units
    virtual: Units
    physical: list[Units]
    """Per token band, chain order; empty when no page was needed."""
    slot_rows: Units
    slot_virtual: Units
    slot_physical: Units


class Slide(NamedTuple):
    """Pages that left one window."""

    band_index: int
    virtual: Units


@dataclass(frozen=True, slots=True)
class Admission:
    """Answer to one request: its verdict, its row (0 if it does not fit) and why not."""

    verdict: Verdict
    row_index: int
    shortage: Shortage | None = None


_NONE: Units = np.zeros(0, dtype=np.int64)
NOTHING_GRANTED = Grant(_NONE, _NONE, _NONE, [], _NONE, _NONE, _NONE)


class RequestTable:
    """The requests of one stage over its chain."""

    def __init__(
        self,
        chain: ChainAllocator,
        *,
        row_count: int,
        row_pages: int,
        context_tokens: int,
        shape: DemandShape,
        chunk_tokens: int,
    ) -> None:
        self.chain = chain
        self.shape = shape
        self.chunk_tokens = chunk_tokens
        self.context_tokens = context_tokens
        self.rows = RequestRows(
            row_count=row_count, row_pages=row_pages, band_count=len(chain.bands)
        )
        self.row_of: dict[int, int] = {}
        self.highest_id = 0
        self.epoch_count = 0
        """Moves whenever a request comes or goes, so that memos of row sets can be keyed by it."""
        self._waiting: dict[int, None] = {}
        self._exceeding: dict[int, None] = {}
        """Rows that hold, or held, more than their promise in some band; they are counted one by
        one, all others by sums."""
        self._ones = np.ones(row_count, dtype=np.int64)
        self._page_tokens = np.full(row_count, shape.page_tokens, dtype=np.int64)

    # ---- naming ---------------------------------------------------------------------------------

    def rows_of(self, request_ids: list[int]) -> Units:
        """Return the rows of live requests, in order.

        Raises OperationError for an id that is unknown, has ended or is named twice.
        """
        row_of = self.row_of
        try:
            rows = [row_of[request] for request in request_ids]
        except KeyError as error:
            raise self._unknown(int(error.args[0])) from None
        if len(set(rows)) != len(rows):
            seen: dict[int, None] = {}
            for request in request_ids:
                if request in seen:
                    raise OperationError(
                        f"request {request} is named twice; name each request once",
                        code=ErrorCode.BAD_REQUEST_ID,
                    )
                seen[request] = None
        return np.array(rows, dtype=np.int64)

    def check_new_id(self, request: int) -> None:
        """Raise OperationError unless the id may be introduced now."""
        if not 0 < request <= REQUEST_ID_MAX:
            raise OperationError(
                f"request id {request} is not a positive 64-bit integer",
                code=ErrorCode.BAD_REQUEST_ID,
            )
        if request in self.row_of:
            raise OperationError(
                f"request {request} is admitted already", code=ErrorCode.BAD_REQUEST_ID
            )
        if request <= self.highest_id and request not in self._waiting:
            raise OperationError(
                f"request id {request} was used before; new ids ascend, the highest so far is "
                f"{self.highest_id}",
                code=ErrorCode.BAD_REQUEST_ID,
            )

    def check_waiting_room(self, request_ids: list[int]) -> None:
        """Raise OperationError unless all of these may be told to wait."""
        joining_count = sum(request not in self._waiting for request in request_ids)
        if len(self._waiting) + joining_count > WAITING_COUNT_MAX:
            raise OperationError(
                f"{len(self._waiting)} requests wait already and {joining_count} more may have to; "
                f"at most {WAITING_COUNT_MAX} can"
            )

    # ---- admission ------------------------------------------------------------------------------

    def admit(
        self, request: int, *, prompt_tokens: int, new_tokens_max: int, chunk_tokens: int
    ) -> Admission:
        """Promise a request its whole demand, or say why not; a request told to wait may ask again.

        The id and the room to wait were checked, and all numbers are positive.
        """
        total_tokens = prompt_tokens + new_tokens_max
        chunk_tokens = chunk_tokens or self.chunk_tokens
        demand = request_demand(self.shape, total_tokens=total_tokens, chunk_tokens=chunk_tokens)
        self.highest_id = max(self.highest_id, request)
        if total_tokens > self.context_tokens:
            return self._never(request, self._too_long(total_tokens))
        if not self.chain.fits_empty(demand):
            return self._never(request, self._never_fits(demand))
        shortage = self.chain.make_room(demand) if len(self.rows.free) else _NO_ROWS
        if shortage is not None:
            self._waiting[request] = None
            return Admission(Verdict.WAIT, 0, shortage)
        self._waiting.pop(request, None)
        row = self._open_row(request, demand)
        self.rows.total_tokens[row] = total_tokens
        self.rows.chunk_tokens[row] = chunk_tokens
        return Admission(Verdict.FITS, row)

    def _open_row(self, request: int, demand: tuple[int, ...]) -> int:
        rows = self.rows
        row = int(rows.free.take(1)[0])
        rows.request_id[row] = request
        for column in (rows.tokens, rows.capacity_tokens, rows.computed_tokens):
            column[row] = 0
        rows.page_count[row] = 0
        rows.slot[row] = 0
        rows.dropped_pages[:, row] = 0
        for index, band in enumerate(self.chain.bands):
            rows.promise_units[index, row] = demand[index]
            band.promised_units += demand[index]
            rows.slides_at_tokens[index, row] = (
                self.shape.window_tokens[index] + self.shape.page_tokens
            )
        self.row_of[request] = row
        self.epoch_count += 1
        return row

    # ---- taking ---------------------------------------------------------------------------------

    def take(self, rows: Units, tokens: int | Units) -> Grant | tuple[Shortage, int]:
        """Grow rows by tokens, all or nothing; a shortage comes with the row it is about (0: all).

        Raises OperationError when a row would grow past the context length.
        """
        columns = self.rows
        one_each = isinstance(tokens, int) and tokens == 1
        total = columns.tokens[rows] + (self._ones[: rows.size] if one_each else tokens)
        crossing = (total > columns.capacity_tokens[rows]).nonzero()[0]
        slotless = self._slotless(rows)
        if crossing.size == 0 and slotless.size == 0:
            columns.tokens[rows] = total
            return NOTHING_GRANTED
        grown, grown_total = rows[crossing], total[crossing]
        if one_each:
            need, page_sum = self._ones[: grown.size], grown.size
        else:
            beyond = grown_total - columns.capacity_tokens[grown]
            need = (beyond + (self.shape.page_tokens - 1)) // self.shape.page_tokens
            page_sum = int(need.sum())
        if not self._exceeding and self._promised(grown, grown_total):
            self._use_promises(page_sum, slotless.size)
        else:
            self._check_length(grown, grown_total)
            shortage = self._cover(grown, need, page_sum, slotless)
            if shortage is not None:
                return shortage
        columns.tokens[rows] = total
        return self._grant(grown, need, page_sum, slotless)

    def _promised(self, grown: Units, total: Units) -> bool:
        """Return whether every row stays within what its demand was priced for, in every band."""
        columns = self.rows
        if np.count_nonzero(total > columns.total_tokens[grown]):
            return False
        reach = columns.computed_tokens[grown] + columns.chunk_tokens[grown]
        return not np.count_nonzero(total > reach)

    def _use_promises(self, page_sum: int, slot_sum: int) -> None:
        """Turn promises into what is about to be taken."""
        for index, band in enumerate(self.chain.bands):
            band.promised_units -= slot_sum if index == self.chain.state_index else page_sum

    def _cover(
        self, grown: Units, need: Units, page_sum: int, slotless: Units
    ) -> tuple[Shortage, int] | None:
        """Use the promises there are, and make room for what exceeds them."""
        covered: list[int] = []
        excess: list[int] = []
        exceeding: list[int] = []
        for index in range(len(self.chain.bands)):
            promise = self.rows.promise_units[index]
            if index == self.chain.state_index:
                wanted = promised = slotless.size  # one each was promised, and none is held
            else:
                spare = np.maximum(promise[grown] - self._held(index, grown), 0)
                wanted = page_sum
                promised = int(np.minimum(need, spare).sum())
                exceeding += grown[need > spare].tolist()
            covered.append(promised)
            excess.append(wanted - promised)
        if any(excess):
            shortage = self.chain.make_room(tuple(excess))
            if shortage is not None:
                return shortage, int(self.rows.request_id[grown[0]]) if grown.size == 1 else 0
        for band, count in zip(self.chain.bands, covered, strict=True):
            band.promised_units -= count
        self._exceeding.update(dict.fromkeys(exceeding))
        return None

    def _grant(self, grown: Units, need: Units, page_sum: int, slotless: Units) -> Grant:
        columns = self.rows
        slot_virtual = slot_physical = _NONE
        if slotless.size:
            slot_virtual, slot_physical = self.chain.take_slots(slotless.size)
            columns.slot[slotless] = slot_virtual
        if page_sum == 0:
            return Grant(_NONE, _NONE, _NONE, [], slotless, slot_virtual, slot_physical)
        first = columns.page_count[grown]
        if page_sum == grown.size:
            page_rows, places = grown, first
        else:
            run, places = ragged(first, need)
            page_rows = grown[run]
        virtual, physical = self.chain.take_pages(page_sum)
        columns.pages[page_rows, places] = virtual
        page_count = first + need
        columns.page_count[grown] = page_count
        # Capacity ends at the context, so that a last page with room to spare hides no crossing.
        capacity = page_count * self._page_tokens[: grown.size]
        columns.capacity_tokens[grown] = np.minimum(capacity, self.context_tokens)
        return Grant(page_rows, places, virtual, physical, slotless, slot_virtual, slot_physical)

    # ---- window slides --------------------------------------------------------------------------

    def advance(self, rows: Units, tokens: int | Units) -> list[Slide]:
        """State that rows have computed more tokens; free the pages that left a window.

        Raises OperationError, before anything is changed, when a row would have computed more
        tokens than it took.
        """
        columns = self.rows
        one_each = isinstance(tokens, int) and tokens == 1
        computed = columns.computed_tokens[rows] + (self._ones[: rows.size] if one_each else tokens)
        over = computed > columns.tokens[rows]
        if np.count_nonzero(over):
            self._refuse_advance(rows, computed, over)
        columns.computed_tokens[rows] = computed
        slides: list[Slide] = []
        for index in self.chain.window_indices:
            leaving = (computed >= columns.slides_at_tokens[index][rows]).nonzero()[0]
            if leaving.size:
                slides.append(self._slide(index, rows[leaving], computed[leaving]))
        return slides

    def _slide(self, index: int, rows: Units, computed: Units) -> Slide:
        """Free the pages wholly behind the window: rows below ``computed - window``."""
        columns = self.rows
        slides_at, dropped_pages = columns.slides_at_tokens[index], columns.dropped_pages[index]
        dropped = dropped_pages[rows]
        slides_next = slides_at[rows] + self._page_tokens[: rows.size]
        if np.count_nonzero(computed >= slides_next) == 0:
            page_rows, places = rows, dropped  # one page each
            keep_from = dropped + self._ones[: rows.size]
        else:
            page_tokens, window = self.shape.page_tokens, self.shape.window_tokens[index]
            keep_from = (computed - window) // page_tokens
            slides_next = (keep_from + 1) * page_tokens + window
            run, places = ragged(dropped, keep_from - dropped)
            page_rows = rows[run]
        virtual = columns.pages[page_rows, places]
        band = self.chain.bands[index]
        owed_before = self._owed(index, rows) if self._exceeding else 0
        band.release(virtual)
        dropped_pages[rows] = keep_from
        slides_at[rows] = slides_next
        owed = self._owed(index, rows) - owed_before if self._exceeding else virtual.size
        band.promised_units += owed
        return Slide(index, virtual)

    # ---- ending ---------------------------------------------------------------------------------

    def free(self, rows: Units) -> list[tuple[int, Units]]:
        """End requests; return, per band with live units, the virtual ids that came back."""
        columns, chain = self.rows, self.chain
        for index, band in enumerate(chain.bands):
            band.promised_units -= self._owed(index, rows)
        freed: list[tuple[int, Units]] = []
        counts = columns.page_count[rows]
        for index in chain.token_indices:
            first = columns.dropped_pages[index][rows]
            run, places = ragged(first, counts - first)
            virtual = columns.pages[rows[run], places]
            chain.bands[index].release(virtual)
            freed.append((index, virtual))
        if chain.state_index is not None:
            slots = columns.slot[rows]
            slots = slots[slots > 0]
            chain.bands[chain.state_index].release(slots)
            freed.append((chain.state_index, slots))
        for request in columns.request_id[rows].tolist():
            del self.row_of[request]
        if self._exceeding:
            for row in rows.tolist():
                self._exceeding.pop(row, None)
        columns.request_id[rows] = 0
        columns.page_count[rows] = 0
        columns.slot[rows] = 0
        columns.dropped_pages[:, rows] = 0
        columns.promise_units[:, rows] = 0
        columns.free.give(rows)
        self.epoch_count += 1
        return freed

    # ---- checks ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the chain and, in strict mode, that requests and bands tell the same story.

        Invariants: request.rows_match_bands, request.promises_add_up.
        """
        self.chain.check()
        if self.chain.monitor.level < CheckLevel.STRICT:
            return
        rows = np.array(sorted(self.row_of.values()), dtype=np.int64)
        for index, band in enumerate(self.chain.bands):
            if index == self.chain.state_index:
                slots = self.rows.slot[rows]
                held = np.sort(slots[slots > 0])
            else:
                first = self.rows.dropped_pages[index][rows]
                run, places = ragged(first, self.rows.page_count[rows] - first)
                held = np.sort(self.rows.pages[rows[run], places])
            if not np.array_equal(held, band.bound_ids()):
                self.chain.monitor.fail(
                    "request.rows_match_bands",
                    f"requests hold {held.size} units of band {band.geometry.name}, "
                    f"the band has {band.live_units} live",
                )
            owed = self._owed(index, rows)
            if owed != band.promised_units:
                self.chain.monitor.fail(
                    "request.promises_add_up",
                    f"requests may still take {owed} units of band {band.geometry.name}, "
                    f"the band promised {band.promised_units}",
                )

    # ---- inside ----------------------------------------------------------------------------------

    def _held(self, index: int, rows: Units) -> Units:
        if index == self.chain.state_index:
            held: Units = np.minimum(self.rows.slot[rows], 1)
            return held
        return self.rows.held_units(
            index, rows, is_window=self.shape.lifetimes[index] is Lifetime.WINDOW
        )

    def _owed(self, index: int, rows: Units) -> int:
        """Return the units of a band that rows may still take on their promise."""
        spare = self.rows.promise_units[index][rows] - self._held(index, rows)
        return int(np.maximum(spare, 0).sum())

    def _slotless(self, rows: Units) -> Units:
        """Return the rows that need a state slot and have none."""
        if self.chain.state_index is None:
            return _NONE
        return rows[(self.rows.slot[rows] == 0).nonzero()[0]]

    def _check_length(self, rows: Units, total: Units) -> None:
        if np.count_nonzero(total > self.context_tokens):
            place = int((total > self.context_tokens).nonzero()[0][0])
            raise OperationError(
                f"request {self.rows.request_id[rows[place]]} would grow to {total[place]} tokens, "
                f"the context length is {self.context_tokens}"
            )

    def _refuse_advance(self, rows: Units, computed: Units, over: NDArray[np.bool_]) -> None:
        place = int(over.nonzero()[0][0])
        row = rows[place]
        raise OperationError(
            f"request {self.rows.request_id[row]} cannot have computed {computed[place]} tokens: "
            f"it took {self.rows.tokens[row]}"
        )

    def _unknown(self, request: int) -> OperationError:
        if not 0 < request <= REQUEST_ID_MAX:
            return OperationError(
                f"request id {request} is not a positive 64-bit integer",
                code=ErrorCode.BAD_REQUEST_ID,
            )
        if request in self._waiting or request > self.highest_id:
            problem = "is not admitted"
        else:
            problem = "has ended or never fitted"
        return OperationError(f"request {request} {problem}", code=ErrorCode.UNKNOWN_REQUEST)

    def _never(self, request: int, shortage: Shortage) -> Admission:
        self._waiting.pop(request, None)
        return Admission(Verdict.UNSCHEDULABLE, 0, shortage)

    def _too_long(self, total_tokens: int) -> Shortage:
        return Shortage(
            reason=Reason.TOO_LONG,
            band="",
            units_short_units=total_tokens - self.context_tokens,
            bytes_short_bytes=0,
            obstacle=f"{total_tokens} tokens, the context length is {self.context_tokens}",
            remover="a stage sized for a longer context",
            waiting_helps=False,
        )

    def _never_fits(self, demand: tuple[int, ...]) -> Shortage:
        bands = [band.geometry for band in self.chain.bands]
        widest = max(range(len(bands)), key=lambda place: demand[place] * bands[place].unit_bytes)
        needed = sum(units * band.unit_bytes for units, band in zip(demand, bands, strict=True))
        usable = self.chain.geometry.arena_bytes - self.chain.geometry.sink_bytes
        return Shortage(
            reason=Reason.NO_BYTES,
            band=bands[widest].name,
            units_short_units=0,
            bytes_short_bytes=max(0, needed - usable),
            obstacle=f"{needed} bytes asked of an arena that holds {usable} when empty",
            remover="a larger budget",
            waiting_helps=False,
        )


_NO_ROWS = Shortage(
    reason=Reason.NO_ROWS,
    band="",
    units_short_units=1,
    bytes_short_bytes=0,
    obstacle="every request row is in use",
    remover="a request that ends",
    waiting_helps=True,
)
