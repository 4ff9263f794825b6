"""Whether what was turned down left a trace: all state of an engine, value by value.

The state is walked as it lies in memory, attribute by attribute, so that nothing that somebody adds
to an allocator later is left out unless it is named here: semantics 11.4, check 9.
"""

from collections import deque
from collections.abc import Iterable
from types import BuiltinMethodType, FunctionType, MethodType

import numpy as np

from kvd.engine.stage import StageEngine
from kvd.testing.stress.broken import broken

State = list[tuple[str, object]]
"""Names of attributes and what they hold, in the order of the walk."""

LASTING = (
    "StageEngine._storage",
    "StageEngine._decide",
    "StageEngine.monitor",
    "ChainAllocator.geometry",
    "ChainAllocator.empty",
    "ArenaOrder.clearance",
    "ArenaOrder.read_clearance",
    "ArenaOrder.on_retire",
    "Band.geometry",
    "RequestTable.shape",
)
"""What is made with an engine and stays."""

COUNTED = ("StageEngine.counters", "StageEngine.refusal_counts", "ChainAllocator.relief_counts")
"""What is counted for people; refusals are."""

REMEMBERED = (
    "StageEngine._memo",
    "ChainAllocator._snapshot",
    "PageUsage._facts",
    "StandingSet._rows",
    "StandingSet._opened",
    "StandingSet._epoch_count",
)
"""What is remembered until that changes which it was made of, and made again then.

Answers are held to a recount by stress.snapshot. A standing set drops the requests that have ended
when somebody looks at it.
"""

ASKED = ("StageEngine._refused_now", "RequestNames._waiting", "RequestNames.highest_id")
"""What says that a request was asked for, which changes though it has to wait."""

_PLAIN = (int, str, bytes, float, type(None), np.generic)
_CODE = (FunctionType, MethodType, BuiltinMethodType)
_UNSEEN = frozenset((*LASTING, *COUNTED, *REMEMBERED))


def state_of(engine: StageEngine) -> State:
    """Return all that a later decision may depend on."""
    found: State = []
    _walk(found, "StageEngine", engine, set())
    return found


def require_same(before: State, engine: StageEngine, what: str, *, asked: bool = False) -> None:
    """Raise InvariantError unless an engine's state is what it was.

    ``asked`` forgives that requests are known to wait.
    """
    after = state_of(engine)
    if after == before:
        return
    forgiven = ASKED if asked else ()
    changed = {name for name, _ in set(_hashable(before)) ^ set(_hashable(after))}
    changed -= set(forgiven)
    if changed:
        broken("pure", f"{what} changed {', '.join(sorted(changed))}")


def _hashable(state: State) -> Iterable[tuple[str, str]]:
    places: dict[str, int] = {}
    for name, value in state:
        places[name] = places.get(name, 0) + 1
        yield name, f"{places[name]} {value!r}"


def _walk(found: State, name: str, value: object, seen: set[int]) -> None:
    """Add what a value consists of; objects that are met again are not walked again."""
    if isinstance(value, _PLAIN):
        found.append((name, value))
    elif isinstance(value, np.ndarray):
        found.append((name, (value.shape, value.tobytes())))
    elif isinstance(value, dict):
        found.append((name, len(value)))  # pyright: ignore[reportUnknownArgumentType]
        for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            found.append((name, key))
            _walk(found, name, item, seen)
    elif isinstance(value, (list, tuple, deque)):
        found.append((name, len(value)))  # pyright: ignore[reportUnknownArgumentType]
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            _walk(found, name, item, seen)
    elif not isinstance(value, (*_CODE, type)) and id(value) not in seen:
        seen.add(id(value))
        kind = type(value).__name__
        for attribute, item in _attributes(value):
            label = f"{kind}.{attribute}"
            if label not in _UNSEEN:
                _walk(found, label, item, seen)


def _attributes(value: object) -> list[tuple[str, object]]:
    own: dict[str, object] | None = getattr(value, "__dict__", None)
    if own is not None:
        return list(own.items())
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
    return [(slot, getattr(value, slot)) for slot in slots]
