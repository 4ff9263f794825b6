"""The golden bytes: what peers of one protocol version rely on.

Run ``python -m tests.proto.golden`` after a change of the protocol. New messages, new enum values
and new fields with a default are added; anything else needs a new PROTOCOL_VERSION first.
"""

import enum
import json
import sys
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
from msgspec.structs import FieldInfo, fields

from kvd_proto import control, errors, memory, operations, outcomes
from kvd_proto.codec import encode
from kvd_proto.version import PROTOCOL_VERSION
from tests.proto.samples import SAMPLES

PATH = Path(__file__).with_name("golden.json")

ENUMS: tuple[type[enum.Enum], ...] = (
    control.Role,
    control.Mode,
    control.MessageKind,
    errors.ErrorCode,
    memory.DType,
    memory.Lifetime,
    memory.ModelRole,
    operations.WriteSet,
    outcomes.Verdict,
    outcomes.Reason,
    outcomes.CopyStream,
)

Golden: TypeAlias = dict[str, Any]


def current() -> Golden:
    """Return the golden document of the code as it is."""
    return {
        "protocol_version": PROTOCOL_VERSION,
        "bytes": {name: encode(sample).hex() for name, sample in SAMPLES.items()},
        "defaults": {name: _defaults(sample) for name, sample in SAMPLES.items()},
        "enums": {kind.__name__: {item.name: item.value for item in kind} for kind in ENUMS},
    }


def recorded() -> Golden:
    """Return the golden document of the repository."""
    golden: Golden = json.loads(PATH.read_text())
    return golden


def broken(old: Golden, new: Golden) -> list[str]:
    """Return what an older peer of the same version would misread."""
    return [
        f"{section}.{name}"
        for section in ("bytes", "defaults", "enums")
        for name, value in old[section].items()
        if not _keeps(new[section].get(name), value)
    ]


def _keeps(new: Any, old: Any) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return cast("dict[str, Any]", old).items() <= cast("dict[str, Any]", new).items()
    return bool(new == old)


def _defaults(sample: msgspec.Struct) -> dict[str, str]:
    """Return the defaults as text: peers leave them out, so they are part of the protocol."""
    return {
        field.name: repr(_default(field))
        for field in fields(sample)
        if _default(field) is not msgspec.NODEFAULT
    }


def _default(field: FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


if __name__ == "__main__":
    fresh = current()
    if PATH.exists():
        problems = broken(recorded(), fresh)
        if problems and recorded()["protocol_version"] == PROTOCOL_VERSION:
            sys.exit(f"raise PROTOCOL_VERSION first: {', '.join(problems)} would be misread")
    PATH.write_text(json.dumps(fresh, indent=1) + "\n")
