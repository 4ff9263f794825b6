"""A stage as its engine sees it: the numbers that decisions depend on, and no others.

What was declared, how it was sized and where tensors lie is left out on purpose: a recorded trace
carries these numbers, so it replays on a build that would size the same model differently.
"""

import msgspec

from kvd.build import StageStorage
from kvd.price.geometry import BandGeometry, BandKind, ChainGeometry
from kvd_proto.memory import Lifetime


class BandShape(msgspec.Struct, frozen=True, kw_only=True):
    """One band: units ``[unit_index_min, unit_index_end_count)`` of its own grid."""

    name: str
    lifetime: Lifetime
    kind: BandKind
    unit_bytes: int
    unit_index_min: int
    unit_index_end_count: int
    window_tokens: int = 0
    """Tokens a window band keeps; 0 in the others."""


class StageShape(msgspec.Struct, frozen=True, kw_only=True):
    """One stage: bands low to high, id spaces, request rows, and how requests are priced."""

    stage_index: int
    arena_bytes: int
    sink_bytes: int
    bands: tuple[BandShape, ...]
    page_tokens: int
    context_tokens: int
    row_count: int
    """Rows of the request table; row 0 is for padding."""
    row_pages: int
    virtual_page_count: int
    virtual_slot_count: int
    chunk_tokens: int
    step_tokens: int
    """Tokens that one decode step may write per request."""
    overlap: bool

    @property
    def geometry(self) -> ChainGeometry:
        """Return the grids of all bands."""
        return ChainGeometry(
            arena_bytes=self.arena_bytes,
            sink_bytes=self.sink_bytes,
            bands=tuple(
                BandGeometry(
                    name=band.name,
                    kind=band.kind,
                    unit_bytes=band.unit_bytes,
                    unit_index_min=band.unit_index_min,
                    unit_index_end_count=band.unit_index_end_count,
                )
                for band in self.bands
            ),
        )


def band_shape(grid: BandGeometry, *, lifetime: Lifetime, window_tokens: int) -> BandShape:
    """Return the numbers of a band on a grid."""
    return BandShape(
        name=grid.name,
        lifetime=lifetime,
        kind=grid.kind,
        unit_bytes=grid.unit_bytes,
        unit_index_min=grid.unit_index_min,
        unit_index_end_count=grid.unit_index_end_count,
        window_tokens=window_tokens,
    )


def shape_of(stage: StageStorage | StageShape) -> StageShape:
    """Return the numbers of a stage that was built; those of a shape are the shape."""
    if isinstance(stage, StageShape):
        return stage
    sized, plan = stage.sized, stage.storage
    return StageShape(
        stage_index=plan.stage_index,
        arena_bytes=sized.geometry.arena_bytes,
        sink_bytes=sized.geometry.sink_bytes,
        bands=tuple(
            band_shape(grid, lifetime=band.lifetime, window_tokens=band.window_tokens)
            for band, grid in zip(plan.bands, sized.geometry.bands, strict=True)
        ),
        page_tokens=plan.page_tokens,
        context_tokens=plan.context_tokens,
        row_count=plan.row_count,
        row_pages=plan.row_pages,
        virtual_page_count=plan.virtual_page_count,
        virtual_slot_count=plan.virtual_slot_count,
        chunk_tokens=sized.chunk_tokens,
        step_tokens=max(1, sized.draft_tokens),
        overlap=sized.overlap,
    )
