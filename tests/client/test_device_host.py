"""Host memory: what it does beyond the port."""

import os
from collections.abc import Iterator

import pytest

from kvd_client.device.descriptors import create_memory
from kvd_client.device.host.memory import HostMemory
from kvd_client.errors import DeviceError
from tests.client.host_parts import in_fork

SIZE_BYTES = 8192


@pytest.fixture
def memory() -> Iterator[HostMemory]:
    fd = create_memory("arena", SIZE_BYTES)
    memory = HostMemory(fd, SIZE_BYTES, writable=True)
    os.close(fd)
    yield memory
    memory.close()


def test_closing_under_a_living_view_leaves_the_view_valid() -> None:
    fd = create_memory("arena", SIZE_BYTES)
    memory = HostMemory(fd, SIZE_BYTES, writable=True)
    os.close(fd)
    view = memory.bytes[:16]

    memory.close()
    view[3] = 9

    assert view[3] == 9
    with pytest.raises(DeviceError, match="closed"):
        _ = memory.bytes


def test_a_fork_cannot_use_a_memory(memory: HostMemory) -> None:
    assert in_fork(lambda: memory.buffer) == 0
