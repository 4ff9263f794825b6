"""The stages that stress programs run on: every kind of chain, small enough for every shortage.

Each is built by the product's own way from declared parts to a plan, at its floor plus some bytes,
so that a band has some tens of units. Sizes of entries and pages differ between the bands of a
stage, and where the name says so they share no factor, so that frontiers of neighbours hardly ever
meet.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from msgspec import structs

from kvd.alloc.checks import CheckLevel
from kvd.build import StageStorage, build_group
from kvd.engine.stage import StageEngine
from kvd.errors import WorkloadError
from kvd.testing.packed import packed_counts, packed_ids
from kvd.testing.stress.contents import columns_of
from kvd_proto.memory import (
    AttentionPart,
    DeclaredLayers,
    DType,
    LayerDecl,
    SizingInputs,
    StatePart,
    StateTensor,
)
from kvd_proto.operations import Admit, Free
from kvd_proto.outcomes import AdmitResult

ROW_BYTES: Final = 16
"""What the planner asks every row of keys or values to be a multiple of."""
ROW_ELEMENTS_COUNT: Final = ROW_BYTES // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a stage is declared with.

    A token's entry in a band is a key and a value, rows of `ROW_BYTES` each or a multiple of it.
    """

    full_rows_count: int
    """Rows of a token's entry, 2 or more."""
    windows: tuple[tuple[int, int], ...] = ()
    """Tokens of each window, and rows of its entries."""
    state_elements_count: int = 0
    """Elements of 4 bytes of a slot; 0: no state band."""
    page_tokens: int
    context_tokens: int
    chunk_tokens: int
    rows_count: int
    """Requests that the stage is sized to run at once."""
    spare_bytes: int
    """Bytes beyond the least that a stage needs."""
    batch_moves_max: int = 3
    """Units that a batch's end may move unasked."""
    next_rows_count: int = 0
    """Rows of a token's entry on the next stage of a pipeline, more than here: it has fewer pages
    for as many bytes, and both have names for no more pages than it has. 0: there is no next."""


SHAPES: Final[dict[str, Shape]] = {
    "state-window-full": Shape(
        full_rows_count=2,
        windows=((8, 3),),
        state_elements_count=64,
        page_tokens=4,
        context_tokens=64,
        chunk_tokens=12,
        rows_count=6,
        spare_bytes=9216,
    ),
    "state-two-windows-full": Shape(
        full_rows_count=4,
        windows=((20, 4), (8, 2)),
        state_elements_count=64,
        page_tokens=4,
        context_tokens=64,
        chunk_tokens=8,
        rows_count=6,
        spare_bytes=12288,
    ),
    "state-three-windows-full": Shape(
        full_rows_count=2,
        windows=((24, 2), (12, 5), (4, 3)),
        state_elements_count=96,
        page_tokens=4,
        context_tokens=48,
        chunk_tokens=8,
        rows_count=5,
        spare_bytes=14336,
    ),
    "state-full": Shape(
        full_rows_count=3,
        state_elements_count=80,
        page_tokens=4,
        context_tokens=64,
        chunk_tokens=16,
        rows_count=7,
        spare_bytes=9216,
    ),
    "window-full": Shape(
        full_rows_count=3,
        windows=((8, 2),),
        page_tokens=4,
        context_tokens=64,
        chunk_tokens=8,
        rows_count=6,
        spare_bytes=9216,
    ),
    "two-windows-full": Shape(
        full_rows_count=2,
        windows=((32, 5), (8, 3)),
        page_tokens=4,
        context_tokens=64,
        chunk_tokens=12,
        rows_count=6,
        spare_bytes=12288,
    ),
    "full": Shape(
        full_rows_count=2,
        page_tokens=4,
        context_tokens=64,
        chunk_tokens=16,
        rows_count=8,
        spare_bytes=8192,
    ),
    "state-window-full-coprime": Shape(
        full_rows_count=5,
        windows=((12, 7),),
        state_elements_count=64,
        page_tokens=3,
        context_tokens=48,
        chunk_tokens=9,
        rows_count=6,
        spare_bytes=13312,
    ),
    "two-windows-full-coprime": Shape(
        full_rows_count=11,
        windows=((15, 13), (7, 7)),
        page_tokens=5,
        context_tokens=60,
        chunk_tokens=10,
        rows_count=5,
        spare_bytes=26624,
    ),
    "state-window-full-page-1": Shape(
        full_rows_count=5,
        windows=((5, 3),),
        state_elements_count=64,
        page_tokens=1,
        context_tokens=24,
        chunk_tokens=6,
        rows_count=6,
        spare_bytes=5120,
    ),
    "state-two-windows-full-page-16": Shape(
        full_rows_count=2,
        windows=((48, 3), (16, 5)),
        state_elements_count=192,
        page_tokens=16,
        context_tokens=128,
        chunk_tokens=32,
        rows_count=5,
        spare_bytes=36864,
    ),
    "state-window-full-narrow": Shape(
        full_rows_count=5,
        windows=((8, 3),),
        state_elements_count=64,
        page_tokens=4,
        context_tokens=80,
        chunk_tokens=12,
        rows_count=4,
        spare_bytes=4096,
        batch_moves_max=0,
    ),
}
"""By name, so that a saved program says what it ran on."""
NARROW: Final = ("state-window-full-narrow",)
"""Those that hold no request as long as the context, and move nothing at a batch's end."""
FURTHER_SHAPES: Final[dict[str, Shape]] = {
    "window-full-few-names": Shape(
        full_rows_count=3,
        windows=((8, 2),),
        page_tokens=4,
        context_tokens=64,
        chunk_tokens=8,
        rows_count=6,
        spare_bytes=9216,
        next_rows_count=6,
    ),
}
"""By name as well: what only runs that ask for it by name are played on, in one process alone."""
ALL_SHAPES: Final[dict[str, Shape]] = {**SHAPES, **FURTHER_SHAPES}


class StressStage(NamedTuple):
    """A shape that was built, and what it was built from."""

    storage: StageStorage
    layers: DeclaredLayers
    sizing: SizingInputs
    batch_moves_max: int


@cache
def stress_stage(name: str, *, overlap: bool) -> StressStage:
    """Return the stage of a shape; raises WorkloadError for a name that is none."""
    shape = ALL_SHAPES.get(name)
    if shape is None:
        raise WorkloadError(f"there is no stress shape {name!r}; there are {', '.join(ALL_SHAPES)}")
    parts = [_attention(shape.full_rows_count)]
    parts += [_attention(rows, tokens) for tokens, rows in shape.windows]
    if shape.next_rows_count:
        parts.append(_attention(shape.next_rows_count))
        parts += [_attention(rows, tokens) for tokens, rows in shape.windows]
    if shape.state_elements_count:
        tensor = StateTensor(shape=(shape.state_elements_count,), dtype=DType.FLOAT32)
        parts.append(LayerDecl(parts=(StatePart(recurrent=tensor),)))
    layers = DeclaredLayers(layers=tuple(parts), context_tokens=shape.context_tokens)
    sizing = SizingInputs(
        budget_bytes=1 << 30,
        page_tokens=shape.page_tokens,
        running_requests_count=shape.rows_count,
        chunk_tokens=shape.chunk_tokens,
        cached_slots=1 if shape.state_elements_count else 0,
        overlap=overlap,
    )
    stages_count = 2 if shape.next_rows_count else 1
    floor_bytes = build_group(layers, inputs=sizing, pp_count=stages_count).budget_floor_bytes
    sizing = structs.replace(sizing, budget_bytes=floor_bytes + shape.spare_bytes)
    stage = build_group(layers, inputs=sizing, pp_count=stages_count).stages[0]
    return StressStage(stage, layers, sizing, shape.batch_moves_max)


@cache
def servable_prompt_tokens(name: str, *, overlap: bool, new_tokens: int) -> int:
    """Return the longest prompt that an empty stage admits with so many tokens behind it.

    Found by asking an engine that was never used.
    """
    built = stress_stage(name, overlap=overlap)
    engine = StageEngine(built.storage, level=CheckLevel.OFF)
    for request, prompt in enumerate(range(built.layers.context_tokens - new_tokens, 0, -1), 1):
        asked = Admit(
            packed_ids(request),
            packed_counts(prompt),
            packed_counts(new_tokens),
        )
        outcome = engine.decide(0, asked)
        assert isinstance(outcome.result, AdmitResult)
        granted = columns_of(outcome)[outcome.result.new_tokens]
        if not outcome.result.refusals and granted[0] == new_tokens:
            return prompt
        if not outcome.result.refusals:
            engine.decide(0, Free(asked.requests))
    raise WorkloadError(f"the stage of shape {name!r} admits nobody")


def _attention(rows_count: int, window_tokens: int | None = None) -> LayerDecl:
    part = AttentionPart(
        kv_head_count=1,
        key_element_count=ROW_ELEMENTS_COUNT,
        value_element_count=ROW_ELEMENTS_COUNT * (rows_count - 1),
        window_tokens=window_tokens,
    )
    return LayerDecl(parts=(part,))
