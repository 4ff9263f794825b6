"""Whether what was turned down left a trace: all state of an engine, value by value.

The state is walked as it lies in memory, attribute by attribute, so that nothing that somebody adds
to an allocator later is left out unless it is named here: semantics 11.4, check 9.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from types import BuiltinMethodType, FunctionType, MethodType
from typing import TYPE_CHECKING, cast

import numpy as np

from kvd.alloc.checks import CheckMonitor
from kvd.alloc.demand import DemandShape
from kvd.engine.stage import StageEngine
from kvd.testing.stress.broken import broken

if TYPE_CHECKING:
    from numpy.typing import NDArray

State = list[tuple[str, object]]
"""Names of attributes and what they hold, in the order of the walk."""

LASTING = (
    "StageEngine._storage",
    "StageEngine._decide",
    "ChainAllocator.geometry",
    "ChainAllocator.lifetimes",
    "ChainAllocator.empty",
    "ChainAllocator._nothing",
    "ChainAllocator.window_indices",
    "ChainAllocator.token_indices",
    "ArenaOrder.clearance",
    "ArenaOrder.read_clearance",
    "ArenaOrder.on_retire",
    "Band.geometry",
    "Band._mirrors",
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

_PLAIN = frozenset((int, str, bytes, float, bool, type(None)))
_LASTING_KINDS = (DemandShape, CheckMonitor, FunctionType, MethodType, BuiltinMethodType)
_LABELS: dict[type, dict[str, str]] = {}
"""Per class and attribute: its name as it is reported; empty for what is left out."""
_UNSEEN = frozenset((*LASTING, *COUNTED, *REMEMBERED))


def state_of(engine: StageEngine) -> State:
    """Return all that a later decision may depend on."""
    found: State = []
    _walk(found, "StageEngine", engine, set())
    return found


def require_same(before: State, engine: StageEngine, what: str, *, asked: bool = False) -> None:
    """Raise StressFailure unless an engine's state is what it was.

    ``asked`` forgives that requests are known to wait.
    """
    after = state_of(engine)
    if asked:
        before, after = _without(before, ASKED), _without(after, ASKED)
    if after != before:
        differing = [item for item in (*before, *after) if (item in before) != (item in after)]
        changed = ", ".join(dict.fromkeys(name for name, _ in differing)) or "how much is kept"
        broken("pure", f"{what} changed {changed}")


def _without(state: State, names: tuple[str, ...]) -> State:
    return [item for item in state if item[0] not in names]


def _walk(found: State, name: str, value: object, seen: set[int]) -> None:
    """Add what a value consists of; objects that are met again are not walked again."""
    kind = type(value)
    if kind is np.ndarray:
        found.append((name, cast("NDArray[np.int64]", value).tobytes()))
    elif kind is dict:
        items = cast("dict[object, object]", value)
        found.append((name, tuple(items)))
        _walk_all(found, name, items.values(), seen)
    elif isinstance(value, (list, tuple, deque)):
        members = cast("Sequence[object]", value)
        found.append((name, len(members)))
        _walk_all(found, name, members, seen)
    elif isinstance(value, Enum):
        found.append((name, value))
    elif kind not in _LASTING_KINDS and id(value) not in seen:
        seen.add(id(value))
        labels = _LABELS.setdefault(kind, {})
        for attribute, item in _attributes(value):
            label = labels.get(attribute)
            if label is None:
                label = f"{kind.__name__}.{attribute}"
                label = labels[attribute] = "" if label in _UNSEEN else label
            if not label:
                continue
            if type(item) in _PLAIN:
                found.append((label, item))
            else:
                _walk(found, label, item, seen)


def _walk_all(found: State, name: str, values: Iterable[object], seen: set[int]) -> None:
    for item in values:
        if type(item) in _PLAIN:
            found.append((name, item))
        else:
            _walk(found, name, item, seen)


def _attributes(value: object) -> Iterable[tuple[str, object]]:
    own: dict[str, object] | None = getattr(value, "__dict__", None)
    if own is not None:
        return own.items()
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
    return [(slot, getattr(value, slot)) for slot in slots]
