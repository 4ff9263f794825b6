"""Layers as torch tensors inside the arena. torch is imported by the first call, not before."""

from typing import TYPE_CHECKING, Literal, TypeAlias

from kvd_client.device.port import Memory
from kvd_client.errors import UsageError
from kvd_proto.memory import DType, LayerView, ModelRole, StoragePlan

if TYPE_CHECKING:
    import torch

    Tensor: TypeAlias = torch.Tensor
else:
    Tensor: TypeAlias = "torch.Tensor"

FP8Kind: TypeAlias = Literal["uint8", "float8_e4m3fn", "float8_e5m2"]
"""How an fp8 cache is typed: the plan knows bytes only, kernels know the kind."""


class LayerViews:
    """Makes the tensors of a plan's layers over one mapping; same bytes, same tensor."""

    def __init__(self, plan: StoragePlan, memory: Memory) -> None:
        self._plan = plan
        self._memory = memory
        self._layers: dict[tuple[ModelRole, int], list[LayerView]] = {}
        for view in plan.views:
            self._layers.setdefault((view.model, view.layer_index), []).append(view)
        self._arena: torch.Tensor | None = None
        self._tensors: dict[tuple[object, ...], torch.Tensor] = {}

    def tensors(self, layer: int, *, model: ModelRole, fp8: FP8Kind) -> "tuple[torch.Tensor, ...]":
        """Return a layer's tensors in the plan's order; raises UsageError for an unknown layer."""
        views = self._layers.get((model, layer))
        if views is None:
            known = sorted(index for role, index in self._layers if role == model)
            raise UsageError(f"no {model.value} layer {layer} on this stage, which stores {known}")
        return tuple(self._tensor(view, fp8) for view in views)

    def close(self) -> None:
        """Let go of the tensors, which keep the mapping alive; those handed out stay valid."""
        self._arena = None
        self._tensors.clear()

    def _tensor(self, view: LayerView, fp8: FP8Kind) -> "torch.Tensor":
        import torch

        # A layer that shares another's KV has a view of its own with the same geometry.
        kind = fp8 if view.dtype == DType.UINT8 else view.dtype.value
        key = (view.offset_bytes, view.index_stride_bytes, view.shape, view.strides_bytes, kind)
        tensor = self._tensors.get(key)
        if tensor is None:
            element_bytes = view.dtype.element_bytes
            flat = self._arena_tensor().view(getattr(torch, view.dtype.value))
            tensor = flat.as_strided(
                (view.index_end_count, *view.shape),
                tuple(
                    _elements(stride, element_bytes, view)
                    for stride in (view.index_stride_bytes, *view.strides_bytes)
                ),
                _elements(view.offset_bytes, element_bytes, view),
            )
            if kind != view.dtype.value:
                tensor = tensor.view(getattr(torch, kind))
            self._tensors[key] = tensor
        return tensor

    def _arena_tensor(self) -> "torch.Tensor":
        if self._arena is None:
            self._arena = mapping_tensor(self._memory, self._plan.arena_bytes)
        return self._arena


def mapping_tensor(memory: Memory, size_bytes: int) -> "torch.Tensor":
    """Return the first bytes of a mapping as a tensor of uint8 that lies where they lie."""
    import torch

    source = memory.device_array
    if source is None:
        return torch.frombuffer(memory.buffer, dtype=torch.uint8, count=size_bytes)
    # The tensor refers to the mapping, and torch finds the GPU by the address.
    return torch.as_tensor(source)[:size_bytes]


def _elements(count_bytes: int, element_bytes: int, view: LayerView) -> int:
    """Return bytes as elements; raises UsageError if they are no whole number of them."""
    elements, rest = divmod(count_bytes, element_bytes)
    if rest:
        raise UsageError(
            f"layer {view.layer_index}, {view.role}: {count_bytes} bytes are no whole number of "
            f"{view.dtype.value} elements"
        )
    return elements
