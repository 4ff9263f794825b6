"""The scheduler of a replay, driven by made-up answers."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from kvd.errors import WorkloadError
from kvd.testing.workload import (
    STALLED_PASSES_MAX,
    Answers,
    Pass,
    StepWork,
    Workload,
    WorkloadLimits,
    WorkloadRequest,
)
from kvd_proto.outcomes import Reason, Refusal, Verdict
from kvd_proto.scalars import RequestId

NO_BYTES = Refusal(reason=Reason.NO_BYTES, stage=0, waiting_helps=True)


def limits(
    *, running: int = 4, chunk: int = 8, prompt: int = 16, asked: int = 2, sample: int = 1
) -> WorkloadLimits:
    return WorkloadLimits(
        running_count_max=running,
        chunk_tokens_max=chunk,
        prompt_tokens_max=prompt,
        asked_count_max=asked,
        sample_step_count=sample,
        sample_request_count=2,
        seed_index=7,
    )


def requests(*lengths: tuple[int, int]) -> list[WorkloadRequest]:
    return [
        WorkloadRequest(request_id=RequestId(nth), prompt_tokens=prompt, output_tokens=output)
        for nth, (prompt, output) in enumerate(lengths, 1)
    ]


def grant_all(asked: Pass) -> Answers:
    return Answers(verdicts=(Verdict.FITS,) * len(asked.asks))


class Turn(NamedTuple):
    asked: Pass
    work: StepWork


def run(
    workload: Workload, answer: Callable[[Pass], Answers] = grant_all, turns_max: int = 10_000
) -> list[Turn]:
    turns: list[Turn] = []
    while not workload.is_over and len(turns) < turns_max:
        asked = workload.next_pass()
        turns.append(Turn(asked, workload.settle(asked, answer(asked))))
    return turns


def test_a_request_reads_its_prompt_in_chunks_then_decodes_then_is_freed() -> None:
    turns = run(Workload(requests((20, 3)), limits()))

    assert [turn.work.counts_tokens for turn in turns] == [(8,), (8,), (4,), (1,), (1,), ()]
    assert [turn.work.starts_tokens for turn in turns] == [(0,), (8,), (16,), (20,), (21,), ()]
    assert [turn.asked.chunks for turn in turns[:3]] == [(), ((1, 8),), ((1, 4),)]
    assert [turn.asked.decoding for turn in turns[3:]] == [(1,), (1,), ()]
    assert [turn.asked.free for turn in turns] == [()] * 5 + [(1,)]
    assert turns[4].work.finished == (1,)


def test_a_request_with_a_one_token_answer_ends_with_its_prompt() -> None:
    turns = run(Workload(requests((3, 1)), limits()))

    assert [turn.work.counts_tokens for turn in turns] == [(3,), ()]
    assert turns[1].asked.free == (1,)
    assert turns[1].asked.start_decoding == ()


def test_computed_tokens_are_stated_once_in_the_pass_after_their_step() -> None:
    turns = run(Workload(requests((10, 3)), limits()))

    assert [turn.asked.advance for turn in turns] == [(), ((1, 8),), ((1, 2),), (), ()]
    # The last step's token is not stated: the request is freed instead.
    assert [turn.asked.advance_decoding for turn in turns] == [False, False, False, True, False]


def test_requests_are_asked_for_in_arrival_order_within_the_limits() -> None:
    workload = Workload(requests((6, 9), (6, 9), (6, 9), (6, 9)), limits(prompt=10, asked=3))

    asked = workload.next_pass()

    assert [request.request_id for request in asked.asks] == [1, 2]
    assert asked.ask_tokens == (6, 4)


def test_no_more_requests_run_than_allowed() -> None:
    workload = Workload(requests(*[(4, 5)] * 9), limits(running=3))

    run(workload)

    assert workload.statistics().running_count_max == 3
    assert workload.statistics().served_count == 9


def test_a_request_that_waits_keeps_its_place() -> None:
    workload = Workload(requests((4, 2), (4, 2)), limits())
    first = workload.next_pass()

    work = workload.settle(
        first, Answers(verdicts=(Verdict.WAIT, Verdict.FITS), refusals=(NO_BYTES,))
    )

    assert work.requests == (2,)
    assert [request.request_id for request in workload.next_pass().asks] == [1]
    assert workload.statistics().waiting_pass_count == 1
    assert workload.statistics().refusals == {"NO_BYTES": 1}
    assert workload.statistics().verdicts == {"WAIT": 1, "FITS": 1}


def test_nobody_is_asked_for_behind_a_request_that_waits() -> None:
    workload = Workload(requests((4, 2), (4, 2), (4, 2)), limits(asked=3))
    waits = Answers(verdicts=(Verdict.WAIT,) * 3, refusals=(NO_BYTES,) * 3)

    workload.settle(workload.next_pass(), waits)
    second = workload.next_pass()
    workload.settle(second, grant_all(second))

    assert [request.request_id for request in second.asks] == [1]
    assert [request.request_id for request in workload.next_pass().asks] == [2, 3]


def test_an_unschedulable_request_is_given_up_and_named() -> None:
    workload = Workload(requests((4, 2), (4, 2)), limits())

    def answer(asked: Pass) -> Answers:
        return Answers(
            verdicts=tuple(
                Verdict.UNSCHEDULABLE if request.request_id == 1 else Verdict.FITS
                for request in asked.asks
            )
        )

    run(workload, answer)

    assert workload.statistics().unschedulable == (1,)
    assert workload.statistics().served_count == 1


def test_a_refused_decode_step_is_tried_again_and_states_nothing() -> None:
    workload = Workload(requests((4, 3)), limits())
    workload.settle(first := workload.next_pass(), grant_all(first))
    second = workload.next_pass()

    work = workload.settle(second, Answers(decoding=NO_BYTES))
    third = workload.next_pass()

    assert work.is_empty
    assert third.decoding == (1,)
    assert not third.advance_decoding
    assert third.advance == ()


def test_a_refused_chunk_is_tried_again() -> None:
    workload = Workload(requests((20, 3)), limits())
    workload.settle(first := workload.next_pass(), grant_all(first))
    second = workload.next_pass()

    workload.settle(second, Answers(chunks=NO_BYTES))

    assert workload.next_pass().chunks == second.chunks
    assert workload.statistics().refusals == {"NO_BYTES": 1}


def test_a_workload_that_never_moves_ends_with_an_error() -> None:
    workload = Workload(requests((4, 2)), limits())

    with pytest.raises(WorkloadError, match="1 requests wait, 0 run; refusals so far: NO_BYTES"):
        run(workload, lambda _: Answers(verdicts=(Verdict.WAIT,), refusals=(NO_BYTES,)))

    assert workload.statistics().pass_count == STALLED_PASSES_MAX


def test_a_missing_verdict_is_an_error() -> None:
    workload = Workload(requests((4, 2)), limits())

    with pytest.raises(WorkloadError, match="1 requests were asked for, 0 verdicts came"):
        workload.settle(workload.next_pass(), Answers())


def test_all_tokens_but_each_answers_last_are_written() -> None:
    workload = Workload(requests((20, 3), (1, 1), (9, 30)), limits())

    turns = run(workload)

    written = sum(sum(turn.work.counts_tokens) for turn in turns)
    counts = workload.statistics()
    assert written == counts.written_tokens == (22 + 1 + 38)
    assert counts.served_tokens == 23 + 2 + 39


def test_samples_name_live_requests_and_depend_on_the_seed_alone() -> None:
    lengths = [(5, 20)] * 6

    first = [turn.work.sample for turn in run(Workload(requests(*lengths), limits(sample=3)))]
    second = [turn.work.sample for turn in run(Workload(requests(*lengths), limits(sample=3)))]

    assert first == second
    assert {len(sample) for sample in first} == {0, 2}
