"""Arenas the classic way: memory of a living process, opened through a handle of 64 bytes.

For places where descriptors are refused. The memory ends with the process that allocated it, which
has a context of its own; opening takes a quarter of a second; importers cannot register it with a
network card; and nobody can be kept from writing.
"""

from typing import Final, NamedTuple

from kvd_client.device.cuda.device import CudaDevice
from kvd_client.device.cuda.memory import CudaMemory, Mapping
from kvd_client.errors import DeviceError

GRAIN_BYTES: Final = 256
"""What the driver aligns memory to, and more than any kernel asks of an arena's start."""


class ClassicHandle(NamedTuple):
    """What another process needs to open an arena; serialise it field by field."""

    shared: bytes
    offset_bytes: int
    """Where the arena starts in what the handle opens."""
    size_bytes: int
    gpu_uuid: str


class ClassicArena:
    """An arena that this process owns and others may open."""

    def __init__(self, device: CudaDevice, size_bytes: int) -> None:
        """Allocate it, filled with zero; raises DeviceError."""
        if size_bytes <= 0:
            raise DeviceError(f"an arena needs a positive size, not {size_bytes} bytes")
        self._driver = device.driver
        self._driver.enter()
        self._address = self._driver.allocate(size_bytes)
        self.handle = ClassicHandle(
            self._driver.share_classic(self._address), 0, size_bytes, device.gpu_uuid
        )

    def close(self) -> None:
        """Free it; only when nobody has it open any more."""
        self._driver.enter()
        self._driver.free(self._address)


def open_classic(device: CudaDevice, handle: ClassicHandle) -> CudaMemory:
    """Map an arena of another process; raises DeviceError.

    The mapping behaves as one of a descriptor, but is always writable.
    """
    driver = device.driver
    if handle.gpu_uuid != device.gpu_uuid:
        raise DeviceError(f"the arena is on {handle.gpu_uuid}, this device is {device.gpu_uuid}")
    if handle.offset_bytes < 0 or handle.offset_bytes % GRAIN_BYTES or handle.size_bytes <= 0:
        raise DeviceError(
            f"no arena lies at byte {handle.offset_bytes} with {handle.size_bytes} bytes; "
            f"arenas start at multiples of {GRAIN_BYTES}"
        )
    driver.enter()
    base = driver.open_classic(handle.shared)
    mapping = Mapping(
        base + handle.offset_bytes, handle.size_bytes, lambda: driver.close_classic(base)
    )
    return CudaMemory(driver, mapping, handle.size_bytes, writable=True)
