"""Requests over random chains against a plain model of who holds what."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvd.alloc.demand import request_demand
from kvd.alloc.requests import Grant, RequestTable
from kvd.errors import OperationError
from kvd.price.search import fits_empty
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason, Verdict
from tests.stateful.chains import World, picture, worlds

PICKS = st.lists(st.integers(0, 20), min_size=1, max_size=4)


@dataclass(slots=True)
class Held:
    """One admitted request: what it may take and what it holds."""

    total_tokens: int
    chunk_tokens: int
    tokens: int = 0
    computed_tokens: int = 0
    kept_its_word: bool = True
    slot: int = 0
    pages: list[int] = field(default_factory=list[int])
    dropped_pages: dict[int, int] = field(default_factory=dict[int, int])

    def keeps_its_word(self, tokens: int) -> bool:
        """Return whether a take stays inside what admission promised."""
        return (
            self.tokens == self.computed_tokens
            and tokens <= self.chunk_tokens
            and self.tokens + tokens <= self.total_tokens
        )


class RequestMachine(RuleBasedStateMachine):
    """Every operation of a request table, right and wrong, with strict checks after each."""

    world: World
    table: RequestTable

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, Held] = {}
        self.waiting: list[int] = []
        self.newest = 0

    @initialize(world=worlds())
    def start(self, world: World) -> None:
        self.world = world
        self.table = world.table()
        self.anchors = [
            band.span if band.geometry.kind.value != "float" else None
            for band in self.table.chain.bands
        ]

    # ---- rules ----------------------------------------------------------------------------------

    @rule(
        prompt=st.integers(1, 30),
        new=st.integers(0, 14),
        chunk=st.sampled_from((0, 1, 3, 1 << 31)),
        again=st.booleans(),
    )
    def admit(self, prompt: int, new: int, chunk: int, again: bool) -> None:
        request = self.waiting.pop(0) if again and self.waiting else self.newest + 1
        self.newest = max(self.newest, request)
        table, total = self.table, prompt + new
        table.check_new_id(request)
        self._settle()
        chain, rows_free = picture(table.chain), len(table.rows.free)
        answer = table.admit(request, prompt_tokens=prompt, new_tokens_max=new, chunk_tokens=chunk)
        demand = request_demand(
            table.shape, total_tokens=total, chunk_tokens=chunk or self.world.chunk_tokens
        )
        hopeless = total > self.world.context_tokens or not self._fits_empty(demand)
        assert (answer.verdict is Verdict.UNSCHEDULABLE) == hopeless
        if answer.verdict is Verdict.FITS:
            assert answer.shortage is None
            self.held[request] = Held(total, min(chunk or self.world.chunk_tokens, total))
            assert table.rows_of([request]).tolist() == [answer.row_index]
            return
        assert answer.row_index == 0
        assert answer.shortage is not None
        assert picture(table.chain) == chain
        if answer.verdict is Verdict.WAIT:
            assert self.held, "nothing is held, so nothing can be waited for"
            assert (answer.shortage.reason is Reason.NO_ROWS) == (rows_free == 0)
            self.waiting.append(request)

    @precondition(lambda self: self.held)
    @rule(picks=PICKS, tokens=st.integers(1, 12), each=st.booleans())
    def take(self, picks: list[int], tokens: int, each: bool) -> None:
        requests = self._pick(picks)
        counts = [tokens + place * each for place in range(len(requests))]
        rows = self.table.rows_of(requests)
        self._settle()
        before = picture(self.table)
        grown = [
            self.held[request].tokens + count
            for request, count in zip(requests, counts, strict=True)
        ]
        if max(grown) > self.world.context_tokens:
            with pytest.raises(OperationError, match="the context length is"):
                self.table.take(rows, np.array(counts))
            assert picture(self.table) == before
            return
        grant = self.table.take(rows, np.array(counts) if each else tokens)
        kept = all(
            self.held[request].keeps_its_word(count)
            for request, count in zip(requests, counts, strict=True)
        )
        if not isinstance(grant, Grant):
            assert not kept, f"a promised take was refused: {grant}"
            assert picture(self.table) == before
            return
        self._book(requests, rows.tolist(), counts, grant)

    @precondition(lambda self: self.held)
    @rule(picks=PICKS, tokens=st.integers(1, 12), most=st.booleans())
    def advance(self, picks: list[int], tokens: int, most: bool) -> None:
        requests = self._pick(picks)
        rows = self.table.rows_of(requests)
        open_tokens = [
            self.held[request].tokens - self.held[request].computed_tokens for request in requests
        ]
        counts = [rest if most else tokens for rest in open_tokens]
        before = picture(self.table)
        if any(count > rest for count, rest in zip(counts, open_tokens, strict=True)):
            with pytest.raises(OperationError, match="cannot have computed"):
                self.table.advance(rows, np.array(counts))
            assert picture(self.table) == before
            return
        slides = {
            slide.band_index: slide.virtual.tolist()
            for slide in self.table.advance(rows, np.array(counts))
        }
        expected: dict[int, list[int]] = {}
        for request, count in zip(requests, counts, strict=True):
            held = self.held[request]
            held.computed_tokens += count
            for index, pages in self._drop(held).items():
                expected.setdefault(index, []).extend(pages)
        assert slides == expected

    @precondition(lambda self: self.held)
    @rule(picks=PICKS)
    def free(self, picks: list[int]) -> None:
        requests = self._pick(picks)
        freed = dict(self.table.free(self.table.rows_of(requests)))
        gone = [self.held.pop(request) for request in requests]
        for index in range(len(self.world.lifetimes)):
            units = sorted(unit for held in gone for unit in self._units(held, index))
            assert sorted(freed[index].tolist()) == units
        with pytest.raises(OperationError, match=f"request {requests[0]} has ended"):
            self.table.rows_of(requests)

    @rule()
    def settle(self) -> None:
        self._settle()

    @rule(request=st.integers(-3, 40))
    def name_a_request(self, request: int) -> None:
        before = picture(self.table)
        if request in self.held:
            assert self.table.rows_of([request]).size == 1
            with pytest.raises(OperationError, match="named twice"):
                self.table.rows_of([request, request])
            with pytest.raises(OperationError, match="admitted already"):
                self.table.check_new_id(request)
        else:
            with pytest.raises(OperationError, match=f"request (id )?{request} "):
                self.table.rows_of([request])
        assert picture(self.table) == before

    # ---- invariants -----------------------------------------------------------------------------

    @invariant()
    def nothing_is_broken(self) -> None:
        if hasattr(self, "table"):
            self.table.check()

    @invariant()
    def everybody_holds_what_the_model_says(self) -> None:
        if not hasattr(self, "table"):
            return
        for index, band in enumerate(self.table.chain.bands):
            units = sorted(unit for held in self.held.values() for unit in self._units(held, index))
            assert band.bound_ids().tolist() == units

    @invariant()
    def no_two_live_units_share_a_byte(self) -> None:
        if not hasattr(self, "table"):
            return
        sink = self.table.chain.geometry.sink_bytes
        ends = [sink]
        for band in self.table.chain.bands:
            unit_bytes = band.geometry.unit_bytes
            for unit in sorted(band.physical(band.bound_ids()).tolist()):
                assert unit * unit_bytes >= ends[-1]
                ends.append((unit + 1) * unit_bytes)
        assert ends[-1] <= self.world.arena_bytes

    def teardown(self) -> None:
        if not hasattr(self, "table"):
            return
        if self.held:
            self.table.free(self.table.rows_of(list(self.held)))
        self._settle()
        self.table.check()
        for band, anchor in zip(self.table.chain.bands, self.anchors, strict=True):
            assert band.start_index == band.end_index
            assert anchor is None or band.span == anchor
            assert (band.live_units, band.hole_units, band.promised_units) == (0, 0, 0)
        assert len(self.table.rows.free) == self.world.row_count - 1

    # ---- inside ---------------------------------------------------------------------------------

    def _settle(self) -> None:
        self.table.chain.settle_freed()

    def _pick(self, picks: list[int]) -> list[int]:
        live = list(self.held)
        return list(dict.fromkeys(live[pick % len(live)] for pick in picks))

    def _fits_empty(self, demand: tuple[int, ...]) -> bool:
        """Return whether grids and ids could carry the demand if nothing were held."""
        bands = self.table.chain.bands
        ids = all(
            demand[index] < band.geometry.unit_index_end_count
            for index, band in enumerate(bands)
            if self.world.lifetimes[index] is not Lifetime.WINDOW
        )
        return ids and fits_empty(self.world.geometry, demand)

    def _units(self, held: Held, index: int) -> list[int]:
        if self.world.lifetimes[index] is Lifetime.STATE:
            return [held.slot] if held.slot else []
        return held.pages[held.dropped_pages.get(index, 0) :]

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

    def _book(self, requests: list[int], rows: list[int], counts: list[int], grant: Grant) -> None:
        of_row = dict(zip(rows, requests, strict=True))
        for place, row in enumerate(grant.page_rows.tolist()):
            held = self.held[of_row[row]]
            assert grant.page_places[place] == len(held.pages)
            held.pages.append(int(grant.virtual[place]))
        for row, slot in zip(grant.slot_rows.tolist(), grant.slot_virtual.tolist(), strict=True):
            assert self.held[of_row[row]].slot == 0
            self.held[of_row[row]].slot = slot
        for request, count in zip(requests, counts, strict=True):
            held = self.held[request]
            held.kept_its_word = held.kept_its_word and held.keeps_its_word(count)
            held.tokens += count
            assert len(held.pages) == -(-held.tokens // self.world.page_tokens)
            assert (held.slot > 0) == (Lifetime.STATE in self.world.lifetimes)
        for row in rows:
            held = self.held[of_row[row]]
            promise = self.table.rows.promise_units[:, row].tolist()
            held_units = [len(self._units(held, index)) for index in range(len(promise))]
            assert not held.kept_its_word or all(map(int.__le__, held_units, promise))


def _settings(max_examples: int, step_count: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=step_count,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TestRequests = RequestMachine.TestCase
TestRequests.settings = _settings(40, 40)


@pytest.mark.slow
class TestRequestsForLong(RequestMachine.TestCase):
    settings = _settings(400, 80)
