"""The calls of cuda-bindings that the probes need: context, memory, streams, kernels.

The bindings have no types, so this module is the one place that takes them as they are. Every call
of theirs returns a tuple whose first item is the error.
"""

import ctypes
import importlib
import os
import tempfile
from typing import Any, Final

from tests.gpu.probes.processes import Page

driver: Any = importlib.import_module("cuda.bindings.driver")

HOST_REGISTER_DEVICEMAP: Final = 2
STREAM_NON_BLOCKING: Final = 1
WAIT_GREATER_OR_EQUAL: Final = 0
REGISTERED_BYTES: Final = 4096

SOURCE: Final = r"""
typedef unsigned long long word;

/* One segment of moves: reads one region, writes another, one more in each word. */
extern "C" __global__ void copy_next(word *to, const word *from, long long words) {
    long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < words; i += stride)
        to[i] = from[i] + 1;
}

/* Counts in a word that the host sees, once per pause. */
extern "C" __global__ void count_up(volatile word *place, word base, long long steps,
                                    long long pause) {
    for (long long i = 1; i <= steps; i++) {
        *place = base + i;
        long long start = clock64();
        while (clock64() - start < pause) { }
    }
}

extern "C" __global__ void fill(word *to, long long words, word value) {
    long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < words; i += stride)
        to[i] = value;
}

/* Counts the words that do not hold the value; volatile, so that no cache answers for memory. */
extern "C" __global__ void check(const volatile word *from, long long words, word value,
                                 word *bad) {
    long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < words; i += stride)
        if (from[i] != value) atomicAdd(bad, 1ULL);
}

/* Each thread stores (i, i) at its own place, by one store of 16 bytes or by two of 8; apart is
   the clocks between the two, negative for one store. */
extern "C" __global__ void store_pairs(char *base, long long stride_bytes, long long steps,
                                       long long pause, long long apart) {
    word *place = (word *)(base + threadIdx.x * stride_bytes);
    for (long long i = 1; i <= steps; i++) {
        if (apart < 0) {
            asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};"
                         :: "l"(place), "l"(i), "l"(i) : "memory");
        } else {
            asm volatile("st.volatile.global.u64 [%0], %1;" :: "l"(place), "l"(i) : "memory");
            long long half = clock64();
            while (clock64() - half < apart) { }
            asm volatile("st.volatile.global.u64 [%0], %1;" :: "l"(place + 1), "l"(i) : "memory");
        }
        long long start = clock64();
        while (clock64() - start < pause) { }
    }
}
"""


def checked(result: tuple[Any, ...]) -> Any:
    """Return what a call returned besides its error; raises RuntimeError if that is none."""
    if int(result[0]) != 0:
        raise RuntimeError(f"the driver answered {result[0]!s}")
    if len(result) <= 2:
        return result[1] if len(result) == 2 else None
    return result[1:]


def find_device(ordinal: int) -> Any:
    """Return a GPU by CUDA's ordinal; makes no context."""
    checked(driver.cuInit(0))
    return checked(driver.cuDeviceGet(ordinal))


def bus_id(ordinal: int) -> str:
    """Return the PCI bus id of a GPU, by which NVML knows it; their ordinals may differ."""
    name: bytes = checked(driver.cuDeviceGetPCIBusId(32, find_device(ordinal)))
    return name.split(b"\0")[0].decode()


def open_gpu(ordinal: int) -> Any:
    """Make the primary context of a GPU current in this thread and return the device."""
    device = find_device(ordinal)
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
    return device


def compile_kernels(device: Any) -> bytes:
    """Compile `SOURCE` for a device; raises RuntimeError with the compiler's log."""
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
    attribute = driver.CUdevice_attribute
    major = checked(
        driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    )
    minor = checked(
        driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    )
    program = checked(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"probes.cu", 0, [], []))
    options = [f"--gpu-architecture=sm_{major}{minor}".encode()]
    outcome = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(outcome[0]) != 0:
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(f"the probes' kernels do not compile: {log.decode()}")
    cubin: bytes = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def share_kernels(ordinal: int) -> int:
    """Compile the kernels for a GPU, without a context, for processes started later.

    Returns a descriptor of their code.
    """
    with tempfile.TemporaryFile() as file:
        file.write(compile_kernels(find_device(ordinal)))
        file.flush()
        return os.dup(file.fileno())


class Kernels:
    """The kernels of `SOURCE`, loaded into the current context."""

    def __init__(self, descriptor: int) -> None:
        """Load from a descriptor, which others may read at the same time and which stays open."""
        code = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        self._module = checked(driver.cuModuleLoadData(code))
        self._functions: dict[str, Any] = {}

    def launch(
        self, name: str, stream: Any, shape: tuple[int, int], *arguments: tuple[int, Any]
    ) -> None:
        """Enqueue a kernel with (blocks, threads) and arguments as (value, ctypes type)."""
        if name not in self._functions:
            self._functions[name] = checked(driver.cuModuleGetFunction(self._module, name.encode()))
        blocks, threads = shape
        values = tuple(value for value, _ in arguments)
        types = tuple(kind for _, kind in arguments)
        checked(
            driver.cuLaunchKernel(
                self._functions[name], blocks, 1, 1, threads, 1, 1, 0, stream, (values, types), 0
            )
        )

    def copy_next(self, stream: Any, target: int, source: int, words_count: int) -> None:
        """Enqueue ``target[i] = source[i] + 1``."""
        arguments = (pointer(target), pointer(source), long(words_count))
        self.launch("copy_next", stream, (264, 256), *arguments)

    def count_up(self, stream: Any, place: int, base: int, steps: int, pause_clocks: int) -> None:
        """Enqueue one thread that stores ``base + 1`` to ``base + steps`` one after the other."""
        arguments = (pointer(place), word(base), long(steps), long(pause_clocks))
        self.launch("count_up", stream, (1, 1), *arguments)


def pointer(value: int) -> tuple[int, Any]:
    """Return an address as an argument of a kernel."""
    return value, ctypes.c_void_p


def long(value: int) -> tuple[int, Any]:
    """Return a signed 64-bit number as an argument of a kernel."""
    return value, ctypes.c_longlong


def word(value: int) -> tuple[int, Any]:
    """Return an unsigned 64-bit number as an argument of a kernel."""
    return value, ctypes.c_ulonglong


def new_stream() -> Any:
    """Return a stream that does not order itself with the default stream."""
    return checked(driver.cuStreamCreate(STREAM_NON_BLOCKING))


def register(page: Page) -> int:
    """Register a page with the current context and return its address on the device."""
    checked(driver.cuMemHostRegister(page.address, REGISTERED_BYTES, HOST_REGISTER_DEVICEMAP))
    return int(checked(driver.cuMemHostGetDevicePointer(page.address, 0)))


def write_word(stream: Any, address: int, value: int) -> None:
    """Enqueue a stream write of 64 bits."""
    checked(driver.cuStreamWriteValue64(stream, address, value, 0))


def wait_word(stream: Any, address: int, value: int) -> None:
    """Enqueue a stream wait until 64 bits are at or past a value."""
    checked(driver.cuStreamWaitValue64(stream, address, value, WAIT_GREATER_OR_EQUAL))


def is_idle(stream: Any) -> bool:
    """Return whether a stream has nothing left to do; raises RuntimeError for a failed one."""
    (error,) = driver.cuStreamQuery(stream)
    if error == driver.CUresult.CUDA_ERROR_NOT_READY:
        return False
    checked((error,))
    return True


def create_arena(ordinal: int, size_bytes: int) -> tuple[int, Any]:
    """Create memory of a GPU that can be shared; return its descriptor and its handle."""
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = ordinal
    properties.requestedHandleTypes = kind
    # As the product asks for it, where the GPU has it.
    properties.allocFlags.gpuDirectRDMACapable = checked(
        driver.cuDeviceGetAttribute(
            driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
            find_device(ordinal),
        )
    )
    handle = checked(driver.cuMemCreate(size_bytes, properties, 0))
    return int(checked(driver.cuMemExportToShareableHandle(handle, kind, 0))), handle


def import_arena(descriptor: int) -> Any:
    """Return the handle behind a descriptor, which stays open."""
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return checked(driver.cuMemImportFromShareableHandle(descriptor, kind))


def map_arena(handle: Any, size_bytes: int, ordinal: int) -> int:
    """Map a handle for reading and writing by one GPU and return the address."""
    address = int(checked(driver.cuMemAddressReserve(size_bytes, 0, 0, 0)))
    checked(driver.cuMemMap(address, size_bytes, 0, handle, 0))
    allow_access(address, size_bytes, ordinal)
    return address


def allow_access(address: int, size_bytes: int, ordinal: int) -> None:
    """Let a GPU read and write a mapped range."""
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = ordinal
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    checked(driver.cuMemSetAccess(address, size_bytes, [access], 1))
