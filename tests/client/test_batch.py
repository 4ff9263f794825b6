"""A batch: one message, one reply; handles give what was decided."""

from typing import Any

import numpy as np
import pytest

from kvd_client import (
    STANDING,
    Admitted,
    Client,
    Handle,
    OperationError,
    RefusedError,
    StepOrderError,
    Taken,
    UsageError,
)
from kvd_proto.errors import ErrorCode
from kvd_proto.outcomes import Done, Freed, Reason, Refusal, Skipped, Verdict
from tests.client.engine_daemon import CONTEXT_TOKENS, PAGE_TOKENS, EngineDaemon


def admit(kv: Client, ids: list[int], tokens: int = 4) -> Admitted:
    with kv.batch() as batch:
        handle = batch.admit(
            ids,
            prompt_tokens=[tokens] * len(ids),
            new_tokens_max=[CONTEXT_TOKENS - tokens] * len(ids),
            take_tokens=[tokens] * len(ids),
        )
        batch.standing(add=ids)
    admitted = handle()
    assert isinstance(admitted, Admitted)
    return admitted


def test_admit_gives_verdicts_rows_and_the_first_chunk(kv: Client) -> None:
    admitted = admit(kv, [1, 2], tokens=6)

    assert admitted.verdicts.tolist() == [Verdict.FITS, Verdict.FITS]
    assert len(set(admitted.rows.tolist())) == 2
    assert admitted.taken.rows.tolist() == np.repeat(admitted.rows, 2).tolist()
    assert admitted.taken.places.tolist() == [0, 1, 0, 1]
    assert set(admitted.taken.physical) == {"full", "window_8", "state"}
    assert len(admitted.taken.physical["state"]) == 2


def test_a_batch_is_one_message(daemon: EngineDaemon, kv: Client) -> None:
    admit(kv, [1, 2])
    before = daemon.batches()

    with kv.batch() as batch:
        batch.advance(STANDING, 4)
        batch.take(STANDING, 1)
        batch.free([1])

    assert daemon.batches() == before + 1


def test_take_grants_a_page_to_each_request_that_crosses_one(kv: Client) -> None:
    admit(kv, [1, 2], tokens=PAGE_TOKENS)

    with kv.batch() as batch:
        batch.advance(STANDING, PAGE_TOKENS)
        handle = batch.take(STANDING)

    taken = handle()
    assert isinstance(taken, Taken)
    assert taken.rows.tolist() == kv.rows([1, 2]).tolist()
    assert taken.places.tolist() == [1, 1]


def test_take_within_a_page_grants_nothing_and_counts_the_token(kv: Client) -> None:
    admit(kv, [1], tokens=2)

    with kv.batch() as batch:
        handle = batch.take([1])

    taken = handle()
    assert isinstance(taken, Taken)
    assert not len(taken.virtual)
    assert kv.lengths([1]).tolist() == [3]


def test_free_gives_units_back_and_forgets_the_request(kv: Client) -> None:
    admit(kv, [1, 2], tokens=6)

    with kv.batch() as batch:
        handle = batch.free([2, 1])

    freed = handle()
    assert isinstance(freed, Freed)
    assert sum(freed.units) == 2 * (1 + 2 + 2)
    assert not len(kv.standing)
    kv.check()


def test_a_request_too_long_is_refused_with_its_reason(kv: Client) -> None:
    with kv.batch() as batch:
        handle = batch.admit([1], prompt_tokens=[CONTEXT_TOKENS], new_tokens_max=[1])
        skipped = batch.standing(add=[1])

    admitted = handle()
    assert isinstance(admitted, Admitted)
    assert admitted.verdicts.tolist() == [Verdict.UNSCHEDULABLE]
    assert admitted.rows.tolist() == [0]
    assert admitted.refusals[0].reason is Reason.TOO_LONG
    assert isinstance(skipped(), Skipped)


def test_a_refused_take_changes_no_length(kv: Client) -> None:
    admit(kv, [1], tokens=4)
    before = kv.lengths([1]).tolist()

    with kv.batch() as batch:
        handle = batch.relief([10_000] * 3)

    assert isinstance(handle(), Refusal)
    assert kv.lengths([1]).tolist() == before


def test_wrong_use_raises_after_everything_before_it_was_done(kv: Client) -> None:
    admit(kv, [1])
    handles: list[Handle[Any]] = []

    def pass_with_wrong_use() -> None:
        with kv.batch() as batch:
            handles.extend((batch.take([1]), batch.free([99]), batch.take([1])))

    with pytest.raises(OperationError, match="99") as caught:
        pass_with_wrong_use()

    assert caught.value.code is ErrorCode.UNKNOWN_REQUEST
    taken, wrong, after = handles
    assert isinstance(taken(), Taken)
    assert kv.lengths([1]).tolist() == [5]
    for handle in (wrong, after):
        with pytest.raises(OperationError):
            handle()


@pytest.mark.parametrize("request_id", [0, -3])
def test_an_impossible_request_id_is_named(kv: Client, request_id: int) -> None:
    with pytest.raises(OperationError, match=str(request_id)), kv.batch() as batch:
        batch.admit([request_id], prompt_tokens=[1], new_tokens_max=[1])


def test_an_empty_list_is_nobody_and_not_the_standing_set(kv: Client) -> None:
    admit(kv, [1])

    with kv.batch() as batch:
        taken = batch.take([])
        freed = batch.free([])
        advanced = batch.advance([])
        admitted = batch.admit([], prompt_tokens=[], new_tokens_max=[])
        changed = batch.standing()

    assert kv.lengths([1]).tolist() == [4]
    assert isinstance(taken(), Taken)
    assert isinstance(freed(), Freed)
    assert isinstance(advanced(), Done)
    assert isinstance(changed(), Done)
    assert isinstance(admitted(), Admitted)


def test_an_exception_inside_the_block_sends_nothing(daemon: EngineDaemon, kv: Client) -> None:
    admit(kv, [1])
    before = daemon.batches()

    handles: list[Handle[Taken]] = []

    def broken_pass() -> None:
        with kv.batch() as batch:
            handles.append(batch.take([1]))
            _ = 1 // 0

    with pytest.raises(ZeroDivisionError):
        broken_pass()

    assert daemon.batches() == before
    assert kv.lengths([1]).tolist() == [4]
    with pytest.raises(UsageError, match="no answer"):
        handles[0]()


def test_ids_in_any_order_are_sent_sorted_with_their_counts(kv: Client) -> None:
    admit(kv, [1, 2, 3])

    with kv.batch() as batch:
        batch.take([3, 1], [5, 2])

    assert kv.lengths([1, 2, 3]).tolist() == [6, 4, 9]


def test_counts_for_the_standing_set_follow_the_order_of_joining(kv: Client) -> None:
    admit(kv, [1, 2, 3])
    with kv.batch() as batch:
        batch.standing(remove=[1])
        batch.standing(add=[1])
    assert kv.standing.tolist() == [2, 3, 1]

    with kv.batch() as batch:
        batch.take(STANDING, [1, 2, 3])

    assert kv.lengths([1, 2, 3]).tolist() == [7, 5, 6]


@pytest.mark.parametrize(
    ("ids", "tokens"),
    [([1, 2], [1]), ([1.5], 1), ([[1]], 1), ([1], [2**31]), ([1], -1), (["a"], 1), ([2**70], 1)],
)
def test_a_list_that_makes_no_sense_is_refused_here(
    kv: Client, ids: list[int], tokens: int | list[int]
) -> None:
    with pytest.raises(UsageError), kv.batch() as batch:
        batch.take(ids, tokens)


def test_an_operation_after_the_block_is_refused(kv: Client) -> None:
    with kv.batch() as batch:
        batch.idle()

    with pytest.raises(UsageError, match="ended"):
        batch.take([1])


def test_processed_comes_first(kv: Client) -> None:
    with kv.batch() as batch:
        batch.idle()
        with pytest.raises(StepOrderError, match="head"):
            batch.processed(1)


def test_a_batch_over_the_frame_cap_is_refused_before_it_is_sent(
    daemon: EngineDaemon, kv: Client
) -> None:
    ids = np.arange(1, 200_000, dtype=np.int64)
    before = daemon.batches()

    with pytest.raises(UsageError, match="cap"), kv.batch() as batch:
        batch.free(ids)

    assert daemon.batches() == before


def test_the_record_of_a_batch_exists_once_it_was_sent(kv: Client) -> None:
    with kv.batch() as batch:
        batch.idle()
        with pytest.raises(UsageError, match="sent"):
            batch.record()

    assert batch.record()


@pytest.mark.parametrize("units", [1 << 60, (1 << 63) - 1])
def test_a_number_past_all_sense_is_wrong_use_and_the_session_lives(kv: Client, units: int) -> None:
    admit(kv, [1])
    with pytest.raises(OperationError, match=f"asks {units} units of band state"), kv.batch() as b:
        b.relief([units, 0, 0])
    with pytest.raises(RefusedError, match=f"prompt_tokens is {units}"):
        kv.what_if(prompt_tokens=units, new_tokens_max=1)
    assert isinstance(_taken(kv), Taken)


@pytest.mark.parametrize("units", [1 << 63, 1 << 64, 1 << 70])
def test_units_past_64_bits_are_refused_before_they_are_sent(kv: Client, units: int) -> None:
    with kv.batch() as batch, pytest.raises(UsageError, match="64-bit"):
        batch.relief([units, 0, 0])


def _taken(kv: Client) -> Taken:
    with kv.batch() as batch:
        handle = batch.take([1])
    taken = handle()
    assert isinstance(taken, Taken)
    return taken


@pytest.mark.parametrize(
    ("prompt", "new", "granted"),
    [(4, 20, 20), (CONTEXT_TOKENS, 0, 0), (CONTEXT_TOKENS, 1, 0), (4, 0, 0)],
)
def test_the_memory_clip_is_what_an_admit_grants(
    kv: Client, prompt: int, new: int, granted: int
) -> None:
    assert kv.memory_clip(prompt, new) == granted
    assert kv.memory_clip(prompt, new, chunk_tokens=4) == granted
    with kv.batch() as batch:
        handle = batch.admit([1], prompt_tokens=[prompt], new_tokens_max=[new])
    admitted = handle()
    assert isinstance(admitted, Admitted)
    assert admitted.new_tokens.tolist() == [granted]
