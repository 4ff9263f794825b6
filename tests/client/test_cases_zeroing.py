"""What has gone wrong elsewhere with bytes of somebody else's, which read as NaN in attention."""

import numpy as np
import pytest

from kvd.build import build_group
from kvd_proto.memory import AttentionPart, DeclaredLayers, DType, LayerDecl, Lifetime
from tests.client.engine_daemon import CONTEXT_TOKENS, LAYERS, SIZING, EngineDaemon
from tests.client.ids_cases import admit, finish, free

NAN_BYTE = 0xFF
"""All ones are NaN in every floating type, of 8, 16 or 32 bits."""
_WIDE = AttentionPart(kv_head_count=2, key_element_count=8, value_element_count=8)
WIDE_AND_NARROW = DeclaredLayers(
    layers=(
        LayerDecl(parts=(_WIDE,)),
        LayerDecl(parts=(_WIDE,)),
        LayerDecl(
            parts=(
                AttentionPart(
                    kv_head_count=2,
                    key_element_count=8,
                    value_element_count=8,
                    dtype=DType.UINT8,
                    window_tokens=8,
                ),
            )
        ),
    ),
    context_tokens=CONTEXT_TOKENS,
)
"""No states; elements of 16 bits in one band and of 8 bits in the other."""


@pytest.mark.case("75", "76", "80")
@pytest.mark.parametrize("declare", [LAYERS, WIDE_AND_NARROW], ids=["with states", "without"])
def test_pages_handed_out_on_bytes_of_another_kind_read_zero_and_no_byte_beside_changes(
    declare: DeclaredLayers,
) -> None:
    daemon = EngineDaemon(storage=build_group(declare, inputs=SIZING).stages[0])
    with daemon.attach() as kv:
        admit(kv, {1: 16, 2: 16})
        with kv.launch() as step:
            step.submit(lambda: None)
        finish(kv)
        free(kv, [1, 2])
        plan = kv.plan
        arena = np.frombuffer(kv.memory.buffer, np.uint8, plan.arena_bytes)
        kv.stream.synchronize(5_000)
        arena[plan.sink_bytes :] = NAN_BYTE
        admit(kv, {3: 13, 4: 9})
        with kv.launch() as step:
            step.reads_done()
        finish(kv)
        taken = np.zeros(plan.arena_bytes, np.bool_)
        for band in plan.bands:
            if band.lifetime is Lifetime.STATE:
                units = kv.state_slots([3, 4]).tolist()
            else:
                units = kv.page_table(band.name, [3, 4]).values.tolist()
            assert units
            for unit in units:
                taken[unit * band.unit_bytes : (unit + 1) * band.unit_bytes] = True
        assert not arena[taken].any()
        assert not arena[: plan.sink_bytes].any()
        taken[: plan.sink_bytes] = True
        assert (arena[~taken] == NAN_BYTE).all()
