"""Pipeline stages: which layers each has, and that all of them plan the same bands.

Every stage runs the same operations on the same pages, so a stage that lacks a band, or has one
that the others lack, could not follow them.
"""

from dataclasses import dataclass

from kvd.declare.parts import state_of
from kvd.errors import PlanError
from kvd.plan.storage import PlacedLayer, PlannedBand, plan_bands
from kvd_proto.memory import DeclaredLayers, ModelRole


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage: target layers ``[layer_index_min, layer_index_end)`` and their bands."""

    stage_index: int
    layer_index_min: int
    layer_end_count: int
    """One more than the last layer's number."""
    bands: tuple[PlannedBand, ...]
    """In chain order, low to high; the last one is the owner of the pages."""


def plan_stages(
    model: DeclaredLayers,
    *,
    pp_count: int = 1,
    stage_layers_count: tuple[int, ...] | None = None,
    checkpoint_tokens: int = 0,
) -> tuple[StagePlan, ...]:
    """Return the plan of every stage; a fused draft model lives in the last one.

    Layers are shared out as ``stage_layers_count`` says, else as evenly as possible with one more
    in earlier stages. ``checkpoint_tokens`` is the checkpoint policy's grid, 0 without a policy.
    Raises PlanError naming the stage or the layer that cannot be planned.
    """
    counts = _layers_per_stage(len(model.layers), pp_count, stage_layers_count)
    _check_draft(model, checkpoint_tokens=checkpoint_tokens)
    stages: list[StagePlan] = []
    start = 0
    for index, count in enumerate(counts):
        end = start + count
        layers = [
            PlacedLayer(model=ModelRole.TARGET, layer_index=place, layer=model.layers[place])
            for place in range(start, end)
        ]
        if index == len(counts) - 1:
            layers += [
                PlacedLayer(model=ModelRole.DRAFT, layer_index=place, layer=layer)
                for place, layer in enumerate(model.draft_layers)
            ]
        stages.append(
            StagePlan(
                stage_index=index,
                layer_index_min=start,
                layer_end_count=end,
                bands=plan_bands(tuple(layers), stage=_stage_title(index, start, end)),
            )
        )
        start = end
    _check_same_bands(stages)
    return tuple(stages)


def _layers_per_stage(
    layers_count: int, pp_count: int, stage_layers_count: tuple[int, ...] | None
) -> tuple[int, ...]:
    if not 1 <= pp_count <= layers_count:
        raise PlanError(f"pp is {pp_count}: expected 1 to {layers_count}, the number of layers")
    if stage_layers_count is None:
        share, rest = divmod(layers_count, pp_count)
        return tuple(share + (1 if index < rest else 0) for index in range(pp_count))
    if len(stage_layers_count) != pp_count:
        raise PlanError(
            f"stage_layers_count names {len(stage_layers_count)} stages: expected pp, {pp_count}"
        )
    if min(stage_layers_count) < 1 or sum(stage_layers_count) != layers_count:
        raise PlanError(
            f"stage_layers_count is {list(stage_layers_count)}: expected at least 1 layer each "
            f"and {layers_count} in all"
        )
    return stage_layers_count


def _check_draft(model: DeclaredLayers, *, checkpoint_tokens: int) -> None:
    """Check that a draft's states can be rolled back: only a target with checkpoints allows it."""
    recurrent = [
        index for index, layer in enumerate(model.draft_layers) if state_of(layer) is not None
    ]
    if not recurrent:
        return
    if not any(state_of(layer) is not None for layer in model.layers):
        raise PlanError(
            f"draft layer {recurrent[0]} has a state, but the target has no layer with one"
        )
    if checkpoint_tokens == 0:
        raise PlanError(
            f"draft layer {recurrent[0]} has a state, which needs a checkpoint policy: "
            "checkpoint_tokens is 0"
        )


def _check_same_bands(stages: list[StagePlan]) -> None:
    every: dict[str, int] = {}
    for stage in stages:
        for band in stage.bands:
            every.setdefault(band.name, stage.stage_index)
    for stage in stages:
        names = [band.name for band in stage.bands]
        for name, elsewhere in every.items():
            if name not in names:
                title = _stage_title(
                    stage.stage_index, stage.layer_index_min, stage.layer_end_count
                )
                raise PlanError(
                    f"{title} has no layer for band {name}, which stage {elsewhere} has: all "
                    "stages need the same bands"
                )


def _stage_title(index: int, start: int, end: int) -> str:
    layers = f"layer {start}" if end == start + 1 else f"layers {start} to {end - 1}"
    return f"stage {index} ({layers})"
