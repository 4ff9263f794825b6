"""An allocation helper without a GPU: ``python fake_gpu_helper.py FD PARENT``.

Its GPUs are made of host memory; one of them is always full. What it does beyond that is the real
helper's.
"""

import socket
import sys
from typing import Final

from kvd.hold.embedded import die_with_parent
from kvd.serve.cuda_arena import Gpu, serve
from kvd_client.device.descriptors import create_memory
from kvd_client.errors import DeviceError

FIRST: Final = "GPU-00000000-0000-0000-0000-00000000000a"
FULL: Final = "GPU-00000000-0000-0000-0000-00000000000b"
MEMORY_BYTES: Final = 64 << 20


def create(gpu_uuid: str, size_bytes: int) -> int:
    """Return host memory, unless the GPU is full."""
    if gpu_uuid == FULL:
        raise DeviceError(f"cuMemCreate of {size_bytes} bytes: CUDA_ERROR_OUT_OF_MEMORY")
    return create_memory("fake-gpu", size_bytes)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    gpus = tuple(Gpu(uuid, MEMORY_BYTES) for uuid in (FIRST, FULL))
    serve(socket.socket(fileno=int(sys.argv[1])), gpus, create)
