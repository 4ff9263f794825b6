"""How one setting is described, parsed and shown: name, default, allowed values, reason.

``kvd.config`` declares the settings with these; nothing here reads a file or the environment.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from pathlib import Path
from typing import Final, Protocol, TypeVar, cast

from kvd.errors import SettingError, shown

AUTO: Final = "auto"
"""The word that stands for "derive it" in files, flags and the environment."""

SOCKET_PATH_BYTES_MAX: Final = 107
"""``sun_path`` of Linux has 108 bytes, the last of which is the terminating zero."""

NAME_COMPARED_CHARACTERS: Final = 64

METADATA_KEY: Final = "kvd.setting"

_SUFFIX_BYTES: Final[Mapping[str, int]] = {
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}

T = TypeVar("T")


class Kind(Protocol):
    """What values a setting takes."""

    @property
    def allowed(self) -> str:
        """Return the allowed values as a phrase for people."""
        ...

    def parse(self, raw: object) -> object:
        """Return the typed value, or None when ``raw`` is not allowed."""
        ...

    def shown(self, value: object) -> object:
        """Return the value as it is written in a file: str, int, float or list."""
        ...


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """An integer of any unit within bounds, both included; a word may stand for the largest."""

    bounds: tuple[int, int]
    word_for_highest: str | None = None

    @property
    def allowed(self) -> str:
        """Return the allowed values as a phrase for people."""
        word = f', or "{self.word_for_highest}"' if self.word_for_highest else ""
        return f"a whole number from {self.bounds[0]} to {self.bounds[1]}{word}"

    def parse(self, raw: object) -> int | None:
        """Return the number, or None when it is no whole number within the bounds."""
        if self.word_for_highest is not None and raw == self.word_for_highest:
            return self.bounds[1]
        number = _whole_number(raw)
        if number is None:
            return None
        return number if self.bounds[0] <= number <= self.bounds[1] else None

    def shown(self, value: object) -> object:
        """Return the number, or the word that stands for the largest."""
        if self.word_for_highest is not None and value == self.bounds[1]:
            return self.word_for_highest
        return value


@dataclass(frozen=True, slots=True)
class ByteSize:
    """A number of bytes: a plain integer, or one with KiB, MiB, GiB or TiB."""

    bytes_min: int
    bytes_max: int

    @property
    def allowed(self) -> str:
        """Return the allowed values as a phrase for people."""
        return (
            f"bytes as a whole number, or with KiB, MiB, GiB or TiB as in 40GiB, "
            f"from {show_bytes(self.bytes_min)} to {show_bytes(self.bytes_max)}"
        )

    def parse(self, raw: object) -> int | None:
        """Return the bytes, or None when ``raw`` is no size within the bounds."""
        size_bytes = _parse_bytes(raw)
        if size_bytes is None:
            return None
        return size_bytes if self.bytes_min <= size_bytes <= self.bytes_max else None

    def shown(self, value: object) -> object:
        """Return the size with the largest suffix that divides it."""
        return show_bytes(cast("int", value))


@dataclass(frozen=True, slots=True)
class Ratio:
    """A number within bounds, whole or with a decimal point."""

    lowest: float
    highest: float

    @property
    def allowed(self) -> str:
        """Return the allowed values as a phrase for people."""
        return f"a number from {self.lowest} to {self.highest}"

    def parse(self, raw: object) -> float | None:
        """Return the number, or None when ``raw`` is no number within the bounds."""
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            return None
        try:
            number = float(raw)
        except (ValueError, OverflowError):  # the latter for whole numbers past every float
            return None
        # NaN fails both comparisons, so it is refused here too.
        return number if self.lowest <= number <= self.highest else None

    def shown(self, value: object) -> object:
        """Return the number itself."""
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """Return the allowed values as a phrase for people."""
        return "one of " + ", ".join(self.words)

    def parse(self, raw: object) -> str | None:
        """Return the word, or None when it is not one of them."""
        return raw if isinstance(raw, str) and raw in self.words else None

    def shown(self, value: object) -> object:
        """Return the word itself."""
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """A name or address: any non-empty text without a null byte."""

    what: str

    @property
    def allowed(self) -> str:
        """Return the allowed values as a phrase for people."""
        return self.what

    def parse(self, raw: object) -> str | None:
        """Return the text, or None when it is empty or no text."""
        return raw if isinstance(raw, str) and raw and "\0" not in raw else None

    def shown(self, value: object) -> object:
        """Return the text itself."""
        return value


@dataclass(frozen=True, slots=True)
class AbsolutePath:
    """A path from the root; a relative one would mean another file for every caller."""

    @property
    def allowed(self) -> str:
        """Return the allowed values as a phrase for people."""
        return "an absolute path"

    def parse(self, raw: object) -> Path | None:
        """Return the path, or None when it is relative, empty or no text."""
        if not isinstance(raw, str | Path) or "\0" in str(raw):
            return None
        path = Path(raw)
        return path if path.is_absolute() else None

    def shown(self, value: object) -> object:
        """Return the path as text."""
        return str(value)


@dataclass(frozen=True, slots=True)
class UidList:
    """Numeric user ids: a list, or text with commas."""

    @property
    def allowed(self) -> str:
        """Return the allowed values as a phrase for people."""
        return "a list of numeric user ids, as [1000, 1001] in a file or 1000,1001 elsewhere"

    def parse(self, raw: object) -> tuple[int, ...] | None:
        """Return the ids ascending and once each, or None when one is no user id."""
        items: list[object]
        if isinstance(raw, list | tuple):
            items = list(cast("list[object]", raw))
        elif isinstance(raw, str):
            items = [item.strip() for item in raw.split(",")] if raw.strip() else []
        else:
            return None
        uids = [_whole_number(item) for item in items]
        found = [uid for uid in uids if uid is not None and 0 <= uid < (1 << 32) - 1]
        return tuple(sorted(set(found))) if len(found) == len(uids) else None

    def shown(self, value: object) -> object:
        """Return the ids as a list."""
        return list(cast("tuple[int, ...]", value))


@dataclass(frozen=True, slots=True)
class Auto:
    """Another kind, or the word ``auto``."""

    kind: Kind
    meaning: str

    @property
    def allowed(self) -> str:
        """Return the allowed values as a phrase for people."""
        return f'{self.kind.allowed}, or "{AUTO}" ({self.meaning})'

    def parse(self, raw: object) -> object:
        """Return the word ``auto``, the other kind's value, or None."""
        return AUTO if raw == AUTO else self.kind.parse(raw)

    def shown(self, value: object) -> object:
        """Return ``auto`` for a value left open, else the other kind's form."""
        return AUTO if value is None or value == AUTO else self.kind.shown(value)


@dataclass(frozen=True, slots=True)
class SettingSpec:
    """Everything about a setting but its name and value."""

    kind: Kind
    default: object
    reason: str
    flag: str | None


class Origin(StrEnum):
    """Where a setting's value came from, strongest first."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """A setting as it applies, with its origin; ``shown`` is its form in a file."""

    section: str
    name: str
    value: object
    shown: object
    origin: Origin
    source: str
    allowed: str
    reason: str


def setting(default: T, kind: Kind, reason: str, *, flag: str | None = None) -> T:
    """Return a dataclass field for a setting with a fixed default.

    ``flag`` is the command-line option where it is not ``--name-with-dashes``.
    """
    spec = SettingSpec(kind=kind, default=default, reason=reason, flag=flag)
    return field(default=default, metadata={METADATA_KEY: spec})


def derived(kind: Auto, reason: str, *, flag: str | None = None) -> Path:
    """Return a dataclass field for a path that is derived while it says ``auto``."""
    spec = SettingSpec(kind=kind, default=AUTO, reason=reason, flag=flag)
    return cast("Path", field(metadata={METADATA_KEY: spec}))


def parse_setting(spec: SettingSpec, *, name: str, raw: object, source: str) -> object:
    """Return the typed value of ``raw``, which ``source`` gave for the setting ``name``.

    Raises SettingError with name, value, source and what is allowed.
    """
    value = spec.kind.parse(raw)
    if value is None:
        raise SettingError(f"{name} = {shown(raw)} (from {source}) is not {spec.kind.allowed}")
    return value


def check_socket_path(path: Path, *, name: str) -> None:
    """Raise SettingError if a Unix socket cannot have this path."""
    length_bytes = len(os.fsencode(path))
    if length_bytes > SOCKET_PATH_BYTES_MAX:
        raise SettingError(
            f"{name} = '{path}' is {length_bytes} bytes long; a Unix socket path has at most "
            f"{SOCKET_PATH_BYTES_MAX}: choose a shorter --runtime-dir or --socket"
        )


def unknown_setting(what: str, name: str, known: tuple[str, ...]) -> SettingError:
    """Return the error for a setting that does not exist, with the nearest that does."""
    import difflib  # on the way out only

    # What is far longer than any name is like none, and finding that out takes long.
    near = difflib.get_close_matches(name[:NAME_COMPARED_CHARACTERS], known, n=1)
    hint = f"did you mean {near[0]}?" if near else "kvd config lists all settings"
    return SettingError(f"{what} is no setting; {hint}")


def show_bytes(size_bytes: int) -> str | int:
    """Return the size with the largest suffix that divides it, else the plain number."""
    for suffix, unit_bytes in sorted(_SUFFIX_BYTES.items(), key=itemgetter(1), reverse=True):
        if size_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{suffix}"
    return size_bytes


def parse_bytes(raw: str, *, name: str) -> int:
    """Return the bytes that a text such as ``40GiB`` or ``4096`` means.

    Raises SettingError naming ``name`` and the text.
    """
    size_bytes = _parse_bytes(raw)
    if size_bytes is None:
        raise SettingError(
            f"{name} = {shown(raw)} is not a number of bytes; write 4096, 512MiB or 40GiB"
        )
    return size_bytes


def _parse_bytes(raw: object) -> int | None:
    if isinstance(raw, str):
        for suffix, unit_bytes in _SUFFIX_BYTES.items():
            if raw.endswith(suffix):
                count = _whole_number(raw.removesuffix(suffix).strip())
                return None if count is None else count * unit_bytes
    return _whole_number(raw)


def _whole_number(raw: object) -> int | None:
    """Return an integer given as such or as decimal digits; True and 1.0 are not integers."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int):
        return raw
    if isinstance(raw, str):
        digits = raw.removeprefix("-")
        # 20 digits hold every 64-bit number; int() of a longer text costs quadratic time.
        if digits.isascii() and digits.isdigit() and len(digits) <= 20:
            return int(raw)
    return None


def default_runtime_dir(environ: Mapping[str, str]) -> Path:
    """Return where sockets lie if nothing says otherwise."""
    system_dir = Path("/run/kvd")
    if system_dir.is_dir() and os.access(system_dir, os.W_OK | os.X_OK):
        return system_dir
    session_dir = environ.get("XDG_RUNTIME_DIR", "")
    if session_dir.startswith("/"):
        return Path(session_dir) / "kvd"
    return Path(f"/tmp/kvd-{os.getuid()}")
