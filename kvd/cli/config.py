"""``kvd config``: the settings that apply, with the place each value came from."""

from pathlib import Path
from typing import cast

import click

from kvd.cli.flags import setting_options
from kvd.cli.output import print_json, print_table
from kvd.config import effective, process_environment, section_names, settings_file


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@setting_options(*section_names())
def config(config_file: Path | None, as_json: bool, **flags: str | None) -> None:
    """Print the settings that apply, and why.

    Takes the options of every command, so that a command line can be tried before it is used.
    """
    environ = process_environment()
    file = settings_file(config_file, environ)
    found = effective(flags, environ, file)
    if as_json:
        settings = [
            {
                "section": item.section,
                "name": item.name,
                "value": _as_json(item.value),
                "origin": item.origin.value,
                "source": item.source,
                "allowed": item.allowed,
                "reason": item.reason,
            }
            for item in found
        ]
        print_json("kvd.config/1", {"file": str(file) if file else None, "settings": settings})
        return
    for section in section_names():
        print_table(
            f"[{section}]",
            ("setting", "value", "from", "allowed"),
            [
                (item.name, _as_text(item.shown), item.source, item.allowed)
                for item in found
                if item.section == section
            ],
        )


def _as_text(shown: object) -> str:
    if isinstance(shown, list):
        return ", ".join(str(part) for part in cast("list[object]", shown))
    return str(shown)


def _as_json(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
