"""From a declaration to everything a group needs to start: sized stages and their storage plans.

The one pure entry point over declare, plan and size. The storage plan is what travels to clients:
byte offsets and strides, no policy.
"""

from dataclasses import dataclass

from kvd.declare.model import declare_model
from kvd.declare.parts import state_of
from kvd.plan.stage import plan_stages
from kvd.plan.storage import PlannedBand, PlannedTensor
from kvd.price.geometry import BandGeometry
from kvd.size.inputs import DEFAULT_SIZING, SizingValues, kv_dtype_name, resolve_sizing
from kvd.size.plan import SizedPlan, size_stages
from kvd.size.region import (
    DRAFT_STATES,
    MAP_PREFIX,
    PROGRESS,
    REQUEST_TABLE,
    ROW_LENGTHS,
    SCRATCH,
    STATE_TABLE,
    RegionTable,
)
from kvd_proto.memory import (
    BandMap,
    BandPlan,
    Declaration,
    LayerView,
    RegionPlan,
    SizingInputs,
    StoragePlan,
    TablePlan,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStorage:
    """One stage: the numbers its allocator works with, and the plan its clients get."""

    sized: SizedPlan
    storage: StoragePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStorage:
    """All stages of a group."""

    name: str
    """The model's name as declared; may be empty."""
    values: SizingValues
    stages: tuple[StageStorage, ...]

    @property
    def budget_floor_bytes(self) -> int:
        """Return the smallest budget per rank that every stage accepts."""
        return max(stage.sized.budget_floor_bytes for stage in self.stages)


def build_group(
    declaration: Declaration,
    *,
    inputs: SizingInputs | None = None,
    settings: SizingInputs = DEFAULT_SIZING,
    tp_count: int = 1,
    pp_count: int = 1,
) -> GroupStorage:
    """Return the storage of every stage of a group; all ranks of a stage have the same.

    ``inputs`` come with a group and win over ``settings``, the daemon's. Raises DeclareError,
    PlanError or SizeError naming the key, layer, stage or number that is wrong.
    """
    wanted = inputs if inputs is not None else SizingInputs()
    model = declare_model(
        declaration, tp_count=tp_count, kv_dtype=kv_dtype_name(wanted, settings=settings)
    )
    values = resolve_sizing(
        wanted,
        settings=settings,
        model_context_tokens=model.context_tokens,
        has_state=any(state_of(layer) is not None for layer in model.layers),
    )
    stages = plan_stages(
        model,
        pp_count=pp_count,
        stage_layers_count=wanted.stage_layers_count or settings.stage_layers_count,
        checkpoint_tokens=values.checkpoint_tokens,
    )
    sized = size_stages(stages, values)
    return GroupStorage(
        name=model.name,
        values=values,
        stages=tuple(StageStorage(sized=stage, storage=build_storage(stage)) for stage in sized),
    )


def build_storage(sized: SizedPlan) -> StoragePlan:
    """Return the storage plan of a sized stage."""
    pairs = tuple(zip(sized.bands, sized.geometry.bands, strict=True))
    return StoragePlan(
        stage_index=sized.stage_index,
        arena_bytes=sized.arena_bytes,
        total_bytes=sized.total_bytes,
        sink_bytes=sized.geometry.sink_bytes,
        page_tokens=sized.page_tokens,
        context_tokens=sized.context_tokens,
        row_count=sized.row_count,
        row_pages=sized.row_pages,
        virtual_page_count=sized.virtual_page_count,
        virtual_slot_count=sized.virtual_slot_count,
        bands=tuple(
            _band_plan(band, grid, chain_index=index, page_tokens=sized.page_tokens)
            for index, (band, grid) in enumerate(pairs)
        ),
        views=tuple(
            _view(band, grid, tensor, page_tokens=sized.page_tokens)
            for band, grid in pairs
            for tensor in band.tensors
        ),
        region=_region_plan(sized),
    )


def _band_plan(
    band: PlannedBand, grid: BandGeometry, *, chain_index: int, page_tokens: int
) -> BandPlan:
    return BandPlan(
        name=band.name,
        lifetime=band.lifetime,
        chain_index=chain_index,
        entry_bytes=band.entry_bytes,
        unit_bytes=grid.unit_bytes,
        page_tokens=1 if band.is_state else page_tokens,
        unit_index_min=grid.unit_index_min,
        unit_index_end_count=grid.unit_index_end_count,
        window_tokens=band.window_tokens,
    )


def _view(
    band: PlannedBand, grid: BandGeometry, tensor: PlannedTensor, *, page_tokens: int
) -> LayerView:
    """Return the view of one tensor: its inner part is dense, its places are an entry apart."""
    strides: list[int] = []
    stride_bytes = tensor.dtype.element_bytes
    for size in reversed(tensor.shape):
        strides.append(stride_bytes)
        stride_bytes *= size
    return LayerView(
        layer_index=tensor.layer_index,
        band=band.name,
        role=tensor.role,
        dtype=tensor.dtype,
        offset_bytes=tensor.offset_bytes,
        index_stride_bytes=band.entry_bytes,
        index_end_count=grid.unit_index_end_count * (1 if band.is_state else page_tokens),
        shape=tensor.shape,
        strides_bytes=tuple(reversed(strides)),
        model=tensor.model,
    )


def _region_plan(sized: SizedPlan) -> RegionPlan:
    def placed(table: RegionTable) -> TablePlan:
        return TablePlan(
            name=table.name,
            offset_bytes=sized.arena_bytes + table.offset_bytes,
            dtype=table.dtype,
            row_count=table.row_count,
            column_count=table.column_count,
        )

    def optional(name: str) -> TablePlan | None:
        table = sized.region.table(name)
        return None if table is None else placed(table)

    def required(name: str) -> TablePlan:
        table = sized.region.table(name)
        assert table is not None
        return placed(table)

    def band_map(band: PlannedBand) -> BandMap:
        # An entry per name: the stages of a pipeline have as many of those as the smallest one
        # has pages, though a stage with more has room for more.
        names_count = sized.virtual_slot_count if band.is_state else sized.virtual_page_count
        table = required(MAP_PREFIX + band.name)
        assert names_count <= table.column_count
        return BandMap(band=band.name, offset_bytes=table.offset_bytes, entry_count=names_count)

    return RegionPlan(
        band_maps=tuple(band_map(band) for band in sized.bands),
        request_table=required(REQUEST_TABLE),
        row_lengths=required(ROW_LENGTHS),
        progress=required(PROGRESS),
        scratch=required(SCRATCH),
        state_table=optional(STATE_TABLE),
        draft_states=optional(DRAFT_STATES),
    )
