"""How commands print: a table for people, or one JSON document for programs.

A document carries its schema's name and version; fields are added, never renamed or removed,
while the version stays.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import click

PLAIN_WIDTH_COLUMNS: Final = 160
"""Table width when the output is no terminal: wide enough that no path is cut in logs."""


def print_json(schema: str, fields: Mapping[str, object]) -> None:
    """Print one document with its schema, as ``kvd.config/1``, ahead of the fields."""
    click.echo(json.dumps({"schema": schema, **fields}, indent=2, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text under headings; every row has one text per column."""
    # rich takes 60 ms to import, which a command that prints JSON should not pay.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title, style="bold"), title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        assert len(row) == len(columns)
        # Text, not str: what stands in brackets must not be read as markup.
        table.add_row(*(Text(cell) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH_COLUMNS)
    console.print(table)
