"""How commands print: a table for people, or one JSON document for programs.

A document carries its schema's name and version; fields are added, never renamed or removed,
while the version stays.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
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


@contextmanager
def shown_progress(
    title: str, *, total_count: int, is_wanted: bool = True
) -> Generator[Callable[[int, str], None], None, None]:
    """Give a function that moves a bar on stderr, or one that shows nothing if nobody looks.

    It takes how many of the total are done, and what else there is to say.
    """
    # Loaded here: it takes longer to import than the rest of the command.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not is_wanted or not console.is_terminal:
        yield _show_nothing
        return
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total_count, text="")

        def show(done_count: int, text: str) -> None:
            bar.update(task, completed=done_count, text=text)

        yield show


def _show_nothing(_done_count: int, _text: str) -> None:
    """Show nothing."""
