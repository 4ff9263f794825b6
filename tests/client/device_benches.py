"""Devices side by side: what tests of the port need beyond the port, for each kind of device."""

import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvd.testing.modelled.device import ModelledDevice, ModelledWork
from kvd.testing.modelled.shadow import NO_ACCESSES
from kvd.testing.modelled.world import World
from kvd_client.device.descriptors import create_memory
from kvd_client.device.host.device import HostDevice
from kvd_client.device.port import Device, Memory, Stream
from tests.client.host_parts import Gate

SIZE_BYTES = 8192


class Bench(Protocol):
    """One kind of device, and how a test holds a stream up."""

    @property
    def device(self) -> Device: ...

    def occupy(self, stream: Stream) -> Callable[[], None]:
        """Hold up what is enqueued from here on, until what is returned is called."""
        ...


class HostBench:
    device = HostDevice()

    def occupy(self, stream: Stream) -> Callable[[], None]:
        gate = Gate()
        stream.submit(gate)
        return gate.open


class ModelledBench:
    def __init__(self, seed: int = 1) -> None:
        self.device = ModelledDevice(World(seed))

    def occupy(self, stream: Stream) -> Callable[[], None]:
        opened: list[bool] = []
        stream.submit(ModelledWork("held up", lambda: NO_ACCESSES, ready=lambda: bool(opened)))
        return lambda: opened.append(True)


BENCHES: dict[str, Callable[[], Bench]] = {"host": HostBench, "modelled": ModelledBench}


def new_memory(device: Device, size_bytes: int = SIZE_BYTES) -> Memory:
    fd = create_memory("arena", size_bytes)
    memory = device.map(fd, size_bytes)
    os.close(fd)
    return memory


def content_of(memory: Memory) -> npt.NDArray[np.uint8]:
    """Return the bytes of a memory as the host sees them."""
    return np.frombuffer(memory.buffer, dtype=np.uint8)
