"""kvd's books held against the reference: each difference has the name of a check.

Checks:
    stress.steps: steps are launched, processed and retired as operations and waits say;
    stress.maps: names and units name each other, and say what outcomes said;
    stress.pending: what was freed comes back once, and not before its step or transfer is over;
    stress.reservations: a load's units are fixed until it named them, and no longer;
    stress.conservation: every unit of a span is in one class, and counters count it once;
    stress.disjoint: spans lie in order between sink and arena end, and share no byte;
    stress.ledger: the records are the accesses that are open, no more and no fewer;
    stress.holdings: requests, values, copies and transfers hold what operations gave them;
    stress.promises: what is held back is what requests may still take;
    stress.ids: every name is free or bound, and every row free or somebody's;
    stress.snapshot: what an answer is made from equals a recount;
    stress.growth: a float that grows downwards has more room there than above.
"""

from collections.abc import Iterable

import numpy as np

from kvd.alloc.band_units import HOLE, OUTSIDE, PENDING, RESERVED, SINK, VACATED, Units
from kvd.alloc.signals import Signal, SignalKind
from kvd.alloc.uses import HAZARD_OF, UseKind
from kvd.engine.stage import StageEngine
from kvd.price.geometry import BandKind
from kvd.testing.stress.answers import Answers
from kvd.testing.stress.broken import broken, require
from kvd.testing.stress.open_accesses import Grains
from kvd.testing.stress.request_books import RequestBooks
from kvd.testing.stress.use_books import UseBooks

KIND_OF_HAZARD = {hazard: kind for kind, hazard in HAZARD_OF.items()}


class Comparison:
    """One engine beside the models of it."""

    def __init__(
        self, engine: StageEngine, books: RequestBooks, uses: UseBooks, answers: Answers
    ) -> None:
        self.engine = engine
        self.chain = engine.chain
        self.books = books
        self.units = books.units
        self.uses = uses
        self.answers = answers
        self._spans_before = self.chain.spans
        self._edges: set[int] = set()
        """Floats whose lowest unit somebody had when it was looked at last."""

    def check(self) -> None:
        """Compare everything; raises StressFailure, naming the check."""
        self._steps()
        self._units()
        self._spans()
        self._ledger()
        self._rows()
        self._values_and_uses()
        self._promises_and_ids()
        self._snapshot()
        self._growth()

    # ---- units ----------------------------------------------------------------------------------

    def _steps(self) -> None:
        steps, accesses = self.engine.steps, self.units.accesses
        told = (steps.launched_count, steps.processed_count, steps.retired_count)
        expected = (accesses.launched, accesses.processed, accesses.retired)
        require(
            told == expected,
            "steps",
            f"launched, processed and retired are {told}, expected {expected}",
        )
        self._clearings()

    def _clearings(self) -> None:
        """Compare which slots are to be cleared, and by which step the others were."""
        clearings, books = self.engine.steps.clearings, self.books
        for slot in () if books.state is None else self.units.place_of[books.state]:
            told = clearings.is_due(slot), clearings.step_of(slot)
            expected = slot in books.uncleared, books.clearing_step.get(slot, 0)
            if told != expected:
                broken(
                    "steps", f"slot {slot} is to be cleared, or was, {told}, expected {expected}"
                )

    def _units(self) -> None:
        """Compare maps and unit states: all of a band at once, one by one where that differs."""
        arrays = [band.unit_states() for band in self.chain.bands]
        same = [self._is_same(index, states) for index, states in enumerate(arrays)]
        if not all(same):
            states = [array.tolist() for array in arrays]
            for index, band_states in enumerate(states):
                self._maps(index, band_states)
            self._settle(states)
            for index, band_states in enumerate(states):
                self._classes(index, band_states)
        for index in range(self.books.band_count):
            self._counters(index)
        for index in self.books.windows:
            if (
                not self.units.place_of[index].keys()
                <= self.units.place_of[self.books.owner].keys()
            ):
                bound = self.units.place_of[index].keys() - self.units.place_of[self.books.owner]
                name = self.units.name(index)
                broken("maps", f"band {name} binds {sorted(bound)} without an owner page")

    def _is_same(self, index: int, states: Units) -> bool:
        """Return whether a band's maps and states are what the reference expects."""
        units, band = self.units, self.chain.bands[index]
        start, end = band.span
        expected = np.full(states.size, OUTSIDE, dtype=np.int64)
        expected[start:end] = HOLE
        place_of = units.place_of[index]
        names, places = [*place_of.keys()], [*place_of.values()]
        for state, those in (
            (PENDING, units.pending[index]),
            (VACATED, units.vacated[index]),
            (RESERVED, units.reserved[index]),
        ):
            if those:
                expected[[*those]] = state
        expected[places] = names
        expected[0] = SINK
        if not np.array_equal(states, expected):
            return False
        physical = band.physical_map()
        mapped = np.zeros(physical.size, dtype=np.int64)
        mapped[names] = places
        return np.array_equal(physical, mapped)

    def _maps(self, index: int, states: list[int]) -> None:
        expected = self.units.place_of[index]
        physical = self.chain.bands[index].physical_map().tolist()
        found = {name: unit for name, unit in enumerate(physical) if unit}
        name = self.units.name(index)
        if found != expected:
            wrong = sorted(set(found.items()) ^ set(expected.items()))
            broken("maps", f"band {name} and the reference differ in {wrong}")
        by_unit = {unit: named for unit, named in enumerate(states) if named > 0}
        inverse = {unit: named for named, unit in expected.items()}
        require(len(inverse) == len(expected), "maps", f"band {name} binds a unit twice")
        if by_unit != inverse:
            wrong = sorted(set(by_unit.items()) ^ set(inverse.items()))
            broken("maps", f"units of band {name} name {wrong}, the names say otherwise")

    def _settle(self, states: list[list[int]]) -> None:
        """Take in what kvd let come back early, and what left its span, where it may."""
        for index, band_states in enumerate(states):
            for unit in list(self.units.pending[index]):
                if band_states[unit] != PENDING:
                    self.units.settle(index, unit)
            start, end = self.chain.bands[index].span
            for unit in list(self.units.vacated[index]):
                if not start <= unit < end:
                    self.units.leave(index, unit)

    def _classes(self, index: int, states: list[int]) -> None:
        units, band = self.units, self.chain.bands[index]
        name = units.name(index)
        for state, check, expected in (
            (PENDING, "pending", set(units.pending[index])),
            (VACATED, "pending", units.vacated[index]),
            (RESERVED, "reservations", set(units.reserved[index])),
        ):
            found = {unit for unit, its in enumerate(states) if its == state}
            require(
                found == expected,
                check,
                f"band {name}: units {sorted(found ^ expected)} are not as the reference has them "
                f"(pending, vacated or reserved)",
            )
        start, end = band.span
        taken = {*units.place_of[index].values(), *units.reserved[index]}
        taken |= {*units.pending[index], *units.vacated[index]}
        stray = [unit for unit in taken if not start <= unit < end]
        require(not stray, "conservation", f"band {name} has {stray} outside [{start}, {end})")
        free = {unit: HOLE if start <= unit < end else OUTSIDE for unit in range(1, len(states))}
        wrong = [unit for unit, its in free.items() if unit not in taken and states[unit] != its]
        require(
            not wrong and states[0] == SINK,
            "conservation",
            f"band {name}: units {wrong} belong to nobody and are neither holes nor outside",
        )

    def _counters(self, index: int) -> None:
        units, band = self.units, self.chain.bands[index]
        told = (band.live_units, band.hole_units, band.pending_units, band.vacated_units)
        live = len(units.place_of[index]) + len(units.reserved[index])
        pending, vacated = len(units.pending[index]), len(units.vacated[index])
        start, end = band.span
        counts = (live, end - start - live - pending - vacated, pending, vacated)
        if told != counts:
            broken(
                "conservation",
                f"band {units.name(index)} counts {told} live, holes, pending and vacated; there "
                f"are {counts}",
            )

    def _spans(self) -> None:
        geometry = self.units.geometry
        cursor_bytes = geometry.sink_bytes
        for grid, (start, end) in zip(geometry.bands, self.chain.spans, strict=True):
            if start == end:
                continue
            low, high = start * grid.unit_bytes, end * grid.unit_bytes
            require(
                cursor_bytes <= low <= high <= geometry.arena_bytes,
                "disjoint",
                f"band {grid.name} spans bytes [{low}, {high}), below it ends {cursor_bytes}",
            )
            cursor_bytes = high

    # ---- the ledger -----------------------------------------------------------------------------

    def _ledger(self) -> None:
        accesses = self.units.accesses
        writes: dict[int, Grains | None] = {}
        uses: dict[tuple[UseKind, Signal], Grains] = {}
        for index, band in enumerate(self.chain.bands):
            for (kind, signal), units in band.usage.open_units().items():
                if kind is UseKind.FORWARD_WRITE:
                    known = writes.setdefault(signal.number, set())
                    if units is None or known is None:
                        writes[signal.number] = None
                    else:
                        known |= self.units.grains(index, units.tolist())
                elif kind is UseKind.VACATED_READ and signal.kind is SignalKind.TRANSFER:
                    assert units is not None
                    self._held_back(index, signal, units.tolist())
                else:
                    assert units is not None
                    grains = self.units.grains(index, units.tolist())
                    uses.setdefault((kind, signal), set()).update(grains)
        size = self.units.grain_bytes
        for (hazard, signal), ranges in self.chain.order.fences.ranges().items():
            grains = {it for low, high in ranges for it in range(low // size, -(-high // size))}
            uses.setdefault((KIND_OF_HAZARD[hazard], signal), set()).update(grains)
        if writes != accesses.writes:
            broken(
                "ledger",
                f"steps write {_shown(writes)}, expected {_shown(accesses.writes)}",
            )
        wrong = [
            f"{kind} of {signal.kind} {signal.number}"
            for kind, signal in sorted(uses.keys() | accesses.uses.keys())
            if uses.get((kind, signal)) != accesses.uses.get((kind, signal))
        ]
        require(not wrong, "ledger", f"records differ from what is open: {', '.join(wrong)}")
        waited = {*self.chain.order.waited}
        if waited != accesses.waited:
            broken(
                "ledger",
                f"the stream is behind copies {sorted(waited)}, expected {sorted(accesses.waited)}",
            )

    def _held_back(self, index: int, signal: Signal, units: list[int]) -> None:
        touched = self.units.accesses.on
        expected = [
            unit
            for unit in sorted(self.units.vacated[index])
            if any(
                its == signal
                for _, its in touched(
                    self.units.grains(index, [unit]),
                    (UseKind.NETWORK_SEND, UseKind.NETWORK_RECEIVE),
                )
            )
        ]
        if units != expected:
            broken(
                "ledger",
                f"{signal.kind} {signal.number} holds back {units} of band "
                f"{self.units.name(index)}, expected {expected}",
            )

    # ---- who holds what -------------------------------------------------------------------------

    def _rows(self) -> None:
        table, books = self.engine.requests, self.books
        rows = {held.request: held.row_index for held in books.held.values()}
        if table.names.row_of != rows:
            broken(
                "holdings",
                f"rows are {table.names.row_of}, expected {rows}",
            )
        columns = table.rows
        for held in books.held.values():
            row = held.row_index
            told = (
                int(columns.request_id[row]),
                int(columns.tokens[row]),
                int(columns.computed_tokens[row]),
                int(columns.slot[row]),
                columns.pages[row, : int(columns.page_count[row])].tolist(),
                [int(columns.dropped_pages[band][row]) for band in books.windows],
            )
            expected = (
                held.request,
                held.tokens,
                held.computed_tokens,
                held.slot or 0,
                held.pages,
                [held.dropped_pages.get(band, 0) for band in books.windows],
            )
            if told != expected:
                broken(
                    "holdings",
                    f"request {held.request} holds {told}, expected {expected}",
                )
        for band in range(books.band_count):
            names, bound = books.all_names(band), sorted(self.units.place_of[band])
            if names != bound:
                broken(
                    "holdings",
                    f"band {self.units.name(band)} binds {bound}, somebody holds {names}",
                )

    def _values_and_uses(self) -> None:
        values, uses = self.engine.requests.values, self.engine.uses
        for check, told, expected in (
            ("holdings", values.of_number.keys(), self.books.values.keys()),
            ("reservations", uses.copies.loads.keys(), self.uses.loads.keys()),
            ("reservations", uses.copies.backups.keys(), self.uses.backups.keys()),
            ("reservations", uses.transfers.open.keys(), self.uses.transfers.keys()),
        ):
            if told != expected:
                broken(check, f"there are {sorted(told)}, expected {sorted(expected)}")
        for number, value in self.books.values.items():
            for band in range(self.books.band_count):
                ids = values.ids_of(values.get(number), band).tolist()
                names = self.books.value_names(value, band)
                if ids != names:
                    broken(
                        "holdings",
                        f"value {number} holds {ids} of band {band}, expected {names}",
                    )
        for number, load in self.uses.loads.items():
            its = uses.copies.loads[number]
            require(
                (its.value_id, its.submitted) == (load.value, load.submitted)
                and _lists(its.reserved.items()) == load.reserved
                and _lists(its.named.items()) == load.named,
                "reservations",
                f"load {number} is not as it was reserved and named",
            )
        for number, transfer in self.uses.transfers.items():
            state = uses.transfers.open[number].state
            if state != transfer.state:
                broken(
                    "reservations",
                    f"transfer {number} is {state}, expected {transfer.state}",
                )

    def _promises_and_ids(self) -> None:
        promised, owed = self.chain.promised_units, self.books.owed()
        if promised != owed:
            broken(
                "promises",
                f"{promised} units are held back, requests may still take {owed}",
            )
        for index, band in enumerate(self.chain.bands):
            if band.free_ids is None:
                continue
            ids = sorted([*band.free_ids.ids().tolist(), *self.units.place_of[index]])
            if ids != list(range(1, band.physical_map().size)):
                broken(
                    "ids",
                    f"band {self.units.name(index)} lost a name or has one twice",
                )
        table = self.engine.requests
        rows = sorted([*table.rows.free.ids().tolist(), *table.names.row_of.values()])
        if rows != list(range(1, self.books.row_count)):
            broken(
                "ids",
                f"{self.books.row_count} rows are there, free or taken are {rows}",
            )

    def _snapshot(self) -> None:
        told = self.chain.snapshot()
        bands = tuple(band._replace(fenced_units=0) for band in told.bands)
        told = told._replace(bands=bands, epoch_count=0)
        expected = self.answers.snapshot(self.chain.spans)
        if told != expected:
            broken("snapshot", f"answers come from {told}; a recount gives {expected}")

    # ---- choices --------------------------------------------------------------------------------

    def _growth(self) -> None:
        """Look which way a float has grown, where nothing but that has happened to any span.

        Its lowest unit was somebody's, so that it did not draw back first. Where a peer has bytes
        they are room for neither way, and nothing is looked at.
        """
        before, self._spans_before = self._spans_before, self.chain.spans
        edges, self._edges = self._edges, self._used_edges()
        changed = [index for index, span in enumerate(self._spans_before) if span != before[index]]
        if len(changed) != 1 or changed[0] not in edges or self.units.accesses.network():
            return
        (index,) = changed
        (start, end), (new_start, new_end) = before[index], self._spans_before[index]
        if new_start >= start or new_end != end:
            return
        geometry, grid = self.units.geometry, self.units.geometry.bands[index]
        filled = [(i, span) for i, span in enumerate(before) if span[0] < span[1]]
        ends = [span[1] * geometry.bands[i].unit_bytes for i, span in filled if i < index]
        starts = [span[0] * geometry.bands[i].unit_bytes for i, span in filled if i > index]
        low_bytes, high_bytes = (
            max([geometry.sink_bytes, *ends]),
            min([geometry.arena_bytes, *starts]),
        )
        low_unit = max(grid.unit_index_min, -(-low_bytes // grid.unit_bytes))
        top_unit = min(grid.unit_index_end_count, high_bytes // grid.unit_bytes)
        below, above = start - low_unit, top_unit - end
        require(
            below > above or above < start - new_start,
            "growth",
            f"band {grid.name} grew from {before[index]} to ({new_start}, {new_end}); there is "
            f"room for {below} units below and {above} above",
        )

    def _used_edges(self) -> set[int]:
        """Return the floats whose lowest unit has a name."""
        return {
            index
            for index, grid in enumerate(self.units.geometry.bands)
            if grid.kind is BandKind.FLOAT
            and self.chain.spans[index][0] in self.units.place_of[index].values()
        }


def _lists(items: Iterable[tuple[int, Units]]) -> dict[int, list[int]]:
    """Return arrays per band as lists."""
    return {band: units.tolist() for band, units in items}


def _shown(writes: dict[int, Grains | None]) -> dict[int, int | None]:
    return {step: None if grains is None else len(grains) for step, grains in writes.items()}
