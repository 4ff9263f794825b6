"""The world of modelled devices: any order that the waits allow, and no race that goes unseen."""

import os

import numpy as np
import pytest

from kvd.errors import RaceError, WorkloadError
from kvd.testing.modelled.choice import Chooser, Favour, InOrder, Seeded
from kvd.testing.modelled.device import ModelledDevice, ModelledWork
from kvd.testing.modelled.shadow import NO_ACCESSES, Accesses, Grain
from kvd.testing.modelled.world import World
from kvd_client.device.descriptors import create_memory
from kvd_client.device.fences import FencePage, create_fence_page
from kvd_client.errors import DeviceError
from kvd_proto.errors import ErrorCode
from tests.simulate.programs import Program

SEEDS = range(40)
ONE = np.array([1], dtype=np.int64)
FIVE = np.array([5], dtype=np.int64)


# ---- order ----


@pytest.mark.parametrize("seed", SEEDS)
def test_streams_and_waits_are_respected_whatever_the_seed(seed: int) -> None:
    world = World(seed)
    program = Program(seed, world, length=120, touches=False)

    program.enqueue_all()
    world.run()

    place = {number: nth for nth, number in enumerate(program.ran)}
    assert len(place) == len(program.before)
    assert all(
        place[earlier] < place[number]
        for number, before in enumerate(program.before)
        for earlier in before
    )


def order_of(world_seed: int) -> list[int]:
    world = World(world_seed)
    program = Program(1, world, length=120, touches=False)
    program.enqueue_all()
    world.run()
    return program.ran


def test_the_same_seed_plays_the_same_order_and_others_play_others() -> None:
    assert order_of(1) == order_of(1)
    assert len({tuple(order_of(seed)) for seed in range(10)}) == 10


def test_nothing_runs_when_it_is_enqueued() -> None:
    world = World(1)
    ran: list[int] = []
    stream = ModelledDevice(world).stream("a")

    stream.submit(lambda: ran.append(1))
    event = stream.record()

    assert ran == []
    assert not event.reached
    assert world.step()
    assert ran == [1]


def test_a_weight_makes_a_stream_slow() -> None:
    world = World(Seeded(3, {"1/": 1}))
    ran: list[str] = []
    for name in ("0/f", "1/f"):
        stream = ModelledDevice(world).stream(name)
        for _ in range(50):
            stream.submit(lambda name=name: ran.append(name))

    world.advance(50)

    assert ran.count("1/f") < 5


def test_a_favoured_stream_runs_as_far_as_it_comes() -> None:
    world = World(Favour("b"))
    ran: list[str] = []
    device = ModelledDevice(world)
    one, other = device.stream("a"), device.stream("b")
    one.submit(lambda: ran.append("a1"))
    event = one.record()
    one.submit(lambda: ran.append("a2"))
    other.submit(lambda: ran.append("b1"))
    other.wait(event)
    other.submit(lambda: ran.append("b2"))

    world.run()

    assert ran == ["b1", "a1", "b2", "a2"]


def test_a_host_that_waits_can_leave_all_else_as_it_is() -> None:
    world = World(1, only_needed=True)
    ran: list[str] = []
    device = ModelledDevice(world)
    first, second, other = (device.stream(name) for name in ("first", "second", "other"))
    other.submit(lambda: ran.append("other"))
    first.submit(lambda: ran.append("first"))
    second.wait(first.record())
    second.submit(lambda: ran.append("second"))
    event = second.record()
    second.submit(lambda: ran.append("later"))

    event.synchronize(0)

    assert ran == ["first", "second"]


def test_a_deadlock_names_who_waits_for_what() -> None:
    world = World(1)
    device = ModelledDevice(world)
    stuck, behind = device.stream("stuck"), device.stream("behind")
    stuck.submit(ModelledWork("a kernel for ever", lambda: NO_ACCESSES, ready=lambda: False))
    behind.wait(stuck.record())
    behind.submit(lambda: None)

    with pytest.raises(DeviceError) as waiting:
        behind.record().synchronize(0)
    with pytest.raises(DeviceError) as running:
        world.run()

    assert waiting.value.code is running.value.code is ErrorCode.TIMED_OUT
    for error in (waiting.value, running.value):
        assert "deadlock" in error.message
        assert "a kernel for ever is held back" in error.message
        assert "'behind' waits for the event of stream 'stuck'" in error.message


def test_work_may_wait_for_another_stream_from_inside() -> None:
    world = World(1)
    device = ModelledDevice(world)
    outer, inner = device.stream("outer"), device.stream("inner")
    ran: list[str] = []
    inner.submit(lambda: ran.append("inner"))
    event = inner.record()

    def wait() -> None:
        event.synchronize(0)
        ran.append("outer")

    outer.submit(wait)
    world.run(Favour("outer"))

    assert ran == ["inner", "outer"]


# ---- races ----


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("length", [12, 25])
def test_a_race_is_found_exactly_where_no_order_connects_two_accesses(
    seed: int, length: int
) -> None:
    world = World(seed + 1)
    program = Program(seed, world, length=length, touches=True)

    found = False
    try:
        program.enqueue_all()
        world.run()
    except RaceError:
        found = True

    # A race can end the program early: then it has been there among what was enqueued.
    assert found == program.races()


def move_behind_zero(chooser: Chooser | int, *, waits: bool) -> World:
    """Zero a unit on one stream and move it on another; with ``waits`` in this order."""
    world = World(chooser)
    device = ModelledDevice(world)
    memory = device.allocate(4096)
    zeroing, moving = device.stream("zeroing"), device.stream("moving")
    world.note = "step 3"
    commands = device.commands(memory)
    commands.zero_units(base_bytes=0, unit_bytes=64, units=ONE)
    commands.write_words(offset_bytes=1024, values=(7, 0))
    zeroing.enqueue(commands)
    if waits:
        moving.wait(zeroing.record())
    commands = device.commands(memory)
    commands.move_units(base_bytes=0, unit_bytes=48, sources=ONE, destinations=FIVE)
    moving.enqueue(commands)
    return world


@pytest.mark.parametrize("seed", range(5))
def test_a_wait_between_two_accesses_is_enough(seed: int) -> None:
    move_behind_zero(seed, waits=True).run()


@pytest.mark.parametrize("chooser", [InOrder(), Favour("moving"), 1, 2, 3])
def test_a_missing_wait_is_a_race_though_the_order_was_harmless(chooser: Chooser | int) -> None:
    world = move_behind_zero(chooser, waits=False)

    with pytest.raises(RaceError) as race:
        world.run()

    # Both actions, their streams, what they belong to, and the bytes: units of 64 and of 48.
    for part in (
        "nothing orders",
        "stream 'moving' (step 3): move 1 units of 48 bytes",
        "stream 'zeroing' (step 3): zero 1 units of 64 bytes [up to words (7, 0)]",
        "bytes [64, 96)",
    ):
        assert part in race.value.message


def test_accesses_of_separate_bytes_do_not_race() -> None:
    world = World(1)
    device = ModelledDevice(world)
    memory = device.allocate(4096)
    for name, start_bytes in (("a", 0), ("b", 7)):
        commands = device.commands(memory)
        commands.zero_bytes(start_bytes=start_bytes, end_bytes=start_bytes + 7)
        device.stream(name).enqueue(commands)

    world.run()


def test_an_order_through_the_host_is_an_order() -> None:
    world = World(1)
    device = ModelledDevice(world)
    memory = device.allocate(64)
    one, other = device.stream("a"), device.stream("b")
    for stream in (one, other):
        commands = device.commands(memory)
        commands.zero_bytes(start_bytes=0, end_bytes=8)
        stream.enqueue(commands)
        # Only now does the host know that the work is over.
        stream.synchronize(0)

    assert world.idle


def test_a_poll_that_says_reached_is_an_order_too() -> None:
    world = World(1)
    device = ModelledDevice(world)
    memory = device.allocate(64)
    one, other = device.stream("a"), device.stream("b")
    commands = device.commands(memory)
    commands.zero_bytes(start_bytes=0, end_bytes=8)
    one.enqueue(commands)
    event = one.record()
    world.run()
    assert event.reached

    commands = device.commands(memory)
    commands.zero_bytes(start_bytes=0, end_bytes=8)
    other.enqueue(commands)

    world.run()


def test_work_that_ran_unseen_is_not_ordered_before_what_the_host_enqueues() -> None:
    world = World(1)
    device = ModelledDevice(world)
    memory = device.allocate(64)
    one, other = device.stream("a"), device.stream("b")
    commands = device.commands(memory)
    commands.zero_bytes(start_bytes=0, end_bytes=8)
    one.enqueue(commands)
    world.run()

    commands = device.commands(memory)
    commands.zero_bytes(start_bytes=0, end_bytes=8)
    other.enqueue(commands)

    with pytest.raises(RaceError):
        world.run()


def test_a_host_that_reads_before_it_waits_races() -> None:
    world = World(1)
    device = ModelledDevice(world)
    memory = device.allocate(64)
    memory.host_write(0, np.full(64, 9, dtype=np.uint8))
    stream = device.stream("a")
    commands = device.commands(memory)
    commands.zero_bytes(start_bytes=8, end_bytes=16)
    stream.enqueue(commands)

    assert memory.host_read(0, 8).tolist() == [9] * 8
    world.run()
    with pytest.raises(RaceError, match=r"read by the host reads.* bytes \[8, 16\)"):
        memory.host_read(0, 64)
    stream.synchronize(0)

    assert memory.host_read(8, 16).tolist() == [0] * 8


def test_two_mappings_of_one_memory_are_the_same_bytes() -> None:
    world = World(1)
    device = ModelledDevice(world)
    fd = create_memory("arena", 64)
    for name in ("a", "b"):
        commands = device.commands(device.map(fd, 64))
        commands.zero_bytes(start_bytes=0, end_bytes=8)
        device.stream(name).enqueue(commands)
    os.close(fd)

    with pytest.raises(RaceError):
        world.run()


# ---- death ----


def test_what_a_dead_process_did_not_run_never_runs() -> None:
    world = World(InOrder())
    dead, alive = ModelledDevice(world, rank="0"), ModelledDevice(world, rank="1")
    fd = create_fence_page("fence")
    page = FencePage(fd)
    os.close(fd)
    ran: list[str] = []
    stream = dead.stream("a", page.lane(0))
    stream.submit(lambda: ran.append("first"))
    stream.submit(lambda: ran.append("second"))
    event = stream.record()
    other = alive.stream("a")
    other.submit(lambda: ran.append("other"))
    world.step()

    dead.kill()
    world.run()

    assert ran == ["first", "other"]
    assert not event.reached
    # As a real one: begun and never done.
    assert page.lane(0).values() == (2, 2, 1)
    with pytest.raises(DeviceError, match="process of this stream died"):
        stream.submit(lambda: None)
    page.close()


def test_who_comes_after_a_dead_process_does_not_race_with_it() -> None:
    world = World(InOrder())
    dead, heir = ModelledDevice(world, rank="0"), ModelledDevice(world, rank="1")
    memory = dead.allocate(64)
    for device in (dead, heir):
        commands = device.commands(memory)
        commands.zero_bytes(start_bytes=0, end_bytes=64)
        device.stream("a").enqueue(commands)
        world.run()
        device.kill()


def test_a_death_says_nothing_about_what_the_dead_still_waited_for() -> None:
    world = World(InOrder())
    dead, alive = ModelledDevice(world, rank="0"), ModelledDevice(world, rank="1")
    memory = dead.allocate(64)
    waiting, writing = dead.stream("waiting"), alive.stream("writing")
    commands = alive.commands(memory)
    commands.zero_bytes(start_bytes=0, end_bytes=64)
    writing.enqueue(commands)
    waiting.wait(writing.record())
    waiting.submit(lambda: None)

    dead.kill()
    world.run()

    with pytest.raises(RaceError):
        memory.host_read(0, 64)


# ---- what callers do wrong ----


def test_an_array_that_changes_after_it_was_passed_fails_the_stream() -> None:
    world = World(1)
    device = ModelledDevice(world)
    memory = device.allocate(4096)
    stream = device.stream("a")
    units = np.array([1, 2], dtype=np.int64)
    commands = device.commands(memory)
    commands.zero_units(base_bytes=0, unit_bytes=64, units=units)
    stream.enqueue(commands)

    units[0] = 5

    with pytest.raises(DeviceError, match="changed after it was passed"):
        stream.synchronize(0)


def test_enqueued_commands_take_nothing_more() -> None:
    device = ModelledDevice(World(1))
    commands = device.commands(device.allocate(4096))
    device.stream("a").enqueue(commands)

    with pytest.raises(DeviceError, match="enqueued already"):
        commands.zero_bytes(start_bytes=0, end_bytes=8)


def test_work_has_to_say_what_it_touches_where_the_device_asks_for_it() -> None:
    stream = ModelledDevice(World(1), declares_only=True).stream("a")

    with pytest.raises(DeviceError, match="ModelledWork"):
        stream.submit(lambda: None)


def test_a_range_that_cuts_a_cell_is_refused() -> None:
    world = World(1)
    shadow = world.shadow((0, 0), 64, [Grain(64, 16)])
    read = Accesses(reads=(shadow.extent([8], 16),))

    with pytest.raises(DeviceError, match="finer grain"):
        world.host_access("read", lambda: None, read)


def test_cells_have_to_fill_their_part() -> None:
    with pytest.raises(WorkloadError, match="cells of 16 bytes"):
        World(1).shadow((0, 0), 40, [Grain(40, 16)])
