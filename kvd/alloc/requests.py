"""Requests and what they hold: takes, slides, retraction and frees over whole sets of rows.

A request belongs to the group, not to a rank. Admission opens its row and promises it the most
units it will ever hold at once in every band; a promise lapses when its time is over, what was
taken stays. A request ends by being freed or retracted.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvd.alloc.band import Freed, Units
from kvd.alloc.chain import BandMoves, ChainAllocator, Shortage, UnitCounts
from kvd.alloc.checks import CheckLevel
from kvd.alloc.demand import DemandShape
from kvd.alloc.holdings import Holdings
from kvd.alloc.names import RequestNames
from kvd.alloc.request_checks import check_requests
from kvd.alloc.rows import RequestRows, ragged
from kvd.alloc.values import Value, ValueTable
from kvd.errors import OperationError


class Grant(NamedTuple):
    """What a take did: whom it retracted, what it moved, and what it handed out."""

    retracted: Units
    """Rows that ended to make room, in the order of the victims."""
    freed: list[Freed]
    moves: list[BandMoves]
    page_rows: Units
    page_places: Units
    virtual: Units
    physical: list[Units]
    """Per token band, chain order; empty when no page was needed."""
    slot_rows: Units
    slot_virtual: Units
    slot_physical: Units

    @property
    def is_nothing(self) -> bool:
        """Return whether nothing but token counts changed."""
        return not (self.physical or self.slot_rows.size or self.retracted.size)


class Growth(NamedTuple):
    """What a take needs before anything is changed."""

    rows: Units
    total_tokens: Units
    grown: Units
    """The rows among them that need pages, and how many each."""
    need: Units
    page_count: int
    slotless: Units
    wanted: UnitCounts
    """Units to be handed out per band."""
    covered: UnitCounts
    """Those of them that were promised."""

    @property
    def excess(self) -> UnitCounts:
        """Return the units beyond all promises, per band."""
        return tuple([a - b for a, b in zip(self.wanted, self.covered, strict=True)])


class Ask(NamedTuple):
    """What is asked once some rows have ended."""

    excess: UnitCounts
    """Units beyond all promises, per band."""
    wanted: UnitCounts
    """Units to be handed out at once, per band."""


_NONE: Units = np.zeros(0, dtype=np.int64)
NOTHING_GRANTED = Grant(_NONE, [], [], _NONE, _NONE, _NONE, [], _NONE, _NONE, _NONE)


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
        self.names = RequestNames()
        self.rows = RequestRows(
            row_count=row_count, row_pages=row_pages, band_count=len(chain.bands)
        )
        self.values = ValueTable(chain)
        self.holdings = Holdings(chain, self.rows, self.values, shape)
        self.slotless_count = 0
        """Live rows that need a state slot and have none."""
        self._context_tokens = np.full(row_count, context_tokens, dtype=np.int64)
        self._ones = np.ones(row_count, dtype=np.int64)
        self._page_tokens = np.full(row_count, shape.page_tokens, dtype=np.int64)

    @property
    def live_count(self) -> int:
        """Return how many requests hold a row."""
        return len(self.names.row_of)

    @property
    def holder_count(self) -> int:
        """Return how many requests and values hold something that may come back."""
        return len(self.names.row_of) + len(self.values.of_number)

    # ---- opening and promises -------------------------------------------------------------------

    def open(
        self,
        request: int,
        demand: UnitCounts,
        *,
        prompt_tokens: int,
        new_tokens: int,
        chunk_tokens: int,
    ) -> int:
        """Give an admitted request its row and its promise; return the row."""
        columns = self.rows
        row = int(columns.free.take(1)[0])
        columns.request_id[row] = request
        columns.prompt_tokens[row] = columns.limit_tokens[row] = prompt_tokens
        columns.total_tokens[row] = prompt_tokens + new_tokens
        columns.reach_tokens[row] = self.shape.reach_tokens(chunk_tokens)
        columns.promised[row] = columns.prefilling[row] = 1
        self.holdings.prefilling_count += 1
        self.slotless_count += self.chain.state_index is not None
        for index, band in enumerate(self.chain.bands):
            columns.peak_units[index][row] = demand[index]
            columns.slides_at_tokens[index][row] = (
                self.shape.window_tokens[index] + self.shape.page_tokens
            )
            band.promise(demand[index])
        self.names.open(request, row)
        columns.opened_count[row] = self.names.epoch_count
        return row

    # ---- taking ---------------------------------------------------------------------------------

    def take(
        self, rows: Units, tokens: int | Units, victims: Units = _NONE
    ) -> Grant | tuple[Shortage, int]:
        """Grow rows by tokens, all or nothing; a shortage comes with the request it is about.

        Where there is no room, ``victims`` are retracted in order until there is; a victim among
        ``rows`` takes nothing. Raises OperationError when a row would grow past the context length.
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
            need, page_count = self._ones[: grown.size], grown.size
        else:
            beyond = grown_total - columns.capacity_tokens[grown]
            need = (beyond + (self.shape.page_tokens - 1)) // self.shape.page_tokens
            page_count = int(need.sum())
        wanted = self.wanted_units(page_count, slotless.size)
        if self.holdings.uneven_count == 0 and self._within_promise(grown, grown_total):
            growth = Growth(rows, total, grown, need, page_count, slotless, wanted, wanted)
        else:
            self._check_length(grown, grown_total)
            covered = self._covered(grown, need, page_count, slotless)
            growth = Growth(rows, total, grown, need, page_count, slotless, wanted, covered)
            if any(growth.excess) and not self.chain.fits(growth.excess):
                if victims.size == 0:
                    return self._refused(growth)
                return self._retract_and_take(rows, tokens, victims, growth)
        return self._grant(growth)

    def _retract_and_take(
        self, rows: Units, tokens: int | Units, victims: Units, growth: Growth
    ) -> Grant | tuple[Shortage, int]:
        """Retract the fewest victims, in order, whose end makes room; nobody if none does."""
        each = np.broadcast_to(np.asarray(tokens, dtype=np.int64), rows.shape)

        def ask(ending: Units) -> Ask:
            staying = np.isin(rows, ending, invert=True)
            asked = self._ask(rows[staying], each[staying])
            return Ask(asked.excess, asked.wanted)

        ending = self.fewest_ending(victims, ask)
        if ending is None:
            return self._refused(growth)
        freed = self.retract(ending)
        staying = np.isin(rows, ending, invert=True)
        grant = self.take(rows[staying], each[staying])
        if not isinstance(grant, Grant):
            self.chain.monitor.stop(
                "chain.take_matches_answer", "victims ended for a take that found no room"
            )
        return grant._replace(retracted=ending, freed=freed)

    def fewest_ending(self, victims: Units, ask: Callable[[Units], Ask]) -> Units | None:
        """Return the fewest victims, in order, whose end makes room; None if nobody's end does.

        ``ask`` says what is asked once the rows that it is given have ended. Room means that the
        whole demand fits and that no transfer keeps what is wanted at once from being taken.
        Nothing is changed.
        """
        for count in range(1, victims.size + 1):
            ending = victims[:count]
            asked = ask(ending)
            freed_units = self.holdings.held_sums(ending)
            if self.chain.fits(
                asked.excess,
                freed_units=freed_units,
                released_units=self.holdings.owed_sums(ending),
            ) and self.chain.has_room_now(asked.wanted, freed_units=freed_units):
                return ending
        return None

    def retract(self, rows: Units) -> list[Freed]:
        """End requests that may be admitted again; return the virtual ids that came back."""
        requests = self.rows.request_id[rows].tolist()
        freed = self.free(rows)
        for request in requests:
            self.names.wait(request)
        return freed

    def _ask(self, rows: Units, tokens: Units) -> Growth:
        """Return what a take of these rows needs, changing nothing."""
        columns = self.rows
        total = columns.tokens[rows] + tokens
        crossing = (total > columns.capacity_tokens[rows]).nonzero()[0]
        grown = rows[crossing]
        beyond = total[crossing] - columns.capacity_tokens[grown]
        need = (beyond + (self.shape.page_tokens - 1)) // self.shape.page_tokens
        page_count, slotless = int(need.sum()), self._slotless(rows)
        return Growth(
            rows,
            total,
            grown,
            need,
            page_count,
            slotless,
            self.wanted_units(page_count, slotless.size),
            self._covered(grown, need, page_count, slotless),
        )

    def wanted_units(self, page_count: int, slot_sum: int) -> UnitCounts:
        """Return the units per band that so many pages and slots are made of."""
        state_index = self.chain.state_index
        return tuple(
            [
                slot_sum if index == state_index else page_count
                for index in range(len(self.chain.bands))
            ]
        )

    def _within_promise(self, grown: Units, total: Units) -> bool:
        """Return whether every row stays within what its demand was priced for, in every band."""
        columns = self.rows
        if np.count_nonzero(total > columns.limit_tokens[grown]):
            return False
        reach = columns.computed_tokens[grown] + columns.reach_tokens[grown]
        return not np.count_nonzero(total > reach)

    def _covered(self, grown: Units, need: Units, page_count: int, slotless: Units) -> UnitCounts:
        """Return the units per band that the rows' own promises cover."""
        covered: list[int] = []
        for index in range(len(self.chain.bands)):
            if index == self.chain.state_index:
                covered.append(self.holdings.owed(index, slotless))
            elif page_count == 0:
                covered.append(0)
            else:
                covered.append(int(np.minimum(need, self.holdings.spare(index, grown)).sum()))
        return tuple(covered)

    def _grant(self, growth: Growth) -> Grant | tuple[Shortage, int]:
        moves = self.chain.make_room(growth.wanted)
        if isinstance(moves, Shortage):
            return self.chain.excused(moves), 0
        columns, grown, need = self.rows, growth.grown, growth.need
        if growth.covered is not growth.wanted:
            self._note_exceeding(growth)
        for band, count in zip(self.chain.bands, growth.covered, strict=True):
            if count:
                band.promise(-count)
        columns.tokens[growth.rows] = growth.total_tokens
        slot_virtual = slot_physical = _NONE
        if growth.slotless.size:
            slot_virtual, slot_physical = self.chain.take_slots(growth.slotless.size)
            columns.slot[growth.slotless] = slot_virtual
            self.slotless_count -= growth.slotless.size
        slots = (growth.slotless, slot_virtual, slot_physical)
        if growth.page_count == 0:
            return Grant(_NONE, [], moves, _NONE, _NONE, _NONE, [], *slots)
        first = columns.page_count[grown]
        if growth.page_count == grown.size:
            page_rows, places = grown, first
        else:
            run, places = ragged(first, need)
            page_rows = grown[run]
        virtual, physical = self.chain.take_pages(growth.page_count)
        columns.pages[page_rows, places] = virtual
        counts = first + need
        columns.page_count[grown] = counts
        # Capacity ends at the context, so that a last page with room to spare hides no crossing.
        capacity = counts * self._page_tokens[: grown.size]
        columns.capacity_tokens[grown] = np.minimum(capacity, self._context_tokens[: grown.size])
        return Grant(_NONE, [], moves, page_rows, places, virtual, physical, *slots)

    def _note_exceeding(self, growth: Growth) -> None:
        """Mark rows that are about to hold more than their promise in some band."""
        grown = growth.grown
        exceeding = np.zeros(grown.size, dtype=bool)
        for index in self.chain.token_indices:
            exceeding |= growth.need > self.holdings.spare(index, grown)
        self.holdings.mark_uneven(grown[exceeding])

    def _refused(self, growth: Growth) -> tuple[Shortage, int]:
        grown = growth.grown
        request = int(self.rows.request_id[grown[0]]) if grown.size == 1 else 0
        rows = growth.rows
        held, owed = self.holdings.held_sums(rows), self.holdings.owed_sums(rows)
        own = tuple([mine + still for mine, still in zip(held, owed, strict=True)])
        return self.chain.explain(growth.excess, own_units=own), request

    def written_ids(self, rows: Units) -> list[Units]:
        """Return the ids per band that a forward over these rows writes.

        Those are the pages from each row's first token that is not computed, and its slot. A page
        that slid out of a window is not bound there, and so no part of it.
        """
        columns = self.rows
        first = columns.computed_tokens[rows] // self.shape.page_tokens
        run, places = ragged(first, columns.page_count[rows] - first)
        pages = columns.pages[rows[run], places]
        slots = columns.slot[rows]
        return [
            slots[slots > 0] if index == self.chain.state_index else pages
            for index in range(len(self.chain.bands))
        ]

    # ---- window slides --------------------------------------------------------------------------

    def advance(self, rows: Units, tokens: int | Units) -> list[Freed]:
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
        slides: list[Freed] = []
        for index in self.chain.window_indices:
            leaving = (computed >= columns.slides_at_tokens[index][rows]).nonzero()[0]
            if leaving.size:
                slides.append(self._slide(index, rows[leaving], computed[leaving]))
        if self.holdings.prefilling_count:
            over_prompt = (computed >= columns.prompt_tokens[rows]) & (columns.prefilling[rows] > 0)
            if np.count_nonzero(over_prompt):
                self.holdings.end_prefill(rows[over_prompt])
        return slides

    def _slide(self, index: int, rows: Units, computed: Units) -> Freed:
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
        owed_before = self.holdings.owed(index, rows) if self.holdings.uneven_count else 0
        slid = Freed(index, virtual)
        self.chain.release([slid])
        dropped_pages[rows] = keep_from
        slides_at[rows] = slides_next
        owed = virtual.size
        if self.holdings.uneven_count:
            owed = self.holdings.owed(index, rows) - owed_before
        band.promise(owed)
        return slid

    # ---- ending ---------------------------------------------------------------------------------

    def free(self, rows: Units) -> list[Freed]:
        """End requests; return, per band, the virtual ids that came back."""
        chain = self.chain
        for index, band in enumerate(chain.bands):
            band.promise(-self.holdings.owed(index, rows))
        slots_last = chain.token_indices
        if chain.state_index is not None:
            slots_last = (*slots_last, chain.state_index)
        freed = [Freed(index, self.holdings.ids(index, rows)) for index in slots_last]
        chain.release(freed)
        self._close(rows)
        return freed

    def insert(self, number: int, row: int) -> None:
        """End a request and keep all that it holds as a value; the number was checked."""
        chain, rows = self.chain, np.array([row], dtype=np.int64)
        for index, band in enumerate(chain.bands):
            band.promise(-self.holdings.owed(index, rows))
        value = Value(
            pages=self.holdings.ids(chain.owner_index, rows),
            bound={index: self.holdings.ids(index, rows) for index in chain.window_indices},
            slot=int(self.rows.slot[row]),
            written_step=chain.steps.launched_count,
        )
        self.values.add(number, value)
        self._close(rows)

    def _close(self, rows: Units) -> None:
        """Let rows be free whose units and promises are somebody else's now."""
        columns = self.rows
        if self.chain.state_index is not None:
            self.slotless_count -= rows.size - int(np.count_nonzero(columns.slot[rows]))
        self.names.close(columns.request_id[rows].tolist())
        self.holdings.uneven_count -= int(columns.uneven[rows].sum())
        self.holdings.prefilling_count -= int(columns.prefilling[rows].sum())
        columns.clear(rows)
        columns.free.give(rows)

    def check(self, *, deep: bool | None = None) -> None:
        """Check what requests hold, the bands below, and if ``deep`` rows, names and values.

        In strict mode everything is looked at anyway.
        """
        self.holdings.check(deep=deep)
        monitor = self.chain.monitor
        is_strict = monitor.level is CheckLevel.STRICT
        if monitor.level >= CheckLevel.WARN and (is_strict if deep is None else deep):
            check_requests(
                self.names,
                self.holdings,
                context_tokens=self.context_tokens,
                slotless_count=self.slotless_count,
            )
            self.values.check()
            if self.chain.state_index is not None:
                steps, slots = self.chain.steps, self.chain.bands[self.chain.state_index]
                steps.clearings.check(slots.bound_ids(), steps.launched_count, monitor)

    # ---- inside ---------------------------------------------------------------------------------

    def _slotless(self, rows: Units) -> Units:
        """Return the rows that need a state slot and have none."""
        if self.slotless_count == 0:
            return _NONE
        slotless: Units = rows[(self.rows.slot[rows] == 0).nonzero()[0]]
        return slotless

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
