"""Forwards beside the allocator's stream: what waits for what, and what does not."""

from collections.abc import Iterator

import pytest

from kvd.testing.small_rank import FULL, STATE, outcome
from kvd_client import Client
from kvd_client.device.fences import ALLOCATOR_LANE, FORWARD_LANE
from kvd_client.device.host.device import HostDevice
from kvd_client.device.host.stream import HostStream
from kvd_client.device.port import Event
from kvd_client.errors import ReplyError
from kvd_proto.control import Mode
from kvd_proto.memory import SizingInputs
from kvd_proto.operations import Launch, Processed, Relief, StepAborted
from kvd_proto.outcomes import ClearSlots, Column, Move, ResetRows, Wait
from tests.client.overlap_parts import (
    DIRT,
    Gates,
    assert_stalls,
    dirty,
    gate_on,
    settle,
    units,
    zero,
)
from tests.client.scripted_daemon import DEADLINE_MS, ScriptedDaemon, send


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


# ---- two streams -----------------------------------------------------------------------------


def test_effects_run_while_a_forward_whose_reads_are_done_runs(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    forward = gates.running_step(kv)
    assert forward.entered.wait(5)

    send(kv, daemon, zero(20))
    settle(kv.stream)

    assert not units(kv, FULL)[20].any()


def test_both_streams_have_their_lanes(kv: Client) -> None:
    with kv.launch() as step:
        step.submit(lambda: None)
    settle(kv.forward_stream)
    settle(kv.stream)

    lanes = kv.fences.read_lanes()
    assert lanes[ALLOCATOR_LANE].quiet
    assert lanes[ALLOCATOR_LANE].begun
    assert lanes[FORWARD_LANE].quiet
    assert lanes[FORWARD_LANE].begun == 1


def test_without_overlap_effects_and_forwards_share_a_stream(daemon: ScriptedDaemon) -> None:
    with daemon.attach(overlap=False) as kv:
        assert kv.forward_stream is kv.stream
        assert not kv.overlaps


@pytest.mark.parametrize(
    ("overlap", "sizing", "told"),
    [
        (True, None, True),
        (False, None, None),
        (True, SizingInputs(page_tokens=16), True),
        (True, SizingInputs(overlap=False), False),
    ],
)
def test_the_arena_is_sized_for_what_the_rank_does(
    daemon: ScriptedDaemon, overlap: bool, sizing: SizingInputs | None, told: bool | None
) -> None:
    daemon.attach(overlap=overlap, sizing=sizing).close()

    (hello,) = daemon.hellos
    assert hello.sizing.overlap is told
    assert hello.sizing.page_tokens == (sizing.page_tokens if sizing else None)


def test_a_forward_stream_of_the_engine_outlives_the_client(daemon: ScriptedDaemon) -> None:
    own = HostDevice().stream("engine")
    with daemon.attach(stream=own) as kv:
        assert kv.forward_stream is own
        assert kv.stream is not own
    own.submit(lambda: None)
    own.close(DEADLINE_MS)


def test_a_client_that_ends_lets_both_streams_run_dry(daemon: ScriptedDaemon) -> None:
    ran: list[str] = []
    with daemon.attach() as kv:
        with kv.launch() as step:
            step.submit(lambda: ran.append("forward"))
        kv.stream.submit(lambda: ran.append("allocator"))

    assert sorted(ran) == ["allocator", "forward"]


# ---- a forward waits for the effects up to its position, and for no more -----------------------


@pytest.mark.case("137")
def test_a_forward_waits_for_the_effects_of_its_position(
    daemon: ScriptedDaemon, kv: Client
) -> None:
    seen: list[bool] = []
    with gate_on(kv.stream):
        send(kv, daemon, zero(20))
        with kv.launch() as step:
            step.submit(lambda: seen.append(bool(units(kv, FULL)[20].any())))
        assert_stalls(kv.forward_stream)
    settle(kv.forward_stream)

    assert seen == [False]


def test_a_forward_does_not_wait_for_what_the_allocator_was_given_since(
    daemon: ScriptedDaemon, kv: Client
) -> None:
    send(kv, daemon, zero(20))
    with gate_on(kv.stream):
        with kv.launch():
            pass
        settle(kv.forward_stream)
        assert_stalls(kv.stream)


def test_the_first_forward_waits_for_the_tables_to_be_cleared(daemon: ScriptedDaemon) -> None:
    with daemon.attach() as kv:
        event = kv.session.applier.position_event
        assert event is not None
        event.synchronize(DEADLINE_MS)


# ---- effects wait for the end of the reads -----------------------------------------------------


@pytest.mark.case("56")
def test_effects_wait_until_tables_and_rows_are_read(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    with kv.launch() as step:
        reading = gates.on(step.stream)
        step.reads_done()
        gates.on(step.stream)

    send(kv, daemon, zero(20))

    assert_stalls(kv.stream)
    assert units(kv, FULL)[20].all()
    reading.open()
    settle(kv.stream)
    assert not units(kv, FULL)[20].any()


def test_a_step_that_declares_no_reads_is_waited_for_whole(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    with kv.launch() as step:
        step.reads_done()
    # This one forgets, whatever the one before declared.
    forward = gates.running_step(kv, reads_done=False)

    send(kv, daemon, zero(20))

    assert_stalls(kv.stream)
    forward.open()
    settle(kv.stream)
    assert not units(kv, FULL)[20].any()


def test_entries_without_effects_wait_for_nothing(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    gates.running_step(kv, reads_done=False)

    send(kv, daemon)
    settle(kv.stream)

    send(kv, daemon, zero(20))
    assert_stalls(kv.stream)


def test_an_aborted_step_is_waited_for_whole_whatever_it_declared(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    def fail() -> None:
        with kv.launch() as step:
            step.reads_done()
            gates.on(step.stream)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert daemon.facts == [StepAborted(1)]
    send(kv, daemon, zero(20))
    assert_stalls(kv.stream)
    gates.close()
    settle(kv.stream)

    assert isinstance(daemon.batches[-1][0], Launch)
    assert not units(kv, FULL)[20].any()


# ---- waits that effects ask for ----------------------------------------------------------------


def test_a_wait_for_a_step_waits_for_its_whole_end(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    forward = gates.running_step(kv)

    send(kv, daemon, outcome([Wait(1)]), zero(20))

    assert_stalls(kv.stream)
    forward.open()
    settle(kv.stream)
    assert not units(kv, FULL)[20].any()


def test_a_wait_for_a_step_does_not_wait_for_the_next(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    first, _ = gates.running_step(kv), gates.running_step(kv)
    first.open()

    send(kv, daemon, outcome([Wait(1)]), zero(20))
    settle(kv.stream)

    assert not units(kv, FULL)[20].any()


def test_effects_behind_a_launch_run_behind_the_whole_of_every_step_before_it(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    first = gates.running_step(kv)
    second = gates.running_step(kv)
    assert first.entered.wait(5)

    send(kv, daemon, zero(20))
    assert_stalls(kv.stream)
    assert units(kv, FULL)[20].all()

    first.open()
    assert second.entered.wait(5)
    settle(kv.stream)
    assert not units(kv, FULL)[20].any()


def test_a_wait_is_left_out_only_if_its_step_is_over(
    daemon: ScriptedDaemon, kv: Client, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[Event] = []
    wait = HostStream.wait

    def noted(stream: HostStream, event: Event) -> None:
        waits.append(event)
        wait(stream, event)

    monkeypatch.setattr(HostStream, "wait", noted)
    with kv.launch() as step:
        step.reads_done()
    settle(kv.forward_stream)
    settle(kv.stream)
    waits.clear()

    send(kv, daemon, outcome([Wait(1)]), zero(20))

    assert not waits
    settle(kv.stream)
    forward = gates.running_step(kv)
    assert forward.entered.wait(5)  # so the end of its reads is reached
    send(kv, daemon, outcome([Wait(2)]))
    assert len(waits) == 1
    send(kv, daemon, outcome([Wait(2)]))
    assert len(waits) == 1  # the stream waits for it already


def test_a_wait_for_a_step_that_was_never_launched_ends_the_rank(
    daemon: ScriptedDaemon, kv: Client
) -> None:
    with pytest.raises(ReplyError, match="waits for step 3"):
        send(kv, daemon, outcome([Wait(3)]))


def test_a_follower_that_was_led_past_a_step_has_nothing_to_wait_for(
    daemon: ScriptedDaemon,
) -> None:
    with daemon.attach(Mode.FOLLOWER) as kv:
        dirty(kv)
        daemon.reliefs.extend([outcome([Wait(1)]), zero(20)])
        record = daemon.decide(Launch(1, 0), Processed(1), Relief((0, 0)), Relief((0, 0)))

        kv.follow(4, records=[record])
        settle(kv.stream)

        assert not units(kv, FULL)[20].any()


# ---- work that is left to the launch -----------------------------------------------------------


def test_slots_are_cleared_on_the_forwards_stream_ahead_of_its_work(
    daemon: ScriptedDaemon, kv: Client
) -> None:
    seen: list[bool] = []
    send(kv, daemon, outcome([ClearSlots(Column(0)), ResetRows(Column(1))], columns=[[20], [3]]))
    settle(kv.stream)
    assert units(kv, STATE)[20].all()

    with gate_on(kv.stream):  # so that nobody else can have done it
        with kv.launch() as step:
            step.submit(lambda: seen.append(bool(units(kv, STATE)[20].any())))
        settle(kv.forward_stream)

    assert seen == [False]


def test_a_slot_moves_only_after_the_launch_cleared_it(daemon: ScriptedDaemon, kv: Client) -> None:
    move = outcome([Move(STATE, Column(0), Column(1))], columns=[[20], [30]])
    send(kv, daemon, outcome([ClearSlots(Column(0))], columns=[[20]]))
    with gate_on(kv.forward_stream):
        with kv.launch() as step:
            step.reads_done()
        send(kv, daemon, move)
        assert_stalls(kv.stream)
    settle(kv.stream)

    assert not units(kv, STATE)[30].any()


# ---- steps run in the order of their numbers ---------------------------------------------------


def test_steps_on_different_streams_run_one_after_the_other(kv: Client, gates: Gates) -> None:
    other = kv.device.stream("other")
    first = gates.running_step(kv)
    with kv.launch(other):
        pass
    assert_stalls(other)
    first.open()
    settle(other)
    other.close(DEADLINE_MS)


def test_a_failed_forward_is_found_by_the_effects_behind_it(
    daemon: ScriptedDaemon, kv: Client
) -> None:
    def fail() -> None:
        raise MemoryError("planted")

    with kv.launch() as step:
        step.submit(fail)
    send(kv, daemon, zero(20))
    with pytest.raises(Exception, match="planted"):
        settle(kv.stream)

    assert units(kv, FULL)[20].tolist() == [DIRT] * 128
