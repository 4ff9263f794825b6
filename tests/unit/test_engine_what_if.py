"""What-if answers agree with what admission and takes then do, and change nothing."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.alloc.admission import Admission
from kvd.alloc.checks import CheckLevel
from kvd.alloc.requests import RequestTable
from kvd.engine.stage import StageEngine
from kvd.engine.what_if import what_if
from kvd.errors import OperationError
from kvd_proto.control import WhatIf, WhatIfReply
from kvd_proto.memory import Lifetime
from kvd_proto.operations import Admit, Relief
from kvd_proto.outcomes import AdmitResult, Reason, Refusal, Verdict
from tests.stateful.chains import ONE, World, picture, worlds
from tests.stateful.chains import admit as admit_one
from tests.stateful.ranks import CONTEXT_TOKENS, columns_of, int32s, int64s, stage


def engine_with(*prompts: int, **options: int) -> StageEngine:
    """Return an engine in which requests took prompts of these lengths."""
    engine = StageEngine(stage(**options), level=CheckLevel.STRICT)
    for request, prompt in enumerate(prompts, start=1):
        admit(engine, request, prompt=prompt, new=0, take=min(prompt, 16))
    return engine


def admit(
    engine: StageEngine, request: int, *, prompt: int, new: int, take: int = 0
) -> tuple[Verdict, int]:
    """Admit one request; return its verdict and the new tokens granted."""
    takes = int32s([take]) if take else b""
    outcome = engine.decide(0, Admit(int64s([request]), int32s([prompt]), int32s([new]), takes, 0))
    assert isinstance(outcome.result, AdmitResult)
    columns = columns_of(outcome)
    verdict = Verdict(int(columns[outcome.result.verdicts][0]))
    return verdict, int(columns[outcome.result.new_tokens][0])


def ask(engine: StageEngine, *, prompt: int, new: int) -> WhatIfReply:
    return what_if(engine.requests, WhatIf(prompt_tokens=prompt, new_tokens_max=new))


def fits(reply: WhatIfReply) -> bool:
    return any(step.fits for step in reply.steps)


@pytest.mark.parametrize("prompt", [1, 17, 40, 90])
@pytest.mark.parametrize("held", [(), (40,), (90, 90), (90, 90, 90, 90)])
def test_a_request_fits_where_admission_lets_it_in(held: tuple[int, ...], prompt: int) -> None:
    engine = engine_with(*held, spare_bytes=1 << 15)
    reply = ask(engine, prompt=prompt, new=5)
    verdict, new_tokens = admit(engine, 9, prompt=prompt, new=5)
    assert fits(reply) is (verdict is Verdict.FITS)
    assert reply.new_tokens == new_tokens
    assert (reply.obstacle == "") is fits(reply)


@pytest.mark.parametrize("units", [(0, 0, 0, 1), (1, 2, 2, 2), (0, 9, 0, 9), (3, 40, 40, 99)])
def test_units_fit_where_relief_makes_room(units: tuple[int, ...]) -> None:
    engine = engine_with(90, 60)
    reply = what_if(engine.requests, WhatIf(demand_units=units))
    result = engine.decide(0, Relief(units)).result
    assert fits(reply) is not isinstance(result, Refusal)
    if isinstance(result, Refusal):
        assert reply.obstacle == result.obstacle


def test_asking_changes_nothing() -> None:
    engine = engine_with(40, 90)
    before = picture(engine.requests)
    ask(engine, prompt=60, new=20)
    what_if(engine.requests, WhatIf(demand_units=(1, 50, 50, 50)))
    assert picture(engine.requests) == before


def test_a_request_beyond_the_context_never_fits() -> None:
    engine = engine_with()
    reply = ask(engine, prompt=CONTEXT_TOKENS, new=1)
    verdict, _ = admit(engine, 1, prompt=CONTEXT_TOKENS, new=1)
    assert verdict is Verdict.UNSCHEDULABLE
    assert not fits(reply)
    assert not reply.fits_empty
    assert reply.obstacle == "101 tokens, the context length is 100"


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (WhatIf(), "prompt_tokens is 0; give units per band, or a prompt"),
        (WhatIf(prompt_tokens=-1), "prompt_tokens is -1"),
        (WhatIf(prompt_tokens=1, new_tokens_max=-2), "new_tokens_max is -2"),
        (WhatIf(prompt_tokens=1, chunk_tokens=-3), "chunk_tokens is -3"),
        (WhatIf(prompt_tokens=(1 << 64) - 1), f"prompt_tokens is {(1 << 64) - 1}; 1 to"),
        (WhatIf(prompt_tokens=1, new_tokens_max=1 << 31), f"new_tokens_max is {1 << 31}; 0 to"),
        (WhatIf(prompt_tokens=1, chunk_tokens=1 << 31), f"chunk_tokens is {1 << 31}; 0 to"),
        (WhatIf(demand_units=(0, 1 << 60, 0, 0)), f"{1 << 60} units of band window"),
        (WhatIf(demand_units=(1, 2)), r"\[1, 2\]; 4 counts"),
        (WhatIf(demand_units=(1, 2, -3, 4)), "-3"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_with_its_values(
    question: WhatIf, said: str
) -> None:
    with pytest.raises(OperationError, match=said):
        what_if(engine_with().requests, question)


# ---- admission's own answer ----------------------------------------------------------------------

Asked = tuple[int, int, int]
"""Prompt, new tokens, chunk."""

ASKED = st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 12))


def same(table: RequestTable, asked: Asked, request: int) -> Admission:
    """Ask what admission would say, then admission; compare and return its answer."""
    prompt, new, chunk = asked
    question = WhatIf(prompt_tokens=prompt, new_tokens_max=new, chunk_tokens=chunk)
    reply = what_if(table, question)
    answer = admit_one(table, request, prompt=prompt, new=new, chunk=chunk)
    assert fits(reply) is (answer.verdict is Verdict.FITS)
    assert reply.fits_empty is (answer.verdict is not Verdict.UNSCHEDULABLE)
    assert reply.new_tokens == answer.new_tokens
    if answer.verdict is Verdict.FITS:
        assert reply.chunk_tokens == answer.chunk_tokens
        peaks = [column[answer.row_index] for column in table.rows.peak_units]
        assert list(reply.demand_units) == peaks
    elif answer.verdict is Verdict.UNSCHEDULABLE:
        assert answer.shortage is not None
        assert reply.obstacle == answer.shortage.obstacle
    return answer


@settings(max_examples=300, deadline=None)
@given(
    world=worlds(),
    earlier=st.lists(st.tuples(ASKED, st.booleans(), st.booleans()), max_size=5),
    asked=ASKED,
)
def test_what_if_says_what_admission_then_does(
    world: World, earlier: list[tuple[Asked, bool, bool]], asked: Asked
) -> None:
    table = world.table()
    for request, (one, takes, lapses) in enumerate(earlier, start=1):
        answer = same(table, one, request)
        if answer.verdict is not Verdict.FITS:
            continue
        rows = table.names.rows_of([request])
        if takes:
            tokens = min(one[0], answer.chunk_tokens)
            table.take(rows, tokens)
            table.advance(rows, tokens)
        if lapses:
            table.holdings.lapse(rows)
    same(table, asked, 99)


TEN = replace(ONE, arena_bytes=110, virtual_page_count=99)
"""Ten pages of 4 tokens."""


def test_what_if_prices_the_new_tokens_that_memory_grants_and_not_those_asked() -> None:
    answer = same(TEN.table(), (30, 34, 0), 1)
    assert (answer.verdict, answer.new_tokens) == (Verdict.FITS, 10)


def test_what_if_shortens_a_chunk_where_nobody_will_give_back() -> None:
    world = World(
        arena_bytes=3 + 37,
        unit_bytes=(3, 2),
        lifetimes=(Lifetime.WINDOW, Lifetime.FULL),
        window_tokens=(2, 0),
        page_tokens=1,
    )
    answer = same(world.table(), (8, 0, 8), 1)
    assert (answer.verdict, answer.chunk_tokens) == (Verdict.FITS, 5)
    assert same(world.table(), (8, 0, 5), 1) == answer


def test_what_if_knows_that_every_row_is_in_use() -> None:
    table = replace(TEN, row_count=2).table()
    assert same(table, (4, 0, 0), 1).verdict is Verdict.FITS
    answer = same(table, (4, 0, 0), 2)
    assert answer.shortage is not None
    assert (answer.verdict, answer.shortage.reason) == (Verdict.WAIT, Reason.NO_ROWS)
    assert what_if(table, WhatIf(prompt_tokens=4)).obstacle == answer.shortage.obstacle
