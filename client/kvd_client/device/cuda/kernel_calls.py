"""Calls of every step without the bindings, with arguments that were laid out before.

`cuda.bindings` converts eleven arguments at each launch, which takes about as long as the driver
does. Here nothing is converted: the launch's shape stands in a structure that only its number of
blocks changes in.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Final

from cuda.bindings import driver as cu

from kvd_client.device.cuda.calls import call

LIBRARY: Final = "libcuda.so.1"
"""What the bindings load; the loader gives out the one that is there already."""

NOT_CAPTURING: Final = int(cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid_x", ctypes.c_uint),
        ("grid_y", ctypes.c_uint),
        ("grid_z", ctypes.c_uint),
        ("block_x", ctypes.c_uint),
        ("block_y", ctypes.c_uint),
        ("block_z", ctypes.c_uint),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


def new_capture_check(stream: int) -> Callable[[], bool]:
    """Return what tells whether a stream is being captured into a graph."""
    ask: Any = ctypes.CDLL(LIBRARY).cuStreamIsCapturing
    status = ctypes.c_int()
    handle, answer = ctypes.c_void_p(stream), ctypes.byref(status)

    def is_capturing() -> bool:
        code = ask(handle, answer)
        if code:
            call("cuStreamIsCapturing", (cu.CUresult(code),))
        return status.value != NOT_CAPTURING

    return is_capturing


def new_launcher(
    *, function: int, stream: int, thread_count: int, arguments_address: int
) -> Callable[[int], None]:
    """Return what launches a kernel with so many blocks; see `Driver.launcher`.

    The call lets other threads run: a launch blocks while a stream holds as many as it can.
    """
    launch: Any = ctypes.CDLL(LIBRARY).cuLaunchKernelEx
    config = LaunchConfig(1, 1, 1, thread_count, 1, 1, 0, stream, None, 0)
    shape = ctypes.byref(config)
    kernel = ctypes.c_void_p(function)
    arguments = ctypes.c_void_p(arguments_address)
    extra = ctypes.c_void_p(None)

    def launch_blocks(block_count: int) -> None:
        config.grid_x = block_count
        code = launch(shape, kernel, arguments, extra)
        if code:
            call("cuLaunchKernelEx", (cu.CUresult(code),))

    return launch_blocks
