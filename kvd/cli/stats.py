"""``kvd stats``: what a running daemon's bands, groups and sessions hold."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import click

from kvd.cli.flags import load_from_flags, setting_options
from kvd.cli.query import (
    BandStatistics,
    GroupStatistics,
    StageStatistics,
    fetch_statistics,
    read_statistics,
)

WATCH_INTERVAL_S: Final = 1.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the daemon's document.")
@click.option("--watch", is_flag=True, help="Print again every second, until interrupted.")
@setting_options("serve", only=("runtime_dir", "socket_path", "stats_path"))
def stats(config_file: Path | None, as_json: bool, watch: bool, **flags: str | None) -> None:
    """Show what a running daemon's bands hold."""
    stats_path = load_from_flags(config_file, flags).serve.stats_path
    while True:
        document = fetch_statistics(stats_path)
        if watch and not as_json:
            click.clear()
        if as_json:
            click.echo(document)
        else:
            _print_tables(document)
        if not watch:
            return
        try:
            time.sleep(WATCH_INTERVAL_S)
        except KeyboardInterrupt:
            return


def _print_tables(document: bytes) -> None:
    # Loaded here: printing tables takes longer than everything that --json needs.
    from kvd.cli.output import print_table

    found = read_statistics(document)
    daemon = found.daemon
    click.echo(
        f"kvd {daemon.build}, process {daemon.pid}, epoch {daemon.epoch}, "
        f"up {daemon.uptime_s:,.0f} s"
    )
    if not found.groups:
        click.echo("no group is attached")
    for group in found.groups:
        click.echo(_group_line(group))
        for rank in group.leaving:
            click.echo(f"  not quiet yet: {rank}")
        for item in group.quarantined:
            click.echo(
                f"  in quarantine for {item.age_s:,.0f} s: {item.arena_bytes:,} bytes of "
                f"{item.rank_text}: {item.reason}"
            )
        for stage in group.stages:
            print_table(_stage_title(stage), _BAND_COLUMNS, _band_rows(stage))
            for band in stage.bands:
                _print_uses(band)
            _print_counters(f"stage {stage.stage}", stage.counters | stage.refusals)
            if stage.layouts:
                _print_counters(f"stage {stage.stage} layouts", stage.layouts)
    if found.sessions:
        # A column for each fact that any session has.
        columns = tuple(dict.fromkeys(key for session in found.sessions for key in session))
        rows = [tuple(str(session.get(key, "")) for key in columns) for session in found.sessions]
        print_table("sessions", columns, rows)
    _print_counters("daemon", found.counters)


def _print_uses(band: BandStatistics) -> None:
    """Say what uses units of a band, the oldest first: what does not end stands in front."""
    if not band.oldest_uses:
        return
    shown = "; ".join(
        f"{use.by}: {use.use} of {'any' if use.unit_count is None else f'{use.unit_count:,}'} units"
        for use in band.oldest_uses
    )
    click.echo(f"  {band.open_use_count:,} uses of {band.name}, oldest first: {shown}")


def _print_counters(owner: str, counters: Mapping[str, Any]) -> None:
    shown = ", ".join(f"{name} {_as_text(value)}" for name, value in counters.items())
    click.echo(f"{owner}: {shown}")


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return "{" + ", ".join(f"{key} {_as_text(pairs[key])}" for key in pairs) + "}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}"


def _group_line(group: GroupStatistics) -> str:
    line = (
        f"group {group.name} ({group.model or 'no model'}): TP {group.tp}, PP {group.pp}, "
        f"incarnation {group.incarnation}, {group.state}"
    )
    if group.waiting_for:
        line += f", waits for {', '.join(group.waiting_for)}"
    return line + (f"; last ended because {group.last_end}" if group.last_end else "")


_BAND_COLUMNS: Final = (
    "band",
    "kind",
    "grows",
    "unit bytes",
    "span",
    "of",
    "live",
    "holes",
    "pending",
    "promised",
    "fixed",
    "moved",
    "free ids",
    "live bytes",
)


def _stage_title(stage: StageStatistics) -> str:
    log = f", log of {stage.log.entry_count:,} entries" if stage.log is not None else ""
    return (
        f"stage {stage.stage}: arena of {stage.arena_bytes:,} bytes, "
        f"{stage.request_count:,} of {stage.row_count:,} requests, position {stage.position:,}{log}"
    )


def _band_rows(stage: StageStatistics) -> list[tuple[str, ...]]:
    return [
        (
            band.name,
            band.kind,
            band.chain_kind,
            f"{band.unit_bytes:,}",
            f"[{band.span_start_index:,}, {band.span_end_index:,})",
            f"[{band.unit_index_min:,}, {band.unit_index_end_count:,})",
            f"{band.live_units:,}",
            f"{band.hole_units:,}",
            f"{band.pending_units:,}",
            f"{band.promised_units:,}",
            _fixed_text(band),
            f"{band.moved_units_total:,}",
            f"{band.virtual_free_count:,}",
            f"{band.live_units * band.unit_bytes:,}",
        )
        for band in stage.bands
    ]


def _fixed_text(band: BandStatistics) -> str:
    """Return which units of a band stay where they are: for good, or (~) until transfers end."""
    extents = (("", band.hard_fixed), ("~", band.soft_fixed))
    return " ".join(
        f"{mark}[{extent[0]:,}, {extent[1]:,})" for mark, extent in extents if extent is not None
    )
