"""Every setting as a command-line option, made from the same table as the settings themselves."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from kvd.config import (
    Settings,
    flag_name,
    load_settings,
    process_environment,
    settings_file,
    specs,
)

F = TypeVar("F", bound=Callable[..., Any])

CONFIG_PARAMETER: Final = "config_file"


def setting_options(*sections: str, only: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Return a decorator that adds ``--config`` and an option per setting of the sections.

    ``only`` limits the options to these settings. The command takes them as ``config_file`` and
    ``**flags`` (setting name to text or None), and hands both to `load_from_flags`.
    """

    def decorate(command: F) -> F:
        wanted = [
            (name, spec)
            for section in sections
            for name, spec in specs(section).items()
            if not only or name in only
        ]
        # Options are listed in the order of the settings; decorators apply from the last.
        for name, spec in reversed(wanted):
            command = click.option(
                flag_name(name, spec),
                name,
                metavar="VALUE",
                help=f"{spec.reason} ({spec.kind.allowed})",
            )(command)
        return click.option(
            "--config",
            CONFIG_PARAMETER,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="settings file, TOML; KVD_CONFIG names one otherwise",
        )(command)

    return decorate


def load_from_flags(config_file: Path | None, flags: Mapping[str, object]) -> Settings:
    """Return the settings that apply to this process, given a command's options.

    Raises SettingError for an unknown or wrong setting, FileError for an unreadable file.
    """
    environ = process_environment()
    return load_settings(flags, environ, settings_file(config_file, environ))
