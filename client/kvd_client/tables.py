"""The host's copy of a rank's tables, and the index arrays that kernels take.

The tables in the arena are written by a stream, some time after the effects were enqueued. This
copy changes when effects are enqueued, so it says what the arena will say when the work of the next
launch runs, and reading it needs no synchronisation.

Invariants:
    tables.write_bound: a token whose place is asked for in the owner's band has a page there
"""

from typing import Final, NamedTuple

import numpy as np

from kvd_client.errors import KvdClientError, UsageError
from kvd_client.results import Columns, Int32s, Int64s, Ragged
from kvd_proto.errors import ErrorCode
from kvd_proto.memory import Lifetime, StoragePlan
from kvd_proto.outcomes import NO_COLUMN, Move, Outcome, WriteMap, WriteRows, WriteSlots

SINK: Final = 0


class TokenPages(NamedTuple):
    """Tokens of several rows end to end: where each one stands, and the page it is on."""

    rows: Int64s
    positions: Int64s
    virtual: Int32s
    offsets: Int64s
    """Place of the token on its page."""
    indptr: Int64s


class TableMirror:
    """Virtual-to-physical maps, request rows and state slots as of the applied position."""

    def __init__(self, plan: StoragePlan) -> None:
        self._bands = {band.name: index for index, band in enumerate(plan.bands)}
        self._plans = plan.bands
        entries = {one.band: one.entry_count for one in plan.region.band_maps}
        self._maps = [np.zeros(entries[band.name], dtype=np.int64) for band in plan.bands]
        self._row_pages = plan.row_pages
        # One row after the other, so that ragged reads are one flat gather. At page size 1 this has
        # gigabytes, of which only rows in use are ever touched.
        self._places = np.zeros(plan.row_count * plan.row_pages, dtype=np.int32)
        self._slots = np.zeros(plan.row_count, dtype=np.int64)
        self._page_tokens = plan.page_tokens
        power_of_two = plan.page_tokens.bit_count() == 1
        self._page_shift = plan.page_tokens.bit_length() - 1 if power_of_two else None
        states = [i for i, band in enumerate(plan.bands) if band.lifetime == Lifetime.STATE]
        self._state_index = states[0] if states else None
        self._owner_map = next(
            entries
            for entries, band in zip(self._maps, plan.bands, strict=True)
            if band.lifetime == Lifetime.FULL
        )
        self._iota: Int64s = np.arange(1024, dtype=np.int64)
        self.move_epoch = 0
        """Counts the applied entries that moved units: each may make earlier tables wrong."""

    def apply(self, outcome: Outcome, columns: Columns) -> None:
        """Carry out the table writes of one entry.

        The applier comes first and refuses a reply with a column or a number out of range, so
        nothing is checked again here.
        """
        moved = False
        for segment in outcome.segments:
            for effect in segment:
                if isinstance(effect, WriteMap):
                    self._write_map(effect, columns)
                elif isinstance(effect, WriteRows):
                    self._write_rows(effect, columns)
                elif isinstance(effect, WriteSlots):
                    self._slots[columns[effect.rows]] = columns[effect.virtual]
                elif isinstance(effect, Move):
                    moved = True
        self.move_epoch += moved

    def token_band(self, name: str) -> int:
        """Return the index of a token band; raises UsageError naming the bands there are."""
        index = self._bands.get(name)
        if index is None or index == self._state_index:
            names = [band.name for band in self._plans if band.lifetime != Lifetime.STATE]
            raise UsageError(f"no token band {name!r}; this plan has {names}")
        return index

    def tokens(self, rows: Int64s, starts: Int64s, ends: Int64s) -> TokenPages:
        """Return the tokens ``[start, end)`` of each row, end to end."""
        counts = ends - starts
        if np.count_nonzero(counts == 1) == len(counts):
            indptr = self._count_up(len(counts) + 1)
            positions = starts
        else:
            indptr = _edges(counts)
            positions = self._count_up(int(indptr[-1])) + np.repeat(starts - indptr[:-1], counts)
            rows = np.repeat(rows, counts)
        pages, offsets = self._split(positions)
        virtual = self._places[rows * self._row_pages + pages]
        return TokenPages(rows, positions, virtual, offsets, indptr)

    def slots(self, band_index: int, tokens: TokenPages) -> Int64s:
        """Return where tokens lie in a band: page times the page's tokens, plus the offset.

        Raises KvdClientError if the owner has no page for one of them: a write there would be lost.
        """
        physical = self._maps[band_index][tokens.virtual]
        plan = self._plans[band_index]
        if plan.lifetime == Lifetime.FULL and np.count_nonzero(physical) != len(physical):
            lost = int((physical == SINK).nonzero()[0][0])
            raise KvdClientError(
                f"tables.write_bound: token {int(tokens.positions[lost])} of row "
                f"{int(tokens.rows[lost])} has no page in band {plan.name!r}",
                code=ErrorCode.INVARIANT,
            )
        physical *= self._page_tokens
        physical += tokens.offsets
        return physical

    def write_slots(self, band_index: int, rows: Int64s, starts: Int64s, ends: Int64s) -> Ragged:
        """Return where tokens ``[start, end)`` of each row lie in a band; see `slots`."""
        tokens = self.tokens(rows, starts, ends)
        return Ragged(self.slots(band_index, tokens), tokens.indptr.astype(np.int32))

    def pages(self, rows: Int64s, lengths: Int64s) -> tuple[Int32s, Int64s]:
        """Return the virtual pages of each row's tokens end to end, and where each row's begin."""
        counts = -(-lengths // self._page_tokens)
        indptr = _edges(counts)
        flat = np.repeat(rows * self._row_pages - indptr[:-1], counts)
        flat += self._count_up(len(flat))
        return self._places[flat], indptr

    def physical(self, band_index: int, virtual: Int32s) -> Int64s:
        """Return a band's physical pages of virtual ones; what is not bound in it reads 0."""
        return self._maps[band_index][virtual]

    def page_table(self, band_index: int, rows: Int64s, lengths: Int64s) -> Ragged:
        """Return each row's physical pages in a band; what slid out or is not bound reads 0."""
        virtual, indptr = self.pages(rows, lengths)
        physical = self._maps[band_index][virtual]
        return Ragged(physical.astype(np.int32), indptr.astype(np.int32))

    def without_pages(self, rows: Int64s) -> Int64s:
        """Return those of rows that hold tokens whose requests ended: the owner binds no page."""
        gone: Int64s = rows[self._owner_map[self._places[rows * self._row_pages]] == SINK]
        return gone

    def block_table(
        self, band_index: int, rows: Int64s, lengths: Int64s, *, columns_count: int | None
    ) -> Int32s:
        """Return each row's physical pages as one line of a table, filled up with the sink.

        Raises UsageError if ``columns_count`` is less than the longest row needs.
        """
        counts = -(-lengths // self._page_tokens)
        longest = int(counts.max(initial=0))
        width = longest if columns_count is None else columns_count
        if width < longest or width > self._row_pages:
            raise UsageError(
                f"block table of {width} columns: the longest row has {longest} pages, "
                f"a row of the plan {self._row_pages}"
            )
        table = self._places.reshape(-1, self._row_pages)
        physical = self._maps[band_index][table[rows, :width]]
        # A row's places beyond its length may still name pages of its previous request.
        physical[self._count_up(width) >= counts[:, None]] = SINK
        return physical.astype(np.int32)

    def state_slots(self, rows: Int64s) -> Int64s:
        """Return the physical working slot of each row; raises UsageError without a state band."""
        if self._state_index is None:
            raise UsageError("this plan has no state band")
        return self._maps[self._state_index][self._slots[rows]]

    def virtual_to_physical(self, name: str) -> Int64s:
        """Return a copy of a band's map; raises UsageError for an unknown band."""
        if name not in self._bands:
            raise UsageError(f"no band {name!r}; this plan has {list(self._bands)}")
        return self._maps[self._bands[name]].copy()

    def virtual_slots(self, rows: Int64s) -> Int64s:
        """Return the virtual state slot of each row; 0 for none."""
        return self._slots[rows]

    def request_row(self, row: int) -> Int32s:
        """Return a copy of one row of the request table."""
        return self._places[row * self._row_pages : (row + 1) * self._row_pages].copy()

    def _write_map(self, effect: WriteMap, columns: Columns) -> None:
        bound = effect.physical != NO_COLUMN
        physical = columns[effect.physical] if bound else SINK
        self._maps[effect.band][columns[effect.virtual]] = physical

    def _write_rows(self, effect: WriteRows, columns: Columns) -> None:
        flat = columns[effect.rows] * self._row_pages
        flat += columns[effect.places]
        self._places[flat] = columns[effect.virtual]

    def _split(self, tokens: Int64s) -> tuple[Int64s, Int64s]:
        """Return the place of each token's page in its row, and its offset in the page."""
        if self._page_shift is None:
            return np.divmod(tokens, self._page_tokens)
        # Dividing 64-bit numbers is the dearest call of a decode step; most page sizes need none.
        return tokens >> self._page_shift, tokens & (self._page_tokens - 1)

    def _count_up(self, count: int) -> Int64s:
        """Return 0, 1, 2, ... from the shared array, which grows to the longest ever asked for."""
        iota = self._iota
        if count > len(iota):
            # Another thread may grow it too; each goes on with an array that is long enough for it.
            iota = self._iota = np.arange(2 * count, dtype=np.int64)
        return iota[:count]


def _edges(counts: Int64s) -> Int64s:
    """Return 0 and the running sums of counts."""
    edges = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=edges[1:])
    return edges
