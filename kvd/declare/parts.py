"""What every layer must satisfy, whoever declared it."""

from kvd.errors import DeclareError
from kvd_proto.memory import AttentionPart, LatentPart, LayerDecl, Lifetime, Part, StatePart


def check_layers(layers: tuple[LayerDecl, ...], *, model: str) -> None:
    """Check each layer's parts and its sharing; DeclareError naming the first layer that is wrong.

    ``model`` is the word for one of these layers in messages.
    """
    for index, layer in enumerate(layers):
        name = f"{model} {index}"
        kinds = [type(part) for part in layer.parts]
        attentions = [part for part in layer.parts if not isinstance(part, StatePart)]
        if len(attentions) > 1 or len(kinds) - len(attentions) > 1:
            raise DeclareError(
                f"{name} has {len(attentions)} attention and {len(kinds) - len(attentions)} state "
                "parts: expected at most one of each"
            )
        for part in layer.parts:
            _check_part(part, name=name)
        if layer.shares_layer_index is not None:
            _check_sharing(layers, index, name=name)


def attention_of(layer: LayerDecl) -> AttentionPart | LatentPart | None:
    """Return the layer's own attention part, if it has one."""
    return next((part for part in layer.parts if not isinstance(part, StatePart)), None)


def state_of(layer: LayerDecl) -> StatePart | None:
    """Return the layer's state part, if it has one."""
    return next((part for part in layer.parts if isinstance(part, StatePart)), None)


def lifetime_of(part: Part) -> Lifetime:
    """Return the rule that says when the part's data dies."""
    if isinstance(part, StatePart):
        return Lifetime.STATE
    return Lifetime.FULL if part.window_tokens is None else Lifetime.WINDOW


def _check_part(part: Part, *, name: str) -> None:
    if isinstance(part, StatePart):
        tensors = part.conv if part.recurrent is None else (*part.conv, part.recurrent)
        if not tensors:
            raise DeclareError(f"{name} has a state part without a tensor")
        for tensor in tensors:
            if not tensor.shape or any(size < 1 for size in tensor.shape):
                raise DeclareError(
                    f"{name} has a state tensor of shape {tensor.shape}: expected sizes of at "
                    "least 1"
                )
        return
    sizes = (
        {"element_count": part.element_count, "value_element_count": part.value_element_count}
        if isinstance(part, LatentPart)
        else {
            "kv_head_count": part.kv_head_count,
            "key_element_count": part.key_element_count,
            "value_element_count": part.value_element_count,
        }
    )
    if part.window_tokens is not None:
        sizes["window_tokens"] = part.window_tokens
    for key, size in sizes.items():
        if size < 1:
            raise DeclareError(f"{name}: {key} is {size}: expected at least 1")
    if isinstance(part, LatentPart) and part.value_element_count > part.element_count:
        raise DeclareError(
            f"{name}: value_element_count is {part.value_element_count}, more than the row's "
            f"{part.element_count}"
        )


def _check_sharing(layers: tuple[LayerDecl, ...], index: int, *, name: str) -> None:
    source = layers[index].shares_layer_index
    assert source is not None
    if attention_of(layers[index]) is not None:
        raise DeclareError(f"{name} shares layer {source} and has an attention part of its own")
    if not 0 <= source < index:
        raise DeclareError(f"{name} shares layer {source}: expected an earlier layer")
    if attention_of(layers[source]) is None:
        raise DeclareError(f"{name} shares layer {source}, which has no attention part of its own")
