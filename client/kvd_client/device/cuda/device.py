"""The CUDA device: arenas mapped from descriptors, streams, kernels loaded ahead of use."""

from typing import Final

from kvd_client.device.cuda.commands import CudaCommands
from kvd_client.device.cuda.driver import Driver
from kvd_client.device.cuda.event import EventPool
from kvd_client.device.cuda.lanes import LaneAddresses
from kvd_client.device.cuda.memory import CudaMemory, Mapping
from kvd_client.device.cuda.stream import CudaStream
from kvd_client.device.fences import Lane
from kvd_client.device.port import Memory
from kvd_client.errors import DeviceError

EVENTS_READY_COUNT: Final = 512
"""Events made ahead: a rank keeps the ends of 256 steps, and events between two streams."""


class CudaDevice:
    """One GPU of this process, in the context that torch and cupy use as well."""

    def __init__(self, driver: Driver) -> None:
        driver.enter()
        self._driver = driver
        self._pool = EventPool(driver, ready_count=EVENTS_READY_COUNT)
        self._lanes = LaneAddresses(driver)
        self._uploads = driver.new_stream()

    @property
    def takes_recipes(self) -> bool:
        """Return True: segments and replies of a known shape are added as a whole."""
        return True

    @property
    def name(self) -> str:
        """Return ``cuda``."""
        return "cuda"

    @property
    def gpu_uuid(self) -> str:
        """Return the GPU's UUID, by which the daemon knows where memory has to be."""
        return self._driver.gpu_uuid

    @property
    def driver(self) -> Driver:
        """Return the driver of the GPU."""
        return self._driver

    def map(self, descriptor: int, size_bytes: int, *, writable: bool = True) -> CudaMemory:
        """Map shareable memory, whose descriptor stays the caller's; raises DeviceError.

        A read-only mapping is enforced by the GPU: whoever writes to it loses the context.
        """
        if size_bytes <= 0:
            raise DeviceError(f"cannot map {size_bytes} bytes of descriptor {descriptor}")
        driver = self._driver
        driver.enter()
        grain = driver.granularity_bytes
        mapped_bytes = -(-size_bytes // grain) * grain
        address = driver.import_memory(descriptor, mapped_bytes, writable=writable)
        mapping = Mapping(address, size_bytes, lambda: driver.unmap_memory(address, mapped_bytes))
        return CudaMemory(driver, mapping, size_bytes, writable=writable)

    def stream(self, name: str, lane: Lane | None = None) -> CudaStream:
        """Start a stream; with a lane, each submission is counted there for other processes."""
        return self._stream(name, lane, None)

    def wrap(self, raw: int, name: str, lane: Lane | None = None) -> CudaStream:
        """Return an engine's stream as one of this device; it stays the engine's to end.

        ``raw`` is its integer: ``cuda_stream`` in torch, ``ptr`` in cupy.
        """
        return self._stream(name, lane, raw)

    def commands(self, memory: Memory) -> CudaCommands:
        """Return an empty list of commands on a memory that this device mapped."""
        if not isinstance(memory, CudaMemory):
            raise DeviceError(f"the CUDA device cannot work on a {type(memory).__name__}")
        return CudaCommands(memory)

    def _stream(self, name: str, lane: Lane | None, raw: int | None) -> CudaStream:
        return CudaStream(
            name,
            driver=self._driver,
            pool=self._pool,
            lanes=self._lanes,
            uploads=self._uploads,
            lane=lane,
            raw=raw,
        )


def cuda_device(gpu_uuid: str = "") -> CudaDevice:
    """Return a GPU by its UUID, or the first that this process sees.

    Loads cupy and cuda-bindings, makes the context and compiles the kernels, so an engine calls it
    once, early. Raises DeviceError for what is not there.
    """
    try:
        from kvd_client.device.cuda.real import CudaDriver
    except ImportError as error:
        raise DeviceError(
            f"the CUDA device needs cupy and cuda-bindings: {' '.join(str(error).split())}; "
            f"install kvd[cuda13] or kvd[cuda12]"
        ) from error
    return CudaDevice(CudaDriver(gpu_uuid))
