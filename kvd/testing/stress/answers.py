"""Capacity answers, each found by trying every layout, from counts that the models make themselves.

A yes has to come with what was asked, a no has to mean that no layout exists: semantics 4.6 to 4.10
and 11.4, check 8. What one request asks of every band is found by going through its states
(`prices`).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvd.alloc.uses import UseKind
from kvd.price.geometry import BandKind
from kvd.price.search import Span, Spans
from kvd.price.snapshot import BandSnapshot, ChainSnapshot, Interval, Tier, reclaimed
from kvd.testing.stress.layouts import any_layout, in_grains
from kvd.testing.stress.open_accesses import Grains
from kvd.testing.stress.request_books import Held, RequestBooks, UnitCounts
from kvd.testing.stress.unit_model import UnitModel
from kvd_proto.outcomes import Verdict


class Expected(NamedTuple):
    """What a take, a relief or a reservation has to be answered."""

    kind: str
    """granted, pump or refusal."""
    retracted_count: int = 0


class ExpectedAdmission(NamedTuple):
    """What one request has to be told."""

    verdict: Verdict
    new_tokens: int = 0
    chunk_tokens: int = 0


class AdmitQuestion(NamedTuple):
    """One admit, its lists taken apart."""

    requests: list[int]
    prompts: list[int]
    news: list[int]
    takes: list[int]
    chunk_tokens: int
    growth_permille: int
    victims: list[Held]


class Answers:
    """The slow answers for one stage."""

    def __init__(
        self, units: UnitModel, books: RequestBooks, id_counts: Sequence[int | None]
    ) -> None:
        """Start; ``id_counts`` are all names that each band mints, None where it mints none."""
        self.units = units
        self.books = books
        self._id_counts = tuple(id_counts)
        anchors = tuple(
            (band.unit_index_min, band.unit_index_min)
            if band.kind is not BandKind.GROW_DOWN
            else (band.unit_index_end_count, band.unit_index_end_count)
            for band in units.geometry.bands
        )
        self._empty = self._counted(anchors, live=[0] * len(anchors))
        self._fits_empty: dict[UnitCounts, bool] = {}

    # ---- counts ---------------------------------------------------------------------------------

    def snapshot(self, spans: Spans) -> ChainSnapshot:
        """Return what an answer may depend on, recounted from who has each unit."""
        units, accesses = self.units, self.units.accesses
        lost, calm = accesses.network(astray=True), accesses.network(astray=False)
        taken: Grains = set()
        transferring: Grains = set()
        bands: list[BandSnapshot] = []
        for index, span in enumerate(spans):
            occupied = [*units.place_of[index].values(), *units.reserved[index]]
            occupied += [*units.pending[index], *units.vacated[index]]
            taken |= units.grains(index, occupied)
            band, waiting = self._band(index, span, occupied, lost, calm)
            transferring |= units.grains(index, waiting)
            bands.append(band)
        return ChainSnapshot(
            units.geometry.arena_bytes,
            units.geometry.sink_bytes,
            tuple(bands),
            blocked=self._intervals((lost | calm) - taken | transferring),
            quarantined=self._intervals(lost - taken),
        )

    def _band(
        self, index: int, span: Span, occupied: list[int], lost: Grains, calm: Grains
    ) -> tuple[BandSnapshot, list[int]]:
        """Return a band's counts, and its units that nobody owns and a transfer has to end for."""
        units = self.units
        pending, vacated = units.pending[index], units.vacated[index]
        lost_units = set(units.touched(index, occupied, lost))
        calm_units = set(units.touched(index, occupied, calm))
        gone = {unit for unit in (*pending, *vacated) if unit in lost_units}
        waiting = [
            unit
            for unit in (*pending, *vacated)
            if unit not in gone and (unit in vacated or unit in calm_units)
        ]
        reserved = units.accesses.grains_of(UseKind.LOAD_RESERVATION)
        held = units.accesses.grains_of(UseKind.RECEIVE_HOLD)
        soft = (calm_units - vacated) | set(units.touched(index, occupied, held))
        live = len(units.place_of[index]) + len(units.reserved[index]) + len(gone)
        pending_count = len([unit for unit in pending if unit not in gone and unit not in waiting])
        counted = BandSnapshot(
            geometry=units.geometry.bands[index],
            start_index=span[0],
            end_index=span[1],
            live_units=live,
            hole_units=span[1] - span[0] - live - pending_count - len(waiting),
            pending_units=pending_count,
            vacated_network_units=len(waiting),
            hard_fixed=_extent(lost_units | set(units.touched(index, occupied, reserved))),
            soft_fixed=_extent(soft),
            id_room_count=self._id_room(index, len(units.place_of[index])),
        )
        return counted, waiting

    def _counted(self, spans: Spans, live: Sequence[int]) -> ChainSnapshot:
        geometry = self.units.geometry
        return ChainSnapshot(
            geometry.arena_bytes,
            geometry.sink_bytes,
            tuple(
                BandSnapshot(
                    band,
                    *span,
                    live_units=count,
                    hole_units=span[1] - span[0] - count,
                    id_room_count=self._id_room(index, count),
                )
                for index, (band, span, count) in enumerate(
                    zip(geometry.bands, spans, live, strict=True)
                )
            ),
        )

    def _id_room(self, index: int, bound_count: int) -> int | None:
        count = self._id_counts[index]
        return None if count is None else count - bound_count

    def _intervals(self, grains: Grains) -> tuple[Interval, ...]:
        found: list[Interval] = []
        size = self.units.grain_bytes
        for grain in sorted(grains):
            if found and found[-1][1] == grain * size:
                found[-1] = (found[-1][0], (grain + 1) * size)
            else:
                found.append((grain * size, (grain + 1) * size))
        return tuple(found)

    # ---- questions ------------------------------------------------------------------------------

    def fits(self, snapshot: ChainSnapshot, demand: UnitCounts) -> bool:
        """Return whether some layout holds what is live and a demand, promises among it."""
        return any_layout(in_grains(snapshot), demand, Tier.TRANSFERS)

    def has_room_now(self, snapshot: ChainSnapshot, wanted: UnitCounts) -> bool:
        """Return whether some layout does so without waiting for a transfer."""
        return any_layout(in_grains(snapshot), wanted, Tier.STREAM)

    def fits_empty(self, demand: UnitCounts) -> bool:
        """Return whether some layout of an empty arena holds a demand."""
        known = self._fits_empty.get(demand)
        if known is None:
            known = self._fits_empty[demand] = self.fits(self._empty, demand)
        return known

    def room(self, snapshot: ChainSnapshot, demand: UnitCounts) -> Expected:
        """Answer for units that are to be had beyond all promises."""
        if not self.fits(snapshot, _sum(demand, self.books.owed())):
            return Expected("refusal")
        return self._room_now(snapshot, demand)

    def take(
        self, snapshot: ChainSnapshot, taking: Sequence[tuple[Held, int]], victims: Sequence[Held]
    ) -> Expected:
        """Answer for requests that grow by tokens."""
        books = self.books
        for count in range(len(victims) + 1):
            ending = victims[:count]
            staying = [(held, tokens) for held, tokens in taking if held not in ending]
            needs = [(held, books.need(held, tokens)) for held, tokens in staying]
            wanted = _total([need for _, need in needs], books.band_count)
            excess = _total(
                [
                    tuple(
                        max(0, units - books.spare(held, band)) for band, units in enumerate(need)
                    )
                    for held, need in needs
                ],
                books.band_count,
            )
            left = reclaimed(snapshot, books.held_sums(ending)) if ending else snapshot
            promised = not any(excess) and not count
            if not promised and not self.fits(left, _sum(excess, books.owed(without=ending))):
                continue
            answer = self._room_now(left, wanted)
            if not count or answer.kind == "granted":
                return answer._replace(retracted_count=count)
        return Expected("refusal")

    def _room_now(self, snapshot: ChainSnapshot, wanted: UnitCounts) -> Expected:
        if self.has_room_now(snapshot, wanted):
            return Expected("granted")
        # Promises may be older than what is fixed now, so a promised take may have no layout.
        return Expected("pump" if self.fits(snapshot, wanted) else "refusal")

    # ---- admission ------------------------------------------------------------------------------

    def admissions(
        self, snapshot: ChainSnapshot, question: AdmitQuestion, rows_free: int
    ) -> tuple[list[ExpectedAdmission], list[Held]]:
        """Answer an admit request by request; return who was retracted for it, too."""
        run = _Admissions(self, snapshot, question, rows_free)
        return list(run.answers()), run.gone

    def clip(self, prompt: int, new_tokens: int, chunk_tokens: int) -> int | None:
        """Return the most new tokens with which a request fits an empty arena."""
        page_tokens = self.books.shape.page_tokens
        for chunk in (chunk_tokens, min(chunk_tokens, page_tokens)):
            for tokens in range(new_tokens, -1, -1):
                demand = self.books.price(prompt, tokens, chunk)
                if self.fits_empty(demand):
                    return tokens
        return None


class _Admissions:
    """One admit: what earlier requests of it were granted counts for later ones."""

    def __init__(
        self, answers: Answers, snapshot: ChainSnapshot, question: AdmitQuestion, rows_free: int
    ) -> None:
        self.gone: list[Held] = []
        self._answers = answers
        self._books = answers.books
        self._question = question
        self._start = snapshot
        self._rows_free = rows_free
        self._holders = len(self._books.held) + len(self._books.values)
        self._opened: UnitCounts = (0,) * self._books.band_count
        self._takes: UnitCounts = self._opened

    def answers(self) -> Iterator[ExpectedAdmission]:
        question = self._question
        columns = (question.prompts, question.news, question.takes)
        for prompt, new_tokens, take in zip(*columns, strict=True):
            yield self._answer(prompt, new_tokens, take)

    def _answer(self, prompt: int, new_tokens: int, take: int) -> ExpectedAdmission:
        books, asked = self._books, self._question.chunk_tokens
        if prompt + new_tokens > books.shape.context_tokens:
            return ExpectedAdmission(Verdict.UNSCHEDULABLE)
        granted = self._answers.clip(prompt, new_tokens, asked)
        if granted is None:
            return ExpectedAdmission(Verdict.UNSCHEDULABLE)
        chunk = next((it for it in self._chunks(prompt) if self._fits(prompt, granted, it)), None)
        takes = self._with(take if chunk is None else min(take, chunk))
        demand = books.price(prompt, granted, chunk or asked)
        if chunk is not None and self._rows_free:
            if not self._answers.has_room_now(self._left(), takes):
                return ExpectedAdmission(Verdict.WAIT, granted)
        elif not self._retract(demand, takes):
            waits = Verdict.WAIT if self._holders else Verdict.UNSCHEDULABLE
            return ExpectedAdmission(waits, granted)
        self._opened, self._takes = _sum(self._opened, demand), takes
        self._rows_free -= 1
        self._holders += 1
        return ExpectedAdmission(Verdict.FITS, granted, chunk or asked)

    def _chunks(self, prompt: int) -> list[int]:
        """Return the chunks to try, longest first; shorter ones only where nobody holds memory."""
        asked, page_tokens = self._question.chunk_tokens, self._books.shape.page_tokens
        if self._holders:
            return [asked]
        shorter = [
            n for n in range(1, min(asked, prompt) + 1) if n % page_tokens == 0 or n == prompt
        ]
        return [asked, *[chunk for chunk in reversed(shorter) if chunk != asked]]

    def _fits(self, prompt: int, new_tokens: int, chunk: int) -> bool:
        demand = self._books.price(prompt, new_tokens, chunk)
        return self._holds(demand, ())

    def _holds(self, demand: UnitCounts, ending: Sequence[Held]) -> bool:
        gone = [*self.gone, *ending]
        growth = self._books.growth(self._question.growth_permille, without=gone)
        promised = _sum(self._books.owed(without=gone), self._opened)
        return self._answers.fits(self._left(ending), _sum(_sum(demand, growth), promised))

    def _left(self, ending: Sequence[Held] = ()) -> ChainSnapshot:
        gone = [*self.gone, *ending]
        return reclaimed(self._start, self._books.held_sums(gone)) if gone else self._start

    def _with(self, take: int) -> UnitCounts:
        pages = -(-take // self._books.shape.page_tokens)
        wanted = tuple(
            min(1, take) if band == self._books.state else pages
            for band in range(self._books.band_count)
        )
        return _sum(self._takes, wanted)

    def _retract(self, demand: UnitCounts, takes: UnitCounts) -> bool:
        victims = [held for held in self._question.victims if held not in self.gone]
        for count in range(1, len(victims) + 1):
            ending = victims[:count]
            if self._holds(demand, ending) and self._answers.has_room_now(
                self._left(ending), takes
            ):
                self.gone += ending
                self._rows_free += count
                self._holders -= count
                return True
        return False


def _extent(units: set[int]) -> Span | None:
    return (min(units), max(units) + 1) if units else None


def _sum(one: UnitCounts, other: UnitCounts) -> UnitCounts:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _total(demands: Sequence[UnitCounts], band_count: int) -> UnitCounts:
    return tuple(sum(it[band] for it in demands) for band in range(band_count))
