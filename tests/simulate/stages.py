"""Stages small enough that every shortage happens: state, two windows and an owner."""

from functools import cache
from typing import NamedTuple

from msgspec import structs

from kvd.build import StageStorage, build_group
from kvd_proto.memory import (
    AttentionPart,
    DeclaredLayers,
    DType,
    LayerDecl,
    SizingInputs,
    StatePart,
    StateTensor,
)

CONTEXT_TOKENS = 64
PAGE_TOKENS = 4


class SmallStage(NamedTuple):
    storage: StageStorage
    layers: DeclaredLayers
    sizing: SizingInputs


def _attention(heads: int, window_tokens: int | None = None) -> LayerDecl:
    return LayerDecl(
        parts=(
            AttentionPart(
                kv_head_count=heads,
                key_element_count=16,
                value_element_count=16,
                window_tokens=window_tokens,
            ),
        )
    )


@cache
def small_stage(*, requests: int = 6, spare_bytes: int = 4096, overlap: bool = False) -> SmallStage:
    """Return a stage that has its floor plus some bytes; units of its bands differ in size."""
    state = StatePart(recurrent=StateTensor(shape=(4, 16), dtype=DType.FLOAT32))
    layers = DeclaredLayers(
        layers=(_attention(2), _attention(1, 8), _attention(3, 20), LayerDecl(parts=(state,))),
        context_tokens=CONTEXT_TOKENS,
    )
    sizing = SizingInputs(
        budget_bytes=1 << 30,
        page_tokens=PAGE_TOKENS,
        running_requests_count=requests,
        chunk_tokens=8,
        cached_slots=0,
        overlap=overlap,
    )
    floor_bytes = build_group(layers, inputs=sizing).budget_floor_bytes
    sizing = structs.replace(sizing, budget_bytes=floor_bytes + spare_bytes)
    return SmallStage(build_group(layers, inputs=sizing).stages[0], layers, sizing)
