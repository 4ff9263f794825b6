"""The driver itself: `cuda.bindings` for calls, cupy for compiling the kernels.

Importing this module loads both, so only who asks for a CUDA device imports it.
"""

import ctypes
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import cupy
from cuda.bindings import driver as cu

from kvd_client.device.cuda.calls import (
    DESCRIPTOR,
    ON_DEVICE,
    allocation_properties,
    call,
    visible_gpus,
)
from kvd_client.device.cuda.driver import Handle
from kvd_client.device.cuda.kernel_calls import new_capture_check, new_launcher
from kvd_client.device.cuda.submission import MOVE_THREADS, THREADS
from kvd_client.errors import DeviceError

SOURCE_FILE: Final = Path(__file__).with_name("kernels.cu")

_NOT_READY: Final = cu.CUresult.CUDA_ERROR_NOT_READY
_READ: Final = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
_READ_WRITE: Final = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_NON_BLOCKING: Final = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
_UNTIMED: Final = int(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING)
_SHARED: Final = _UNTIMED | int(cu.CUevent_flags.CU_EVENT_INTERPROCESS)
_BEHIND_WRITES: Final = int(cu.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT)
_AT_OR_BEHIND: Final = int(cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
_MAPPED: Final = cu.CU_MEMHOSTREGISTER_DEVICEMAP | cu.CU_MEMHOSTREGISTER_PORTABLE
_PORTABLE: Final = cu.CU_MEMHOSTALLOC_PORTABLE
_LAZY_PEERS: Final = int(cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
_MULTIPROCESSORS: Final = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT

_KERNELS: Final = {
    (False, True): "kvd_apply_inline",
    (False, False): "kvd_apply_staged",
    (True, True): "kvd_move_inline",
    (True, False): "kvd_move_staged",
}
"""By whether they move units, and whether the submission is the argument."""


class _Foreign:
    """A stream in the protocol by which libraries take each other's."""

    def __init__(self, raw: int) -> None:
        self._raw = raw

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version and the stream."""
        return 0, self._raw


class CudaDriver:
    """One GPU; see `kvd_client.device.cuda.driver.Driver`, whose methods these are."""

    def __init__(self, gpu_uuid: str) -> None:
        """Open a GPU by UUID, or the first if it is empty, and load the kernels."""
        gpus = visible_gpus()
        wanted = gpu_uuid or (gpus[0] if gpus else "")
        if wanted not in gpus:
            raise DeviceError(f"no GPU {wanted or 'at all'} here; visible are {gpus or 'none'}")
        place = gpus.index(wanted)
        self._gpu_uuid = wanted
        self._place = place
        self._device = call("cuDeviceGet", cu.cuDeviceGet(place))
        self._context = call("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(self._device))
        self._threads = threading.local()
        self._cupy_streams: dict[int, Any] = {}
        self.enter()
        self._multiprocessor_count = int(
            call("cuDeviceGetAttribute", cu.cuDeviceGetAttribute(_MULTIPROCESSORS, self._device))
        )
        self._granularity_bytes = int(
            call(
                "cuMemGetAllocationGranularity",
                cu.cuMemGetAllocationGranularity(
                    allocation_properties(place),
                    cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM,
                ),
            )
        )
        with cupy.cuda.Device(place):
            module = cupy.RawModule(
                code=SOURCE_FILE.read_text(encoding="ascii"), options=("-std=c++17",)
            )
            self._module = module
            self._kernels = {
                (moves, inline): cu.CUfunction(module.get_function(name).kernel.ptr)
                for (moves, inline), name in _KERNELS.items()
            }
        self._reader = self.new_stream()

    @property
    def gpu_uuid(self) -> str:
        """Return the GPU's UUID as ``nvidia-smi`` prints it."""
        return self._gpu_uuid

    @property
    def multiprocessor_count(self) -> int:
        """Return how many multiprocessors run blocks."""
        return self._multiprocessor_count

    @property
    def granularity_bytes(self) -> int:
        """Return the multiple that shareable memory comes in."""
        return self._granularity_bytes

    def enter(self) -> None:
        """Make the context current in this thread, unless it is so already."""
        if getattr(self._threads, "entered", False):
            return
        call("cuCtxSetCurrent", cu.cuCtxSetCurrent(self._context))
        self._threads.entered = True

    # ---- memory -------------------------------------------------------------------------------

    def import_memory(self, descriptor: int, size_bytes: int, *, writable: bool) -> int:
        """Map shareable memory and return its address; the size is a multiple of granularity."""
        handle = call(
            "cuMemImportFromShareableHandle",
            cu.cuMemImportFromShareableHandle(descriptor, DESCRIPTOR),
        )
        try:
            address = call("cuMemAddressReserve", cu.cuMemAddressReserve(size_bytes, 0, 0, 0))
            try:
                call("cuMemMap", cu.cuMemMap(address, size_bytes, 0, handle, 0))
                access = cu.CUmemAccessDesc()
                access.location.type = ON_DEVICE
                access.location.id = self._place
                access.flags = _READ_WRITE if writable else _READ
                call("cuMemSetAccess", cu.cuMemSetAccess(address, size_bytes, [access], 1))
            except BaseException:
                # What is not mapped cannot be unmapped; the range is freed in either case.
                cu.cuMemUnmap(address, size_bytes)
                cu.cuMemAddressFree(address, size_bytes)
                raise
        finally:
            # The mapping keeps the memory alive from here on.
            cu.cuMemRelease(handle)
        return int(address)

    def unmap_memory(self, address: int, size_bytes: int) -> None:
        """Wait until the context is idle, then undo `import_memory`."""
        self.enter()
        # A kernel that still ran on the range would end every later call of this process.
        call("cuCtxSynchronize", cu.cuCtxSynchronize())
        call("cuMemUnmap", cu.cuMemUnmap(address, size_bytes))
        call("cuMemAddressFree", cu.cuMemAddressFree(address, size_bytes))

    def allocate(self, size_bytes: int) -> int:
        """Return the address of fresh device memory, filled with zero."""
        address = int(call("cuMemAlloc", cu.cuMemAlloc(size_bytes)))
        call("cuMemsetD8", cu.cuMemsetD8(address, 0, size_bytes))
        return address

    def free(self, address: int) -> None:
        """Give memory of `allocate` back."""
        call("cuMemFree", cu.cuMemFree(address))

    def allocate_host(self, size_bytes: int) -> int:
        """Return the host address of fresh page-locked memory."""
        return int(call("cuMemHostAlloc", cu.cuMemHostAlloc(size_bytes, _PORTABLE)))

    def free_host(self, host_address: int) -> None:
        """Give memory of `allocate_host` back."""
        call("cuMemFreeHost", cu.cuMemFreeHost(host_address))

    def register(self, host_address: int, size_bytes: int) -> int:
        """Register host memory that exists already; returns the address that streams use."""
        call("cuMemHostRegister", cu.cuMemHostRegister(host_address, size_bytes, _MAPPED))
        return int(call("cuMemHostGetDevicePointer", cu.cuMemHostGetDevicePointer(host_address, 0)))

    def unregister(self, host_address: int) -> None:
        """Undo `register`."""
        call("cuMemHostUnregister", cu.cuMemHostUnregister(host_address))

    def read(self, address: int, size_bytes: int) -> bytes:
        """Return bytes of device memory; blocks for a copy, behind no stream's work."""
        target = bytearray(size_bytes)
        view = memoryview(target)
        call(
            "cuMemcpyDtoHAsync",
            cu.cuMemcpyDtoHAsync(_address_of(view), address, size_bytes, self._reader),
        )
        call("cuStreamSynchronize", cu.cuStreamSynchronize(self._reader))
        return bytes(view)

    # ---- streams and events -------------------------------------------------------------------

    def new_stream(self) -> Handle:
        """Return a new stream, which never waits for the legacy default stream."""
        return call("cuStreamCreate", cu.cuStreamCreate(_NON_BLOCKING))

    def known_stream(self, raw: int) -> Handle:
        """Return the handle of somebody else's stream."""
        return cu.CUstream(raw)

    def raw_stream(self, stream: Handle) -> int:
        """Return a stream as the integer that torch and cupy take."""
        return int(stream)

    @contextmanager
    def current(self, stream: Handle) -> Generator[None]:
        """Make a stream the one that torch and cupy enqueue on in this thread."""
        raw = int(stream)
        with ExitStack() as stack:
            stack.enter_context(cupy.cuda.Device(self._place))
            stack.enter_context(self._for_cupy(raw))
            # Whoever has not loaded torch has no tensors, and need not pay for it.
            torch: Any = sys.modules.get("torch")
            if torch is not None:
                stack.enter_context(
                    torch.cuda.stream(torch.cuda.ExternalStream(raw, device=self._place))
                )
            yield
        if torch is None and "torch" in sys.modules:
            raise DeviceError(
                "submitted work imported torch, whose operations then ran on another stream; "
                "import torch before"
            )

    def _for_cupy(self, raw: int) -> Any:
        """Return a stream as cupy takes it: from 14.2 on through the CUDA stream protocol."""
        known = self._cupy_streams.get(raw)
        if known is None:
            if hasattr(cupy.cuda.Stream, "from_external"):
                known = cupy.cuda.Stream.from_external(_Foreign(raw))
            else:
                known = cupy.cuda.ExternalStream(raw, self._place)
            self._cupy_streams[raw] = known
        return known

    def end_stream(self, stream: Handle) -> None:
        """Destroy a stream of `new_stream`."""
        self._cupy_streams.pop(int(stream), None)
        call("cuStreamDestroy", cu.cuStreamDestroy(stream))

    def capture_check(self, stream: Handle) -> Callable[[], bool]:
        """Return what tells whether a stream is being captured into a graph."""
        return new_capture_check(int(stream))

    def new_event(self) -> Handle:
        """Return a new event for this process, without timing."""
        return call("cuEventCreate", cu.cuEventCreate(_UNTIMED))

    def end_event(self, event: Handle) -> None:
        """Destroy an event."""
        call("cuEventDestroy", cu.cuEventDestroy(event))

    def record(self, event: Handle, stream: Handle) -> None:
        """Record an event behind everything enqueued on a stream."""
        call("cuEventRecord", cu.cuEventRecord(event, stream))

    def is_reached(self, event: Handle) -> bool:
        """Return whether the GPU got to where the event was recorded last."""
        answer = cu.cuEventQuery(event)
        if answer[0] == _NOT_READY:
            return False
        call("cuEventQuery", answer)
        return True

    def wait_event(self, stream: Handle, event: Handle) -> None:
        """Make a stream wait for where an event was recorded last."""
        call("cuStreamWaitEvent", cu.cuStreamWaitEvent(stream, event, 0))

    def write_word(self, stream: Handle, address: int, value: int) -> None:
        """Enqueue a store of 64 bits, behind everything that the stream wrote before."""
        call(
            "cuStreamWriteValue64",
            cu.cuStreamWriteValue64(stream, address, value, _BEHIND_WRITES),
        )

    def wait_word(self, stream: Handle, address: int, value: int) -> None:
        """Make a stream wait until 64 bits are at or behind a value, in cyclic order."""
        call("cuStreamWaitValue64", cu.cuStreamWaitValue64(stream, address, value, _AT_OR_BEHIND))

    def upload(self, stream: Handle, address: int, host_address: int, size_bytes: int) -> None:
        """Enqueue a copy from page-locked host memory."""
        call("cuMemcpyHtoDAsync", cu.cuMemcpyHtoDAsync(address, host_address, size_bytes, stream))

    # ---- kernels ------------------------------------------------------------------------------

    def launcher(
        self, stream: Handle, *, moves: bool, inline: bool, arguments_address: int
    ) -> Callable[[int], None]:
        """Return what launches the kernel for submissions that move units, or for all others."""
        return new_launcher(
            function=int(self._kernels[moves, inline]),
            stream=int(stream),
            thread_count=MOVE_THREADS if moves else THREADS,
            arguments_address=arguments_address,
        )

    # ---- events of other processes ------------------------------------------------------------

    def new_shared_event(self) -> tuple[Handle, bytes]:
        """Return a new event that other processes can open, and the bytes they open it with."""
        event = call("cuEventCreate", cu.cuEventCreate(_SHARED))
        handle = call("cuIpcGetEventHandle", cu.cuIpcGetEventHandle(event))
        return event, bytes(handle.reserved)

    def open_shared_event(self, shared: bytes) -> Handle:
        """Open another process's event."""
        handle = cu.CUipcEventHandle()
        handle.reserved = shared
        return call("cuIpcOpenEventHandle", cu.cuIpcOpenEventHandle(handle))

    # ---- memory of other processes, the classic way -------------------------------------------

    def share_classic(self, address: int) -> bytes:
        """Return the bytes with which other processes open memory of `allocate`."""
        handle = call("cuIpcGetMemHandle", cu.cuIpcGetMemHandle(address))
        return bytes(handle.reserved)

    def open_classic(self, shared: bytes) -> int:
        """Map another process's memory and return the address of its first byte."""
        handle = cu.CUipcMemHandle()
        handle.reserved = shared
        return int(call("cuIpcOpenMemHandle", cu.cuIpcOpenMemHandle(handle, _LAZY_PEERS)))

    def close_classic(self, address: int) -> None:
        """Wait until the context is idle, then undo `open_classic`."""
        self.enter()
        call("cuCtxSynchronize", cu.cuCtxSynchronize())
        call("cuIpcCloseMemHandle", cu.cuIpcCloseMemHandle(address))


def _address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
