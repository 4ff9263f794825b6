"""What tests of the CUDA device share: a device, arenas, kernels that take their time."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch

from kvd_client.device.cuda.device import CudaDevice, cuda_device
from kvd_client.device.cuda.memory import CudaMemory
from tests.e2e.daemon_process import DaemonProcess

DEADLINE_MS = 30_000
PROGRAM_S = 120
CYCLES_PER_MS = 1_700_000
"""Of an H200's clock, about; a delay only has to be longer than what the host does meanwhile."""

_device: list[CudaDevice] = []


def the_device() -> CudaDevice:
    """Return the device of this process, opened by the first call."""
    assert torch.cuda.is_available(), "gpu tests need a CUDA device"
    if not _device:
        _device.append(cuda_device())
    return _device[0]


def new_arena(size_bytes: int) -> int:
    """Return the descriptor of fresh memory on the device of this process."""
    # Loads a GPU's driver, which nobody has who only collects these tests.
    from kvd_client.device.cuda.arena import create_arena

    return create_arena(the_device().gpu_uuid, size_bytes)


def new_memory(size_bytes: int, *, writable: bool = True) -> CudaMemory:
    fd = new_arena(size_bytes)
    memory = the_device().map(fd, size_bytes, writable=writable)
    os.close(fd)
    return memory


def tensor_of(memory: CudaMemory) -> torch.Tensor:
    return torch.as_tensor(memory.device_array)


def fill(memory: CudaMemory, content: bytes) -> None:
    """Write to a mapping at once."""
    host = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    tensor_of(memory)[: len(content)].copy_(host)
    torch.cuda.synchronize()


def delay(milliseconds: float) -> None:
    """Keep the current stream of torch busy."""
    torch.cuda._sleep(  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        int(milliseconds * CYCLES_PER_MS)
    )


def run_program(module: str, *arguments: str, fds: Sequence[int] = ()) -> "subprocess.Popen[str]":
    """Start a test program as a process of its own, with descriptors that it inherits."""
    return subprocess.Popen(
        (sys.executable, "-m", module, str(os.getpid()), *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=list(fds),
    )


def used_bytes() -> int:
    """Return what of the GPU's memory is in use."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def host_word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def reports_of(
    ranks: "Sequence[subprocess.Popen[str]]", daemon: DaemonProcess
) -> list[dict[str, Any]]:
    """Return what rank programs report, all of them before any of them may leave."""
    reports: list[dict[str, Any]] = []
    for rank in ranks:
        assert rank.stdout is not None
        told = rank.stdout.readline()
        assert told, daemon.log()
        reports.append(json.loads(told))
    for rank in ranks:
        rank.communicate(timeout=PROGRAM_S)
        assert rank.returncode == 0, daemon.log()
    return reports
