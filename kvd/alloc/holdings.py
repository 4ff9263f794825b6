"""What rows hold and what they were promised, summed and row by row.

Invariants:
    request.rows_match_bands: requests and values hold exactly the bound units of every band;
    request.promises_add_up: a band's promises are the sum of what its requests may still take;
    request.rows_over_price: a row that is not marked uneven holds at most its peak in every band.
"""

import numpy as np

from kvd.alloc.band import Units
from kvd.alloc.chain import ChainAllocator, UnitCounts
from kvd.alloc.checks import CheckLevel
from kvd.alloc.demand import DemandShape, RequestShape, steady_demand
from kvd.alloc.rows import RequestRows, ragged
from kvd.alloc.values import ValueTable
from kvd_proto.memory import Lifetime

_NONE: Units = np.zeros(0, dtype=np.int64)


class Holdings:
    """The promises side of the request table; bands count the totals."""

    def __init__(
        self, chain: ChainAllocator, rows: RequestRows, values: ValueTable, shape: DemandShape
    ) -> None:
        self.chain = chain
        self.values = values
        self.rows = rows
        self.shape = shape
        self.prefilling_count = 0
        """Live rows whose prompt is not computed yet."""
        self.uneven_count = 0
        """Live rows marked uneven; while there are none, promises are charged by sums."""

    def lapse(self, rows: Units) -> None:
        """End the promises of rows; what they took stays theirs."""
        rows = rows[self.rows.promised[rows] > 0]
        for index, band in enumerate(self.chain.bands):
            band.promise(-self.owed(index, rows))
        self.rows.promised[rows] = 0
        self.mark_uneven(rows)

    def owed(self, index: int, rows: Units) -> int:
        """Return the units of a band that rows may still take on their promises."""
        missing = self.rows.peak_units[index][rows] - self._held(index, rows)
        return int((np.maximum(missing, 0) * self.rows.promised[rows]).sum())

    def growth_units(self, *, without: Units = _NONE) -> UnitCounts:
        """Return what live requests whose promise lapsed are still missing to their peaks.

        Rows of ``without`` do not count: they are about to end.
        """
        rows = self.rows.request_id.nonzero()[0]
        if without.size:
            rows = rows[np.isin(rows, without, invert=True)]
        rows = rows[self.rows.promised[rows] == 0]
        return tuple(
            int(np.maximum(self.rows.peak_units[index][rows] - self._held(index, rows), 0).sum())
            for index in range(len(self.chain.bands))
        )

    def spare(self, index: int, rows: Units) -> Units:
        """Return, row by row, the units that the row may still take on its promise."""
        missing = self.rows.peak_units[index][rows] - self._held(index, rows)
        spare: Units = np.maximum(missing, 0) * self.rows.promised[rows]
        return spare

    def end_prefill(self, rows: Units) -> None:
        """Give back what was priced for chunks: from here on a step is all that comes on top.

        A row that took tokens behind its prompt already may hold more than that, and is uneven.
        """
        columns = self.rows
        for row in rows.tolist():
            prompt = int(columns.prompt_tokens[row])
            request = RequestShape(
                prompt_tokens=prompt, new_tokens=int(columns.total_tokens[row]) - prompt
            )
            steady = steady_demand(
                self.shape,
                request,
                mode=self.shape.mode,
                chunk_tokens=int(columns.reach_tokens[row]),
            ).units
            for index in self.chain.window_indices:
                here = rows[rows == row]
                before = self.owed(index, here)
                columns.peak_units[index][row] = min(
                    int(columns.peak_units[index][row]), steady[index]
                )
                self.chain.bands[index].promise(self.owed(index, here) - before)
                if self._held(index, here)[0] > columns.peak_units[index][row]:
                    self.mark_uneven(here)
        columns.limit_tokens[rows] = columns.total_tokens[rows]
        columns.reach_tokens[rows] = self.shape.step_tokens * (2 if self.shape.overlap else 1)
        columns.prefilling[rows] = 0
        self.prefilling_count -= rows.size

    def ids(self, index: int, rows: Units) -> Units:
        """Return the virtual ids that rows hold in a band, row by row."""
        if index == self.chain.state_index:
            slots = self.rows.slot[rows]
            held: Units = slots[slots > 0]
            return held
        first = self.rows.dropped_pages[index][rows]
        run, places = ragged(first, self.rows.page_count[rows] - first)
        pages: Units = self.rows.pages[rows[run], places]
        return pages

    def held_sums(self, rows: Units) -> UnitCounts:
        """Return the units per band that rows hold."""
        return tuple(int(self._held(index, rows).sum()) for index in range(len(self.chain.bands)))

    def owed_sums(self, rows: Units) -> UnitCounts:
        """Return the units per band that rows may still take on their promises."""
        return tuple(self.owed(index, rows) for index in range(len(self.chain.bands)))

    def mark_uneven(self, rows: Units) -> None:
        """Have these rows counted one by one from now on."""
        self.uneven_count += rows.size - int(self.rows.uneven[rows].sum())
        self.rows.uneven[rows] = 1

    def check(self, *, deep: bool | None = None) -> None:
        """Check the chain and prices, and if ``deep`` that requests and bands tell the same story.

        In strict mode everything is looked at anyway.

        Invariants: request.rows_over_price, request.rows_match_bands, request.promises_add_up.
        """
        monitor = self.chain.monitor
        if monitor.level < CheckLevel.WARN:
            return
        self.chain.check(deep=deep)
        rows = self.rows.request_id.nonzero()[0]
        if not monitor.goes_deep(deep):
            self._check_prices(rows)
            return
        for index, band in enumerate(self.chain.bands):
            held = np.concatenate((self.ids(index, rows), self.values.ids(index)))
            if not np.array_equal(np.sort(held), band.bound_ids()):
                self.chain.monitor.fail(
                    "request.rows_match_bands",
                    f"requests and values hold {held.size} units of band {band.geometry.name}, "
                    f"the band has {band.live_units} live",
                )
            owed = self.owed(index, rows)
            if owed != band.promised_units:
                self.chain.monitor.fail(
                    "request.promises_add_up",
                    f"requests may still take {owed} units of band {band.geometry.name}, "
                    f"the band promised {band.promised_units}",
                )
        self._check_prices(rows)

    def _check_prices(self, rows: Units) -> None:
        """Check that rows which are not counted one by one keep to their peaks."""
        even = rows[self.rows.uneven[rows] == 0]
        for index, band in enumerate(self.chain.bands):
            over = (self._held(index, even) > self.rows.peak_units[index][even]).nonzero()[0]
            if over.size:
                self.chain.monitor.fail(
                    "request.rows_over_price",
                    f"request {self.rows.request_id[even[over[0]]]} holds more units of band "
                    f"{band.geometry.name} than it was priced to",
                )

    def _held(self, index: int, rows: Units) -> Units:
        if index == self.chain.state_index:
            held: Units = np.minimum(self.rows.slot[rows], 1)
            return held
        return self.rows.held_units(
            index, rows, is_window=self.shape.lifetimes[index] is Lifetime.WINDOW
        )
