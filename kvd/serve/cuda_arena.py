"""The allocation helper: ``python -m kvd.serve.cuda_arena FD PARENT`` creates arenas on GPUs.

A child of the daemon that answers over the socket it inherited, and the only process on the
daemon's side that calls a GPU's driver. It makes no context and keeps nothing it creates. It ends
when nobody asked for a while, or with the daemon.
"""

import importlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from kvd.hold.embedded import die_with_parent
from kvd_client.device.descriptors import receive_message, send_message
from kvd_proto.errors import KvdError

IDLE_S: Final = 10.0
"""How long the helper stays without a question: the ranks of a group ask within moments."""
MAKER_MODULE: Final = "kvd_client.device.cuda.arena"
"""What creates memory; named and not imported, for it loads a GPU's driver."""


class Gpu(msgspec.Struct, frozen=True):
    """A GPU that the helper sees."""

    uuid: str
    memory_bytes: int


class Greeting(msgspec.Struct, frozen=True):
    """What the helper says first: the GPUs it can create memory on, or why it cannot."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


class Create(msgspec.Struct, frozen=True):
    """Ask for memory on a GPU; the answer is a `Created`."""

    gpu_uuid: str
    size_bytes: int


class Created(msgspec.Struct, frozen=True):
    """The descriptor comes along, unless there was a problem."""

    problem: str = ""


Maker: TypeAlias = Callable[[str, int], int]
"""Takes a GPU's UUID and a size, and returns a descriptor."""


def serve(sock: socket.socket, gpus: tuple[Gpu, ...], create: Maker) -> None:
    """Greet, then answer until the other side ends or nothing comes for `IDLE_S`."""
    encoder = msgspec.json.Encoder()
    decoder = msgspec.json.Decoder(Create)
    send_message(sock, encoder.encode(Greeting(gpus)))
    sock.settimeout(IDLE_S)
    while True:
        try:
            payload, _ = receive_message(sock, 0)
        except TimeoutError:
            return
        if not payload:
            return
        asked = decoder.decode(payload)
        try:
            descriptor = create(asked.gpu_uuid, asked.size_bytes)
        except KvdError as error:
            send_message(sock, encoder.encode(Created(error.message)))
            continue
        send_message(sock, encoder.encode(Created()), [descriptor])
        os.close(descriptor)


def main() -> None:
    """Serve the socket that was inherited."""
    descriptor, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent_pid)
    sock = socket.socket(fileno=descriptor)
    try:
        maker: Any = importlib.import_module(MAKER_MODULE)
        gpus = tuple(Gpu(one.uuid, one.memory_bytes) for one in maker.list_gpus())
    except (ImportError, KvdError) as error:
        problem = f"device = cuda needs cuda-bindings and a GPU: {error}"
        send_message(sock, msgspec.json.encode(Greeting(problem=problem)))
        return
    serve(sock, gpus, maker.create_arena)


if __name__ == "__main__":
    main()
