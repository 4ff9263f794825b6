"""The owner of a lane: ``python -m tests.gpu.owner_program PARENT fill|hang ARENA FENCE``."""

import sys

import torch

from kvd.testing.child import die_with_parent
from kvd_client.device.cuda.device import cuda_device
from kvd_client.device.fences import FencePage, LaneNumber
from tests.gpu.gpu_parts import DEADLINE_MS, delay

SIZE_BYTES = 4 << 20
ROUNDS_COUNT = 20


def main() -> None:
    """Fill the arena round by round, each behind the reader's lane; or begin and never end."""
    die_with_parent(int(sys.argv[1]))
    device = cuda_device()
    memory, page = device.map(int(sys.argv[3]), SIZE_BYTES), FencePage(int(sys.argv[4]))
    tensor = torch.as_tensor(memory.device_array).view(torch.int32)
    stream = device.stream("owner", page.lane(0))
    if sys.argv[2] == "hang":
        stream.submit(lambda: delay(60_000))
        print("hangs", flush=True)
        sys.stdin.readline()
        return
    for number in range(1, ROUNDS_COUNT + 1):
        if number > 1:
            stream.wait_lane(page.lane(1), LaneNumber(number - 1), DEADLINE_MS)

        def fill(value: int = number) -> None:
            delay(3)
            tensor.fill_(value)

        stream.submit(fill)
    stream.close(DEADLINE_MS)


if __name__ == "__main__":
    main()
