"""Requests over random chains against a plain model of who holds what."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvd.errors import OperationError
from tests.stateful.chains import World, picture, worlds
from tests.stateful.request_model import RequestModel

PICKS = st.lists(st.integers(0, 20), min_size=1, max_size=4)
VICTIMS = st.lists(st.integers(0, 20), max_size=4)


class RequestMachine(RuleBasedStateMachine):
    """Every operation of a request table, right and wrong, with strict checks after each."""

    model: RequestModel

    @initialize(world=worlds())
    def start(self, world: World) -> None:
        self.model = RequestModel(world)

    # ---- rules ----------------------------------------------------------------------------------

    @rule(
        prompt=st.integers(1, 30),
        new=st.integers(0, 14),
        chunk=st.sampled_from((0, 1, 3, 1 << 31)),
        growth=st.sampled_from((0, 1, 500, 1000)),
        again=st.booleans(),
        victims=VICTIMS,
    )
    def admit(
        self, prompt: int, new: int, chunk: int, growth: int, again: bool, victims: list[int]
    ) -> None:
        self.model.admit(
            prompt=prompt,
            new=new,
            chunk=chunk,
            growth_permille=growth,
            again=again,
            victims=self._pick(victims),
        )

    @precondition(lambda self: self.model.held)
    @rule(picks=PICKS, tokens=st.integers(1, 12), each=st.booleans(), victims=VICTIMS)
    def take(self, picks: list[int], tokens: int, each: bool, victims: list[int]) -> None:
        requests = self._pick(picks)
        counts = [tokens + place * each for place in range(len(requests))]
        self.model.take(requests, counts, self._pick(victims))

    @precondition(lambda self: self.model.held)
    @rule(picks=PICKS, most=st.booleans())
    def keep_the_word(self, picks: list[int], most: bool) -> None:
        """Take and state as a program does that follows its contract."""
        requests: list[int] = []
        counts: list[int] = []
        for request in self._pick(picks):
            held = self.model.held[request]
            tokens = held.prompt_tokens - held.tokens if held.prefilling else 1
            tokens = max(1, min(tokens, held.chunk_tokens if most else 1))
            if held.keeps_its_word(tokens):
                requests.append(request)
                counts.append(tokens)
        if requests:
            self.model.take(requests, counts, [])
            self.model.advance(requests, counts)

    @precondition(lambda self: self.model.held)
    @rule(picks=PICKS, tokens=st.integers(1, 12), most=st.booleans())
    def advance(self, picks: list[int], tokens: int, most: bool) -> None:
        requests = self._pick(picks)
        held = [self.model.held[request] for request in requests]
        counts = [item.tokens - item.computed_tokens if most else tokens for item in held]
        self.model.advance(requests, counts)

    @precondition(lambda self: self.model.held)
    @rule(picks=PICKS)
    def free(self, picks: list[int]) -> None:
        self.model.free(self._pick(picks))

    @precondition(lambda self: self.model.held)
    @rule(picks=PICKS)
    def lapse(self, picks: list[int]) -> None:
        self.model.lapse(self._pick(picks))

    @rule(demand=st.lists(st.integers(0, 9), min_size=5, max_size=5))
    def relieve(self, demand: list[int]) -> None:
        self.model.relieve(tuple(demand[: len(self.model.chain.bands)]))

    @rule(units_max=st.integers(0, 5))
    def compact(self, units_max: int) -> None:
        self.model.compact(units_max)

    @precondition(lambda self: self.model.chain.steps.in_flight_count < 4)
    @rule(picks=st.none() | PICKS)
    def launch(self, picks: list[int] | None) -> None:
        self.model.launch(None if picks is None else self._pick(picks))

    @precondition(lambda self: self.model.chain.steps.in_flight_count)
    @rule()
    def process(self) -> None:
        self.model.process()

    @rule()
    def settle(self) -> None:
        self.model.chain.settle_freed()

    @rule()
    def merge(self) -> None:
        self.model.chain.merge_freed()

    @rule(request=st.integers(-3, 40))
    def name_a_request(self, request: int) -> None:
        names = self.model.table.names
        before = picture(self.model.table)
        if request in self.model.held:
            assert names.rows_of([request]).size == 1
            with pytest.raises(OperationError, match="named twice"):
                names.rows_of([request, request])
            with pytest.raises(OperationError, match="admitted already"):
                names.check_new(request)
        else:
            with pytest.raises(OperationError, match=f"request (id )?{request} "):
                names.rows_of([request])
        assert picture(self.model.table) == before

    # ---- always ---------------------------------------------------------------------------------

    @invariant()
    def everybody_holds_what_the_model_says(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.end()

    def _pick(self, picks: list[int]) -> list[int]:
        live = list(self.model.held)
        return list(dict.fromkeys(live[pick % len(live)] for pick in picks)) if live else []


def _settings(max_examples: int, step_count: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=step_count,
        deadline=None,
        print_blob=True,
        # No hill climbing: it was seen to go on for minutes where a score has no bound.
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TestRequests = RequestMachine.TestCase
TestRequests.settings = _settings(40, 40)


@pytest.mark.sweep
class TestRequestsForLong(RequestMachine.TestCase):
    settings = _settings(400, 80)
