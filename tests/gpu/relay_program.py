"""The other side: ``python -m tests.gpu.relay_program PARENT events|hang|arena``.

Exports events of a stream, or an arena of its own, as lines of JSON, until it is told to end.
"""

import json
import sys

import torch

from kvd.testing.child import die_with_parent
from kvd_client.device.cuda.classic import ClassicArena
from kvd_client.device.cuda.device import cuda_device
from kvd_client.device.cuda.relay import Acknowledged, EventExporter, Generation
from tests.gpu.gpu_parts import DEADLINE_MS, delay

SIZE_BYTES = 4 << 20


def main() -> None:
    """Do what the second argument says."""
    die_with_parent(int(sys.argv[1]))
    device = cuda_device()
    torch.zeros(1, device="cuda")
    if sys.argv[2] == "arena":
        arena = ClassicArena(device, SIZE_BYTES)
        shared, offset_bytes, size_bytes, gpu_uuid = arena.handle
        print(json.dumps([shared.hex(), offset_bytes, size_bytes, gpu_uuid]), flush=True)
        sys.stdin.readline()
        arena.close()
        return
    exporter, stream = EventExporter(device.driver, slots_count=2), device.stream("exporter")
    milliseconds = 60_000 if sys.argv[2] == "hang" else 30
    while True:
        stream.submit(lambda: delay(milliseconds))
        one = exporter.export(stream)
        told = [one.slot_index, one.generation, one.gpu_uuid, one.shared.hex()]
        print(json.dumps(told), flush=True)
        answer = sys.stdin.readline().split()
        if not answer:
            break
        exporter.acknowledge(Acknowledged(int(answer[0]), Generation(int(answer[1]))))
    stream.close(DEADLINE_MS)


if __name__ == "__main__":
    main()
