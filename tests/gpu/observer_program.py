"""An observer of an arena: ``python -m tests.gpu.observer_program PARENT FD SIZE``."""

import sys

import torch

from kvd.testing.child import die_with_parent
from kvd_client.device.cuda.device import cuda_device
from kvd_client.errors import DeviceError


def main() -> None:
    """Map read-only, read, and then do what must not succeed."""
    die_with_parent(int(sys.argv[1]))
    device = cuda_device()
    memory = device.map(int(sys.argv[2]), int(sys.argv[3]), writable=False)
    print("reads", memory.read_bytes(0, 4).decode(), flush=True)
    tensor = torch.as_tensor(memory.device_array)
    print("tensor", tensor[:4].cpu().numpy().tobytes().decode(), flush=True)
    try:
        device.commands(memory)
    except DeviceError:
        print("refuses commands", flush=True)
    try:
        tensor[0] = 1
        torch.cuda.synchronize()
    except RuntimeError:
        print("write fails", flush=True)


if __name__ == "__main__":
    main()
