"""Filling a stage with requests: chunks for prompts, steps of one token for answers."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kvd.build import StageStorage, build_group
from kvd.errors import WorkloadError
from kvd.presets import preset_config
from kvd.testing.bench_fill import Costs, Filler
from kvd.testing.traces import TraceRequest
from kvd_proto.memory import DeclaredConfig, SizingInputs

MiB = 1 << 20
PAGE_TOKENS = 64
ANSWERS_TOKENS = (1, 2, 63, 700, 700, 1200)


def storage_of(budget_bytes: int, context_tokens: int) -> StageStorage:
    declaration = DeclaredConfig(config_json=preset_config("gpt-oss-20b"), name="gpt-oss-20b")
    inputs = SizingInputs(
        budget_bytes=budget_bytes, page_tokens=PAGE_TOKENS, context_tokens=context_tokens
    )
    return build_group(declaration, inputs=inputs).stages[0]


@pytest.fixture(scope="module")
def storage() -> StageStorage:
    return storage_of(1024 * MiB, 1 << 16)


def requests() -> Iterator[TraceRequest]:
    """Yield requests of 500 tokens with answers of different lengths, for ever."""
    while True:
        for nth, output_tokens in enumerate(ANSWERS_TOKENS):
            yield TraceRequest(nth, 500, output_tokens)


def fill(filler: Filler, *, beyond_tokens: int = 0) -> list[TraceRequest]:
    """Admit requests until one is refused; return those that were not."""
    admitted: list[TraceRequest] = []
    for request in requests():
        if filler.admit(request):
            return admitted
        filler.prefill(replace(request, output_tokens=request.output_tokens + beyond_tokens))
        admitted.append(request)
    return admitted


def full_pages(admitted: list[TraceRequest]) -> int:
    return sum(-(-request.total_tokens // PAGE_TOKENS) for request in admitted)


def test_a_full_arena_decodes_every_answer_to_its_end(storage: StageStorage) -> None:
    filler = Filler(storage)
    admitted = fill(filler)
    before_live, before_promised = filler.counts()

    filler.decode_all()

    live, promised = filler.counts()
    assert len(admitted) == filler.admitted_count > len(ANSWERS_TOKENS)
    assert before_live[1] < live[1] == full_pages(admitted)
    before = [a + b for a, b in zip(before_live, before_promised, strict=True)]
    assert [a + b for a, b in zip(live, promised, strict=True)] == before


def test_tokens_that_a_full_arena_refuses_are_named(storage: StageStorage) -> None:
    filler = Filler(storage)
    fill(filler, beyond_tokens=3000)

    with pytest.raises(WorkloadError, match=r"\d+ admitted requests were refused token \d+ of"):
        filler.decode_all()


def test_there_may_be_nothing_to_decode(storage: StageStorage) -> None:
    filler = Filler(storage)

    filler.decode_all()

    assert filler.counts() == ((0, 0), (0, 0))


@pytest.mark.parametrize("output_tokens", ANSWERS_TOKENS)
def test_a_cost_is_what_a_request_holds_when_it_has_its_answer(
    storage: StageStorage, output_tokens: int
) -> None:
    request = TraceRequest(1, 3000, output_tokens)
    filler = Filler(storage)
    assert not filler.admit(request)
    asked = filler.counts()[1]
    filler.prefill(request)
    filler.decode_all()

    cost = Costs(storage).of(request)

    assert cost is not None
    assert cost.asked_units == asked
    assert (cost.held_units, cost.promised_units) == filler.counts()


def test_a_request_that_barely_fits_alone_is_grown_a_token_at_a_time() -> None:
    # Chunks of its answer would need more of the window's pages than there are bytes left.
    storage = storage_of(64 * MiB, 1 << 12)
    fits = [
        request
        for output_tokens in range(2_048, 2_176, 8)
        if not Filler(storage).admit(request := TraceRequest(1, 200, output_tokens))
    ]

    cost = Costs(storage).of(fits[-1])

    assert 0 < len(fits) < 16
    assert cost is not None
    assert cost.held_units[1] == full_pages(fits[-1:])


def test_a_request_whose_answer_memory_cuts_short_never_fits(storage: StageStorage) -> None:
    assert Costs(storage).of(TraceRequest(1, 200, 44_000)) is None
    assert Filler(storage).admit(TraceRequest(1, 200, 44_000)).startswith("CUT SHORT: 4")
