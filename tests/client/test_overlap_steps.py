"""Several steps in flight: their order, their notices and write sets, and tables that go stale."""

import re
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvd.testing.small_rank import FULL, outcome
from kvd_client import (
    STANDING,
    Client,
    DeadlineError,
    Mode,
    PoisonedError,
    StepAborted,
    StepOrderError,
    UnknownRequestError,
    UsageError,
)
from kvd_client.calls import Ids
from kvd_client.ids import IterationIds, RunnerIds
from kvd_client.launch import Table
from kvd_client.results import Ragged, StampedArray, TableStamp
from kvd_client.steps import STEPS_IN_FLIGHT_MAX, StepBook
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import BatchEnd, Launch, Processed, Relief, WriteSet
from kvd_proto.outcomes import Column, Move
from tests.client.engine_daemon import EngineDaemon
from tests.client.engine_daemon import admit_three_tokens_each as admit
from tests.client.overlap_parts import Gates, dirty, zero
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


@pytest.fixture
def model() -> Iterator[Client]:
    """Return a client of a real engine, with two requests that have pages and states."""
    with EngineDaemon().attach(overlap=True) as client:
        admit(client, [1, 2])
        yield client


def made_at(table: Table) -> TableStamp | None:
    assert isinstance(table, Ragged | StampedArray)
    return table.made_at


def launch(kv: Client) -> None:
    with kv.launch() as step:
        step.reads_done()


# ---- order -------------------------------------------------------------------------------------


def test_steps_are_launched_before_earlier_ones_are_processed(
    daemon: ScriptedDaemon, kv: Client
) -> None:
    send(kv, daemon, zero(20))
    launch(kv)
    launch(kv)
    with kv.batch() as batch:
        batch.processed(1)
        batch.processed(2)
        batch.relief((0, 0))
    launch(kv)
    send(kv, daemon)

    assert daemon.batches[1:] == [
        [Launch(1, 2), Launch(2, 2), Processed(1), Processed(2), Relief((0, 0)), BatchEnd()],
        [Launch(3, 8), BatchEnd()],
    ]
    kv.check()


@pytest.mark.parametrize("step", [1, 3, 4])
def test_steps_are_processed_in_order_and_each_once(
    daemon: ScriptedDaemon, kv: Client, step: int
) -> None:
    for _ in range(3):
        launch(kv)
    send(kv, daemon, processed=1)

    with pytest.raises(StepOrderError, match="step 2 is next"), kv.batch() as batch:
        batch.processed(step)


def test_so_many_steps_are_in_flight_and_no_more(daemon: ScriptedDaemon, kv: Client) -> None:
    for _ in range(STEPS_IN_FLIGHT_MAX):
        launch(kv)

    with pytest.raises(StepOrderError, match=r"processed\(1\): 64 in flight") as caught:
        launch(kv)
    assert caught.value.code is ErrorCode.STEP_IN_FLIGHT

    send(kv, daemon, processed=1)
    launch(kv)
    assert kv.step == STEPS_IN_FLIGHT_MAX + 1


def test_without_overlap_one_step_is_in_flight(daemon: ScriptedDaemon) -> None:
    with daemon.attach(overlap=False) as kv:
        launch(kv)
        with pytest.raises(StepOrderError, match="without overlap"):
            launch(kv)


def test_processed_waits_for_its_own_step_and_not_for_the_next(
    daemon: ScriptedDaemon, kv: Client, gates: Gates
) -> None:
    first, _ = gates.running_step(kv), gates.running_step(kv)
    kv.session.deadline_ms = 50
    with pytest.raises(DeadlineError, match="step 1"):
        send(kv, daemon, processed=1)
    assert not daemon.batches

    first.open()
    kv.session.deadline_ms = 5_000
    send(kv, daemon)

    assert len(daemon.batches) == 2
    assert daemon.batches[0][:3] == [Launch(1, 0), Launch(2, 0), Processed(1)]


def test_a_launch_inside_a_launch_is_refused(kv: Client) -> None:
    with kv.launch(), pytest.raises(StepOrderError, match="inside the launch"):
        launch(kv)


def test_a_launch_interrupted_before_its_block_is_aborted(
    daemon: ScriptedDaemon, kv: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kv, "_send_report", interrupt)
    with pytest.raises(KeyboardInterrupt):
        kv.launch().__enter__()
    monkeypatch.undo()

    send(kv, daemon, zero(20))
    assert daemon.facts == [StepAborted(1)]
    assert daemon.batches[-1][0] == Launch(1, 0)
    assert kv.applied == len(daemon.entries)
    launch(kv)
    assert kv.step == 2


def test_a_launch_interrupted_half_way_poisons(kv: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StepBook, "begin", interrupt)
    with pytest.raises(KeyboardInterrupt):
        kv.launch().__enter__()

    with pytest.raises(PoisonedError, match="step 1 cannot be launched"):
        kv.ping()


# ---- write sets --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("writes", "kind", "requests"),
    [
        (None, WriteSet.UNKNOWN, []),
        (STANDING, WriteSet.REQUESTS, []),
        ([2, 1], WriteSet.REQUESTS, [1, 2]),
        (np.array([2], dtype=np.int64), WriteSet.REQUESTS, [2]),
    ],
)
def test_a_launch_states_what_its_forward_writes(
    model: Client, writes: Ids | None, kind: WriteSet, requests: list[int]
) -> None:
    with model.launch(writes=writes):
        pass

    encoded = np.array(requests, dtype="<i8").tobytes()
    assert model.session.steps.notices == [Launch(1, model.applied, kind, encoded)]


@pytest.mark.parametrize(
    ("writes", "error"),
    [([], UsageError), ([1, 1], UsageError), ([1, 9], UnknownRequestError)],
)
def test_a_write_set_that_cannot_be_stated_launches_nothing(
    model: Client, writes: list[int], error: type[Exception]
) -> None:
    with pytest.raises(error):
        model.launch(writes=writes).__enter__()

    assert not model.session.steps.notices
    with model.launch() as step:
        assert step.number == 1


def test_a_follower_states_no_write_set(daemon: ScriptedDaemon) -> None:
    with daemon.attach(Mode.FOLLOWER) as kv, pytest.raises(UsageError, match="follower"):
        kv.launch(step=1, position=0, writes=STANDING).__enter__()


# ---- resolved once -----------------------------------------------------------------------------

TABLES: dict[str, Callable[[Client], Table]] = {
    "write_slots": lambda kv: kv.write_slots("full", [1, 2]),
    "page_table": lambda kv: kv.page_table("full", [1, 2]),
    "block_table": lambda kv: kv.block_table("full", [1, 2]),
    "virtual_pages": lambda kv: kv.virtual_pages([1, 2]),
    "state_slots": lambda kv: kv.state_slots([1, 2]),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_asked_for_after_reads_done_break_resolved_once(model: Client, name: str) -> None:
    ask = TABLES[name]
    with model.launch() as step:
        ask(model)
        step.reads_done()
        with pytest.raises(StepOrderError, match=re.escape("ids.resolved_once: " + name)):
            ask(model)
    ask(model)


def test_buffers_are_not_filled_after_reads_done(model: Client) -> None:
    writes = IterationIds(model, tokens_max=8, rows_max=4)
    reads = RunnerIds(model, rows_max=4, columns_max=4)
    with model.launch() as step:
        writes.resolve(step, [1, 2])
        step.reads_done()
        with pytest.raises(StepOrderError, match=re.escape("ids.resolved_once: read ids")):
            reads.resolve(step, [1, 2])


def test_state_slots_of_a_step_stay_what_they_were(model: Client) -> None:
    with model.launch() as step:
        slots = step.state_slots([1, 2])
        assert slots.tolist() == model.state_slots([1, 2]).tolist()
        standing = step.state_slots(STANDING)
        step.reads_done()
        assert step.state_slots([1, 2]) is slots
        with pytest.raises(StepOrderError, match=re.escape("ids.resolved_once: state_slots")):
            step.state_slots([2])
    with model.batch() as batch:
        batch.processed(1)
        batch.free([1])
    admit(model, [3])

    assert step.state_slots([1, 2]) is slots
    assert step.state_slots(STANDING) is standing
    with pytest.raises(StepOrderError, match="not being launched"):
        step.state_slots([3])


# ---- stale tables ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_tables_carry_position_and_move_epoch(model: Client, name: str) -> None:
    table = TABLES[name](model)

    assert made_at(table) == TableStamp(model.applied, 0)
    with model.launch(tables=[table]):
        pass


def test_lists_unpack_into_values_and_borders(model: Client) -> None:
    values, indptr = model.page_table("full", [1, 2])

    assert len(indptr) == 3
    assert len(values) == indptr[-1]


def test_what_is_cut_from_a_stamped_array_is_stamped(model: Client) -> None:
    slots = model.state_slots([1, 2])

    assert made_at(slots[::-1]) == made_at(slots) == TableStamp(model.applied, 0)


def stale_table(kv: Client) -> Table:
    return kv.state_slots([])


def test_a_table_from_before_a_move_is_refused_with_both_named(
    daemon: ScriptedDaemon, kv: Client
) -> None:
    table = stale_table(kv)
    send(kv, daemon, zero(20))
    with kv.launch(tables=[table]):
        pass
    send(kv, daemon, MOVE, MOVE)

    expected = "made at position 0, move epoch 0, is stale for a launch at position 6, move epoch 2"
    with pytest.raises(StepOrderError, match=expected):
        kv.launch(tables=[stale_table(kv), table]).__enter__()

    with kv.launch(tables=[stale_table(kv)]) as step:
        assert step.number == 2


def test_a_table_from_behind_the_position_is_refused(daemon: ScriptedDaemon) -> None:
    with daemon.attach(Mode.FOLLOWER) as ahead, daemon.attach(Mode.FOLLOWER) as kv:
        daemon.decide(Relief((0, 0)))
        ahead.follow(1)

        with pytest.raises(StepOrderError, match=r"made at position 1, .* launch at position 0"):
            kv.launch(step=1, position=0, tables=[stale_table(ahead)]).__enter__()


def test_tables_of_an_open_step_are_those_of_its_position(
    daemon: ScriptedDaemon, kv: Client
) -> None:
    with kv.launch() as step:
        thread = threading.Thread(target=lambda: send(kv, daemon, MOVE))
        thread.start()
        thread.join(5)
        table = stale_table(kv)
        assert made_at(table) == TableStamp(step.position, 0)

    with pytest.raises(StepOrderError, match="stale"):
        kv.launch(tables=[table]).__enter__()


def test_an_array_without_a_stamp_is_no_table(kv: Client) -> None:
    with pytest.raises(UsageError, match="stamp"):
        kv.launch(tables=[np.zeros(3, dtype=np.int64)]).__enter__()
