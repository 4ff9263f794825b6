"""The host device: arenas in shared memory of the host, streams played by threads.

It runs everywhere and behaves like a GPU where it matters: work is asynchronous, ordered within a
stream only, and visible to other processes through the same fence page.
"""

from kvd_client.device.fences import Lane
from kvd_client.device.host.commands import HostCommands
from kvd_client.device.host.memory import HostMemory
from kvd_client.device.host.stream import HostStream
from kvd_client.device.port import Device, Memory
from kvd_client.errors import DeviceError


class HostDevice:
    """Maps memfds and starts streams; it has no state of its own."""

    @property
    def takes_recipes(self) -> bool:
        """Return False: each effect is a call of numpy in any case."""
        return False

    @property
    def name(self) -> str:
        """Return ``host``."""
        return "host"

    @property
    def gpu_uuid(self) -> str:
        """Return an empty UUID: memory is the host's."""
        return ""

    def map(self, descriptor: int, size_bytes: int, *, writable: bool = True) -> HostMemory:
        """Map a descriptor, which stays the caller's to close; raises DeviceError."""
        return HostMemory(descriptor, size_bytes, writable=writable)

    def stream(self, name: str, lane: Lane | None = None) -> HostStream:
        """Start a stream; with a lane, each submission is counted there for other processes."""
        return HostStream(name, lane)

    def commands(self, memory: Memory) -> HostCommands:
        """Return an empty list of commands on a memory that this device mapped."""
        if not isinstance(memory, HostMemory):
            raise DeviceError(f"the host device cannot work on a {type(memory).__name__}")
        return HostCommands(memory)


def host_device() -> Device:
    """Return the host device."""
    return HostDevice()
