"""The order of effects in an outcome: what the check of it finds, and what it lets pass."""

import numpy as np
import pytest

from kvd.errors import StressFailure
from kvd.price.geometry import BandKind, chain_geometry
from kvd.testing.stress.contents import Indices
from kvd.testing.stress.effect_order import check_effect_order
from kvd_proto.outcomes import AnyEffect, Column, Done, Move, Outcome, Wait, Zero

GEOMETRY = chain_geometry(
    arena_bytes=960,
    sink_bytes=32,
    bands=(("low", BandKind.GROW_UP, 16), ("high", BandKind.GROW_DOWN, 24)),
)
LOW, HIGH = 0, 1
COLUMNS: list[Indices] = [np.array([units], dtype=np.int64) for units in (6, 3, 4, 5)]
SIX, THREE, FOUR, FIVE = (Column(place) for place in range(4))
MOVE = Move(LOW, SIX, THREE)
"""Unit 6 of the low band, which is bytes 96 to 112, moves to its unit 3."""


def check(*segments: tuple[AnyEffect, ...]) -> None:
    check_effect_order(GEOMETRY, Outcome(Done(), segments), COLUMNS)


@pytest.mark.parametrize(
    "segments",
    [
        ((Wait(1), MOVE, Zero(LOW, FIVE)),),
        ((MOVE,), (Zero(LOW, SIX),)),
        ((MOVE,), (Zero(HIGH, FOUR),)),
        ((Zero(LOW, SIX), MOVE),),
    ],
)
def test_what_may_run_and_run_again_passes(segments: tuple[tuple[AnyEffect, ...], ...]) -> None:
    check(*segments)


@pytest.mark.parametrize(
    ("segments", "complaint"),
    [
        (((MOVE, Wait(1)),), "stands behind what it has to be before"),
        (((MOVE,), (Wait(copy=1),)), "stands behind what it has to be before"),
        (((MOVE, Zero(LOW, SIX)),), "zeroed in a segment that moves them away"),
        (((MOVE, Zero(HIGH, FOUR)),), "zeroed in a segment that moves them away"),
        (((MOVE, Move(LOW, FIVE, SIX)),), "moved into in a segment that moves them away"),
    ],
)
def test_what_may_not_is_found(segments: tuple[tuple[AnyEffect, ...], ...], complaint: str) -> None:
    with pytest.raises(StressFailure, match=complaint) as caught:
        check(*segments)
    assert caught.value.check == "stress.effects"
