"""Damage to what MessagePack or JSON holds: values of wrong kinds and sizes at random places.

A message is taken as a tree of lists, dicts and plain values. One of its places is drawn, and what
stands there is replaced, left out, doubled, moved or nested.
"""

import math
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final, cast

Place = tuple[Any, ...]
"""Keys and indexes on the way from the root."""

NUMBERS: Final[tuple[int, ...]] = (
    *(-1, 0, 1, 2, 3, 7, 64, 255, 256, 4096, 65_535, 65_536, 1 << 20),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 10**12),
    *((1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 31), -(1 << 63)),
)
"""Ends of ranges; all of them can be written as MessagePack."""
FLOATS: Final = (0.0, -0.0, 0.5, 1.5, -1.0, 1e308, 5e-324, math.nan, math.inf, -math.inf)
ARRAY_ELEMENTS: Final = (1, 2, 17, 1000, 20_000)
BYTES_MAX: Final = 1 << 20
"""Longest string of bytes, however often it is multiplied: over every cap, and no more."""
DEPTHS: Final = (2, 100, 400)
"""The deepest are more than a decoder takes; what writes the tree has its limit just above."""


def places(tree: Any, here: Place = ()) -> list[Place]:
    """Return every place of a tree, the root first."""
    found: list[Place] = [here]
    for key, value in _inside(tree):
        found += places(value, (*here, key))
    return found


def nasty(rng: Random) -> Any:
    """Return a value that hardly fits anywhere."""
    kind = rng.randrange(11)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind == 4:
        return rng.choice(FLOATS)
    if kind == 5:
        empty: tuple[Any, ...] = (None, True, False, "", b"", [], {})
        return rng.choice(empty)
    if kind == 6:
        return rng.randbytes(rng.randrange(48))
    if kind == 7:
        return rng.choice(("x", "\0", "ä\U0001f600", "../../etc", "nan")) * rng.choice((1, 9, 3000))
    if kind == 8:
        return [rng.choice(NUMBERS)] * rng.choice(ARRAY_ELEMENTS)
    if kind == 9:
        return nested(rng.choice(DEPTHS), rng.random() < 0.5)
    return {str(index): rng.choice(NUMBERS) for index in range(rng.choice(ARRAY_ELEMENTS[:4]))}


def nested(depth: int, as_list: bool) -> Any:
    """Return a value inside so many lists, or objects."""
    value: Any = 0
    for _ in range(depth):
        value = [value] if as_list else {"a": value}
    return value


def damaged(tree: Any, rng: Random, *, times: int = 1, words: tuple[str, ...] = ()) -> Any:
    """Return a copy of a tree with so many places damaged; ``words`` may stand for other words."""
    tree = copied(tree)
    for _ in range(times):
        place = rng.choice(places(tree))
        value = at(tree, place)
        changed = _changed(value, rng, words)
        if not place:
            tree = changed
            continue
        parent = at(tree, place[:-1])
        act = rng.randrange(10)
        if act < 7:
            parent[place[-1]] = changed
        elif act == 7:
            del parent[place[-1]]
        elif isinstance(parent, list):
            cast("list[Any]", parent).insert(place[-1], copied(value))
        else:
            parent[rng.choice((str(place[-1]) + "_", "type", "name"))] = value
    return tree


def misnumbered(tree: Any, rng: Random, *, times: int = 1) -> Any:
    """Return a copy of a tree with other numbers in so many places, each of the kind it was.

    What decodes a message takes it; what reads the numbers has to refuse the absurd ones.
    """
    tree = copied(tree)
    numbers = [place for place in places(tree) if place and type(at(tree, place)) in (int, bytes)]
    for place in rng.choices(numbers, k=times) if numbers else ():
        value, parent = at(tree, place), at(tree, place[:-1])
        if isinstance(value, bytes):
            parent[place[-1]] = _other_bytes(value, rng)
        else:
            parent[place[-1]] = rng.choice((rng.choice(NUMBERS), _near_number(value, rng)))
    return tree


def copied(tree: Any) -> Any:
    """Return a tree of its own; lists and objects are copied, what they hold is never changed."""
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in _inside(tree)}
    if isinstance(tree, list):
        return [copied(value) for _, value in _inside(tree)]
    return tree


def at(tree: Any, place: Place) -> Any:
    """Return what stands at a place."""
    for key in place:
        tree = tree[key]
    return tree


def _inside(tree: Any) -> Iterable[tuple[Any, Any]]:
    """Return keys or indexes with what stands there; nothing for a plain value."""
    if isinstance(tree, dict):
        return cast("dict[Any, Any]", tree).items()
    return enumerate(cast("list[Any]", tree)) if isinstance(tree, list) else ()


def _changed(value: Any, rng: Random, words: tuple[str, ...]) -> Any:
    act = rng.randrange(8)
    if act < 5:
        change = _OWN_CHANGES.get(cast("type[object]", type(value)))
        return nasty(rng) if change is None else change(value, rng)
    if act == 5 and isinstance(value, str) and words:
        return rng.choice(words)
    if act == 6:
        return [value]
    return nasty(rng)


def _near_number(value: int, rng: Random) -> int:
    near = rng.choice((value + 1, value - 1, -value, value * 2, value << 32, value ^ 1 << 31))
    return max(-(1 << 63), min(near, (1 << 64) - 1))


def _other_bytes(value: bytes, rng: Random) -> bytes:
    """Return bytes as a raw array may be wrong: ragged, doubled, reversed, with absurd numbers."""
    act = rng.randrange(6)
    if act == 0:
        return value[:-1]
    if act == 1:
        return value + value[:8]
    if act == 2:
        return value[::-1]
    if act == 3:
        return (value * rng.choice((2, 100, 2000)))[:BYTES_MAX]
    width = rng.choice((4, 8))
    start = rng.randrange(max(1, len(value) - width + 1)) // width * width
    number = rng.choice(NUMBERS) & ((1 << 8 * width) - 1)
    return value[:start] + number.to_bytes(width, "little") + value[start + width :]


def _other_list(value: list[Any], rng: Random) -> list[Any]:
    act = rng.randrange(4)
    if act == 0:
        return value[::-1]
    if act == 1:
        return value + value
    if act == 2:
        return value[: rng.randrange(len(value) + 1)]
    return rng.sample(value, len(value))


_OWN_CHANGES: Final[dict[type, Callable[[Any, Random], Any]]] = {
    int: _near_number,
    bytes: _other_bytes,
    list: _other_list,
    str: lambda value, rng: value[: rng.randrange(len(value) + 1)],
}
