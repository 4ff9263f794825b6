"""What a model needs stored, what may be spent on it, and where everything lies in the arena.

An engine sends a declaration and sizing inputs with its hello; the welcome answers with a
`StoragePlan`. All offsets count from byte 0 of the one mapping a rank has; they need 64 bits.
"""

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct


class DType(StrEnum):
    """Element types, by the names torch gives them."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"
    UINT8 = "uint8"
    """Raw bytes: an fp8 cache, which the engine views as the fp8 kind its kernels take."""
    INT32 = "int32"
    UINT64 = "uint64"

    @property
    def element_bytes(self) -> int:
        """Return the bytes of one element."""
        return _ELEMENT_BYTES[self]


_ELEMENT_BYTES = {
    DType.BFLOAT16: 2,
    DType.FLOAT16: 2,
    DType.FLOAT32: 4,
    DType.UINT8: 1,
    DType.INT32: 4,
    DType.UINT64: 8,
}


class Lifetime(StrEnum):
    """The rule that says when the data of a part dies."""

    FULL = "full"
    """Kept as long as its request."""
    WINDOW = "window"
    """Only the last ``window_tokens`` tokens of a request are kept."""
    STATE = "state"
    """One fixed-size state per request, rewritten in place."""


class ModelRole(StrEnum):
    """Whose layer a part belongs to."""

    TARGET = "target"
    DRAFT = "draft"
    """A speculative draft model that shares the target's pages."""


# Declarations. Sizes are those of one rank: whoever declares parts has divided heads by TP already.


class AttentionPart(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="attention"):
    """Keys and values of one layer, one row each per token."""

    kv_head_count: int
    key_element_count: int
    """Elements of one head's key."""
    value_element_count: int
    """Elements of one head's value."""
    dtype: DType = DType.BFLOAT16
    window_tokens: int | None = None
    """Tokens the layer looks back; None: all of them."""


class LatentPart(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="latent"):
    """One latent row per token, as MLA stores it; the value is a prefix of the row."""

    element_count: int
    """Elements of the row: latent rank plus rotary part."""
    value_element_count: int
    """Leading elements that are the value."""
    dtype: DType = DType.BFLOAT16
    window_tokens: int | None = None


class StateTensor(Struct, frozen=True, kw_only=True):
    """One tensor of a layer's recurrent or convolution state, for one request."""

    shape: tuple[int, ...]
    dtype: DType


class StatePart(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="state"):
    """The fixed-size state of one layer: convolution tails, then the recurrent tensor."""

    conv: tuple[StateTensor, ...] = ()
    recurrent: StateTensor | None = None


Part: TypeAlias = AttentionPart | LatentPart | StatePart


class LayerDecl(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one layer needs: no part, an attention part, a state part, or both."""

    parts: tuple[Part, ...] = ()
    shares_layer_index: int | None = None
    """The earlier layer whose attention part this layer reads; it then has none of its own."""


class DeclaredLayers(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="layers"):
    """A model declared part by part, all layers of all stages in order, sizes of one rank."""

    layers: tuple[LayerDecl, ...]
    context_tokens: int
    """The longest request the model takes; sizing inputs may ask for less."""
    draft_layers: tuple[LayerDecl, ...] = ()
    name: str = ""


class DeclaredConfig(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="config"):
    """A model declared by its Hugging Face configuration; kvd derives the parts."""

    config_json: bytes
    """The text of config.json, as it is."""
    draft_config_json: bytes | None = None
    name: str = ""


Declaration: TypeAlias = DeclaredLayers | DeclaredConfig


class SizingInputs(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What may be spent and what has to fit; None leaves a value to the daemon's settings."""

    budget_bytes: int | None = None
    """Bytes of one rank's allocation: the arena and its tables."""
    page_tokens: int | None = None
    context_tokens: int | None = None
    running_requests_count: int | None = None
    """Cap on requests that hold memory at once."""
    state_share: float | None = None
    """State bytes per byte of the token bands, as a target; exclusive with ``state_slots``."""
    state_slots: int | None = None
    chunk_tokens: int | None = None
    """Most tokens of one request in one prefill step."""
    draft_tokens: int | None = None
    """Tokens a verify step checks per request; 0: no speculation."""
    cached_slots: int | None = None
    """State slots per request that a prefix cache keeps beside the working one."""
    tracking_slots: int | None = None
    """State slots per request that record checkpoints while it runs."""
    checkpoint_tokens: int | None = None
    """Grid of the state checkpoints; 0: no checkpoint policy."""
    kv_dtype: str | None = None
    """``bf16`` or ``fp8``; for a configuration. Declared parts say their type themselves."""
    stage_layers_count: tuple[int, ...] | None = None
    """Layers of each pipeline stage; None: as even as possible, earlier stages take the rest."""
    overlap: bool | None = None
    """Whether a step is taken while the one before it still runs: a window slides a step later."""


# Where everything lies. `index` below is a token place (page times page_tokens plus offset) in a
# token band and a slot in the state band.


class BandPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One band of the arena: its grid and what a unit is."""

    name: str
    """``full``, ``window_<tokens>`` or ``state``."""
    lifetime: Lifetime
    chain_index: int
    """Place in address order, 0 is the low end."""
    entry_bytes: int
    """Bytes of one token, or of one slot, over all local layers."""
    unit_bytes: int
    """Bytes of one page, or of one slot."""
    page_tokens: int
    """Tokens of a unit; 1 in the state band."""
    unit_index_min: int
    """First unit that can be handed out."""
    unit_index_end_count: int
    """One more than the last unit of the grid."""
    window_tokens: int = 0
    """Tokens a window band keeps; 0 in the others."""


class LayerView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One strided tensor of one layer: ``(index, *shape)`` over the arena.

    Element ``[index, i, j...]`` is at byte ``offset_bytes + index * index_stride_bytes +
    i * strides_bytes[0] + j * strides_bytes[1] ...``. A layer that shares another's KV has views of
    its own with the same bytes.
    """

    layer_index: int
    """Number of the layer in its model, over all stages."""
    band: str
    role: str
    """``k``, ``v``, ``latent``, ``conv_<j>`` or ``recurrent``."""
    dtype: DType
    offset_bytes: int
    index_stride_bytes: int
    """The band's ``entry_bytes``."""
    index_end_count: int
    """Size of the first dimension: every token place or slot of the grid, the sink included."""
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    model: ModelRole = ModelRole.TARGET


class TablePlan(Struct, frozen=True, kw_only=True):
    """One dense row-major table in the reserved region."""

    name: str
    offset_bytes: int
    dtype: DType
    row_count: int
    column_count: int

    @property
    def table_bytes(self) -> int:
        """Return the bytes the table takes."""
        return self.row_count * self.column_count * self.dtype.element_bytes


class BandMap(Struct, frozen=True, kw_only=True):
    """Virtual to physical map of a band: int32, entry 0 and every unbound entry read 0 (sink)."""

    band: str
    offset_bytes: int
    entry_count: int


class RegionPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What lies behind the arena, in bytes ``[arena_bytes, total_bytes)`` of the same mapping."""

    band_maps: tuple[BandMap, ...]
    """One per band in chain order; token bands are indexed by virtual page, state by slot id."""
    request_table: TablePlan
    """int32 ``[row_count, row_pages]`` of virtual pages; row 0 is for padding and stays 0."""
    row_lengths: TablePlan
    """int32 ``[row_count, 1]``: tokens whose pages the row names."""
    progress: TablePlan
    """uint64 ``[1, 2]``: position and segment of the last effects done; alone in 128 bytes."""
    scratch: TablePlan
    """uint8 staging of the stub: page lists of its move and zero kernels."""
    state_table: TablePlan | None = None
    """int32 ``[row_count, 1 + tracking slots]`` of state slot ids; column 0 is the working slot."""
    draft_states: TablePlan | None = None
    """uint8 ``[row_count * draft_tokens, slot bytes]``: states between the tokens of a verify."""


class StoragePlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything a client needs to make views and tables over the mapping of one rank."""

    stage_index: int
    arena_bytes: int
    """Bytes of the bands, the sink at the low end included."""
    total_bytes: int
    """Bytes of the mapping."""
    sink_bytes: int
    page_tokens: int
    context_tokens: int
    row_count: int
    """Rows of the request table: running requests and the padding row."""
    row_pages: int
    """Columns of the request table."""
    virtual_page_count: int
    """Virtual pages are ``[1, virtual_page_count)``; the same on all stages."""
    bands: tuple[BandPlan, ...]
    """In address order, low to high."""
    views: tuple[LayerView, ...]
    region: RegionPlan
    virtual_slot_count: int = 0
    """State slot ids are ``[1, virtual_slot_count)``; 0 without a state band."""
