"""``kvd map``: the arena of every stage as a picture in the terminal."""

from pathlib import Path
from shutil import get_terminal_size
from typing import Final

import click

from kvd.cli.flags import load_from_flags, setting_options
from kvd.cli.output import print_json
from kvd.cli.picture import WIDTH_CELLS_MIN, render_map, stretches_of
from kvd.cli.query import StageStatistics, Statistics, fetch_statistics, read_statistics

WIDTH_CELLS: Final = 100
"""Cells where there is no terminal to fill."""


@click.command("map")
@click.option(
    "--width",
    type=click.IntRange(min=WIDTH_CELLS_MIN, max=10_000),
    metavar="CELLS",
    help="cells of the picture; as wide as the terminal otherwise",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@setting_options("serve", only=("runtime_dir", "socket_path", "stats_path"))
def map_(config_file: Path | None, width: int | None, as_json: bool, **flags: str | None) -> None:
    """Draw the arena: bands, holes, pending pages.

    A capital letter is a band's live pages, its small letter holes, ~ pending pages, # the sink, a
    dot free bytes. Holes are counted, not placed: a span shows its live share first.
    """
    stats_path = load_from_flags(config_file, flags).serve.stats_path
    statistics = read_statistics(fetch_statistics(stats_path))
    if as_json:
        print_json("kvd.map/1", {"stages": _stages_as_json(statistics)})
        return
    if not any(group.stages for group in statistics.groups):
        click.echo("no group is attached, so there is no arena yet")
        return
    columns = width or get_terminal_size((WIDTH_CELLS, 0)).columns
    for group in statistics.groups:
        for stage in group.stages:
            click.echo(f"group {group.name}, stage {stage.stage}: {stage.request_count} requests")
            click.echo(render_map(stage, max(columns, WIDTH_CELLS_MIN)))
            click.echo()


def _stages_as_json(statistics: Statistics) -> list[dict[str, object]]:
    return [
        {
            "group": group.name,
            "stage": stage.stage,
            "arena_bytes": stage.arena_bytes,
            "stretches": _stretches_as_json(stage),
        }
        for group in statistics.groups
        for stage in group.stages
    ]


def _stretches_as_json(stage: StageStatistics) -> list[dict[str, object]]:
    return [
        {
            "start_bytes": stretch.start_bytes,
            "end_bytes": stretch.end_bytes,
            "use": stretch.use.value,
            "band": None if stretch.band_index < 0 else stage.bands[stretch.band_index].name,
        }
        for stretch in stretches_of(stage)
    ]
