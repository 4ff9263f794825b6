"""What a holder keeps: descriptors by name, and the nonce that says which holder this is.

Memory lives as long as somebody keeps its descriptor. A daemon that restarts gets its arenas back
from here, with their contents; whether they are still the same is told by the nonce, 32 random
bytes that are as old as the holder.
"""

import os
import re
from typing import Final, Protocol

from kvd.errors import ServeError
from kvd.hold.message import HeldMemory
from kvd_client.device.descriptors import create_memory, descriptor_size, is_host_memory
from kvd_proto.errors import ErrorCode

DESCRIPTORS_MAX: Final = 512
"""Most descriptors one holder keeps: two a rank, well below the usual 1,024 open files."""
NONCE_BYTES: Final = 32

_NAME = re.compile(r"[!-9;-~]{1,200}")
"""Printable ASCII without space and colon: what a service manager takes as a name as well."""


class DescriptorHolder(Protocol):
    """Whoever keeps the daemon's descriptors while it restarts."""

    def put(self, name: str, descriptor: int, size_bytes: int) -> None:
        """Hand a descriptor in; it stays open here too. Raises ServeError for a name in use."""
        ...

    def held(self) -> tuple[HeldMemory, ...]:
        """Return what is kept, in order of names."""
        ...

    def get(self, name: str) -> int:
        """Return a new descriptor of what is kept; raises ServeError for an unknown name."""
        ...

    def drop(self, name: str) -> None:
        """Have a descriptor forgotten; raises ServeError for an unknown name."""
        ...

    def nonce(self) -> bytes:
        """Return the 32 bytes that change whenever what was kept is lost."""
        ...

    def close(self) -> None:
        """Part from the holder, which goes on keeping what it has."""
        ...


class DescriptorTable:
    """Descriptors by name, owned: they are closed when they are dropped."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        self._sizes_bytes: dict[str, int] = {}

    def put(self, name: str, descriptor: int, size_bytes: int) -> None:
        """Take a descriptor over; raises ServeError, and then it stays the caller's."""
        check_name(name)
        if name in self._descriptors:
            raise ServeError(f"{name!r} is kept already", code=ErrorCode.BAD_ARGUMENT)
        if len(self._descriptors) >= DESCRIPTORS_MAX:
            raise ServeError(
                f"{name!r} is one too many: DESCRIPTORS_MAX = {DESCRIPTORS_MAX}",
                code=ErrorCode.BAD_ARGUMENT,
            )
        held_bytes = descriptor_size(descriptor)
        # Memory of a GPU is a file of the driver's, which does not say how much is behind it.
        if held_bytes != size_bytes and is_host_memory(descriptor):
            raise ServeError(
                f"{name!r} is said to have {size_bytes} bytes, its descriptor has {held_bytes}",
                code=ErrorCode.BAD_ARGUMENT,
            )
        self._descriptors[name] = descriptor
        self._sizes_bytes[name] = size_bytes

    def held(self) -> tuple[HeldMemory, ...]:
        """Return what is kept, in order of names."""
        return tuple(
            HeldMemory(name, size_bytes) for name, size_bytes in sorted(self._sizes_bytes.items())
        )

    def size_bytes(self, name: str) -> int:
        """Return the bytes behind a name, as they were said or seen when it was put."""
        self.get(name)
        return self._sizes_bytes[name]

    def get(self, name: str) -> int:
        """Return the kept descriptor itself; raises ServeError for an unknown name."""
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            raise ServeError(f"nothing is kept as {name!r}", code=ErrorCode.BAD_ARGUMENT)
        return descriptor

    def drop(self, name: str) -> None:
        """Close a descriptor and forget it; raises ServeError for an unknown name."""
        os.close(self.get(name))
        del self._descriptors[name], self._sizes_bytes[name]

    def close(self) -> None:
        """Close every descriptor."""
        for _, descriptor in sorted(self._descriptors.items()):
            os.close(descriptor)
        self._descriptors.clear()
        self._sizes_bytes.clear()

    def __len__(self) -> int:
        return len(self._descriptors)


def check_name(name: str) -> None:
    """Raise ServeError if nothing can be kept under this name."""
    if _NAME.fullmatch(name) is None:
        raise ServeError(
            f"{name!r} is no name for a descriptor: 1 to 200 printable ASCII characters, "
            "neither space nor colon",
            code=ErrorCode.BAD_ARGUMENT,
        )


def create_nonce() -> int:
    """Create the memory of a fresh nonce and return its descriptor."""
    descriptor = create_memory("kvd-nonce", NONCE_BYTES)
    os.pwrite(descriptor, os.urandom(NONCE_BYTES), 0)
    return descriptor


def read_nonce(descriptor: int) -> bytes:
    """Return the nonce behind a descriptor; raises ServeError if there is none."""
    nonce = os.pread(descriptor, NONCE_BYTES, 0)
    if len(nonce) != NONCE_BYTES or not any(nonce):
        raise ServeError(f"descriptor {descriptor} holds no nonce of {NONCE_BYTES} bytes")
    return nonce
