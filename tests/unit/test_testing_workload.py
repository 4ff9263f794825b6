"""The scheduler of a replay, driven by made-up answers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kvd.errors import WorkloadError
from kvd.testing.passes import Answers, Pass, StepWork, WorkloadLimits, WorkloadRequest
from kvd.testing.workload import STALLED_PASSES_MAX, Workload
from kvd_proto.outcomes import Reason, Refusal, Verdict
from kvd_proto.scalars import RequestId

NO_BYTES = Refusal(reason=Reason.NO_BYTES, stage=0, waiting_helps=True)


def limits(
    *,
    running: int = 4,
    chunk: int = 8,
    prompt: int = 16,
    asked: int = 2,
    sample: int = 1,
    reserve: int = 0,
    idle: int = 0,
) -> WorkloadLimits:
    return WorkloadLimits(
        running_count_max=running,
        chunk_tokens_max=chunk,
        prompt_tokens_max=prompt,
        asked_count_max=asked,
        sample_step_count=sample,
        sample_request_count=2,
        seed_index=7,
        reserve_batch_count=reserve,
        idle_step_count=idle,
    )


def requests(*lengths: tuple[int, int]) -> list[WorkloadRequest]:
    return [
        WorkloadRequest(request_id=RequestId(nth), prompt_tokens=prompt, output_tokens=output)
        for nth, (prompt, output) in enumerate(lengths, 1)
    ]


def grant_all(asked: Pass) -> Answers:
    return told(asked, (Verdict.FITS,) * len(asked.asks))


def told(
    asked: Pass,
    verdicts: tuple[Verdict, ...] | None = None,
    *,
    new_tokens: int | None = None,
    chunk_tokens: int = 8,
    **others: Any,
) -> Answers:
    """Return answers to a pass: verdicts (all fit), and lengths as they were asked for."""
    count = len(asked.asks)
    lengths = [
        request.output_tokens if new_tokens is None else new_tokens for request in asked.asks
    ]
    return Answers(
        verdicts=(Verdict.FITS,) * count if verdicts is None else verdicts,
        new_tokens=tuple(lengths),
        chunk_tokens=(chunk_tokens,) * count,
        **others,
    )


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

    work = workload.settle(first, told(first, (Verdict.WAIT, Verdict.FITS), refusals=(NO_BYTES,)))

    assert work.requests == (2,)
    assert [request.request_id for request in workload.next_pass().asks] == [1]
    assert workload.statistics().waiting_pass_count == 1
    assert workload.statistics().refusals == {"NO_BYTES": 1}
    assert workload.statistics().verdicts == {"WAIT": 1, "FITS": 1}


def test_nobody_is_asked_for_behind_a_request_that_waits() -> None:
    workload = Workload(requests((4, 2), (4, 2), (4, 2)), limits(asked=3))
    first = workload.next_pass()

    workload.settle(first, told(first, (Verdict.WAIT,) * 3, refusals=(NO_BYTES,) * 3))
    second = workload.next_pass()
    workload.settle(second, grant_all(second))

    assert [request.request_id for request in second.asks] == [1]
    assert [request.request_id for request in workload.next_pass().asks] == [2, 3]


def test_an_unschedulable_request_is_given_up_and_named() -> None:
    workload = Workload(requests((4, 2), (4, 2)), limits())

    def answer(asked: Pass) -> Answers:
        verdicts = tuple(
            Verdict.UNSCHEDULABLE if request.request_id == 1 else Verdict.FITS
            for request in asked.asks
        )
        return told(asked, verdicts)

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
        run(workload, lambda asked: told(asked, (Verdict.WAIT,), refusals=(NO_BYTES,)))

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


# ---- what an admission grants ---------------------------------------------------------------


def test_a_prompt_is_read_in_the_chunks_that_were_granted() -> None:
    turns = run(Workload(requests((14, 2)), limits()), lambda asked: told(asked, chunk_tokens=5))

    assert [turn.asked.ask_tokens for turn in turns[:1]] == [(8,)]
    assert [turn.work.counts_tokens for turn in turns] == [(5,), (5,), (4,), (1,), ()]


@pytest.mark.parametrize(("new_tokens", "served_tokens"), [(0, 5), (1, 5), (3, 7), (9, 10)])
def test_an_answer_is_cut_to_what_memory_can_ever_hold(new_tokens: int, served_tokens: int) -> None:
    workload = Workload(requests((4, 6)), limits())

    run(workload, lambda asked: told(asked, new_tokens=new_tokens))

    assert workload.statistics().served_tokens == served_tokens
    assert workload.statistics().clipped_count == (served_tokens < 10)


# ---- idling ---------------------------------------------------------------------------------


def test_an_idle_pass_states_what_was_computed_and_asks_for_nothing() -> None:
    turns = run(Workload(requests((4, 5)), limits(idle=2)))

    one, idle_work = (1,), ()
    assert [turn.work.counts_tokens for turn in turns] == [
        *((4,), one, idle_work),
        *(one, one, idle_work),
        *(one, ()),
    ]
    idle = turns[2].asked
    assert idle.advance_decoding
    assert (idle.decoding, idle.chunks, idle.asks, idle.free) == ((), (), (), ())
    # What the idle pass stated is not stated again.
    assert not turns[3].asked.advance_decoding


# ---- victims --------------------------------------------------------------------------------


def running(*lengths: tuple[int, int], **changes: int) -> Workload:
    """Return an oversubscribed workload whose requests were all admitted, prompts of 8 read."""
    workload = Workload(requests(*lengths), limits(asked=len(lengths), reserve=1, **changes))
    first = workload.next_pass()
    assert len(first.asks) == len(lengths)
    workload.settle(first, grant_all(first))
    return workload


def test_nobody_is_a_victim_while_promises_last() -> None:
    turns = run(Workload(requests((8, 5), (8, 5)), limits()))

    assert {turn.asked.victims for turn in turns} == {()}


def test_victims_are_those_with_the_fewest_tokens_then_the_longest_prompts_but_not_the_last() -> (
    None
):
    workload = running((4, 9), (3, 9), (6, 9))
    second = workload.next_pass()
    # Request 2 is retracted and comes back with two tokens generated, the others have three.
    workload.settle(second, told(second, retracted=(RequestId(2),)))
    third = workload.next_pass()
    workload.settle(third, grant_all(third))

    assert second.victims == (3, 1)
    assert workload.next_pass().victims == (2, 3)


def test_requests_amid_their_prompts_are_victims_of_decoding_before_all_others() -> None:
    workload = running((4, 9), (4, 9), (8, 9), prompt=12)
    # The third got the 4 tokens that were left over, and is amid its prompt.
    second = workload.next_pass()

    assert second.chunks == ((3, 4),)
    assert second.chunk_victims == ()
    assert second.victims == (3, 2)


def test_chunks_have_victims_only_where_nobody_decodes() -> None:
    workload = running((20, 9), (24, 9))
    second = workload.next_pass()

    assert second.decoding == second.victims == ()
    assert second.chunk_victims == (2,)


def test_a_retracted_request_is_asked_for_again_with_what_it_generated_as_prompt() -> None:
    workload = running((4, 9), (4, 9))
    second = workload.next_pass()
    workload.settle(second, grant_all(second))
    third = workload.next_pass()

    work = workload.settle(third, told(third, retracted=(RequestId(2),)))
    fourth = workload.next_pass()

    assert work.requests == (1,)
    # 4 prompt tokens and 1 token of the answer were written, a second one was generated.
    assert [
        (one.request_id, one.prompt_tokens, one.output_tokens, one.generated_tokens)
        for one in fourth.asks
    ] == [(2, 6, 7, 2)]
    assert workload.statistics().retracted_count == 1
    assert workload.statistics().recomputed_tokens == 5


def test_a_request_retracted_amid_its_prompt_has_generated_nothing() -> None:
    workload = running((20, 9), (24, 9))
    second = workload.next_pass()

    work = workload.settle(second, told(second, retracted=(RequestId(2),)))

    assert work.requests == (1,)
    assert [(one.prompt_tokens, one.output_tokens) for one in workload.next_pass().asks] == [
        (24, 9)
    ]


def test_retracted_requests_stand_before_those_that_never_ran_in_the_order_of_arrival() -> None:
    workload = Workload(requests(*[(4, 9)] * 5), limits(asked=3, running=5, reserve=1))
    first = workload.next_pass()
    workload.settle(first, grant_all(first))
    second = workload.next_pass()
    # Both that are asked for in this pass wait behind those it retracts.
    workload.settle(
        second,
        told(
            second,
            (Verdict.WAIT,) * 2,
            refusals=(NO_BYTES,) * 2,
            retracted=(RequestId(3), RequestId(2)),
        ),
    )
    third = workload.next_pass()
    workload.settle(third, grant_all(third))

    # Nobody is asked for behind the first of them until it fits.
    assert [one.request_id for one in third.asks] == [2]
    assert [one.request_id for one in workload.next_pass().asks] == [3, 4, 5]


def test_a_workload_that_retracts_serves_every_token_once() -> None:
    workload = Workload(requests((20, 30), (9, 12), (4, 20), (11, 1)), limits(reserve=1))
    turn_count = 0

    def answer(asked: Pass) -> Answers:
        nonlocal turn_count
        turn_count += 1
        victims = asked.victims or asked.chunk_victims
        return told(asked, retracted=victims[:1] if turn_count % 4 == 0 else ())

    turns = run(workload, answer)

    counts = workload.statistics()
    assert workload.is_over
    assert counts.retracted_count >= 4
    assert counts.served_count == 4
    assert counts.served_tokens == 50 + 21 + 24 + 12
    written = sum(sum(turn.work.counts_tokens) for turn in turns)
    assert written == counts.written_tokens == counts.served_tokens - 4 + counts.recomputed_tokens


def test_the_first_victim_is_in_every_sample() -> None:
    workload = running((4, 30), (4, 30), (4, 30), (4, 30))
    turns = run(workload, turns_max=20)

    assert len({turn.work.sample for turn in turns}) > 1
    assert {turn.work.sample[0] for turn in turns} == {4}
