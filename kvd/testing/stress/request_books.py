"""Requests and values: who holds which name, counted from operations alone.

What an admission grants is kvd's answer and judged elsewhere; from there on every page, slot, slide
and promise follows from what was asked, and an outcome has to say exactly that.
"""

from collections.abc import Iterable, Sequence

from kvd.alloc.demand import DemandShape
from kvd.testing.stress.broken import broken, require
from kvd.testing.stress.prices import peak_units, steady_pages
from kvd.testing.stress.told import Told
from kvd.testing.stress.unit_model import UnitModel
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import TakeResult

UnitCounts = tuple[int, ...]
Due = tuple[int, int]
"""A program, and the count of its batches with whose end something is over."""


class Held:
    """One admitted request: what it may take and what it holds."""

    def __init__(
        self,
        request: int,
        row_index: int,
        *,
        prompt_tokens: int,
        total_tokens: int,
        chunk_tokens: int,
        peak_units: UnitCounts,
        lapses_at: Due | None,
    ) -> None:
        self.request = request
        self.row_index = row_index
        self.prompt_tokens = prompt_tokens
        self.total_tokens = total_tokens
        self.chunk_tokens = chunk_tokens
        self.peak_units = list(peak_units)
        self.lapses_at = lapses_at
        self.tokens = 0
        self.computed_tokens = 0
        self.prefilling = True
        self.promised = True
        self.slot: int | None = None
        self.pages: list[int] = []
        """Every page, in the order of the sequence."""
        self.dropped_pages: dict[int, int] = {}
        """Per window band: pages at the start that slid out."""


class HeldValue:
    """What a value holds."""

    def __init__(self, pages: list[int], bound: dict[int, list[int]], slot: int | None) -> None:
        self.pages = pages
        self.bound = bound
        """Per window band: the pages that have a unit there."""
        self.slot = slot


class RequestBooks:
    """The requests and values of one stage."""

    def __init__(
        self, units: UnitModel, shape: DemandShape, *, chunk_tokens: int, row_count: int
    ) -> None:
        self.units = units
        self.shape = shape
        self.chunk_tokens = chunk_tokens
        self.row_count = row_count
        self.held: dict[int, Held] = {}
        self.waiting: set[int] = set()
        self.highest_request = 0
        self.values: dict[int, HeldValue] = {}
        self.highest_value = 0
        self.standing: dict[int, list[Held]] = {}
        self.refused_now: set[int] = set()
        """Requests whose admission was refused in the running batch."""
        self._batch_counts: dict[int, int] = {}
        self.position = 0
        """Where in the log the operation stands that is being taken in."""
        self.uncleared: dict[int, int] = {}
        """Slots that no launch has cleared, and where in the log they were handed out."""
        self.clearing_step: dict[int, int] = {}
        """By slot: the step that cleared it."""
        lifetimes = shape.lifetimes
        self.band_count = len(lifetimes)
        self.owner = lifetimes.index(Lifetime.FULL)
        self.state = lifetimes.index(Lifetime.STATE) if Lifetime.STATE in lifetimes else None
        self.windows = [i for i, it in enumerate(lifetimes) if it is Lifetime.WINDOW]

    # ---- who holds what -------------------------------------------------------------------------

    def names(self, held: Held, band: int) -> list[int]:
        """Return the names that a request holds in a band."""
        if band == self.state:
            return [] if held.slot is None else [held.slot]
        return held.pages[held.dropped_pages.get(band, 0) :]

    def value_names(self, value: HeldValue, band: int) -> list[int]:
        """Return the names that a value holds in a band."""
        if band == self.state:
            return [] if value.slot is None else [value.slot]
        return value.pages if band == self.owner else value.bound[band]

    def all_names(self, band: int) -> list[int]:
        """Return all names of a band that anybody holds, ascending."""
        held = [name for it in self.held.values() for name in self.names(it, band)]
        kept = [name for it in self.values.values() for name in self.value_names(it, band)]
        return sorted(held + kept)

    def spare(self, held: Held, band: int) -> int:
        """Return what a request may still take of a band on its promise."""
        if not held.promised:
            return 0
        return max(0, held.peak_units[band] - len(self.names(held, band)))

    def owed(self, *, without: Sequence[Held] = ()) -> UnitCounts:
        """Return what requests may still take on their promises, per band."""
        return tuple(
            sum(self.spare(it, band) for it in self.held.values() if it not in without)
            for band in range(self.band_count)
        )

    def growth(self, permille: int, *, without: Sequence[Held] = ()) -> UnitCounts:
        """Return a share of what requests of lapsed promises may still grow to, per band."""
        missing = [
            sum(
                max(0, it.peak_units[band] - len(self.names(it, band)))
                for it in self.held.values()
                if not it.promised and it not in without
            )
            for band in range(self.band_count)
        ]
        return tuple(-(-units * permille // 1000) for units in missing)

    def held_sums(self, those: Iterable[Held]) -> UnitCounts:
        """Return what some requests hold, per band."""
        some = list(those)
        return tuple(
            sum(len(self.names(it, band)) for it in some) for band in range(self.band_count)
        )

    def need(self, held: Held, tokens: int) -> UnitCounts:
        """Return the units per band that a request needs for so many tokens more."""
        page_tokens = self.shape.page_tokens
        pages = max(0, -(-(held.tokens + tokens) // page_tokens) - len(held.pages))
        slots = int(held.slot is None)
        return tuple(slots if band == self.state else pages for band in range(self.band_count))

    def written_names(self, those: Iterable[Held]) -> list[list[int]]:
        """Return the names per band that a forward over requests writes."""
        written: list[list[int]] = [[] for _ in range(self.band_count)]
        for held in those:
            first = held.computed_tokens // self.shape.page_tokens
            for band in range(self.band_count):
                written[band] += (
                    self.names(held, band) if band == self.state else held.pages[first:]
                )
        return written

    def of_program(self, program: int) -> list[Held]:
        """Return a program's standing set, those that ended left out."""
        alive = [it for it in self.standing.get(program, []) if self.is_held(it)]
        self.standing[program] = alive
        return alive

    def is_held(self, held: Held) -> bool:
        """Return whether this request did not end since; one that came back is another one."""
        return self.held.get(held.request) is held

    def row(self, row_index: int) -> Held:
        """Return the request that has a row."""
        for held in self.held.values():
            if held.row_index == row_index:
                return held
        broken("outcome", f"row {row_index} is nobody's")

    # ---- admission ------------------------------------------------------------------------------

    def price(self, prompt: int, new_tokens: int, chunk_tokens: int) -> UnitCounts:
        """Return what a request asks of every band."""
        return peak_units(
            self.shape, prompt_tokens=prompt, new_tokens=new_tokens, chunk_tokens=chunk_tokens
        )

    def admit(
        self,
        request: int,
        row_index: int,
        prompt: int,
        new_tokens: int,
        chunk_tokens: int,
        *,
        lapses_at: Due | None,
    ) -> Held:
        """Begin a request that was granted its row; return it."""
        require(
            0 < row_index < self.row_count
            and all(it.row_index != row_index for it in self.held.values()),
            "holdings",
            f"request {request} got row {row_index}, which is not free",
        )
        peak = self.price(prompt, new_tokens, chunk_tokens)
        held = Held(
            request,
            row_index,
            prompt_tokens=prompt,
            total_tokens=prompt + new_tokens,
            chunk_tokens=chunk_tokens,
            peak_units=peak,
            lapses_at=lapses_at,
        )
        self.held[request] = held
        self.highest_request = max(self.highest_request, request)
        self.waiting.discard(request)
        self.refused_now.discard(request)
        return held

    def refuse(self, request: int, *, may_ask_again: bool) -> None:
        """Take in that a request was not admitted."""
        self.highest_request = max(self.highest_request, request)
        self.refused_now.add(request)
        if may_ask_again:
            self.waiting.add(request)
        else:
            self.waiting.discard(request)

    def due_in(self, program: int, batches: int) -> Due | None:
        """Return when a promise given now is over."""
        return (program, self._batch_counts.get(program, 0) + batches) if batches else None

    def end_batch(self, program: int) -> None:
        """Count a batch that ended; some promises lapse with it."""
        self.refused_now.clear()
        count = self._batch_counts.get(program, 0) + 1
        self._batch_counts[program] = count
        for held in self.held.values():
            if held.lapses_at == (program, count):
                held.promised = False

    # ---- growing --------------------------------------------------------------------------------

    def grant(self, taking: Sequence[tuple[Held, int]], result: TakeResult, told: Told) -> None:
        """Take in what was handed out to requests that grow by tokens, in this order."""
        places: list[tuple[Held, int]] = []
        slotless: list[Held] = []
        for held, tokens in taking:
            first, count = len(held.pages), self.need(held, tokens)[self.owner]
            places += [(held, first + more) for more in range(count)]
            if self.state is not None and held.slot is None:
                slotless.append(held)
            held.tokens += tokens
        pages = told.column(result.virtual)
        cells = [(it.row_index, place) for it, place in places]
        columns = (told.column(result.page_rows), told.column(result.page_places), pages)
        granted = list(zip(*columns, strict=True))
        require(
            [cell[:2] for cell in granted] == cells and told.rows == granted,
            "outcome",
            f"pages were granted to {granted} and written to {told.rows}; asked were {cells}",
        )
        self._hand_out(pages, result, told)
        self._hand_out_slots(slotless, told)
        for (held, _), page in zip(places, pages, strict=True):
            held.pages.append(page)

    def _hand_out(self, pages: list[int], result: TakeResult, told: Told) -> None:
        for band in range(self.band_count):
            if band == self.state or not pages:
                continue
            units = told.column(result.physical[band])
            named = [(it.names, it.units) for it in told.named if it.band == band]
            zeroed = [it for index, it in told.zeroed if index == band]
            require(
                named == [(pages, units)] and zeroed == [units],
                "outcome",
                f"band {band} granted units {units} to pages {pages}; named were {named}, zeroed "
                f"{zeroed}",
            )
            self.units.hand_out(band, pages, units)

    def _hand_out_slots(self, slotless: list[Held], told: Told) -> None:
        slots = [(row, slot) for row, slot in told.slots if slot]
        rows = [it.row_index for it in slotless]
        named = [it for it in told.named if it.band == self.state]
        names = [name for it in named for name in it.names]
        units = [unit for it in named for unit in it.units]
        require(
            slots == list(zip(rows, names, strict=False)) and len(rows) == len(names),
            "outcome",
            f"slots {slots} were written; rows {rows} need one and slots {names} were named",
        )
        require(
            told.cleared_slots == units,
            "outcome",
            f"slots at {units} were handed out, cleared are those at {told.cleared_slots}",
        )
        if self.state is not None and names:
            self.units.hand_out(self.state, names, units)
            self.uncleared.update(dict.fromkeys(names, self.position))
        for held, name in zip(slotless, names, strict=True):
            held.slot = name

    # ---- sliding and ending ---------------------------------------------------------------------

    def advance(self, advancing: Sequence[tuple[Held, int]], told: Told) -> UnitCounts:
        """Take in computed tokens: pages behind windows come back, and a chunk's promise.

        Return the units that came back per band.
        """
        freed: list[list[int]] = [[] for _ in range(self.band_count)]
        for held, tokens in advancing:
            held.computed_tokens += tokens
            for band in self.windows:
                before = held.dropped_pages.get(band, 0)
                behind = held.computed_tokens - self.shape.window_tokens[band]
                after = max(before, behind // self.shape.page_tokens)
                freed[band] += held.pages[before:after]
                held.dropped_pages[band] = after
            if held.prefilling and held.computed_tokens >= held.prompt_tokens:
                self._end_prefill(held)
        self._free(freed, told)
        return tuple(len(names) for names in freed)

    def _end_prefill(self, held: Held) -> None:
        held.prefilling = False
        for band in self.windows:
            steady = steady_pages(
                self.shape,
                window_tokens=self.shape.window_tokens[band],
                prompt_tokens=held.prompt_tokens,
                new_tokens=held.total_tokens - held.prompt_tokens,
            )
            held.peak_units[band] = min(held.peak_units[band], steady)

    def end(self, those: Sequence[Held], told: Told, *, retracted: bool = False) -> UnitCounts:
        """End requests, which gives back all that they hold; return the units per band."""
        freed: list[list[int]] = [[] for _ in range(self.band_count)]
        for held in those:
            for band in range(self.band_count):
                freed[band] += self.names(held, band)
            self._close(held, told)
            if retracted:
                self.waiting.add(held.request)
        self._free(freed, told)
        return tuple(len(names) for names in freed)

    def insert(self, number: int, held: Held, told: Told) -> None:
        """End a request and keep what it holds as a value."""
        self.values[number] = HeldValue(
            pages=list(held.pages),
            bound={band: self.names(held, band) for band in self.windows},
            slot=held.slot,
        )
        self.highest_value = max(self.highest_value, number)
        self._close(held, told)
        self._free([[] for _ in range(self.band_count)], told)

    def evict(self, numbers: Sequence[int], told: Told) -> UnitCounts:
        """Give up values; return the units per band."""
        values = [self.values.pop(number) for number in numbers]
        freed = [
            [name for value in values for name in self.value_names(value, band)]
            for band in range(self.band_count)
        ]
        self._free(freed, told)
        return tuple(len(names) for names in freed)

    def adopt(self, others: "RequestBooks", numbers: Sequence[int]) -> None:
        """Take over values of books whose engine has ended, where they lie."""
        self.highest_value = others.highest_value
        for number in numbers:
            value = self.values[number] = others.values[number]
            for band in range(self.band_count):
                names = self.value_names(value, band)
                places = [others.units.place_of[band][name] for name in names]
                self.units.hand_out(band, names, places)

    def _close(self, held: Held, told: Told) -> None:
        del self.held[held.request]
        if self.state is not None:
            require(
                (held.row_index, 0) in told.slots,
                "outcome",
                f"row {held.row_index} of request {held.request}, which ended, keeps its slot",
            )

    def _free(self, freed: Sequence[list[int]], told: Told) -> None:
        for band, names in enumerate(freed):
            require(
                told.unnamed_of(band) == sorted(names),
                "outcome",
                f"band {band} frees names {sorted(names)}, unnamed are {told.unnamed_of(band)}",
            )
            self.units.free_names(band, names)
            if band == self.state:
                for name in names:
                    self.uncleared.pop(name, None)
                    self.clearing_step.pop(name, None)

    def clear_slots(self, step: int, position: int) -> None:
        """Take in a launch, which clears what was handed out up to a position."""
        for slot, handed_out in list(self.uncleared.items()):
            if handed_out <= position:
                del self.uncleared[slot]
                self.clearing_step[slot] = step
