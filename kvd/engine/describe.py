"""Entries in words, for people: divergence reports and traces."""

from enum import IntEnum
from typing import cast

import msgspec
import numpy as np

from kvd_proto.codec import decode_operation
from kvd_proto.errors import KvdError

LIST_SHOWN_COUNT = 8
ID_FIELDS: dict[str, str] = {
    "requests": "<i8",
    "add": "<i8",
    "remove": "<i8",
    "victims": "<i8",
    "values": "<i8",
    "virtual": "<i8",
}
"""Fields of operations that are arrays of 64-bit ids; all other arrays are of 32-bit counts."""


def describe_operation(encoded: bytes) -> str:
    """Return an encoded operation as one readable line."""
    try:
        operation = decode_operation(encoded)
    except KvdError:
        return f"{len(encoded)} bytes that are no operation"
    fields: list[str] = []
    for field in msgspec.structs.fields(operation):
        value = getattr(operation, field.name)
        dtype = ID_FIELDS.get(field.encode_name, "<i4")
        if isinstance(value, bytes):
            if not value:
                continue
            value = _list(value, dtype)
        elif isinstance(value, tuple):
            items = cast("tuple[object, ...]", value)
            shown = [_list(it, dtype) if isinstance(it, bytes) else str(it) for it in items]
            value = f"({', '.join(shown)})"
        elif isinstance(value, IntEnum):
            value = value.name.lower()
        fields.append(f"{field.name}={value}")
    return f"{type(operation).__struct_config__.tag}({', '.join(fields)})"


def _list(encoded: bytes, dtype: str) -> str:
    width = np.dtype(dtype).itemsize
    if len(encoded) % width:
        return f"<{len(encoded)} bytes>"
    values = np.frombuffer(encoded, dtype=dtype)
    shown = ", ".join(str(value) for value in values[:LIST_SHOWN_COUNT].tolist())
    more = f", ... {values.size} in all" if values.size > LIST_SHOWN_COUNT else ""
    return f"[{shown}{more}]"
