"""Checks of a chain that stand apart from it: names of what cannot be freed, windows, snapshots."""

import numpy as np
import pytest

from kvd.alloc.chain_checks import check_released, check_snapshot, misfreed_name
from kvd.errors import InvariantError
from kvd_proto.memory import Lifetime
from tests.unit.broken_books import STRICT, WINDOW, busy, units


@pytest.mark.parametrize(
    ("lifetime", "freed", "name"),
    [
        (Lifetime.WINDOW, 0, "window.segment_bound"),
        (Lifetime.WINDOW, 7, "window.segment_bound"),
        (Lifetime.STATE, 0, "state.slot_sentinel"),
        (Lifetime.STATE, -1, "state.slot_sentinel"),
        (Lifetime.STATE, 7, "band.free_of_bound_page"),
        (Lifetime.FULL, 0, "band.free_of_bound_page"),
    ],
)
def test_what_cannot_be_freed_has_a_name_for_each_kind_of_band(
    lifetime: Lifetime, freed: int, name: str
) -> None:
    assert misfreed_name(lifetime, units(freed)) == name


def test_pages_that_are_bound_in_no_window_may_lose_their_owner() -> None:
    chain = busy().chain
    pages = chain.owner.bound_ids()[:2]
    with pytest.raises(InvariantError, match=rf"page {pages[0]} has no owner .* band window_1"):
        check_released(pages, [chain.bands[WINDOW]], STRICT)
    chain.bands[WINDOW].release(np.ascontiguousarray(pages))
    check_released(pages, [chain.bands[WINDOW]], STRICT)


def test_snapshots_of_the_same_state_are_the_same() -> None:
    chain = busy().chain
    kept = chain.snapshot()
    check_snapshot(kept, chain.build_snapshot(kept.epoch_count), STRICT)
    with pytest.raises(InvariantError, match=rf"epoch {kept.epoch_count} is stale"):
        check_snapshot(kept, kept._replace(arena_bytes=kept.arena_bytes + 1), STRICT)
