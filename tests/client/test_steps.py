"""Launches: order, notices, what is cleared before a forward, and steps left by an exception."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from kvd_client import (
    STANDING,
    Client,
    DeadlineError,
    DeviceError,
    Handle,
    PoisonedError,
    StepAborted,
    StepOrderError,
    Taken,
    UsageError,
)
from kvd_proto.codec import decode_fact, decode_operation, split_batch
from kvd_proto.control import Header, MessageKind
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import BatchEnd, Launch, Operation, Processed, RankFailed
from tests.client.engine_daemon import Answer, EngineDaemon
from tests.client.engine_daemon import admit_three_tokens_each as admit


@pytest.fixture
def kv(daemon: EngineDaemon) -> Iterator[Client]:
    with daemon.attach() as client:
        admit(client, [1, 2])
        yield client


def wait_for(event: threading.Event) -> None:
    event.wait(5)


def last_batch(daemon: EngineDaemon) -> list[Operation]:
    bodies = [body for header, body in daemon.transports[0].sent if header.kind == "batch"]
    return [decode_operation(one) for one in split_batch(bodies[-1])]


def test_notices_head_the_next_batch_and_its_end_closes_it(
    daemon: EngineDaemon, kv: Client
) -> None:
    position = kv.applied
    with kv.launch() as step:
        assert (step.number, step.position) == (1, position)

    with kv.batch() as batch:
        batch.processed(1)
        batch.take(STANDING)

    operations = last_batch(daemon)
    assert operations[0] == Launch(1, position)
    assert operations[1] == Processed(1)
    assert operations[-1] == BatchEnd()


def test_a_launch_costs_no_message(daemon: EngineDaemon, kv: Client) -> None:
    before = len(daemon.transports[0].sent)

    with kv.launch() as step:
        step.reads_done()

    assert len(daemon.transports[0].sent) == before


def test_work_runs_on_the_forward_stream_behind_the_effects(kv: Client) -> None:
    seen: list[int] = []
    slots = kv.write_slots("full", STANDING).values
    k, _ = kv.views(0)

    with kv.launch() as step:
        step.submit(lambda: seen.append(int(k[int(slots[0])].count_nonzero())))
    kv.stream.synchronize(5_000)

    assert seen == [0]


def test_state_slots_are_cleared_before_the_first_forward_that_uses_them(kv: Client) -> None:
    _, recurrent = kv.views(2)
    slot = int(kv.state_slots([1])[0])
    kv.stream.synchronize(5_000)
    recurrent[slot] = 7.0
    seen: list[bool] = []

    with kv.launch() as step:
        step.submit(lambda: seen.append(bool((recurrent[slot] == 0).all())))
    kv.stream.synchronize(5_000)

    assert seen == [True]


def test_the_next_launch_needs_the_last_step_processed(kv: Client) -> None:
    with kv.launch():
        pass

    with pytest.raises(StepOrderError, match=r"processed\(1\)") as caught:
        kv.launch().__enter__()

    assert caught.value.code is ErrorCode.STEP_IN_FLIGHT


def test_a_batch_may_go_on_while_a_step_is_in_flight(kv: Client) -> None:
    with kv.launch():
        pass

    with kv.batch() as batch:
        batch.take(STANDING)

    assert kv.lengths([1, 2]).tolist() == [4, 4]
    with kv.batch() as batch:
        batch.processed(1)
    with kv.launch() as step:
        assert step.number == 2


def test_a_batch_inside_a_launch_is_refused(kv: Client) -> None:
    with kv.launch(), pytest.raises(StepOrderError, match="inside the launch"):
        kv.batch().__enter__()


@pytest.mark.parametrize("step", [0, 2])
def test_a_notice_of_another_step_than_the_next_is_refused(kv: Client, step: int) -> None:
    with kv.launch():
        pass

    with pytest.raises(StepOrderError, match=f"processed\\({step}\\)"), kv.batch() as batch:
        batch.processed(step)


def test_nothing_is_launched_between_idle_and_the_next_batch(kv: Client) -> None:
    with kv.batch() as batch:
        batch.idle()

    with pytest.raises(StepOrderError, match="idle"):
        kv.launch().__enter__()

    with kv.batch() as batch:
        batch.take(STANDING)
    with kv.launch() as step:
        assert step.number == 1


def test_processed_waits_for_the_work_of_the_step(kv: Client) -> None:
    release, done = threading.Event(), threading.Event()

    def work() -> None:
        release.wait(5)
        done.set()

    with kv.launch() as step:
        step.submit(work)
    timer = threading.Timer(0.05, release.set)
    timer.start()
    with kv.batch() as batch:
        batch.processed(1)

    assert done.is_set()
    timer.join()


def test_processed_is_sent_once_the_step_is_over(daemon: EngineDaemon, kv: Client) -> None:
    release = threading.Event()
    kv.session.deadline_ms = 50
    with kv.launch() as step:
        step.submit(lambda: wait_for(release))
    before = daemon.batches()

    with pytest.raises(DeadlineError, match="step 1"), kv.batch() as batch:
        batch.processed(1)

    assert daemon.batches() == before
    with pytest.raises(DeadlineError, match="step 1"):
        kv.ping()
    assert daemon.batches() == before
    release.set()
    kv.session.deadline_ms = 5_000
    kv.ping()
    assert daemon.batches() == before + 1
    assert kv.session.steps.processed == 1


def test_a_launch_left_by_an_exception_is_reported_and_still_counts(
    daemon: EngineDaemon, kv: Client
) -> None:
    with pytest.raises(ZeroDivisionError), kv.launch():
        _ = 1 // 0

    assert decode_fact(daemon.facts[-1]) == StepAborted(1)
    with kv.batch() as batch:
        batch.processed(1)
        batch.take(STANDING)
    assert kv.lengths([1, 2]).tolist() == [4, 4]


def test_an_abort_that_cannot_be_reported_stays_due(daemon: EngineDaemon, kv: Client) -> None:
    def swallow(rank: int, header: Header, body: bytes) -> list[Answer] | None:
        return [] if header.kind is MessageKind.FACT else None

    daemon.hook = swallow
    with pytest.raises(ZeroDivisionError) as caught, kv.launch():
        _ = 1 // 0
    assert "could not be reported" in caught.value.__notes__[0]
    daemon.hook = None
    ((header, body),) = [one for one in daemon.transports[0].sent if one[0].kind == "fact"]
    for answer in daemon.serve(0, header, body):
        daemon.transports[0].push(*answer)

    with kv.batch() as batch:
        batch.processed(1)

    assert decode_fact(daemon.facts[-1]) == StepAborted(1)


def test_a_batch_behind_a_fact_that_was_lost_is_sent_by_the_next_call(
    daemon: EngineDaemon, kv: Client
) -> None:
    """Its block was left, so that it counts; whoever repeats it would take twice."""

    def swallow(rank: int, header: Header, body: bytes) -> list[Answer] | None:
        return [] if header.kind is MessageKind.FACT else None

    before = daemon.batches()
    handles: list[Handle[Taken]] = []

    def take_behind_a_fact() -> None:
        with kv.batch() as batch:
            kv.session.owe_fact(StepAborted(1))
            daemon.hook = swallow
            handles.append(batch.take(STANDING))

    with pytest.raises(DeadlineError):
        take_behind_a_fact()
    assert daemon.batches() == before
    assert not handles[0].settled

    daemon.hook = None
    header, body = daemon.transports[0].sent[-1]
    for answer in daemon.serve(0, header, body):
        daemon.transports[0].push(*answer)
    kv.ping()

    assert daemon.batches() == before + 1
    assert isinstance(handles[0](), Taken)
    with kv.batch() as batch:
        batch.take(STANDING)
    assert daemon.batches() == before + 2
    assert kv.lengths([1, 2]).tolist() == [5, 5]


def test_reads_are_declared_once_and_inside(kv: Client) -> None:
    with kv.launch() as step:
        step.reads_done()
        with pytest.raises(StepOrderError, match="already"):
            step.reads_done()

    with pytest.raises(StepOrderError, match="not being launched"):
        step.submit(lambda: None)


def test_a_forward_stream_of_its_own_runs_behind_the_effects_and_before_later_ones(
    kv: Client,
) -> None:
    forward = kv.device.stream("own", None)
    release = threading.Event()
    order: list[str] = []

    with kv.launch(forward) as step:
        step.submit(lambda: wait_for(release))
        step.submit(lambda: order.append("forward"))
    kv.stream.submit(lambda: order.append("allocator"))
    release.set()
    kv.stream.synchronize(5_000)

    assert order == ["forward", "allocator"]
    forward.close(5_000)


def test_a_failed_forward_ends_the_rank_with_its_cause(daemon: EngineDaemon, kv: Client) -> None:
    def fail() -> None:
        raise MemoryError("out of registers")

    with kv.launch() as step:
        step.submit(fail)

    with pytest.raises(DeviceError), kv.batch() as batch:
        batch.processed(1)

    with pytest.raises(PoisonedError, match="step 1 failed"):
        kv.ping()
    assert isinstance(decode_fact(daemon.facts[-1]), RankFailed)


def test_only_followers_name_step_and_position(kv: Client) -> None:
    with pytest.raises(UsageError, match="follower"):
        kv.launch(step=1, position=3).__enter__()


def test_lanes_show_that_everything_submitted_ran(kv: Client) -> None:
    kv.stream.synchronize(5_000)

    values = kv.fences.read_lanes()
    assert values[0].quiet
    assert values[0].begun > 0
    assert not np.array([lane.begun for lane in values[1:]]).any()
