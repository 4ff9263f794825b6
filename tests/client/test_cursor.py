"""Whatever interrupts a call, its answer is received and applied first, or the stub is poisoned."""

import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from kvd.alloc.checks import CheckLevel
from kvd.testing.in_process import EPOCH
from kvd_client import (
    STANDING,
    Client,
    DeadlineError,
    DeviceError,
    DivergedError,
    EndedError,
    FencedError,
    ForkedError,
    Handle,
    KvdClientError,
    OperationError,
    PoisonedError,
    RankLostError,
    RefusedError,
    ReplyError,
    StepAborted,
    Taken,
)
from kvd_proto.codec import decode_fact, decode_reply, encode
from kvd_proto.control import Header, MessageKind
from kvd_proto.errors import ErrorCode, KvdError
from kvd_proto.operations import RankFailed
from kvd_proto.outcomes import BatchReply, Entry, Freed
from tests.client.engine_daemon import Answer, EngineDaemon
from tests.client.engine_daemon import admit_three_tokens_each as admit


class InjectedError(KvdError):
    """What the tests throw into the client's own code."""


@pytest.fixture
def kv(daemon: EngineDaemon) -> Iterator[Client]:
    with daemon.attach() as client:
        admit(client, [1, 2])
        yield client


def take(kv: Client) -> None:
    with kv.batch() as batch:
        batch.take(STANDING)


def take_into(kv: Client, handles: list[Handle[Taken]]) -> None:
    with kv.batch() as batch:
        handles.append(batch.take(STANDING))


def late(daemon: EngineDaemon, kept: list[Answer]) -> Callable[..., list[Answer] | None]:
    """Decide the next batch, keep its answer back, and get out of the way."""

    def hook(rank: int, header: Header, body: bytes) -> list[Answer] | None:
        if header.kind is not MessageKind.BATCH:
            return None
        daemon.hook = None
        kept.extend(daemon.serve(rank, header, body))
        return []

    return hook


def tampered(
    daemon: EngineDaemon, change: Callable[[Header, BatchReply], Answer]
) -> Callable[..., list[Answer] | None]:
    """Let a function change the reply to the next batch."""

    def hook(rank: int, header: Header, body: bytes) -> list[Answer] | None:
        if header.kind is not MessageKind.BATCH:
            return None
        daemon.hook = None
        ((answer, reply),) = daemon.serve(rank, header, body)
        return [change(answer, decode_reply(reply))]

    return hook


# ---- late answers ----------------------------------------------------------------------------


def test_a_late_answer_is_applied_before_anything_else_is_sent(
    daemon: EngineDaemon, kv: Client
) -> None:
    kept: list[Answer] = []
    daemon.hook = late(daemon, kept)
    handles: list[Handle[Taken]] = []
    with pytest.raises(DeadlineError):
        take_into(kv, handles)
    assert not handles[0].settled
    for header, body in kept:
        daemon.transports[0].push(header, body)

    with kv.batch() as batch:
        assert isinstance(handles[0](), Taken)
        batch.take(STANDING)

    assert kv.lengths([1, 2]).tolist() == [5, 5]
    assert daemon.batches() == 3
    kv.check()


def test_nothing_is_sent_while_an_answer_is_out(daemon: EngineDaemon, kv: Client) -> None:
    daemon.hook = late(daemon, [])
    with pytest.raises(DeadlineError):
        take(kv)
    before = daemon.batches()

    for call in (kv.ping, lambda: take(kv), lambda: kv.fact(StepAborted(1))):
        with pytest.raises(DeadlineError):
            call()

    assert daemon.batches() == before


def test_an_answer_to_an_earlier_sending_is_dropped(daemon: EngineDaemon, kv: Client) -> None:
    def twice(rank: int, header: Header, body: bytes) -> list[Answer] | None:
        return daemon.serve(rank, header, body) * 2 if header.kind is MessageKind.BATCH else None

    daemon.hook = twice
    take(kv)
    take(kv)
    kv.ping()

    assert kv.lengths([1, 2]).tolist() == [5, 5]


def test_answers_that_never_fit_poison_in_the_end(daemon: EngineDaemon, kv: Client) -> None:
    def strange(rank: int, header: Header, body: bytes) -> list[Answer] | None:
        answers = daemon.serve(rank, header, body)
        return [(Header(MessageKind.ACK, EPOCH, 1, 0, 0), body) for body in [answers[0][1]] * 20]

    daemon.hook = strange
    with pytest.raises(ReplyError, match="do not belong"):
        take(kv)
    with pytest.raises(PoisonedError):
        take(kv)


# ---- bad answers -----------------------------------------------------------------------------


def gap(header: Header, reply: BatchReply) -> Answer:
    return header, encode(BatchReply(reply.position + 1, reply.entries))


def short(header: Header, reply: BatchReply) -> Answer:
    return header, encode(BatchReply(reply.position, reply.entries[:-1]))


def alien(header: Header, reply: BatchReply) -> Answer:
    first = reply.entries[0]
    other = Entry(first.program, first.index + 5, first.digest, first.outcome)
    return header, encode(BatchReply(reply.position, (other, *reply.entries[1:])))


def garbage(header: Header, reply: BatchReply) -> Answer:
    return header, b"\xc1 garbage"


@pytest.mark.parametrize("change", [gap, short, alien, garbage])
def test_an_answer_that_cannot_be_right_poisons_and_applies_nothing(
    daemon: EngineDaemon, kv: Client, change: Callable[[Header, BatchReply], Answer]
) -> None:
    applied = kv.applied
    daemon.hook = tampered(daemon, change)

    with pytest.raises(ReplyError):
        take(kv)

    assert kv.applied == applied
    assert isinstance(decode_fact(daemon.facts[-1]), RankFailed)
    with pytest.raises(PoisonedError):
        take(kv)


def test_another_operation_than_ours_is_found_before_anything_is_applied(
    daemon: EngineDaemon, kv: Client
) -> None:
    def change(header: Header, reply: BatchReply) -> Answer:
        first = reply.entries[0]
        other = Entry(first.program, first.index, first.digest ^ 1, first.outcome)
        return header, encode(BatchReply(reply.position, (other, *reply.entries[1:])))

    applied, lengths = kv.applied, kv.lengths([1, 2]).tolist()
    daemon.hook = tampered(daemon, change)

    with pytest.raises(DivergedError, match="Take"):
        take(kv)

    assert kv.applied == applied
    assert kv.session.book.lengths(kv.session.book.rows([1, 2])).tolist() == lengths
    assert isinstance(decode_fact(daemon.facts[-1]), RankFailed)
    with pytest.raises(DivergedError) as again:
        take(kv)
    assert isinstance(again.value.__cause__, DivergedError)


def test_mirrored_ranks_that_ask_for_different_things_find_out() -> None:
    daemon = EngineDaemon(ranks=2)
    with daemon.attach(0) as first, daemon.attach(1) as second:
        admit(first, [1, 2])
        admit(second, [1, 2])
        take(first)

        with pytest.raises(KvdClientError, match="diverged") as caught, second.batch() as batch:
            batch.take(STANDING, 2)

        assert caught.value.code is ErrorCode.DIVERGED
        assert second.applied < first.applied


def test_mirrored_ranks_end_up_with_the_same_tables() -> None:
    daemon = EngineDaemon(ranks=2)
    with daemon.attach(0) as first, daemon.attach(1) as second:
        for ids in ([1, 2], [3]):
            admit(first, ids)
            take(first)
            admit(second, ids)
            take(second)

        assert first.applied == second.applied
        ids = [1, 2, 3]
        assert first.lengths(ids).tolist() == second.lengths(ids).tolist()
        assert (
            first.page_table("full", ids).values.tolist()
            == second.page_table("full", ids).values.tolist()
        )


# ---- errors that the daemon answers ----------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.FENCED, FencedError),
        (ErrorCode.RANK_LOST, RankLostError),
        (ErrorCode.DIVERGED, DivergedError),
        (ErrorCode.DRAINING, EndedError),
    ],
)
def test_the_end_of_the_incarnation_is_raised_by_every_later_call(
    daemon: EngineDaemon, kv: Client, code: ErrorCode, kind: type[EndedError]
) -> None:
    daemon.hook = lambda rank, header, body: daemon.error(rank, code, "rank 1 ended")
    handles: list[Handle[Taken]] = []
    with pytest.raises(kind, match="rank 1 ended"):
        take_into(kv, handles)
    sent = daemon.batches()

    for call in (kv.ping, lambda: take(kv), lambda: kv.launch().__enter__(), lambda: kv.rows([1])):
        with pytest.raises(kind, match="rank 1 ended") as caught:
            call()
        assert isinstance(caught.value.__cause__, kind)
        assert caught.value.code is code
    with pytest.raises(kind):
        handles[0]()
    assert daemon.batches() == sent


def test_a_refused_batch_leaves_everything_as_it_was(daemon: EngineDaemon, kv: Client) -> None:
    daemon.hook = lambda rank, header, body: daemon.error(rank, ErrorCode.TIMED_OUT, "rank 3 lags")
    handles: list[Handle[Taken]] = []
    with pytest.raises(RefusedError, match="rank 3 lags"):
        take_into(kv, handles)
    daemon.hook = None

    take(kv)

    assert kv.lengths([1, 2]).tolist() == [4, 4]
    with pytest.raises(RefusedError):
        handles[0]()


def test_a_device_that_fails_poisons_the_stub(daemon: EngineDaemon, kv: Client) -> None:
    def fail() -> None:
        raise InjectedError("the device fell over")

    kv.stream.submit(fail)
    with pytest.raises(DeviceError):
        kv.stream.synchronize(5_000)

    with pytest.raises(DeviceError):
        take(kv)

    with pytest.raises(PoisonedError, match="poisoned"):
        take(kv)
    assert isinstance(decode_fact(daemon.facts[-1]), RankFailed)


# ---- exceptions at every place ---------------------------------------------------------------


def own_code(frame: FrameType) -> bool:
    """Tell whether a frame is the client's own.

    Generator expressions are left out: closing a half-used one counts as a call, in which nothing
    can be raised that anybody would see.
    """
    path = frame.f_code.co_filename
    own = "/kvd_client/" in path and not path.endswith("/mock.py")
    return own and frame.f_code.co_name != "<genexpr>"


def raise_at(place: int, kind: str) -> tuple[Callable[..., Any], list[int]]:
    """Return a trace function that raises at the nth call or line of the client's code."""
    seen = [0]

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if not own_code(frame):
            return None
        if event == kind:
            seen[0] += 1
            if seen[0] == place:
                raise InjectedError(f"at {frame.f_code.co_qualname}:{frame.f_lineno}")
        return trace

    return trace, seen


def run_traced(kv: Client, place: int, kind: str) -> tuple[bool, int]:
    """Send one rich batch with an exception at a place; tell whether it was raised, and count."""
    trace, seen = raise_at(place, kind)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with kv.batch() as batch:
            batch.free([2])
            batch.advance([1], 3)
            batch.take([1], 5)
            batch.admit([3], prompt_tokens=[6], new_tokens_max=[4], take_tokens=[6])
            batch.standing(add=[3])
    except InjectedError:
        return True, seen[0]
    finally:
        sys.settrace(before)
    return False, seen[0]


def count_places(kind: str) -> int:
    kv = EngineDaemon(storage=STORAGE).attach()
    admit(kv, [1, 2])
    _, count = run_traced(kv, 0, kind)
    kv.close()
    return count


def check_places(kind: str, *, part: int, parts: int) -> None:
    outcomes = {"consistent": 0, "poisoned": 0}
    for place in range(1 + part, count_places(kind) + 1, parts):
        daemon = EngineDaemon(storage=STORAGE, level=CheckLevel.OFF)
        kv = daemon.attach()
        admit(kv, [1, 2])
        raised, _ = run_traced(kv, place, kind)
        assert raised, f"{kind} {place} was not reached"
        outcomes[outcome_after(daemon, kv, place)] += 1
        kv.close()
    print(f"{kind}s of part {part} of {parts}: {outcomes}")
    assert all(outcomes.values())


@pytest.mark.parametrize("part", range(4))
def test_an_exception_in_any_call_leaves_the_stub_consistent_or_poisoned(part: int) -> None:
    check_places("call", part=part, parts=4)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_an_exception_at_any_line_leaves_the_stub_consistent_or_poisoned(part: int) -> None:
    check_places("line", part=part, parts=16)


STORAGE = EngineDaemon().storage


def outcome_after(daemon: EngineDaemon, kv: Client, place: int) -> str:
    """Use the stub after an exception: it works and agrees with the engine, or it is poisoned."""
    try:
        take(kv)
    except PoisonedError:
        with pytest.raises(PoisonedError):
            kv.ping()
        assert isinstance(decode_fact(daemon.facts[-1]), RankFailed), f"place {place}: no report"
        return "poisoned"
    kv.check()
    assert kv.applied == daemon.incarnation.log.end_position, f"place {place}"
    rows = daemon.incarnation.engine.requests
    live = [request for request in (1, 2, 3) if request in rows_by_request(daemon)]
    assert kv.rows(live).tolist() == rows.names.rows_of(live).tolist(), f"place {place}"
    kv.stream.synchronize(5_000)
    return "consistent"


def rows_by_request(daemon: EngineDaemon) -> set[int]:
    return set(daemon.incarnation.engine.requests.rows.request_id.tolist()) - {0}


# ---- processes -------------------------------------------------------------------------------


@pytest.mark.case("128")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_cannot_use_the_client(kv: Client) -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        names: list[str] = []
        for call in (kv.ping, kv.close, lambda: kv.rows([1]), lambda: take(kv), kv.arena_array):
            try:
                call()
            except ForkedError:
                names.append("forked")
        os.write(write, " ".join(names).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        assert answer.read() == "forked forked forked forked forked"
    take(kv)


def test_wrong_use_in_a_late_answer_is_told_by_its_handle(daemon: EngineDaemon, kv: Client) -> None:
    kept: list[Answer] = []
    daemon.hook = late(daemon, kept)
    handles: list[Handle[Freed]] = []

    def free_nobody() -> None:
        with kv.batch() as batch:
            handles.append(batch.free([77]))

    with pytest.raises(DeadlineError):
        free_nobody()
    for header, body in kept:
        daemon.transports[0].push(header, body)

    take(kv)

    with pytest.raises(OperationError, match="77"):
        handles[0]()


def test_a_late_error_is_not_the_answer_to_the_next_request(
    daemon: EngineDaemon, kv: Client
) -> None:
    late = daemon.error(0, ErrorCode.BAD_ARGUMENT, "an earlier question was wrong")
    header, body = late[0]
    stale = Header(header.kind, header.epoch, header.token, header.index + 7, header.position)
    daemon.hook = lambda rank, asked, asked_body: [
        (stale, body),
        *daemon.serve(rank, asked, asked_body),
    ]

    take(kv)

    assert kv.lengths([1, 2]).tolist() == [4, 4]
