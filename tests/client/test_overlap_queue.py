"""The launch queue: what is behind an open step's position is applied once its end is recorded."""

import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from kvd.testing.small_rank import FULL, STATE, outcome
from kvd_client import (
    Client,
    DeadlineError,
    DivergedError,
    Handle,
    KvdClientError,
    Mode,
    StepOrderError,
    UsageError,
)
from kvd_client import backlog as backlog_module
from kvd_client.cursor import Cursor
from kvd_client.device.host.stream import HostEvent, HostStream
from kvd_client.device.port import Commands
from kvd_proto.codec import encode
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import BatchEnd, Launch, Processed, Relief, StepAborted
from kvd_proto.outcomes import (
    FACT_PROGRAM,
    ClearSlots,
    Column,
    Done,
    Freed,
    Move,
    Outcome,
    WriteMap,
)
from tests.client.overlap_parts import Gates, assert_stalls, dirty, settle, units, zero
from tests.client.scripted_daemon import ScriptedDaemon, send

MOVE = outcome([Move(FULL, Column(0), Column(1))], columns=[[20], [30]])


@pytest.fixture
def daemon() -> ScriptedDaemon:
    return ScriptedDaemon()


@pytest.fixture
def kv(daemon: ScriptedDaemon) -> Iterator[Client]:
    with daemon.attach() as client:
        dirty(client)
        yield client


@pytest.fixture
def gates(kv: Client) -> Iterator[Gates]:
    with Gates() as gates:
        yield gates


def in_thread(call: Callable[[], object]) -> None:
    """Run a call in another thread and wait for it; what it raises is raised here."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


def bind(virtual: int, physical: int) -> Outcome:
    return outcome([WriteMap(FULL, Column(0), Column(1))], columns=[[virtual], [physical]])


# ---- queued until recorded ---------------------------------------------------------------------


@pytest.mark.case("56")
def test_a_batch_inside_a_launch_is_decided_at_once_and_applied_behind_it(
    daemon: ScriptedDaemon, kv: Client
) -> None:
    send(kv, daemon, bind(5, 40))
    position = kv.applied
    handles: list[Handle[Freed | Done]] = []

    def free_and_take() -> None:
        daemon.reliefs.extend([bind(5, 41), zero(20)])
        with kv.batch() as batch:
            handles.extend([batch.relief((0, 0)), batch.relief((0, 0))])

    with kv.launch() as step:
        in_thread(free_and_take)
        settle(kv.stream)

        assert [handle() for handle in handles] == [Done(), Done()]
        assert kv.applied == step.position == position
        assert kv.session.mirror.virtual_to_physical("full")[5] == 40
        assert units(kv, FULL)[20].all()
        kv.check()

    assert kv.applied == len(daemon.entries)
    assert kv.session.mirror.virtual_to_physical("full")[5] == 41
    settle(kv.stream)
    assert not units(kv, FULL)[20].any()


def test_what_waited_is_enqueued_in_order_and_as_one_submission(
    daemon: ScriptedDaemon, kv: Client, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueued: list[HostStream] = []
    enqueue = HostStream.enqueue

    def noted(stream: HostStream, commands: Commands) -> None:
        enqueued.append(stream)
        enqueue(stream, commands)

    monkeypatch.setattr(HostStream, "enqueue", noted)
    with kv.launch() as step:
        forward = gates.on(step.stream)
        for outcomes in ([MOVE], [zero(20)], [], [bind(5, 40), bind(5, 41)]):
            in_thread(partial(send, kv, daemon, *outcomes))
        assert not enqueued

    assert enqueued == [kv.stream]  # although it waits for the forward
    forward.open()
    settle(kv.stream)
    assert units(kv, FULL)[30].all()
    assert not units(kv, FULL)[20].any()
    assert kv.session.mirror.virtual_to_physical("full")[5] == 41
    assert daemon.positions[-4:] == [0, 0, 0, 0]  # what the daemon was told is what was enqueued


def test_what_waited_for_a_step_runs_behind_its_reads(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    with kv.launch() as step:
        forward = gates.on(step.stream)
        in_thread(lambda: send(kv, daemon, zero(20)))
    assert_stalls(kv.stream)
    forward.open()
    settle(kv.stream)
    assert not units(kv, FULL)[20].any()


def test_an_aborted_launch_lets_go_of_what_waited(daemon: ScriptedDaemon, kv: Client) -> None:
    def fail() -> None:
        with kv.launch():
            in_thread(lambda: send(kv, daemon, zero(20)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    settle(kv.stream)

    assert daemon.facts == [StepAborted(1)]
    assert kv.applied == len(daemon.entries)
    assert not units(kv, FULL)[20].any()


def test_a_step_does_the_launch_work_of_its_position_only(
    daemon: ScriptedDaemon, kv: Client
) -> None:
    seen: list[bool] = []
    clear = outcome([ClearSlots(Column(0))], columns=[[20]])

    def look() -> None:
        seen.append(bool(units(kv, STATE)[20].any()))

    with kv.launch() as step:
        in_thread(lambda: send(kv, daemon, clear))
        step.submit(look)
    with kv.launch() as step:
        step.submit(look)
    settle(kv.forward_stream)

    assert seen == [True, False]


def test_facts_and_pings_go_out_inside_a_launch(daemon: ScriptedDaemon, kv: Client) -> None:
    with kv.launch():
        in_thread(lambda: kv.fact(StepAborted(9)))
        in_thread(kv.ping)

    assert daemon.facts == [StepAborted(9)]


def test_applying_inside_a_launch_breaks_queue_until_recorded(
    daemon: ScriptedDaemon, kv: Client
) -> None:
    with kv.launch():
        in_thread(lambda: send(kv, daemon, zero(20)))
        with pytest.raises(
            KvdClientError, match=re.escape("step.queue_until_recorded: position 1")
        ):
            kv.session.cursor.drain()

    with kv.launch():
        kv.session.steps.open_position += 1
        with pytest.raises(KvdClientError, match=re.escape("step.queue_until_recorded: step 2")):
            kv.check()


def test_more_than_can_wait_is_refused_until_the_launch_ends(
    daemon: ScriptedDaemon, kv: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_module, "ENTRIES_MAX", 4)
    with kv.launch():
        in_thread(lambda: send(kv, daemon, zero(20)))
        with pytest.raises(UsageError, match="more than 4 entries"):
            in_thread(lambda: send(kv, daemon, zero(21), zero(22)))

    send(kv, daemon)
    settle(kv.stream)
    assert not units(kv, FULL)[22].any()


def test_processed_inside_its_own_launch_is_refused(kv: Client) -> None:
    def process() -> None:
        with kv.batch() as batch:
            batch.processed(1)

    with kv.launch(), pytest.raises(StepOrderError, match=re.escape("processed(1) inside")):
        in_thread(process)


def test_without_overlap_a_batch_inside_a_launch_is_refused(daemon: ScriptedDaemon) -> None:
    with (
        daemon.attach(overlap=False) as kv,
        kv.launch(),
        pytest.raises(StepOrderError, match="inside the launch"),
    ):
        send(kv, daemon)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Tell when a batch waits for the step that it reports as processed."""
    waiting = threading.Event()
    synchronize = HostEvent.synchronize

    def noted(event: HostEvent, timeout_ms: int) -> None:
        waiting.set()
        synchronize(event, timeout_ms)

    monkeypatch.setattr(HostEvent, "synchronize", noted)
    return waiting


def test_a_launch_waits_for_the_batch_of_another_thread(
    daemon: ScriptedDaemon, kv: Client, gates: Gates, waiting: threading.Event
) -> None:
    forward = gates.running_step(kv)
    thread = threading.Thread(target=lambda: send(kv, daemon, bind(5, 40), processed=1))
    thread.start()
    assert waiting.wait(5)
    threading.Timer(0.05, forward.open).start()

    with kv.launch() as step:
        assert step.position == len(daemon.entries) > 0
        assert kv.session.mirror.virtual_to_physical("full")[5] == 40

    thread.join(5)


def test_a_thread_that_does_not_let_go_is_a_deadline(
    daemon: ScriptedDaemon, kv: Client, gates: Gates, waiting: threading.Event
) -> None:
    forward = gates.running_step(kv)
    thread = threading.Thread(target=lambda: send(kv, daemon, processed=1))
    thread.start()
    assert waiting.wait(5)
    kv.deadline_ms = 50

    with pytest.raises(DeadlineError, match="another thread"):
        kv.ping()

    kv.deadline_ms = 5_000
    forward.open()
    thread.join(5)
    kv.ping()


def test_a_call_beside_one_that_takes_in_an_answer_does_not_take_it_for_interrupted(
    daemon: ScriptedDaemon, kv: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking, go_on = threading.Event(), threading.Event()
    take_in = Cursor.take_in

    def slowly(cursor: Cursor, *answer: Any) -> Any:
        taking.set()
        assert go_on.wait(5)
        return take_in(cursor, *answer)

    monkeypatch.setattr(Cursor, "take_in", slowly)
    with kv.launch():
        thread = threading.Thread(target=lambda: send(kv, daemon, zero(20)))
        thread.start()
        assert taking.wait(5)
        threading.Timer(0.05, go_on.set).start()
        assert kv.rows([]).tolist() == []
        thread.join(5)
    kv.ping()


# ---- decided without knowledge of the step -----------------------------------------------------


def test_a_free_between_position_and_notice_makes_later_effects_wait_for_the_end(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    forward = gates.running_step(kv)
    daemon.other()  # another program's free: no effects, and pages that are free at once

    send(kv, daemon, zero(20))  # headed by the notice, and takes one of those pages

    assert isinstance(daemon.batches[-1][0], Launch)
    assert_stalls(kv.stream)
    assert units(kv, FULL)[20].all()
    forward.open()
    settle(kv.stream)
    assert not units(kv, FULL)[20].any()


def test_effects_between_position_and_notice_wait_for_the_end(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    forward = gates.running_step(kv)
    daemon.other(zero(20))

    send(kv, daemon)

    assert_stalls(kv.stream)
    forward.open()
    settle(kv.stream)
    assert not units(kv, FULL)[20].any()


def test_only_what_was_decided_without_knowledge_waits(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    gates.running_step(kv)
    daemon.other(program=FACT_PROGRAM)
    send(kv, daemon, zero(20))
    daemon.other(zero(21))  # behind the notice: its books knew of the step
    send(kv, daemon, zero(22))
    settle(kv.stream)

    assert not units(kv, FULL)[20:23].any()


def test_of_two_steps_the_newer_is_waited_for(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    first, second = gates.running_step(kv), gates.running_step(kv)
    daemon.other()

    send(kv, daemon, zero(20))

    first.open()
    assert_stalls(kv.stream)
    second.open()
    settle(kv.stream)


def test_notices_of_several_steps_do_not_hide_each_other(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    first, _ = gates.running_step(kv), gates.running_step(kv)
    first.open()

    send(kv, daemon, zero(20))
    settle(kv.stream)

    assert not units(kv, FULL)[20].any()


# ---- followers ---------------------------------------------------------------------------------


@pytest.fixture
def follower(daemon: ScriptedDaemon) -> Iterator[Client]:
    with daemon.attach(Mode.FOLLOWER) as client:
        dirty(client)
        yield client


@pytest.mark.parametrize("recorded", [True, False])
def test_a_follower_knows_the_notice_by_the_leaders_records_or_waits(
    daemon: ScriptedDaemon, follower: Client, recorded: bool
) -> None:
    daemon.decide(Relief((0, 0)))
    follower.follow(1)
    daemon.reliefs.append(zero(20))
    record = daemon.decide(Launch(1, 1), Relief((0, 0)), BatchEnd())
    with Gates() as gates:
        with follower.launch(step=1, position=1) as step:
            step.reads_done()
            gates.on(step.stream)

        follower.follow(4, records=[record] if recorded else [])

        if recorded:
            settle(follower.stream)
        else:
            assert_stalls(follower.stream)
    settle(follower.stream)
    assert not units(follower, FULL)[20].any()


def test_a_follower_pulls_inside_a_launch_and_applies_behind_it(
    daemon: ScriptedDaemon, follower: Client
) -> None:
    daemon.decide(Relief((0, 0)))
    daemon.reliefs.extend([zero(20), zero(21)])
    record = daemon.decide(Relief((0, 0)), Launch(1, 1), Relief((0, 0)))
    with follower.launch(step=1, position=1):
        in_thread(lambda: follower.follow(3, records=[record]))
        assert follower.applied == 1
        in_thread(lambda: follower.follow(2))
    assert follower.applied == 3
    settle(follower.stream)
    assert not units(follower, FULL)[20].any()
    assert units(follower, FULL)[21].all()

    follower.follow(4)
    settle(follower.stream)
    assert not units(follower, FULL)[21].any()


def test_a_follower_inside_a_launch_is_told_if_the_log_ends_too_early(
    daemon: ScriptedDaemon, follower: Client
) -> None:
    daemon.decide(Relief((0, 0)))
    with (
        follower.launch(step=1, position=1),
        pytest.raises(StepOrderError, match=re.escape("follow(9)")) as caught,
    ):
        in_thread(lambda: follower.follow(9))

    assert caught.value.code is ErrorCode.STEP_IN_FLIGHT


def test_a_record_of_another_operation_is_found_inside_a_launch_too(
    daemon: ScriptedDaemon, follower: Client
) -> None:
    daemon.decide(Relief((0, 0)))
    daemon.decide(Relief((0, 0)))
    wrong = encode((0, 1, b"\x91" + encode(Processed(3))))
    with (
        pytest.raises(DivergedError),
        follower.launch(step=1, position=1),
    ):
        in_thread(lambda: follower.follow(2, records=[wrong]))
