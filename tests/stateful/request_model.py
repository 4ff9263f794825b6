"""Requests over a chain beside a plain model of who holds what, who was promised what, and bytes.

Every step runs on the request table, right or wrong, and is compared with what the model expects.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import pytest

from kvd.alloc.admission import AdmissionPass
from kvd.alloc.band import Units
from kvd.alloc.chain import BandMoves, Shortage, UnitCounts
from kvd.alloc.demand import RequestShape, request_demand, steady_demand
from kvd.alloc.purpose import DemandPurpose
from kvd.alloc.requests import Grant
from kvd.errors import OperationError
from kvd.price.geometry import BandKind
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason, Verdict
from tests.stateful.arena_bytes import ArenaBytes
from tests.stateful.chains import World, picture


@dataclass(slots=True)
class Held:
    """One admitted request: what it may take and what it holds."""

    prompt_tokens: int
    total_tokens: int
    chunk_tokens: int
    peak_units: list[int]
    tokens: int = 0
    computed_tokens: int = 0
    kept_its_word: bool = True
    lapsed: bool = False
    slot: int = 0
    pages: list[int] = field(default_factory=list[int])
    dropped_pages: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def prefilling(self) -> bool:
        """Return whether a part of the prompt is still to be computed."""
        return self.computed_tokens < self.prompt_tokens

    def keeps_its_word(self, tokens: int) -> bool:
        """Return whether a take stays inside what admission promised."""
        if self.tokens != self.computed_tokens or self.lapsed or not self.kept_its_word:
            return False
        if self.prefilling:
            return tokens <= self.chunk_tokens and self.tokens + tokens <= self.prompt_tokens
        return tokens == 1 and self.tokens < self.total_tokens


class RequestModel:
    """A request table, its model, and one method per operation."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.table = world.table()
        self.chain = self.table.chain
        self.memory = ArenaBytes(self.chain)
        self.held: dict[int, Held] = {}
        self.waiting: list[int] = []
        self.newest = 0
        self.verdicts = dict.fromkeys(Verdict, 0)
        self.shrunk_count = self.clipped_count = 0
        self.refused_count = self.retracted_count = self.relocated_count = 0
        self._anchors = [
            None if band.geometry.kind is BandKind.FLOAT else band.span for band in self.chain.bands
        ]

    # ---- operations -----------------------------------------------------------------------------

    def admit(
        self,
        *,
        prompt: int,
        new: int,
        chunk: int = 0,
        growth_permille: int = 0,
        again: bool,
        victims: Sequence[int] = (),
    ) -> None:
        """Ask for a new request, or again for one that waits; compare all outcomes."""
        request = self.waiting.pop(0) if again and self.waiting else self.newest + 1
        self.newest = max(self.newest, request)
        table = self.table
        table.names.check_new(request)
        before, rows_free = self._settled(), len(table.rows.free)
        asked_chunk = chunk or self.world.chunk_tokens
        granted = self._clip(prompt, new, asked_chunk)
        chunks: list[int] = []
        ended_count = 0
        if granted is not None:
            growth = [-(-units * growth_permille // 1000) for units in self._missing(lapsed=True)]
            chunks = self._fitting_chunks(prompt, granted, asked_chunk, growth)
            if not rows_free or asked_chunk not in chunks:
                demand = self._demand(DemandPurpose.ADMIT, prompt, granted, asked_chunk)
                ended_count = self._preempted_count(demand, growth_permille, victims)
        ending = table.names.rows_of(list(victims))
        one_pass = AdmissionPass(table, growth_permille=growth_permille, victims=ending)
        answer = one_pass.admit(
            request, prompt_tokens=prompt, new_tokens_max=new, chunk_tokens=chunk
        )
        assert one_pass.retracted.tolist() == ending[:ended_count].tolist()
        if ended_count:
            self._compare_freed(dict(one_pass.freed), list(victims[:ended_count]))
            self.waiting += victims[:ended_count]
            self.retracted_count += ended_count
        self.verdicts[answer.verdict] += 1
        if granted is None:
            assert answer.verdict is Verdict.UNSCHEDULABLE
        else:
            assert answer.new_tokens == granted
            self.clipped_count += granted < new
            if ended_count or (rows_free and asked_chunk in chunks):
                assert (answer.verdict, answer.chunk_tokens) == (Verdict.FITS, asked_chunk)
            elif self.held:
                assert answer.verdict is Verdict.WAIT
            elif chunks:
                assert (answer.verdict, answer.chunk_tokens) == (Verdict.FITS, chunks[-1])
                self.shrunk_count += 1
            else:
                assert answer.verdict is Verdict.UNSCHEDULABLE
        if answer.verdict is Verdict.FITS:
            assert granted is not None
            assert answer.shortage is None
            demand = self._demand(DemandPurpose.ADMIT, prompt, granted, answer.chunk_tokens)
            self.held[request] = Held(prompt, prompt + granted, answer.chunk_tokens, list(demand))
            assert table.names.rows_of([request]).tolist() == [answer.row_index]
            return
        assert (answer.row_index, answer.chunk_tokens) == (0, 0)
        assert answer.shortage is not None
        assert self._settled() == before
        if answer.verdict is Verdict.WAIT:
            assert (answer.shortage.reason is Reason.NO_ROWS) == (rows_free == 0)
            assert answer.shortage.waiting_helps
            count = len(self.held)
            holders = "1 request that holds" if count == 1 else f"{count} requests that hold"
            assert answer.shortage.remover == f"{holders} rows"
            self.waiting.append(request)
        else:
            assert not answer.shortage.waiting_helps

    def take(self, requests: list[int], counts: list[int], victims: list[int]) -> None:
        """Grow requests; a promised take succeeds, and the fewest victims in order go."""
        table = self.table
        rows, ending = table.names.rows_of(requests), table.names.rows_of(victims)
        self.memory.remember()
        before = self._settled()
        pairs = list(zip(requests, counts, strict=True))
        tokens = counts[0] if len(set(counts)) == 1 else np.array(counts)
        if any(self.held[request].tokens + n > self.world.context_tokens for request, n in pairs):
            with pytest.raises(OperationError, match="the context length is"):
                table.take(rows, tokens, ending)
            assert self._settled() == before
            return
        kept = all(self.held[request].keeps_its_word(count) for request, count in pairs)
        count = self._retracted_count(requests, counts, victims)
        grant = table.take(rows, tokens, ending)
        if count is None:
            assert not isinstance(grant, Grant)
            assert not kept, f"a promised take was refused: {grant}"
            assert self._settled() == before
            self.refused_count += 1
            return
        assert isinstance(grant, Grant)
        assert not (kept and count), "a promised take retracted somebody"
        assert grant.retracted.tolist() == ending[:count].tolist()
        if count:
            self._compare_freed(dict(grant.freed), victims[:count])
            self.waiting += victims[:count]
            self.retracted_count += count
        self._carry(grant.moves)
        taking = [(request, n) for request, n in pairs if request in self.held]
        self._book(taking, grant)

    def advance(self, requests: list[int], counts: list[int]) -> None:
        """State computed tokens; the pages behind a window come back, and a chunk's promise."""
        rows = self.table.names.rows_of(requests)
        self.memory.remember()
        before = self._settled()
        pairs = [(self.held[request], n) for request, n in zip(requests, counts, strict=True)]
        if any(n > held.tokens - held.computed_tokens for held, n in pairs):
            with pytest.raises(OperationError, match="cannot have computed"):
                self.table.advance(rows, np.array(counts))
            assert self._settled() == before
            return
        slides = {
            index: virtual.tolist() for index, virtual in self.table.advance(rows, np.array(counts))
        }
        expected: dict[int, list[int]] = {}
        for held, count in pairs:
            prefilling = held.prefilling
            held.computed_tokens += count
            for index, pages in self._drop(held).items():
                expected.setdefault(index, []).extend(pages)
            if prefilling and not held.prefilling:
                self._end_prefill(held)
        assert slides == expected
        for index, virtual in slides.items():
            self.memory.freed(index, virtual)

    def free(self, requests: list[int]) -> None:
        """End requests; everything they held comes back."""
        self.memory.remember()
        freed = dict(self.table.free(self.table.names.rows_of(requests)))
        self._compare_freed(freed, requests)
        with pytest.raises(OperationError, match=f"request {requests[0]} has ended"):
            self.table.names.rows_of(requests)

    def lapse(self, requests: list[int]) -> None:
        """End promises; what was taken stays."""
        self.table.holdings.lapse(self.table.names.rows_of(requests))
        for request in requests:
            self.held[request].lapsed = True

    def relieve(self, demand: UnitCounts) -> None:
        """Make room for a demand that nobody takes, if there is any."""
        before = self._settled()
        if not self.chain.fits(demand):
            assert self.chain.explain(demand).short_units > 0
            assert self._settled() == before
            return
        moved = self.chain.make_room(demand)
        assert not isinstance(moved, Shortage)
        self._carry(moved)
        for band, units in zip(self.chain.bands, demand, strict=True):
            assert band.hole_units >= units

    def compact(self, units_max: int) -> None:
        """Draw frontiers back by a bounded number of moves, as an idle program does."""
        moved = self.chain.compact(units_max)
        assert sum(moves.sources.size for _, moves in moved) <= units_max
        self._carry(moved)

    # ---- comparing ------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare holdings, promises and bytes, and run every check of the table."""
        self.table.holdings.check()
        self.memory.verify()
        for index, band in enumerate(self.chain.bands):
            units = sorted(unit for held in self.held.values() for unit in self.units(held, index))
            assert band.bound_ids().tolist() == units
        assert self.chain.promised_units == self._missing(lapsed=False)
        self._check_no_shared_byte()

    def end(self) -> None:
        """Free everybody; nothing may stay behind."""
        if self.held:
            self.free(list(self.held))
        while self.chain.steps.in_flight_count:
            self.process()
        self.chain.settle_freed()
        self.table.holdings.check()
        for band, anchor in zip(self.chain.bands, self._anchors, strict=True):
            assert band.start_index == band.end_index
            assert anchor is None or band.span == anchor
            assert (band.live_units, band.hole_units, band.promised_units) == (0, 0, 0)
            assert band.pending_units == 0
        assert len(self.table.rows.free) == self.world.row_count - 1
        assert self.table.holdings.uneven_count == self.table.holdings.prefilling_count == 0

    def units(self, held: Held, index: int) -> list[int]:
        """Return the virtual ids that a request holds in a band."""
        if self.world.lifetimes[index] is Lifetime.STATE:
            return [held.slot] if held.slot else []
        return held.pages[held.dropped_pages.get(index, 0) :]

    # ---- inside ---------------------------------------------------------------------------------

    def _settled(self) -> object:
        """Return a picture of the table once freed units are settled, as a refusal leaves it."""
        self.memory.remember()
        self.chain.settle_freed()
        return picture((self.table.chain, self.table.rows, self.table.holdings.uneven_count))

    def _demand(self, purpose: DemandPurpose, prompt: int, new: int, chunk: int) -> UnitCounts:
        return request_demand(
            self.table.shape,
            RequestShape(prompt_tokens=prompt, new_tokens=new),
            purpose=purpose,
            mode=self.table.shape.mode,
            chunk_tokens=chunk,
        ).units

    def _clip(self, prompt: int, new: int, chunk: int) -> int | None:
        """Return the most new tokens with which the request fits an empty arena, by trying all."""
        if prompt + new > self.world.context_tokens:
            return None
        for length in (chunk, min(chunk, self.world.page_tokens)):
            for tokens in range(new, -1, -1):
                demand = self._demand(DemandPurpose.CEILING, prompt, tokens, length)
                if self.chain.fits_empty(demand):
                    return tokens
        return None

    def _fitting_chunks(self, prompt: int, new: int, chunk: int, growth: list[int]) -> list[int]:
        """Return the chunks that a request may have now, ascending, by trying all that end on a
        page, end the prompt, or are the one asked."""
        page_tokens = self.world.page_tokens
        longest = min(chunk, prompt)
        choices = [n for n in range(1, longest + 1) if n % page_tokens == 0 or n == prompt]
        if chunk not in choices:
            choices.append(chunk)
        return [
            choice
            for choice in choices
            if self.chain.fits(
                tuple(
                    units + more
                    for units, more in zip(
                        self._demand(DemandPurpose.ADMIT, prompt, new, choice),
                        growth,
                        strict=True,
                    )
                )
            )
        ]

    def _missing(self, *, lapsed: bool, without: Sequence[int] = ()) -> UnitCounts:
        """Return what requests of whole, or of lapsed promises, are missing to their peaks."""
        return tuple(
            sum(
                max(0, held.peak_units[index] - len(self.units(held, index)))
                for request, held in self.held.items()
                if held.lapsed is lapsed and request not in without
            )
            for index in range(len(self.chain.bands))
        )

    def _preempted_count(
        self, demand: UnitCounts, growth_permille: int, victims: Sequence[int]
    ) -> int:
        """Return how many victims must go for a demand, found by ending them on copies; 0: none."""
        for count in range(1, len(victims) + 1):
            table = deepcopy(self.table)
            table.free(table.names.rows_of(list(victims[:count])))
            missing = self._missing(lapsed=True, without=victims[:count])
            growth = [-(-units * growth_permille // 1000) for units in missing]
            if table.chain.fits(tuple(a + b for a, b in zip(demand, growth, strict=True))):
                return count
        return 0

    def _retracted_count(
        self, requests: list[int], counts: list[int], victims: list[int]
    ) -> int | None:
        """Return how many victims must go, found by ending them one by one on copies."""
        for count in range(len(victims) + 1):
            table = deepcopy(self.table)
            if count:
                table.free(table.names.rows_of(victims[:count]))
            taking = [
                (request, n)
                for request, n in zip(requests, counts, strict=True)
                if request not in victims[:count]
            ]
            rows = table.names.rows_of([request for request, _ in taking])
            tokens = np.array([n for _, n in taking], dtype=np.int64)
            if isinstance(table.take(rows, tokens), Grant):
                return count
        return None

    def _compare_freed(self, freed: dict[int, Units], requests: list[int]) -> None:
        gone = [self.held.pop(request) for request in requests]
        for index in range(len(self.world.lifetimes)):
            units = sorted(unit for held in gone for unit in self.units(held, index))
            assert sorted(freed[index].tolist()) == units
            self.memory.freed(index, units)

    def launch(self, requests: list[int] | None) -> None:
        """Put one more forward in flight, which writes for these requests; None: who knows what."""
        writes = None
        if requests is not None:
            writes = self.table.written_ids(self.table.names.rows_of(requests))
        self.memory.launch(writes)
        self.chain.launch_step(self.memory.launched, 0, writes)

    def process(self) -> None:
        """End the oldest forward in flight."""
        step = self.chain.steps.processed_count + 1
        news = self.chain.process_step(step)
        assert news == (step > self.memory.retired)
        self.memory.wait(step)

    def _carry(self, moved: list[BandMoves]) -> None:
        for signal in self.chain.order.take_waits():
            self.memory.wait(signal.number)
        assert self.memory.retired == self.chain.steps.retired_count
        self.memory.move(moved)
        for index, _ in moved:
            kind = self.chain.geometry.bands[index].kind
            self.relocated_count += kind is BandKind.FLOAT

    def _drop(self, held: Held) -> dict[int, list[int]]:
        dropped: dict[int, list[int]] = {}
        for index, lifetime in enumerate(self.world.lifetimes):
            if lifetime is not Lifetime.WINDOW:
                continue
            before = held.dropped_pages.get(index, 0)
            behind = held.computed_tokens - self.world.window_tokens[index]
            after = max(before, behind // self.world.page_tokens)
            if after > before:
                held.dropped_pages[index] = after
                dropped[index] = held.pages[before:after]
        return dropped

    def _end_prefill(self, held: Held) -> None:
        """Let the promise fall to what decoding needs."""
        steady = steady_demand(
            self.table.shape,
            RequestShape(
                prompt_tokens=held.prompt_tokens,
                new_tokens=held.total_tokens - held.prompt_tokens,
            ),
            mode=self.table.shape.mode,
            chunk_tokens=held.chunk_tokens,
        ).units
        for index, lifetime in enumerate(self.world.lifetimes):
            if lifetime is Lifetime.WINDOW:
                held.peak_units[index] = min(held.peak_units[index], steady[index])

    def _book(self, taking: list[tuple[int, int]], grant: Grant) -> None:
        row_of = self.table.names.row_of
        of_row = {row_of[request]: self.held[request] for request, _ in taking}
        for place, row in enumerate(grant.page_rows.tolist()):
            held = of_row[row]
            assert grant.page_places[place] == len(held.pages)
            held.pages.append(int(grant.virtual[place]))
        for row, slot in zip(grant.slot_rows.tolist(), grant.slot_virtual.tolist(), strict=True):
            assert of_row[row].slot == 0
            of_row[row].slot = slot
        self.memory.hand_out(grant)
        for request, count in taking:
            held = self.held[request]
            kept = held.keeps_its_word(count)
            held.kept_its_word = held.kept_its_word and (kept or held.lapsed)
            held.tokens += count
            assert len(held.pages) == -(-held.tokens // self.world.page_tokens)
            assert (held.slot > 0) == (Lifetime.STATE in self.world.lifetimes)
            sizes = [len(self.units(held, index)) for index in range(len(held.peak_units))]
            assert not kept or all(map(int.__le__, sizes, held.peak_units))

    def _check_no_shared_byte(self) -> None:
        end_bytes = self.chain.geometry.sink_bytes
        for band in self.chain.bands:
            unit_bytes = band.geometry.unit_bytes
            for unit in sorted(band.physical(band.bound_ids()).tolist()):
                assert unit * unit_bytes >= end_bytes
                end_bytes = (unit + 1) * unit_bytes
        assert end_bytes <= self.world.arena_bytes
