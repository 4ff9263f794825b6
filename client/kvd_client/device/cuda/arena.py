"""Creating shareable device memory: what the allocation helper does before it exits.

Needs cuda-bindings and neither cupy nor a context. Whoever holds the descriptor keeps the memory;
the process that created it is not needed any more.
"""

from typing import NamedTuple

from cuda.bindings import driver as cu

from kvd_client.device.cuda.calls import (
    DESCRIPTOR,
    allocation_properties,
    call,
    load_driver,
    uuid_of,
)
from kvd_client.errors import DeviceError


class Gpu(NamedTuple):
    """A GPU that this process sees."""

    uuid: str
    memory_bytes: int
    granularity_bytes: int


def list_gpus() -> list[Gpu]:
    """Return the visible GPUs in the driver's order; raises DeviceError without a driver."""
    load_driver()
    smallest = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    gpus: list[Gpu] = []
    for place in range(call("cuDeviceGetCount", cu.cuDeviceGetCount())):
        device = call("cuDeviceGet", cu.cuDeviceGet(place))
        memory_bytes = call("cuDeviceTotalMem", cu.cuDeviceTotalMem(device))
        granularity_bytes = call(
            "cuMemGetAllocationGranularity",
            cu.cuMemGetAllocationGranularity(allocation_properties(place), smallest),
        )
        gpus.append(Gpu(uuid_of(device), int(memory_bytes), int(granularity_bytes)))
    return gpus


def create_arena(gpu_uuid: str, size_bytes: int) -> int:
    """Return the descriptor of fresh memory of at least so many bytes; contents are unknown.

    The memory goes with the last descriptor and the last mapping. Raises DeviceError.
    """
    gpus = list_gpus()
    place = next((place for place, gpu in enumerate(gpus) if gpu.uuid == gpu_uuid), None)
    if place is None or size_bytes <= 0:
        raise DeviceError(
            f"cannot create {size_bytes} bytes on GPU {gpu_uuid!r}; visible are "
            f"{[gpu.uuid for gpu in gpus]}"
        )
    grain = gpus[place].granularity_bytes
    handle = call(
        f"cuMemCreate of {size_bytes} bytes",
        cu.cuMemCreate(-(-size_bytes // grain) * grain, allocation_properties(place), 0),
    )
    try:
        return int(
            call(
                "cuMemExportToShareableHandle",
                cu.cuMemExportToShareableHandle(handle, DESCRIPTOR, 0),
            )
        )
    finally:
        cu.cuMemRelease(handle)
