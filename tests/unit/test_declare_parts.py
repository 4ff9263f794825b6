"""What every declared layer must satisfy."""

import pytest

from kvd.declare.parts import attention_of, check_layers, lifetime_of, state_of
from kvd.errors import DeclareError
from kvd_proto.memory import (
    AttentionPart,
    DType,
    LatentPart,
    LayerDecl,
    Lifetime,
    StatePart,
    StateTensor,
)

FULL = AttentionPart(kv_head_count=1, key_element_count=8, value_element_count=8)
STATE = StatePart(recurrent=StateTensor(shape=(4, 4), dtype=DType.FLOAT32))


def test_attention_and_state_may_stand_in_one_layer() -> None:
    layer = LayerDecl(parts=(FULL, STATE))
    check_layers((layer,), model="layer")
    assert (attention_of(layer), state_of(layer)) == (FULL, STATE)


@pytest.mark.parametrize(
    ("layer", "complaint"),
    [
        (LayerDecl(parts=(FULL, FULL)), "2 attention and 0 state parts"),
        (LayerDecl(parts=(STATE, STATE)), "0 attention and 2 state parts"),
        (
            LayerDecl(
                parts=(AttentionPart(kv_head_count=0, key_element_count=8, value_element_count=8),)
            ),
            "kv_head_count is 0",
        ),
        (
            LayerDecl(
                parts=(
                    AttentionPart(
                        kv_head_count=1,
                        key_element_count=8,
                        value_element_count=8,
                        window_tokens=-1,
                    ),
                )
            ),
            "window_tokens is -1",
        ),
        (
            LayerDecl(parts=(LatentPart(element_count=8, value_element_count=9),)),
            "value_element_count is 9, more than the row's 8",
        ),
        (LayerDecl(parts=(StatePart(),)), "a state part without a tensor"),
        (
            LayerDecl(parts=(StatePart(recurrent=StateTensor(shape=(4, 0), dtype=DType.FLOAT32)),)),
            r"shape \(4, 0\)",
        ),
        (LayerDecl(shares_layer_index=1), "shares layer 1: expected an earlier layer"),
        (LayerDecl(shares_layer_index=-1), "shares layer -1: expected an earlier layer"),
        (LayerDecl(parts=(FULL,), shares_layer_index=0), "an attention part of its own"),
    ],
)
def test_a_wrong_layer_is_named_with_what_is_wrong(layer: LayerDecl, complaint: str) -> None:
    with pytest.raises(DeclareError, match=f"layer 1.*{complaint}"):
        check_layers((LayerDecl(parts=(FULL,)), layer), model="layer")


def test_sharing_a_layer_that_shares_itself_is_refused() -> None:
    chain = (
        LayerDecl(parts=(FULL,)),
        LayerDecl(shares_layer_index=0),
        LayerDecl(shares_layer_index=1),
    )
    with pytest.raises(DeclareError, match="layer 2 shares layer 1, which has no attention"):
        check_layers(chain, model="layer")


def test_lifetimes_follow_from_the_part() -> None:
    window = AttentionPart(
        kv_head_count=1, key_element_count=8, value_element_count=8, window_tokens=4
    )
    assert [lifetime_of(part) for part in (FULL, window, STATE)] == [
        Lifetime.FULL,
        Lifetime.WINDOW,
        Lifetime.STATE,
    ]
