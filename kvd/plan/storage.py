"""Bands of one stage: parts grouped by lifetime, laid out inside an entry, put in chain order.

A token band's entry holds one token over all local layers, layer after layer: layer 0's keys then
its values, layer 1's keys then its values. A state band's entry is a slot: conv tensor 0 of all
layers, conv tensor 1 of all layers, ..., then the recurrent tensor of all layers. A fused draft
model's part follows the target's inside the same entry, so that one page serves both models.

    token entry   [ L0.k | L0.v | L1.k | L1.v | ... | draft L0.k | ... | pad to 32 B )
    state slot    [ L0.conv_0 | L1.conv_0 | ... | L0.recurrent | L1.recurrent | ... | pad to 256 B )
"""

from dataclasses import dataclass
from typing import Final

from kvd.declare.parts import lifetime_of
from kvd.errors import PlanError
from kvd.units import align_up
from kvd_proto.memory import (
    AttentionPart,
    DType,
    LatentPart,
    LayerDecl,
    Lifetime,
    ModelRole,
    Part,
    StatePart,
    StateTensor,
)

ROW_GRAIN_BYTES: Final = 16
"""Kernels store rows in vectors of 16 bytes."""
ENTRY_GRAIN_BYTES: Final = 32
SLOT_GRAIN_BYTES: Final = 256
"""Copies of whole slots run at full speed only from and to such boundaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTensor:
    """One tensor of one layer at its place inside the band's entry."""

    model: ModelRole
    layer_index: int
    role: str
    dtype: DType
    offset_bytes: int
    shape: tuple[int, ...]

    @property
    def tensor_bytes(self) -> int:
        """Return the bytes of the tensor in one entry."""
        return _shape_bytes(self.shape, self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBand:
    """Parts of one lifetime: what a token, or a slot, costs and what lies where in it."""

    name: str
    lifetime: Lifetime
    window_tokens: int
    """Tokens kept; 0 unless the lifetime is a window."""
    entry_bytes: int
    tensors: tuple[PlannedTensor, ...]

    @property
    def is_state(self) -> bool:
        """Return whether units are slots."""
        return self.lifetime is Lifetime.STATE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLayer:
    """A layer with its number in its model."""

    model: ModelRole
    layer_index: int
    layer: LayerDecl

    @property
    def title(self) -> str:
        """Return the layer as messages name it."""
        word = "layer" if self.model is ModelRole.TARGET else "draft layer"
        return f"{word} {self.layer_index}"


def plan_bands(layers: tuple[PlacedLayer, ...], *, stage: str) -> tuple[PlannedBand, ...]:
    """Return the bands of a stage in chain order: state, windows from the longest, full.

    ``layers`` are the stage's target layers, then its draft layers; ``stage`` is its name in
    messages. Raises PlanError when no layer has full attention, when layers that would share a
    band have unlike geometries, when a row is misaligned, or when KV is shared across stages.
    """
    groups: dict[tuple[Lifetime, int], list[tuple[PlacedLayer, Part]]] = {}
    for placed in layers:
        for part in placed.layer.parts:
            groups.setdefault(_band_key(part), []).append((placed, part))
    if (Lifetime.FULL, 0) not in groups:
        raise PlanError(
            f"{stage} has no layer with full attention, which every stage needs: its full band "
            "mints the pages that the other bands bind to"
        )
    for members in groups.values():
        _check_geometry(members)
    _check_sources(layers, stage=stage)
    order = sorted(groups, key=_chain_rank)
    return tuple(_plan_band(key, groups[key], layers) for key in order)


def band_name(lifetime: Lifetime, window_tokens: int) -> str:
    """Return the name of the band with this lifetime."""
    return f"window_{window_tokens}" if lifetime is Lifetime.WINDOW else lifetime.value


def _band_key(part: Part) -> tuple[Lifetime, int]:
    return lifetime_of(part), 0 if isinstance(part, StatePart) else part.window_tokens or 0


def _chain_rank(key: tuple[Lifetime, int]) -> tuple[int, int]:
    """Return the place in the chain.

    Ends are never relocated, which suits states, whose units cost most to move, and full
    attention, which grows at every step.
    """
    lifetime, window_tokens = key
    ranks = {Lifetime.STATE: 0, Lifetime.WINDOW: 1, Lifetime.FULL: 2}
    return ranks[lifetime], -window_tokens


def _check_geometry(members: list[tuple[PlacedLayer, Part]]) -> None:
    """Within one band all target layers have one geometry, and so have all draft layers.

    Either model may differ from the other in size, as its part is a block of its own, but not in
    kind: one page table serves both.
    """
    first_of: dict[ModelRole, tuple[PlacedLayer, Part]] = {}
    for placed, part in members:
        first, first_part = first_of.setdefault(placed.model, (placed, part))
        if part != first_part:
            raise PlanError(
                f"{placed.title} has {_geometry(part)}, but {first.title}, which would share its "
                f"band, has {_geometry(first_part)}: a band has one geometry"
            )
    (first, first_part), (last, last_part) = members[0], members[-1]
    if type(first_part) is not type(last_part):
        raise PlanError(
            f"{last.title} has {_geometry(last_part)}, but {first.title}, which would share its "
            f"band, has {_geometry(first_part)}: a band has one kind of rows"
        )


def _geometry(part: Part) -> str:
    if isinstance(part, AttentionPart):
        return (
            f"{part.kv_head_count} KV heads of {part.key_element_count} + "
            f"{part.value_element_count} {part.dtype} elements"
        )
    if isinstance(part, LatentPart):
        return f"latent rows of {part.element_count} {part.dtype} elements"
    tensors = part.conv if part.recurrent is None else (*part.conv, part.recurrent)
    shapes = " + ".join(f"{list(tensor.shape)} {tensor.dtype}" for tensor in tensors)
    return f"a state of {shapes}"


def _check_sources(layers: tuple[PlacedLayer, ...], *, stage: str) -> None:
    local = [(placed.model, placed.layer_index) for placed in layers]
    for placed in layers:
        source = placed.layer.shares_layer_index
        if source is not None and (placed.model, source) not in local:
            raise PlanError(
                f"{placed.title} in {stage} reads the KV of layer {source}, which is in another "
                "stage: both must be in one"
            )


def _plan_band(
    key: tuple[Lifetime, int],
    members: list[tuple[PlacedLayer, Part]],
    layers: tuple[PlacedLayer, ...],
) -> PlannedBand:
    lifetime, window_tokens = key
    place_bytes = 0
    tensors: list[PlannedTensor] = []
    for model in ModelRole:
        block = [(placed, part) for placed, part in members if placed.model is model]
        place_bytes = align_up(place_bytes, ROW_GRAIN_BYTES)
        lay_out = _state_tensors if lifetime is Lifetime.STATE else _token_tensors
        placed_tensors, place_bytes = lay_out(block, place_bytes)
        tensors += placed_tensors
    grain = SLOT_GRAIN_BYTES if lifetime is Lifetime.STATE else ENTRY_GRAIN_BYTES
    return PlannedBand(
        name=band_name(lifetime, window_tokens),
        lifetime=lifetime,
        window_tokens=window_tokens,
        entry_bytes=align_up(place_bytes, grain),
        tensors=(*tensors, *_shared_tensors(tensors, layers)),
    )


def _token_tensors(
    block: list[tuple[PlacedLayer, Part]], place_bytes: int
) -> tuple[list[PlannedTensor], int]:
    tensors: list[PlannedTensor] = []
    for placed, part in block:
        assert not isinstance(part, StatePart)
        for role, shape in _token_rows(part):
            tensor = PlannedTensor(
                model=placed.model,
                layer_index=placed.layer_index,
                role=role,
                dtype=part.dtype,
                offset_bytes=place_bytes,
                shape=shape,
            )
            if tensor.tensor_bytes % ROW_GRAIN_BYTES != 0:
                raise PlanError(
                    f"{placed.title} has {role} rows of {tensor.tensor_bytes} bytes: expected a "
                    f"multiple of {ROW_GRAIN_BYTES}"
                )
            tensors.append(tensor)
            place_bytes += tensor.tensor_bytes
    return tensors, place_bytes


def _token_rows(part: AttentionPart | LatentPart) -> tuple[tuple[str, tuple[int, ...]], ...]:
    if isinstance(part, LatentPart):
        return (("latent", (part.element_count,)),)
    return (
        ("k", (part.kv_head_count, part.key_element_count)),
        ("v", (part.kv_head_count, part.value_element_count)),
    )


def _state_tensors(
    block: list[tuple[PlacedLayer, Part]], place_bytes: int
) -> tuple[list[PlannedTensor], int]:
    """Stack each tensor over the layers; all of them have the same tensors by now."""
    tensors: list[PlannedTensor] = []
    for number in range(len(_named_states(block[0][1])) if block else 0):
        place_bytes = align_up(place_bytes, ROW_GRAIN_BYTES)
        for placed, part in block:
            role, state = _named_states(part)[number]
            tensors.append(
                PlannedTensor(
                    model=placed.model,
                    layer_index=placed.layer_index,
                    role=role,
                    dtype=state.dtype,
                    offset_bytes=place_bytes,
                    shape=state.shape,
                )
            )
            place_bytes += tensors[-1].tensor_bytes
    return tensors, place_bytes


def _named_states(part: Part) -> list[tuple[str, StateTensor]]:
    assert isinstance(part, StatePart)
    named = [(f"conv_{number}", state) for number, state in enumerate(part.conv)]
    return named if part.recurrent is None else [*named, ("recurrent", part.recurrent)]


def _shared_tensors(
    tensors: list[PlannedTensor], layers: tuple[PlacedLayer, ...]
) -> list[PlannedTensor]:
    """Return the same places again under the numbers of the layers that share them."""
    return [
        PlannedTensor(
            model=placed.model,
            layer_index=placed.layer_index,
            role=tensor.role,
            dtype=tensor.dtype,
            offset_bytes=tensor.offset_bytes,
            shape=tensor.shape,
        )
        for placed in layers
        if placed.layer.shares_layer_index is not None
        for tensor in tensors
        if tensor.model is placed.model
        and tensor.layer_index == placed.layer.shares_layer_index
        and tensor.role in ("k", "v", "latent")
    ]


def _shape_bytes(shape: tuple[int, ...], dtype: DType) -> int:
    product = dtype.element_bytes
    for size in shape:
        product *= size
    return product
