"""Operations that are wrong use: one clear error with the value each, and nothing is lost."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from kvd_client import STANDING, Admitted, Client, Taken
from kvd_client.calls import Batch
from kvd_client.errors import (
    ClosedError,
    KvdClientError,
    OperationError,
    StepOrderError,
    UnknownRequestError,
    UsageError,
)
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import Launch, Processed
from kvd_proto.outcomes import Failed, Freed, NotRun, Reason, Skipped, Verdict
from tests.e2e.daemon_process import DaemonProcess
from tests.e2e.ranks import CONTEXT_TOKENS, Ranks, admit
from tests.e2e.wire import peers

if TYPE_CHECKING:
    from kvd_client.results import Handle

Call = Callable[[Batch], object]


@pytest.fixture
def client(ranks: Ranks) -> Client:
    """Give a rank with requests 1 and 2 of 8 tokens each, and request 3, which is finished."""
    return prepare(ranks.attach())


def prepare(client: Client) -> Client:
    admit(client, [1, 2, 3])
    with client.batch() as batch:
        batch.standing(add=[1, 2])
        batch.free([3])
    return client


@pytest.fixture(scope="module")
def books_before(daemon: DaemonProcess) -> dict[str, Any]:
    """Return what the daemon's books say of every group of the fixture above."""
    with Ranks(daemon.address, "before") as ranks:
        prepare(ranks.attach())
        return books(daemon, "before")


@pytest.fixture
def unchanged(
    daemon: DaemonProcess, client: Client, ranks: Ranks, books_before: dict[str, Any]
) -> Iterator[None]:
    """Fail unless requests, rows and bands are afterwards what they were, and work goes on."""
    yield
    assert books(daemon, ranks.group) == books_before
    client.check()
    with client.batch() as batch:
        batch.advance(STANDING, 8)
        taken = batch.take(STANDING, 4)
        freed = batch.free([1, 2])
    assert isinstance(taken(), Taken)
    assert isinstance(freed(), Freed)
    client.stream.synchronize(5_000)


def books(daemon: DaemonProcess, group: str) -> dict[str, Any]:
    """Return what a stage holds, as statistics show it."""
    found = daemon.group(group)
    assert found is not None
    (stage,) = found["stages"]
    assert stage["broken_checks"] == {}
    # Not the holes: an idle program's stage draws its frontiers back over spare ones.
    kept = ("name", "live_units", "promised_units")
    return {
        "requests": stage["requests"],
        "bands": [{name: band[name] for name in kept} for band in stage["bands"]],
    }


def admit_one(request: int, **changes: Any) -> Call:
    """Return an admit of one request."""
    arguments: dict[str, Any] = {"prompt_tokens": [8], "new_tokens_max": [8]}
    return lambda batch: batch.admit([request], **(arguments | changes))


WRONG: list[tuple[str, Call, ErrorCode, str]] = [
    ("free unknown", lambda b: b.free([99]), ErrorCode.UNKNOWN_REQUEST, "request 99 "),
    ("free finished", lambda b: b.free([3]), ErrorCode.UNKNOWN_REQUEST, "request 3 "),
    ("free 0", lambda b: b.free([0]), ErrorCode.BAD_REQUEST_ID, "request id 0 "),
    ("free -7", lambda b: b.free([-7]), ErrorCode.BAD_REQUEST_ID, "request id -7 "),
    ("free twice", lambda b: b.free([1, 1]), ErrorCode.BAD_REQUEST_ID, "request 1 is named twice"),
    ("free one unknown", lambda b: b.free([1, 99]), ErrorCode.UNKNOWN_REQUEST, "request 99 "),
    ("take unknown", lambda b: b.take([99]), ErrorCode.UNKNOWN_REQUEST, "request 99 "),
    ("take finished", lambda b: b.take([3]), ErrorCode.UNKNOWN_REQUEST, "request 3 "),
    ("take 0", lambda b: b.take([0]), ErrorCode.BAD_REQUEST_ID, "request id 0 "),
    ("take -1", lambda b: b.take([-1]), ErrorCode.BAD_REQUEST_ID, "request id -1 "),
    ("take twice", lambda b: b.take([2, 2]), ErrorCode.BAD_REQUEST_ID, "request 2 is named twice"),
    ("take no token", lambda b: b.take([1], 0), ErrorCode.BAD_ARGUMENT, "take.tokens is 0"),
    ("take no token each", lambda b: b.take([1], [0]), ErrorCode.BAD_ARGUMENT, "0"),
    ("take beyond context", lambda b: b.take([1], 57), ErrorCode.BAD_ARGUMENT, "to 65 tokens"),
    ("take over context", lambda b: b.take([1], 65), ErrorCode.BAD_ARGUMENT, "take.tokens is 65"),
    ("take each beyond", lambda b: b.take([1, 2], [1, 99]), ErrorCode.BAD_ARGUMENT, "request 2 "),
    (
        "take standing, counts",
        lambda b: b.take(STANDING, [1, 1, 1]),
        ErrorCode.BAD_ARGUMENT,
        "take.tokens_each",
    ),
    ("advance unknown", lambda b: b.advance([99]), ErrorCode.UNKNOWN_REQUEST, "request 99 "),
    ("advance beyond", lambda b: b.advance([2], 9), ErrorCode.BAD_ARGUMENT, "computed 9 tokens"),
    ("advance nothing", lambda b: b.advance([2], 0), ErrorCode.BAD_ARGUMENT, "advance.tokens is 0"),
    ("admit again", admit_one(1), ErrorCode.BAD_REQUEST_ID, "request 1 is admitted already"),
    ("admit finished", admit_one(3), ErrorCode.BAD_REQUEST_ID, "request id 3 was used before"),
    ("admit 0", admit_one(0), ErrorCode.BAD_REQUEST_ID, "request id 0 "),
    ("admit -1", admit_one(-1), ErrorCode.BAD_REQUEST_ID, "request id -1 "),
    (
        "admit descending",
        lambda b: b.admit([6, 5], prompt_tokens=[1, 1], new_tokens_max=[1, 1]),
        ErrorCode.BAD_REQUEST_ID,
        "5 after 6",
    ),
    (
        "admit twice",
        lambda b: b.admit([5, 5], prompt_tokens=[1, 1], new_tokens_max=[1, 1]),
        ErrorCode.BAD_REQUEST_ID,
        "5 after 5",
    ),
    ("admit no prompt", admit_one(5, prompt_tokens=[0]), ErrorCode.BAD_ARGUMENT, "prompt_tokens"),
    (
        "admit takes more than the chunk",
        admit_one(5, prompt_tokens=[32], take_tokens=[17]),
        ErrorCode.BAD_ARGUMENT,
        "asks 17 tokens for request 5; at most 16",
    ),
    (
        "admit takes more than it is",
        admit_one(5, take_tokens=[17], chunk_tokens=32),
        ErrorCode.BAD_ARGUMENT,
        "asks 17 tokens for request 5; at most 8",
    ),
    (
        "admit negative chunk",
        admit_one(5, chunk_tokens=-2),
        ErrorCode.BAD_ARGUMENT,
        "chunk_tokens is -2",
    ),
    ("stand unknown", lambda b: b.standing([99]), ErrorCode.UNKNOWN_REQUEST, "request 99 "),
    ("stand finished", lambda b: b.standing([3]), ErrorCode.UNKNOWN_REQUEST, "request 3 "),
    ("stand 0", lambda b: b.standing([0]), ErrorCode.BAD_REQUEST_ID, "request id 0 "),
    ("stand again", lambda b: b.standing([1]), ErrorCode.BAD_REQUEST_ID, "1 "),
    ("unstand unknown", lambda b: b.standing([], [99]), ErrorCode.UNKNOWN_REQUEST, "99 "),
    ("relief negative", lambda b: b.relief([-1, 0, 0]), ErrorCode.BAD_ARGUMENT, "[-1, 0, 0]"),
]


@pytest.mark.parametrize(
    ("call", "code", "problem"),
    [case[1:] for case in WRONG],
    ids=[case[0] for case in WRONG],
)
@pytest.mark.usefixtures("unchanged")
def test_wrong_use_gets_one_error_with_the_value_and_changes_nothing(
    client: Client, call: Call, code: ErrorCode, problem: str
) -> None:
    with pytest.raises(OperationError) as wrong, client.batch() as batch:
        call(batch)

    assert wrong.value.code is code
    assert problem in wrong.value.message


UNSENT: list[tuple[Call, str]] = [
    (lambda b: b.take([1], -1), "-1 tokens are outside"),
    (lambda b: b.take([1], 1 << 31), f"{1 << 31} tokens are outside"),
    (lambda b: b.advance([1, 2], [1]), "1 token counts for 2 requests"),
    (lambda b: b.take([1], [-1]), "-1 is outside"),
    (lambda b: b.free(as_ids([1.5])), "is not a flat list of 64-bit integers"),
    (lambda b: b.free(as_ids([[1]])), "is not a flat list of 64-bit integers"),
    (lambda b: b.free([1 << 64]), "18446744073709551616"),
    (lambda b: b.free([(1 << 63) + 1]), "9223372036854775809"),
    (lambda b: b.free(as_ids(["1"])), "is not a flat list of 64-bit integers"),
    (lambda b: b.free(as_ids(np.array([True]))), "is not a flat list of 64-bit integers"),
    (admit_one(5, new_tokens_max=[-1]), "new_tokens_max: -1 is outside"),
    (admit_one(5, prompt_tokens=[1, 2]), "2 token counts for 1 requests"),
    (admit_one(5, prompt_tokens=[1 << 40]), f"{1 << 40} is outside"),
    (lambda b: b.relief([1]), "1 unit counts for bands"),
]


def as_ids(wrong: Any) -> list[int]:
    """Return what is no list of ids as what a careless caller takes for one."""
    return cast("list[int]", wrong)


@pytest.mark.parametrize(("call", "problem"), UNSENT)
def test_what_cannot_be_sent_is_refused_before_anything_is(
    client: Client, call: Call, problem: str
) -> None:
    position = client.applied

    with pytest.raises(UsageError) as wrong:
        send(client, lambda batch: batch.free([1]), call)

    assert problem in wrong.value.message
    assert client.applied == position
    assert client.rows([1, 2]).all()


def send(client: Client, *calls: Call) -> None:
    """Send a batch of several operations."""
    with client.batch() as batch:
        for call in calls:
            call(batch)


def test_a_double_free_in_one_batch_frees_once(
    daemon: DaemonProcess, ranks: Ranks, client: Client
) -> None:
    handles: list[Handle[Freed]] = []

    def free_thrice(batch: Batch) -> None:
        handles.extend([batch.free([1]), batch.free([1]), batch.free([2])])

    with pytest.raises(OperationError, match="request 1 ") as wrong:
        send(client, free_thrice)

    first, second, third = handles
    assert wrong.value.code is ErrorCode.UNKNOWN_REQUEST
    assert isinstance(first(), Freed)
    with pytest.raises(OperationError, match="request 1 "):
        second()
    with pytest.raises(OperationError, match="not run"):
        third()
    assert books(daemon, ranks.group)["requests"] == 1
    client.check()


def test_a_double_free_in_two_batches_frees_once(
    daemon: DaemonProcess, ranks: Ranks, client: Client
) -> None:
    with client.batch() as batch:
        batch.free([1])
    before = books(daemon, ranks.group)

    with pytest.raises(OperationError, match="request 1 "), client.batch() as batch:
        batch.free([1])

    assert books(daemon, ranks.group) == before


@pytest.mark.usefixtures("unchanged")
def test_an_exception_inside_the_block_sends_nothing(client: Client) -> None:
    position = client.applied

    with pytest.raises(ZeroDivisionError):
        send(client, lambda batch: batch.free([1]), lambda _: 1 // 0)

    assert client.applied == position


@pytest.mark.usefixtures("unchanged")
def test_tables_of_requests_that_are_unknown_or_finished_name_them(client: Client) -> None:
    for request in (99, 3, 0, -1):
        with pytest.raises(UnknownRequestError, match=f"request {request} "):
            client.page_table("full", [request])


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("step", [0, 1, 2, -1])
def test_processing_a_step_that_was_not_launched_is_refused(client: Client, step: int) -> None:
    with pytest.raises(StepOrderError, match=rf"processed\({step}\)"), client.batch() as batch:
        batch.processed(step)


UNDER_A_STEP: list[tuple[Call, str]] = [
    (lambda b: b.take([1]), "take"),
    (lambda b: b.free([1]), "free"),
    (admit_one(5), "admit"),
    (lambda b: b.relief([0, 0, 0]), "relief"),
    (lambda b: b.idle(), "idle"),
]


@pytest.mark.parametrize(("call", "what"), UNDER_A_STEP, ids=[what for _, what in UNDER_A_STEP])
def test_everything_may_be_asked_while_a_step_is_in_flight(
    client: Client, call: Call, what: str
) -> None:
    with client.launch() as step:
        step.submit(lambda: None)
    with client.batch() as batch:
        call(batch)
    with client.batch() as batch:
        batch.processed(1)


@pytest.mark.usefixtures("unchanged")
def test_launches_and_notices_out_of_order_are_refused(client: Client) -> None:
    with client.launch() as step:
        with pytest.raises(StepOrderError, match="inside the launch of step 1"):
            client.batch().__enter__()
        with pytest.raises(StepOrderError, match="inside the launch of step 1"):
            client.launch().__enter__()
    assert step.number == 1
    with pytest.raises(StepOrderError, match=r"before a batch reports processed\(1\)"):
        client.launch().__enter__()
    with pytest.raises(StepOrderError, match=r"processed\(2\): step 1 is next"):
        send(client, lambda batch: batch.processed(2))
    with pytest.raises(StepOrderError, match="notices head a batch"):
        send(client, lambda batch: batch.take([1]), lambda batch: batch.processed(1))
    with client.batch() as batch:
        batch.processed(1)
        batch.idle()
    with pytest.raises(StepOrderError, match=r"between idle\(\) and the next batch"):
        client.launch().__enter__()


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        (Launch(2, 0), "step 2 launched, the next step is 1"),
        (Launch(0, 0), "step 0 launched, the next step is 1"),
        (Launch(-1, 0), "step -1 launched"),
        (Processed(1), "step 1 processed, but no step is in flight, the newest was 0"),
        (Processed(0), "step 0 processed"),
        (Processed(1 << 62), f"step {1 << 62} processed"),
    ],
)
def test_the_daemon_checks_step_notices_too(
    daemon: DaemonProcess, group: str, operation: Any, problem: str
) -> None:
    with peers(daemon.address) as (peer,):
        peer.attach(group)

        reply = peer.batch(operation, Processed(7))

        failed, not_run, _ = (entry.outcome.result for entry in reply.entries)
        assert isinstance(failed, Failed)
        assert failed.code == "STEP_ORDER"
        assert problem in failed.message
        assert isinstance(not_run, NotRun)


@pytest.mark.usefixtures("unchanged")
def test_a_step_left_by_an_exception_is_reported_and_the_rank_goes_on(
    daemon: DaemonProcess, ranks: Ranks, client: Client
) -> None:
    with pytest.raises(ZeroDivisionError), client.launch():
        _ = 1 // 0

    with client.batch() as batch:
        batch.processed(1)

    found = daemon.group(ranks.group)
    assert found is not None
    assert found["stages"][0]["steps"] == {"launched": 1, "processed": 1, "aborted": 1}


@pytest.mark.usefixtures("unchanged")
def test_a_request_longer_than_the_context_is_told_that_it_never_fits(client: Client) -> None:
    with client.batch() as batch:
        admitted = batch.admit([7], prompt_tokens=[CONTEXT_TOKENS], new_tokens_max=[1])

    result = admitted()
    assert isinstance(result, Admitted)
    assert result.verdicts.tolist() == [Verdict.UNSCHEDULABLE]
    (refusal,) = result.refusals
    assert refusal.reason is Reason.TOO_LONG
    assert refusal.request == 7
    assert not refusal.waiting_helps


def test_when_all_rows_are_in_use_a_request_waits_and_fits_once_one_is_free(
    daemon: DaemonProcess, ranks: Ranks
) -> None:
    client = ranks.attach()
    rows = client.plan.row_count - 1
    admit(client, range(1, rows + 1), tokens=4)
    before = books(daemon, ranks.group)

    with client.batch() as batch:
        late = batch.admit([100], prompt_tokens=[4], new_tokens_max=[4], take_tokens=[4])
        skipped = batch.take([100], 4)

    result = late()
    assert isinstance(result, Admitted)
    assert result.verdicts.tolist() == [Verdict.WAIT]
    assert result.refusals[0].reason is Reason.NO_ROWS
    assert result.refusals[0].waiting_helps
    assert isinstance(skipped(), Skipped)
    assert books(daemon, ranks.group) == before

    with client.batch() as batch:
        batch.free([1])
        again = batch.admit([100], prompt_tokens=[4], new_tokens_max=[4], take_tokens=[4])
    fitting = again()
    assert isinstance(fitting, Admitted)
    assert fitting.verdicts.tolist() == [Verdict.FITS]


def test_after_close_every_call_says_so(client: Client) -> None:
    client.close()
    client.close()

    calls: list[Callable[[], object]] = [
        client.ping,
        lambda: client.batch().__enter__(),
        lambda: client.launch().__enter__(),
        lambda: client.rows([1]),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="was closed"):
            call()


def test_a_batch_over_the_frame_cap_is_refused_by_the_client_and_the_next_one_goes(
    client: Client,
) -> None:
    with pytest.raises(KvdClientError, match="over the daemon's cap of 65536") as wrong:
        send(client, lambda batch: batch.free(range(1, 10_000)))
    assert wrong.value.code is ErrorCode.FRAME_TOO_LARGE

    with client.batch() as batch:
        batch.free([1, 2])
