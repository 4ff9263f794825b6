"""What-if answers agree with what admission and takes then do, and change nothing."""

import pytest

from kvd.alloc.checks import CheckLevel
from kvd.engine.stage import StageEngine
from kvd.engine.what_if import what_if
from kvd.errors import OperationError
from kvd_proto.control import WhatIf, WhatIfReply
from kvd_proto.operations import Admit, Relief
from kvd_proto.outcomes import AdmitResult, Refusal, Verdict
from tests.stateful.chains import picture
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


@pytest.mark.parametrize("units", [(0, 0, 0, 1), (1, 2, 2, 2), (0, 9, 0, 9), (3, 40, 40, 400)])
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
        (WhatIf(), "a prompt of 0 and 0 new"),
        (WhatIf(prompt_tokens=-1), "a prompt of -1"),
        (WhatIf(prompt_tokens=1, new_tokens_max=-2), "-2 new tokens"),
        (WhatIf(prompt_tokens=1, chunk_tokens=-3), "chunks of -3"),
        (WhatIf(demand_units=(1, 2)), r"\[1, 2\]; 4 counts"),
        (WhatIf(demand_units=(1, 2, -3, 4)), "-3"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_with_its_values(
    question: WhatIf, said: str
) -> None:
    with pytest.raises(OperationError, match=said):
        what_if(engine_with().requests, question)
