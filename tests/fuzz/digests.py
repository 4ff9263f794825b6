"""A digest of everything that an object holds, whatever it is made of.

It walks attributes, containers and arrays. What is the same object twice is walked once.
"""

from collections import deque
from collections.abc import Iterator
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final, cast

import numpy as np
import xxhash

SKIPPED: Final = frozenset({"_memo"})
"""Attributes that remember how an answer was found, not what is."""
_CODE = (FunctionType, MethodType, BuiltinFunctionType, type)


def digest(root: object, *, skipped: frozenset[str] = frozenset()) -> int:
    """Return the digest of all that is reachable, but for attributes of these names."""
    hasher = xxhash.xxh3_64()
    left_out = SKIPPED | skipped
    seen: dict[int, tuple[int, object]] = {}  # with the object, so that no other gets its id
    pending: list[Any] = [root]
    while pending:
        item = pending.pop()
        kind = cast("type[object]", type(item))
        if item is None or kind in (bool, int, float, str, bytes) or isinstance(item, Enum):
            hasher.update(f"{kind.__name__}:{item!r};".encode())
            continue
        if isinstance(item, np.ndarray | np.generic):
            array: np.ndarray[Any, Any] = np.ascontiguousarray(cast("Any", item))
            hasher.update(f"{array.dtype}{array.shape}".encode())
            hasher.update(array.tobytes())
            continue
        if isinstance(item, _CODE):
            continue
        is_new = id(item) not in seen
        number, _ = seen.setdefault(id(item), (len(seen), item))
        hasher.update(f"{kind.__name__}@{number};".encode())
        if is_new:
            pending += _inside(item, left_out)
    return hasher.intdigest()


def _inside(item: Any, left_out: frozenset[str]) -> Iterator[Any]:
    if isinstance(item, dict):
        for key, value in cast("dict[Any, Any]", item).items():
            yield key
            yield value
    elif isinstance(item, list | tuple | deque | set | frozenset):
        yield from item
    elif isinstance(item, bytearray):
        yield bytes(item)
    else:
        for name in _attributes(item):
            if name not in left_out and hasattr(item, name):
                yield name
                yield getattr(item, name)


def _attributes(item: object) -> Iterator[str]:
    yield from getattr(item, "__dict__", ())
    for owner in type(item).__mro__:
        slots = getattr(owner, "__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
    yield from getattr(item, "__struct_fields__", ())
