"""Calls of the driver without a context: errors with names, UUIDs, how arenas are allocated."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from cuda.bindings import driver as cu

from kvd_client.errors import DeviceError

UUID_PREFIX: Final = "GPU-"
DESCRIPTOR: Final = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
ON_DEVICE: Final = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE

_SUCCESS: Final = cu.CUresult.CUDA_SUCCESS
_PINNED: Final = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED


def call(what: str, answer: Sequence[Any]) -> Any:
    """Return what a call of the driver gave; raises DeviceError naming the call and its error."""
    if answer[0] != _SUCCESS:
        _, name = cu.cuGetErrorName(answer[0])
        shown = name.decode() if isinstance(name, bytes) else f"error {int(answer[0])}"
        raise DeviceError(f"{what}: {shown}")
    return answer[1] if len(answer) > 1 else None


def load_driver() -> None:
    """Load the driver, which may be called again; raises DeviceError where there is none."""
    try:
        answer = cu.cuInit(0)
    except RuntimeError as error:  # how cuda-bindings says that it finds no library of a driver
        said = " ".join(str(error).split())
        raise DeviceError(f"no driver of a GPU is installed here: {said}") from error
    call("cuInit", answer)


def visible_gpus() -> list[str]:
    """Return the UUIDs of the GPUs that this process sees, in the driver's order."""
    load_driver()
    count = call("cuDeviceGetCount", cu.cuDeviceGetCount())
    return [uuid_of(call("cuDeviceGet", cu.cuDeviceGet(place))) for place in range(count)]


def uuid_of(device: Any) -> str:
    """Return a GPU's UUID as ``nvidia-smi`` prints it."""
    raw: Any = call("cuDeviceGetUuid", cu.cuDeviceGetUuid(device))
    return f"{UUID_PREFIX}{UUID(bytes=bytes(raw.bytes))}"


def allocation_properties(place: int) -> Any:
    """Return what shareable memory of the GPU at a place is created with."""
    properties = cu.CUmemAllocationProp()
    properties.type = _PINNED
    properties.location.type = ON_DEVICE
    properties.location.id = place
    properties.requestedHandleTypes = DESCRIPTOR
    # So that a network card may register it.
    properties.allocFlags.gpuDirectRDMACapable = 1
    return properties
