"""``kvd plan``: a dry run of sizing. What a model's bands cost, and what a budget carries."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
import msgspec

from kvd.build import GroupStorage, StageStorage, build_group
from kvd.cli.flags import setting_options
from kvd.cli.output import print_json, print_table
from kvd.config import (
    effective,
    process_environment,
    settings_file,
)
from kvd.errors import SettingError
from kvd.presets import preset_config, preset_names, read_config
from kvd.price.geometry import BandGeometry
from kvd.setting import EffectiveSetting, Origin
from kvd_proto.memory import BandPlan, DeclaredConfig, ModelRole, SizingInputs

SCHEMA: Final = "kvd.plan/1"

_INPUT_OF_SETTING: Final = {"running_requests": "running_requests_count"}
"""Settings whose sizing input has another name."""
_PER_STAGE: Final = ("stage_index", "layer_index_min", "layer_end_count", "budget_floor_bytes")
"""Fields of a stage that the document's top level, which shows stage 0, leaves out."""
_BAND_COLUMNS: Final = ("band", "kind", "layers", "entry", "unit", "at most", "floor", "target")


@click.command()
@click.option("--preset", metavar="NAME", help="A packaged model; an unknown name lists them all.")
@click.option(
    "--model",
    "model_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A Hugging Face config.json, or the folder that holds one.",
)
@click.option("--tp", "tp_count", type=int, default=1, help="Tensor-parallel ranks.")
@click.option("--pp", "pp_count", type=int, default=1, help="Pipeline stages.")
@click.option(
    "--stage-layers",
    metavar="N,N,...",
    help="Layers of each stage; as even as possible if not given.",
)
@click.option(
    "--draft-model",
    "draft_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The config.json of a draft model that shares the target's pages.",
)
@click.option("--cached-slots", type=int, help="State slots per request for a prefix cache (2).")
@click.option("--tracking-slots", type=int, help="State slots per request for checkpoints (0).")
@click.option("--checkpoint", "checkpoint_tokens", type=int, help="Tokens between checkpoints (0).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@setting_options("sizing")
def plan(
    *,
    preset: str | None,
    model_path: Path | None,
    tp_count: int,
    pp_count: int,
    stage_layers: str | None,
    draft_path: Path | None,
    cached_slots: int | None,
    tracking_slots: int | None,
    checkpoint_tokens: int | None,
    config_file: Path | None,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Say what fits: bands, bytes per token, page and slot, floor, targets, fixed allocations.

    Sizes are those of one rank. Nothing is allocated and no daemon is asked.
    """
    environ = process_environment()
    found = {
        item.name: item
        for item in effective(flags, environ, settings_file(config_file, environ))
        if item.section == "sizing"
    }
    given = {
        "cached_slots": cached_slots,
        "tracking_slots": tracking_slots,
        "checkpoint_tokens": checkpoint_tokens,
        "stage_layers_count": None if stage_layers is None else _stage_layers(stage_layers),
    }
    group = build_group(
        _declaration(preset, model_path, draft_path),
        inputs=_inputs(found, from_flags=True, given=given),
        settings=_inputs(found, from_flags=False, given={}),
        tp_count=tp_count,
        pp_count=pp_count,
    )
    if as_json:
        _print_document(group, tp_count=tp_count, pp_count=pp_count)
    else:
        _print_tables(group, found["budget_bytes"], tp_count=tp_count, pp_count=pp_count)


def _declaration(
    preset: str | None, model_path: Path | None, draft_path: Path | None
) -> DeclaredConfig:
    draft = None if draft_path is None else read_config(draft_path)
    if preset is not None and model_path is None:
        return DeclaredConfig(
            config_json=preset_config(preset), draft_config_json=draft, name=preset
        )
    if model_path is not None and preset is None:
        return DeclaredConfig(
            config_json=read_config(model_path), draft_config_json=draft, name=str(model_path)
        )
    raise SettingError(
        "expected one of --preset NAME and --model PATH; presets are " + ", ".join(preset_names())
    )


def _stage_layers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 10 for part in parts):
        raise SettingError(f"stage_layers = {text!r} is no list of numbers as 13,11")
    return tuple(int(part) for part in parts)


def _inputs(
    found: Mapping[str, EffectiveSetting], *, from_flags: bool, given: Mapping[str, object]
) -> SizingInputs:
    """Return the settings that came from flags, or all the others, as sizing inputs.

    What a flag says has to mean something for the model; a setting is only advice.
    """
    chosen = {
        _INPUT_OF_SETTING.get(name, name): item.value
        for name, item in found.items()
        if (item.origin is Origin.FLAG) == from_flags
    }
    return msgspec.convert({**chosen, **given}, SizingInputs)


def _print_document(group: GroupStorage, *, tp_count: int, pp_count: int) -> None:
    stages = [_stage_fields(stage) for stage in group.stages]
    print_json(
        SCHEMA,
        {
            "model": group.name,
            "tp": tp_count,
            "pp": pp_count,
            "budget_bytes": group.values.budget_bytes,
            "budget_floor_bytes": group.budget_floor_bytes,
            **{key: value for key, value in stages[0].items() if key not in _PER_STAGE},
            "stages": stages,
        },
    )


def _stage_fields(stage: StageStorage) -> dict[str, object]:
    sized = stage.sized
    places = zip(
        stage.storage.bands,
        sized.geometry.bands,
        sized.floor_units,
        sized.target_units,
        strict=True,
    )
    return {
        "stage_index": sized.stage_index,
        "layer_index_min": sized.layer_index_min,
        "layer_end_count": sized.layer_end_count,
        "budget_floor_bytes": sized.budget_floor_bytes,
        "arena_bytes": sized.arena_bytes,
        "region_bytes": sized.region.region_bytes,
        "total_bytes": sized.total_bytes,
        "sink_bytes": sized.geometry.sink_bytes,
        "page_tokens": sized.page_tokens,
        "context_tokens": sized.context_tokens,
        "running_requests": sized.running_requests_count,
        "bands": [
            {
                "name": band.name,
                "kind": band.lifetime.value,
                "window_tokens": band.window_tokens,
                "layers": _layers_count(stage, band.name),
                "entry_bytes": band.entry_bytes,
                "unit_bytes": band.unit_bytes,
                "pages_max": grid.room_units,
                "floor_units": floor,
                "target_units": target,
            }
            for band, grid, floor, target in places
        ],
        "fixed_bytes": dict(sized.fixed_bytes),
    }


def _print_tables(
    group: GroupStorage, budget: EffectiveSetting, *, tp_count: int, pp_count: int
) -> None:
    sized = group.stages[0].sized
    origin = "the default; --budget changes it" if budget.origin is Origin.DEFAULT else "as given"
    print_table(
        f"{group.name}: one rank of tp {tp_count}, pp {pp_count}",
        ("quantity", "value", "remark"),
        [
            ("budget", f"{group.values.budget_bytes:,} B", origin),
            ("budget floor", f"{group.budget_floor_bytes:,} B", "one request at batch size 1"),
            ("running requests", f"{sized.running_requests_count:,}", "rows of the page table"),
            ("context", f"{sized.context_tokens:,} tokens", f"{sized.row_pages:,} pages a row"),
            ("page", f"{sized.page_tokens:,} tokens", "the same in every token band"),
        ],
    )
    for stage in group.stages:
        _print_stage(stage, title=_stage_title(stage, pp_count=pp_count))


def _stage_title(stage: StageStorage, *, pp_count: int) -> str:
    if pp_count == 1:
        return ""
    sized = stage.sized
    return (
        f"stage {sized.stage_index}, layers {sized.layer_index_min} to "
        f"{sized.layer_end_count - 1}: "
    )


def _print_stage(stage: StageStorage, *, title: str) -> None:
    sized = stage.sized
    places = zip(
        stage.storage.bands,
        sized.geometry.bands,
        sized.floor_units,
        sized.target_units,
        strict=True,
    )
    print_table(
        f"{title}arena of {sized.arena_bytes:,} B, sink {sized.geometry.sink_bytes:,} B",
        _BAND_COLUMNS,
        [
            _band_cells(stage, band, grid, floor=floor, target=target)
            for band, grid, floor, target in places
        ],
    )
    print_table(
        f"{title}fixed allocations, {sized.region.region_bytes:,} B",
        ("table", "B"),
        [(name, f"{size:,}") for name, size in sized.fixed_bytes],
    )


def _band_cells(
    stage: StageStorage, band: BandPlan, grid: BandGeometry, *, floor: int, target: int
) -> tuple[str, ...]:
    unit = "page" if band.lifetime.value != "state" else "slot"
    tokens = f" = {target * band.page_tokens:,} tokens" if unit == "page" else ""
    return (
        band.name,
        band.lifetime.value,
        f"{_layers_count(stage, band.name):,}",
        f"{band.entry_bytes:,} per {'token' if unit == 'page' else unit}",
        f"{band.unit_bytes:,} per {unit}",
        f"{grid.room_units:,} {unit}s",
        f"{floor:,}",
        f"{target:,}{tokens}",
    )


def _layers_count(stage: StageStorage, band_name: str) -> int:
    """Return how many layers see the band, the ones that share another's KV and a draft's too."""
    numbers = {
        (view.model is ModelRole.DRAFT, view.layer_index)
        for view in stage.storage.views
        if view.band == band_name
    }
    return len(numbers)
