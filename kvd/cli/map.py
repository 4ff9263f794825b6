"""``kvd map``: the arena of every stage as a picture, in the terminal or in a file."""

from collections.abc import Mapping
from pathlib import Path
from shutil import get_terminal_size
from typing import Final

import click

from kvd.cli.flags import load_from_flags, setting_options
from kvd.cli.output import print_json
from kvd.cli.picture import WIDTH_CELLS_MIN, render_map, stretches_of
from kvd.cli.query import StageStatistics, Statistics, fetch_statistics, read_statistics
from kvd.errors import ServeError

_FILE: Final = click.Path(dir_okay=False, path_type=Path)
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
@click.option("--png", type=_FILE, metavar="FILE", help="Write the picture as PNG.")
@click.option("--svg", type=_FILE, metavar="FILE", help="Write the picture as SVG.")
@setting_options("serve", only=("runtime_dir", "socket_path", "stats_path"))
def map_(
    config_file: Path | None,
    width: int | None,
    as_json: bool,
    png: Path | None,
    svg: Path | None,
    **flags: str | None,
) -> None:
    """Draw the arena: bands, holes, promised, pending and fixed units.

    A capital letter is a band's live pages, ! those that must not move, its small letter holes, +
    promised holes, ~ pending pages, # the sink, a dot free bytes. Holes are counted, not placed: a
    span shows its live share first.
    """
    if png or svg:
        # Loaded here, as what draws is large and not everywhere; before the daemon is asked.
        from kvd.cli.plot import require_matplotlib

        require_matplotlib()
    stats_path = load_from_flags(config_file, flags).serve.stats_path
    statistics = read_statistics(fetch_statistics(stats_path))
    if png or svg:
        _write_pictures(statistics, {"png": png, "svg": svg})
    if as_json:
        print_json("kvd.map/1", {"stages": _stages_as_json(statistics)})
        return
    if png or svg:
        click.echo(f"wrote {' and '.join(str(path) for path in (png, svg) if path)}")
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


def _write_pictures(statistics: Statistics, paths: Mapping[str, Path | None]) -> None:
    from kvd.cli.plot import draw_arenas, save_figure

    stages = [
        (f"group {group.name}, stage {stage.stage}: {stage.request_count} requests", stage)
        for group in statistics.groups
        for stage in group.stages
    ]
    if not stages:
        raise ServeError("no group is attached, so there is no arena to draw")
    figure = draw_arenas(stages)
    for file_format, path in paths.items():
        if path is not None:
            save_figure(figure, path, file_format=file_format)


def _stages_as_json(statistics: Statistics) -> list[dict[str, object]]:
    return [
        {
            "group": group.name,
            "stage": stage.stage,
            "arena_bytes": stage.arena_bytes,
            "layouts": stage.layouts,
            "bands": [
                {
                    "name": band.name,
                    "live_units": band.live_units,
                    "hole_units": band.hole_units,
                    "pending_units": band.pending_units,
                    "promised_units": band.promised_units,
                    "hard_fixed": band.hard_fixed,
                    "soft_fixed": band.soft_fixed,
                    "moved_units_total": band.moved_units_total,
                    "moved_bytes_total": band.moved_bytes_total,
                }
                for band in stage.bands
            ],
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
