"""Values, copies and transfers under forwards in flight, over a model of the arena's bytes."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvd_proto.operations import (
    Admit,
    Advance,
    BackupSubmit,
    BatchEnd,
    CancelHold,
    CopyEnded,
    Evict,
    Free,
    Hold,
    Idle,
    Insert,
    Launch,
    LoadCancel,
    LoadReserve,
    Post,
    Processed,
    Publish,
    Relief,
    Take,
    TransferEnded,
    WriteSet,
)
from tests.stateful.ranks import int32s, int64s
from tests.stateful.use_model import UseModel
from tests.stateful.values import BANDS, LONG_WINDOW, SHORT_WINDOW

PICK = st.integers(0, 30)
PICKS = st.lists(PICK, min_size=1, max_size=3)
SLACK = st.sampled_from((0, 0, 0, 0, 0, 1))
"""Mostly right: what is added to a number to make it a wrong one."""


class UseMachine(RuleBasedStateMachine):
    """Operations, right and mostly right, with strict checks and all bytes compared after each."""

    @initialize()
    def start(self) -> None:
        self.model = UseModel()

    # ---- requests and steps ---------------------------------------------------------------------

    @rule(prompt=st.integers(4, 40), new=st.integers(0, 12), victims=st.booleans())
    def admit(self, prompt: int, new: int, victims: bool) -> None:
        model = self.model
        number = model.requests.names.highest_id + 1
        ends = int64s(model.live[:2]) if victims else b""
        model.decide(
            Admit(
                int64s([number]),
                int32s([prompt]),
                int32s([new]),
                int32s([prompt]),
                chunk_tokens=40,
                reserve_batches=2,
                victims=ends,
            )
        )

    @precondition(lambda self: self.model.live)
    @rule(picks=PICKS, tokens=st.integers(1, 9), victim=st.booleans())
    def take(self, picks: list[int], tokens: int, victim: bool) -> None:
        victims = int64s(self.model.live[-1:]) if victim else b""
        self.model.decide(Take(int64s(self._live(picks)), tokens, victims=victims))

    @precondition(lambda self: self.model.live)
    @rule(picks=PICKS)
    def advance(self, picks: list[int]) -> None:
        rows, names = self.model.requests.rows, self.model.requests.names
        for request in self._live(picks):
            row = names.row_of[request]
            tokens = int(rows.tokens[row] - rows.computed_tokens[row])
            if tokens:
                self.model.decide(Advance(int64s([request]), tokens))

    @precondition(lambda self: self.model.live)
    @rule(picks=PICKS)
    def free(self, picks: list[int]) -> None:
        self.model.decide(Free(int64s(self._live(picks))))

    @precondition(lambda self: self.model.chain.steps.in_flight_count < 4)
    @rule(picks=st.none() | PICKS)
    def launch(self, picks: list[int] | None) -> None:
        step = self.model.chain.steps.launched_count + 1
        if picks is None or not self.model.live:
            self.model.decide(Launch(step, 0))
        else:
            self.model.decide(Launch(step, 0, WriteSet.REQUESTS, int64s(self._live(picks))))

    @precondition(lambda self: self.model.chain.steps.in_flight_count)
    @rule()
    def process(self) -> None:
        self.model.decide(Processed(self.model.chain.steps.processed_count + 1))

    @rule(demand=st.lists(st.integers(0, 12), min_size=BANDS, max_size=BANDS))
    def relieve(self, demand: list[int]) -> None:
        self.model.decide(Relief(tuple(demand)))

    @rule(idle=st.booleans())
    def end_batch(self, idle: bool) -> None:
        if idle:
            self.model.decide(Idle())
        self.model.decide(BatchEnd())

    # ---- values and copies ----------------------------------------------------------------------

    @precondition(lambda self: self.model.live)
    @rule(pick=PICK, slack=SLACK)
    def insert(self, pick: int, slack: int) -> None:
        number = self.model.requests.values.numbers.highest + 1 - slack
        self.model.decide(Insert(number, self._live([pick])[0]))

    @precondition(lambda self: self.model.values)
    @rule(pick=PICK, slack=SLACK)
    def evict(self, pick: int, slack: int) -> None:
        self.model.decide(Evict(int64s([self._one(self.model.values, pick) + 9 * slack])))

    @precondition(lambda self: self.model.values)
    @rule(pick=PICK, counts=st.tuples(st.integers(0, 3), st.integers(0, 3)), slack=SLACK)
    def reserve(self, pick: int, counts: tuple[int, int], slack: int) -> None:
        model, value = self.model, self._one(self.model.values, pick)
        units = [0] * BANDS
        for index, count in zip((LONG_WINDOW, SHORT_WINDOW), counts, strict=True):
            room = model.requests.values.get(value).missing(index).size
            units[index] = min(count, room) + slack
        model.decide(LoadReserve(model.copies.numbers.highest + 1, value, tuple(units)))

    @precondition(lambda self: self.model.copies.loads)
    @rule(pick=PICK, skip=st.integers(0, 2), slack=SLACK)
    def name(self, pick: int, skip: int, slack: int) -> None:
        model = self.model
        number = self._one(list(model.copies.loads), pick)
        load = model.copies.loads[number]
        if load.value_id not in model.values:
            return
        for index in load.reserved:
            pages = model.requests.values.get(load.value_id).missing(index)[skip:].tolist()
            wanted = pages[: max(1, load.nameless(index).size - skip) + slack]
            if wanted:
                model.name(number, index, wanted)

    @precondition(lambda self: self.model.copies.loads)
    @rule(pick=PICK)
    def submit(self, pick: int) -> None:
        number = self._one(list(self.model.copies.loads), pick)
        self.model.submit(number, lambda count: int32s(range(count)))

    @precondition(lambda self: self.model.copies.loads)
    @rule(pick=PICK)
    def cancel_load(self, pick: int) -> None:
        self.model.decide(LoadCancel(self._one(list(self.model.copies.loads), pick)))

    @rule(pick=PICK, of_value=st.booleans(), slack=SLACK)
    def back_up(self, pick: int, of_value: bool, slack: int) -> None:
        ids = self._held(pick, of_value)
        if ids is not None:
            hosts = tuple(int32s(range(len(names))) for names in ids)
            number = self.model.copies.numbers.highest + 1 - slack
            self.model.decide(BackupSubmit(number, tuple(map(int64s, ids)), hosts))

    # ---- transfers ------------------------------------------------------------------------------

    @rule(pick=PICK, of_value=st.booleans(), slack=SLACK)
    def hold(self, pick: int, of_value: bool, slack: int) -> None:
        ids = self._held(pick, of_value)
        if ids is not None:
            number = self.model.transfers.numbers.highest + 1 - slack
            self.model.decide(Hold(number, tuple(map(int64s, ids))))

    @rule(pick=PICK, of_value=st.booleans())
    def post(self, pick: int, of_value: bool) -> None:
        ids = self._held(pick, of_value)
        if ids is not None:
            number = self.model.transfers.numbers.highest + 1
            self.model.decide(Post(number, tuple(map(int64s, ids))))

    @precondition(lambda self: self.model.transfers.open)
    @rule(pick=PICK)
    def publish(self, pick: int) -> None:
        self.model.decide(Publish(self._one(list(self.model.transfers.open), pick)))

    @precondition(lambda self: self.model.transfers.open)
    @rule(pick=PICK)
    def cancel_hold(self, pick: int) -> None:
        self.model.decide(CancelHold(self._one(list(self.model.transfers.open), pick)))

    # ---- ends -----------------------------------------------------------------------------------

    @rule(pick=PICK, rank=st.integers(0, 1), both=st.booleans(), failed=st.booleans())
    def copy_ends(self, pick: int, rank: int, both: bool, failed: bool) -> None:
        copies = self.model.copies
        number = self._one([*copies.loads, *copies.backups, 1], pick)
        for each in (0, 1) if both else (rank,):
            self.model.say(each, CopyEnded(number, failed))

    @rule(pick=PICK, rank=st.integers(0, 1), both=st.booleans(), how=st.sampled_from("oopu"))
    def transfer_ends(self, pick: int, rank: int, both: bool, how: str) -> None:
        number = self._one([*self.model.transfers.open, 1], pick)
        for each in (0, 1) if both else (rank,):
            self.model.say(each, TransferEnded(number, how != "o", how != "u"))

    @rule()
    def pass_gate(self) -> None:
        self.model.pass_gate()

    # ---- always ---------------------------------------------------------------------------------

    @invariant()
    def every_unit_holds_what_was_written(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.end()

    def _one(self, numbers: list[int], pick: int) -> int:
        return numbers[pick % len(numbers)]

    def _live(self, picks: list[int]) -> list[int]:
        live = self.model.live
        return list(dict.fromkeys(live[pick % len(live)] for pick in picks))

    def _held(self, pick: int, of_value: bool) -> list[list[int]] | None:
        """Return what a request or a value holds per band, one band left out at times."""
        model = self.model
        if of_value and model.values:
            value = model.requests.values.get(self._one(model.values, pick))
            ids = [model.requests.values.ids_of(value, index).tolist() for index in range(BANDS)]
        elif model.live:
            rows = model.requests.names.rows_of(self._live([pick]))
            ids = [model.requests.holdings.ids(index, rows).tolist() for index in range(BANDS)]
        else:
            return None
        if pick % 3:
            ids[pick % BANDS] = []
        return ids if any(ids) else None


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


TestUses = UseMachine.TestCase
TestUses.settings = _settings(30, 50)


@pytest.mark.sweep
class TestUsesForLong(UseMachine.TestCase):
    settings = _settings(300, 80)
