"""Copies on streams of their own, and network transfers that obey none."""

import numpy as np
import pytest

from kvd.errors import RaceError, WorkloadError
from kvd.testing.modelled.choice import InOrder
from kvd.testing.modelled.clock import STREAMS_COUNT_MAX
from kvd.testing.modelled.device import ModelledDevice, ModelledStream
from kvd.testing.modelled.memory import ModelledMemory
from kvd.testing.modelled.transfers import Network, copy_work
from kvd.testing.modelled.world import World
from kvd_client.errors import DeviceError
from kvd_proto.errors import ErrorCode

SIZE_BYTES = 256
UNIT_BYTES = 16


def filled(device: ModelledDevice) -> ModelledMemory:
    """Return memory whose unit ``i`` holds bytes ``i + 1``."""
    memory = device.allocate(SIZE_BYTES)
    memory.host_write(0, (np.arange(SIZE_BYTES) // UNIT_BYTES + 1).astype(np.uint8))
    return memory


def zero(device: ModelledDevice, memory: ModelledMemory, stream: ModelledStream) -> None:
    commands = device.commands(memory)
    commands.zero_bytes(start_bytes=0, end_bytes=SIZE_BYTES)
    stream.enqueue(commands)


# ---- copies ----


@pytest.mark.parametrize("seed", range(5))
def test_a_load_behind_the_allocator_brings_its_bytes(seed: int) -> None:
    world = World(seed)
    device = ModelledDevice(world)
    pool, memory = filled(device), device.allocate(SIZE_BYTES)
    allocator, load = device.stream("allocator"), device.stream("load")
    zero(device, memory, allocator)
    load.wait(allocator.record())

    load.submit(
        copy_work(
            "load",
            source=pool,
            source_starts=[0, 32],
            destination=memory,
            destination_starts=[64, 16],
            length_bytes=UNIT_BYTES,
        )
    )
    load.synchronize(0)

    assert memory.host_read(64, 80).tolist() == [1] * UNIT_BYTES
    assert memory.host_read(16, 32).tolist() == [3] * UNIT_BYTES


@pytest.mark.parametrize("seed", range(5))
def test_a_load_beside_the_zeroing_of_its_pages_is_a_race(seed: int) -> None:
    world = World(seed)
    device = ModelledDevice(world)
    pool, memory = filled(device), device.allocate(SIZE_BYTES)
    zero(device, memory, device.stream("allocator"))

    device.stream("load").submit(
        copy_work(
            "load of 1 unit",
            source=pool,
            source_starts=[0],
            destination=memory,
            destination_starts=[64],
            length_bytes=UNIT_BYTES,
        )
    )

    with pytest.raises(RaceError, match=r"load of 1 unit.* bytes \[64, 80\)"):
        world.run()


def test_ranges_of_a_copy_have_to_pair_up() -> None:
    memory = ModelledDevice(World(1)).allocate(SIZE_BYTES)

    with pytest.raises(WorkloadError, match="2 ranges cannot be copied to 1"):
        copy_work(
            "copy",
            source=memory,
            source_starts=[0, 16],
            destination=memory,
            destination_starts=[32],
            length_bytes=8,
        )


# ---- the network ----


def test_a_send_ships_what_was_there_and_ends() -> None:
    world = World(4)
    memory = filled(ModelledDevice(world))
    transfer = Network(world).send(memory, [16, 48], UNIT_BYTES)
    assert not transfer.ended

    transfer.wait(0)

    assert transfer.ended
    assert transfer.payload.tolist() == [[2] * UNIT_BYTES, [4] * UNIT_BYTES]


def test_a_receive_writes_what_the_peer_sent() -> None:
    world = World(4)
    memory = filled(ModelledDevice(world))
    content = np.full((1, UNIT_BYTES), 99, dtype=np.uint8)

    Network(world).receive(memory, [32], content).wait(0)

    assert memory.host_read(32, 48).tolist() == [99] * UNIT_BYTES


@pytest.mark.case("99")
def test_pages_reused_before_the_end_of_a_send_are_a_race() -> None:
    world = World(InOrder())
    device = ModelledDevice(world)
    memory = filled(device)
    allocator = device.stream("allocator")
    Network(world).send(memory, [16], UNIT_BYTES)
    # It may well have ended: nobody asked.
    world.run()

    zero(device, memory, allocator)

    with pytest.raises(RaceError, match="network/send 1"):
        world.run()


def test_pages_reused_behind_the_end_of_a_send_are_not() -> None:
    world = World(InOrder())
    device = ModelledDevice(world)
    memory = filled(device)
    transfer = Network(world).send(memory, [16], UNIT_BYTES)
    world.run()
    assert transfer.ended

    zero(device, memory, device.stream("allocator"))

    world.run()


def test_no_stream_orders_what_the_network_reads() -> None:
    world = World(InOrder())
    device = ModelledDevice(world)
    memory = device.allocate(SIZE_BYTES)
    allocator = device.stream("allocator")
    zero(device, memory, allocator)

    # Published before the host knows that the zeroing is over.
    Network(world).send(memory, [16], UNIT_BYTES)

    with pytest.raises(RaceError, match="network/send 1"):
        world.run()


def test_a_held_transfer_ends_when_it_is_let_go_and_not_before() -> None:
    world = World(1)
    memory = filled(ModelledDevice(world))
    transfer = Network(world).send(memory, [0], UNIT_BYTES, held=True)

    with pytest.raises(DeviceError, match=r"deadlock.*network/send 1.*held back") as late:
        transfer.wait(0)
    assert late.value.code is ErrorCode.TIMED_OUT
    transfer.let_go()
    transfer.wait(0)

    assert transfer.ended


def test_transfers_on_their_way_together_interleave() -> None:
    world = World(1)
    memory = filled(ModelledDevice(world))
    network = Network(world)
    sends = [network.send(memory, range(0, SIZE_BYTES, 16), UNIT_BYTES) for _ in range(2)]

    world.advance(16)

    assert all(0 < len(send.payload) < 16 for send in sends)


def test_more_transfers_than_a_world_has_streams_may_follow_each_other() -> None:
    world = World(1)
    memory = filled(ModelledDevice(world))
    network = Network(world)

    for _ in range(2 * STREAMS_COUNT_MAX):
        network.send(memory, [0], UNIT_BYTES).wait(0)


def test_a_transfer_that_nobody_saw_end_stays_apart_from_the_next_one() -> None:
    world = World(1)
    memory = filled(ModelledDevice(world))
    network = Network(world)
    line = np.zeros((1, UNIT_BYTES), dtype=np.uint8)
    network.receive(memory, [0], line)
    world.run()

    network.receive(memory, [0], line)

    with pytest.raises(RaceError):
        world.run()
