"""Model configurations from outside the pure core: the packaged presets and files on disk.

A preset is a shortened ``config.json`` with the public figures of a model. It stands for the
model's memory geometry, not for its weights.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from kvd.errors import FileError

CONFIG_NAME: Final = "config.json"
CONFIG_BYTES_MAX: Final = 16 << 20
"""Real files have some kilobytes; beyond this it is something else, a checkpoint perhaps."""

_SUFFIX: Final = ".json"


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    return tuple(
        sorted(
            entry.name.removesuffix(_SUFFIX)
            for entry in _folder().iterdir()
            if entry.name.endswith(_SUFFIX)
        )
    )


def preset_config(name: str) -> bytes:
    """Return a preset's configuration as JSON text; FileError listing the names if unknown."""
    names = preset_names()
    if name not in names:
        raise FileError(f"preset {name!r} is unknown: expected one of {', '.join(names)}")
    return (_folder() / f"{name}{_SUFFIX}").read_bytes()


def read_config(path: Path) -> bytes:
    """Return the text of a configuration file, or of ``config.json`` in a folder.

    Raises FileError naming the path when it is missing, unreadable or absurdly large.
    """
    try:
        file = path / CONFIG_NAME if path.is_dir() else path
        with file.open("rb") as stream:
            text = stream.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise FileError(f"{error.filename or path}: {reason}") from error
    if len(text) > CONFIG_BYTES_MAX:
        raise FileError(
            f"{file} has over {CONFIG_BYTES_MAX} bytes: expected a model's {CONFIG_NAME}"
        )
    return text


def _folder() -> Traversable:
    return files("kvd.declare") / "presets"
