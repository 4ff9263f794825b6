"""``kvd what-if``: would a demand fit, after which rearrangement, and what would that move.

The daemon is not asked. It publishes everything that an answer depends on, and the same functions
that it decides with answer here, so the hot path is not disturbed.
"""

import sys
from pathlib import Path
from typing import Final, NamedTuple

import click

from kvd.alloc.demand import DemandShape, Tracking
from kvd.cli.flags import load_from_flags, setting_options
from kvd.cli.output import print_json, print_table
from kvd.cli.query import (
    BandStatistics,
    GroupStatistics,
    StageStatistics,
    Statistics,
    fetch_statistics,
    read_statistics,
)
from kvd.engine.what_if import StagePicture, answer
from kvd.errors import ServeError
from kvd.price.geometry import BandGeometry, BandKind, ChainGeometry
from kvd.price.snapshot import BandSnapshot, ChainSnapshot, empty_snapshot
from kvd_proto.control import WhatIf, WhatIfReply
from kvd_proto.memory import Lifetime

SCHEMA: Final = "kvd.what-if/1"
EXIT_NO_ROOM: Final = 1
_COLUMNS: Final = ("after", "fits", "layout", "moves at most", "bytes moved at most")
_AFTER: Final = {
    "now": "nothing",
    "settled": "settling freed pages",
    "relief": "rearranging",
    "eviction": "evicting cached pages",
}


class StageAnswer(NamedTuple):
    """The answer for one stage."""

    group: str
    stage: StageStatistics
    reply: WhatIfReply

    @property
    def fits(self) -> bool:
        """Return whether the demand fits after any of the steps."""
        return any(step.fits for step in self.reply.steps)


@click.command("what-if")
@click.option("--group", metavar="NAME", help="The group; needed where several are attached.")
@click.option("--stage", type=int, metavar="N", help="One stage; all of the group otherwise.")
@click.option("--units", metavar="A,B,...", help="Units of each band, low to high.")
@click.option("--prompt", type=int, metavar="N", help="Prompt tokens of a request.")
@click.option("--new", type=int, metavar="N", help="New tokens of the request.")
@click.option("--chunk", type=int, metavar="N", help="Its longest chunk; as sized otherwise.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@setting_options("serve", only=("runtime_dir", "socket_path", "stats_path"))
def what_if(
    *,
    group: str | None,
    stage: int | None,
    units: str | None,
    prompt: int | None,
    new: int | None,
    chunk: int | None,
    config_file: Path | None,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Say whether a demand would fit now, after rearranging, and what that would move.

    Ask about units of every band, or about a request by its tokens. Nothing is changed. Exit code 1
    says that it does not fit; what is promised to admitted requests counts as taken.
    """
    question = _question(units, prompt=prompt, new=new, chunk=chunk)
    stats_path = load_from_flags(config_file, flags).serve.stats_path
    statistics = read_statistics(fetch_statistics(stats_path))
    found = _group(statistics, group)
    answers = [
        StageAnswer(found.name, one, answer(picture_of(one), question))
        for one in _stages(found, stage)
    ]
    fits = all(one.fits for one in answers)
    if as_json:
        print_json(SCHEMA, {"fits": fits, "stages": [_as_json(one) for one in answers]})
    else:
        for one in answers:
            _print(one)
    if not fits:
        sys.exit(EXIT_NO_ROOM)


def picture_of(stage: StageStatistics) -> StagePicture:
    """Return what capacity answers of a stage depend on, from its statistics.

    Raises ServeError if the daemon does not publish all of it, or publishes what this build does
    not know.
    """
    demand = stage.demand
    if demand is None:
        raise ServeError(
            f"the daemon's statistics of stage {stage.stage} do not say how requests are priced; "
            f"it is of an older build, restart it with this one"
        )
    try:
        geometry = ChainGeometry(
            stage.arena_bytes, stage.sink_bytes, tuple(_geometry(band) for band in stage.bands)
        )
        shape = DemandShape(
            lifetimes=tuple(Lifetime(band.kind) for band in stage.bands),
            window_tokens=tuple(band.window_tokens for band in stage.bands),
            page_tokens=demand.page_tokens,
            slots_per_request_slots=demand.slots_per_request_slots,
            step_tokens=demand.step_tokens,
            overlap=demand.overlap,
            slide_tokens=demand.slide_tokens,
            checkpoint_tokens=demand.checkpoint_tokens,
            tracking=Tracking(demand.tracking),
            context_tokens=demand.context_tokens,
        )
    except ValueError as error:
        raise ServeError(f"the daemon's statistics use a word unknown here: {error}") from error
    return StagePicture(
        snapshot=ChainSnapshot(
            stage.arena_bytes,
            stage.sink_bytes,
            tuple(
                _band(band, grid) for band, grid in zip(stage.bands, geometry.bands, strict=True)
            ),
            blocked=stage.blocked,
            quarantined=stage.quarantined,
        ),
        empty=empty_snapshot(geometry, tuple(band.virtual_total_count for band in stage.bands)),
        promised_units=tuple(band.promised_units for band in stage.bands),
        shape=shape,
        chunk_tokens=demand.chunk_tokens,
        holder_count=stage.request_count + stage.value_count,
        free_count=stage.row_count - stage.request_count,
    )


def _geometry(band: BandStatistics) -> BandGeometry:
    return BandGeometry(
        name=band.name,
        kind=BandKind(band.chain_kind),
        unit_bytes=band.unit_bytes,
        unit_index_min=band.unit_index_min,
        unit_index_end_count=band.unit_index_end_count,
    )


def _band(band: BandStatistics, geometry: BandGeometry) -> BandSnapshot:
    return BandSnapshot(
        geometry,
        band.span_start_index,
        band.span_end_index,
        band.live_units,
        band.hole_units,
        pending_units=band.pending_units,
        vacated_forward_units=band.vacated_forward_units,
        vacated_network_units=band.vacated_network_units,
        fenced_units=band.fenced_units,
        hard_fixed=band.hard_fixed,
        soft_fixed=band.soft_fixed,
        movable=band.movable,
        id_room_count=None if band.virtual_total_count is None else band.virtual_free_count,
    )


def _question(
    units: str | None, *, prompt: int | None, new: int | None, chunk: int | None
) -> WhatIf:
    """Return the question; raises UsageError unless it is about units or about a request."""
    if units is not None:
        if (prompt, new, chunk) != (None, None, None):
            raise click.UsageError("--units asks about bands, --prompt about a request: give one")
        try:
            return WhatIf(demand_units=tuple(int(one) for one in units.split(",")))
        except ValueError as error:
            raise click.UsageError(
                f"--units is {units!r}; one number per band is needed, as in 1,8,8"
            ) from error
    if prompt is None or new is None:
        raise click.UsageError("give --units, or --prompt and --new")
    return WhatIf(prompt_tokens=prompt, new_tokens_max=new, chunk_tokens=chunk or 0)


def _group(statistics: Statistics, name: str | None) -> GroupStatistics:
    """Return the group asked about; raises ServeError if it is not attached, or not clear."""
    running = [group for group in statistics.groups if group.stages]
    names = ", ".join(group.name for group in running) or "none"
    wanted = [group for group in running if name in (None, group.name)]
    if not wanted:
        what = "a group" if name is None else f"group {name!r}"
        raise ServeError(f"{what} with an arena is needed; attached: {names}")
    if len(wanted) > 1:
        raise ServeError(f"several groups are attached ({names}); choose one with --group")
    return wanted[0]


def _stages(group: GroupStatistics, index: int | None) -> tuple[StageStatistics, ...]:
    stages = tuple(stage for stage in group.stages if index in (None, stage.stage))
    if not stages:
        raise ServeError(f"group {group.name} has stages 0 to {len(group.stages) - 1}, not {index}")
    return stages


def _as_json(one: StageAnswer) -> dict[str, object]:
    reply = one.reply
    return {
        "group": one.group,
        "stage": one.stage.stage,
        "position": one.stage.position,
        "fits": one.fits,
        "fits_empty": reply.fits_empty,
        "new_tokens": reply.new_tokens,
        "demand_units": _by_band(one.stage, reply.demand_units),
        "steps": [
            {
                "name": step.name,
                "fits": step.fits,
                "layout": step.layout or None,
                "moved_units": _by_band(one.stage, step.moved_units) if step.fits else {},
                "moved_bytes": step.moved_bytes,
            }
            for step in reply.steps
        ],
        "obstacle": reply.obstacle or None,
    }


def _print(one: StageAnswer) -> None:
    stage, reply = one.stage, one.reply
    rows = [
        (
            _AFTER[step.name],
            "yes" if step.fits else "no",
            step.layout,
            _in_words(stage, step.moved_units) if step.moved_bytes else "",
            f"{step.moved_bytes:,}" if step.fits else "",
        )
        for step in reply.steps
    ]
    asked = _in_words(stage, reply.demand_units) or "nothing"
    print_table(f"group {one.group}, stage {stage.stage}: {asked}", _COLUMNS, rows)
    if reply.new_tokens:
        click.echo(f"memory can ever grant this request {reply.new_tokens:,} new tokens")
    if not one.fits:
        ever = "it would fit an empty arena" if reply.fits_empty else "no empty arena holds it"
        click.echo(f"in the way: {reply.obstacle}; {ever}")


def _by_band(stage: StageStatistics, units: tuple[int, ...]) -> dict[str, int]:
    return dict(zip((band.name for band in stage.bands), units, strict=True))


def _in_words(stage: StageStatistics, units: tuple[int, ...]) -> str:
    counts = _by_band(stage, units)
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
