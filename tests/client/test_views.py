"""Layers as torch tensors: real shapes and strides, the same bytes as the arena."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kvd.build import build_group
from kvd_client import Client, UsageError
from kvd_client.views import FP8Kind
from kvd_proto.memory import (
    DeclaredLayers,
    DType,
    LatentPart,
    LayerDecl,
    LayerView,
    ModelRole,
)
from tests.client.engine_daemon import SIZING, EngineDaemon


@pytest.fixture
def kv() -> Iterator[Client]:
    with EngineDaemon().attach() as client:
        yield client


def plan_view(kv: Client, layer: int, role: str) -> LayerView:
    return next(v for v in kv.plan.views if (v.layer_index, v.role) == (layer, role))


@pytest.mark.case("48")
def test_a_layer_has_the_shape_and_strides_of_the_plan(kv: Client) -> None:
    k, v = kv.views(1)
    view = plan_view(kv, 1, "k")

    assert k.dtype == torch.bfloat16
    assert tuple(k.shape) == (view.index_end_count, 2, 8)
    assert tuple(v.shape) == (view.index_end_count, 2, 4)
    assert k.stride() == (view.index_stride_bytes // 2, view.strides_bytes[0] // 2, 1)


def test_what_is_written_through_a_view_is_in_the_arena(kv: Client) -> None:
    k, _ = kv.views(0)
    view = plan_view(kv, 0, "k")

    k[37] = torch.arange(16, dtype=torch.float32).reshape(2, 8).to(torch.bfloat16)

    start = view.offset_bytes + 37 * view.index_stride_bytes
    stored = kv.arena_array()[start : start + 32].view(np.uint16)
    assert stored.tolist() == k[37].reshape(-1).view(torch.int16).numpy().view(np.uint16).tolist()


def test_keys_and_values_of_all_layers_are_disjoint(kv: Client) -> None:
    k, v = kv.views(0)
    k[5] = 1.0
    v[5] = 2.0

    assert bool((k[5] == 1.0).all())
    assert bool((v[5] == 2.0).all())


def test_a_layer_that_shares_keys_and_values_gets_the_same_tensors(kv: Client) -> None:
    assert kv.views(3)[0] is kv.views(0)[0]
    assert kv.views(3)[1] is kv.views(0)[1]


def test_states_are_convolution_tails_and_the_recurrent_tensor(kv: Client) -> None:
    conv, recurrent = kv.views(2)

    assert conv.dtype == torch.bfloat16
    assert tuple(conv.shape[1:]) == (4, 8)
    assert recurrent.dtype == torch.float32
    assert tuple(recurrent.shape[1:]) == (2, 4, 4)


@pytest.mark.parametrize(
    ("fp8", "dtype"),
    [("uint8", torch.uint8), ("float8_e4m3fn", torch.float8_e4m3fn)],
)
def test_an_fp8_cache_is_typed_as_asked(fp8: FP8Kind, dtype: torch.dtype) -> None:
    part = LatentPart(element_count=32, value_element_count=16, dtype=DType.UINT8)
    layers = DeclaredLayers(layers=(LayerDecl(parts=(part,)),), context_tokens=64)
    daemon = EngineDaemon(storage=build_group(layers, inputs=SIZING).stages[0])
    with daemon.attach() as kv:
        (latent,) = kv.views(0, fp8=fp8)

        assert latent.dtype == dtype
        assert tuple(latent.shape[1:]) == (32,)


def test_a_layer_of_another_stage_is_named(kv: Client) -> None:
    with pytest.raises(UsageError, match="layer 9"):
        kv.views(9)
    with pytest.raises(UsageError, match="draft"):
        kv.views(0, model=ModelRole.DRAFT)


def test_a_tensor_outlives_the_client(kv: Client) -> None:
    k, _ = kv.views(0)
    k[40] = 3.0
    kv.close()

    assert bool((k[40] == 3.0).all())
