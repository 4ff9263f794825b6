"""A snap: counts that people read, and a digest that moves with whatever matters later."""

from collections.abc import Callable

import pytest

from kvd.engine.snap import state_digest, take_snap
from kvd.engine.stage import StageEngine
from kvd_proto.operations import Admit, Advance, Free, Idle, Insert, Launch, Take
from tests.stateful.program import TIGHT, batches
from tests.stateful.ranks import Rank, int32s, int64s, lone


def busy() -> Rank:
    """Return a rank with two requests of 16 and 7 tokens, under a step in flight."""
    rank = lone()
    rank.send(Admit(int64s([1, 2]), int32s([30, 7]), int32s([8, 8]), int32s([16, 7])))
    rank.send(Launch(1, 2))
    rank.send(Free(int64s([2])))
    return rank


def test_a_snap_counts_every_band() -> None:
    snap = take_snap(busy().world.engine)
    assert (snap.request_count, snap.value_count) == (1, 0)
    assert (snap.launched_count, snap.processed_count) == (1, 0)
    counts = {
        band.name: (band.live_units, band.hole_units, band.pending_units) for band in snap.bands
    }
    assert [live for live, _, _ in counts.values()] == [1, 4, 4, 4]
    assert [pending for _, _, pending in counts.values()] == [1, 2, 2, 2]
    assert snap.bands[1].free_id_count == 0
    assert len(snap.digest) == 16


def _unit(engine: StageEngine) -> None:
    band = engine.chain.owner
    live = band.bound_ids()
    states = band.states()
    states[states == live[0]], states[states == live[1]] = live[1], live[0]


def _next_id(engine: StageEngine) -> None:
    ids = engine.chain.owner.free_ids
    assert ids is not None
    ids.give(ids.take(1))


def _promise(engine: StageEngine) -> None:
    engine.chain.owner.promised_units += 1


def _computed(engine: StageEngine) -> None:
    rows = engine.requests.rows
    rows.computed_tokens[rows.opened_count.nonzero()[0]] += 1


def _page(engine: StageEngine) -> None:
    rows = engine.requests.rows
    rows.pages[rows.opened_count.nonzero()[0], 0] += 1


def _step(engine: StageEngine) -> None:
    engine.steps.launched_count += 1


@pytest.mark.parametrize("change", [_unit, _next_id, _promise, _computed, _page, _step])
def test_the_digest_moves_with_state_that_decides(change: Callable[[StageEngine], None]) -> None:
    engine = busy().world.engine
    before = state_digest(engine)
    assert state_digest(engine) == before
    change(engine)
    assert state_digest(engine) != before


@pytest.mark.parametrize(
    "operation", [Take(int64s([1]), 1), Advance(int64s([1]), 1), Insert(3, 1), Launch(2, 3)]
)
def test_the_digest_moves_with_every_operation(operation: object) -> None:
    rank = busy()
    before = state_digest(rank.world.engine)
    rank.send(operation)  # type: ignore[arg-type]
    assert take_snap(rank.world.engine).digest != f"{before:016x}"


def test_a_snap_changes_no_decision() -> None:
    plain, looked_at = lone(TIGHT), lone(TIGHT)
    for operations in batches(5, 60):
        plain.send(*operations)
        looked_at.send(*operations)
        take_snap(looked_at.world.engine)
    assert plain.replies == looked_at.replies


def test_the_digest_is_the_same_number_everywhere() -> None:
    rank = busy()
    rank.send(Idle())
    assert take_snap(rank.world.engine).digest == "e8bcb4147b7e8b21"
