"""Layouts against trying every layout, and carried out on bytes; the seed of a failure is shown."""

import random
from collections import Counter

import pytest

from kvd.price.layout import Layout, Step
from kvd.price.plans import feasible, first_plan, plan
from kvd.price.refusal import why_not
from kvd.price.search import Units, fits_empty
from kvd.price.snapshot import ChainSnapshot, Tier, chain_snapshot, reclaimed
from kvd.testing.stress.layouts import any_layout, any_plan, in_grains
from tests.stateful.price_model import LIVE, ByteArena, Case, draw_case

BATCHES = 20
CASES_PER_BATCH = 250
SLOW_BATCHES = 40
SLOW_CASES_PER_BATCH = 5000
"""200,000 cases in all: about five minutes on an idle core, 7 s a batch."""

EFFORTS = [(step, tier) for tier in Tier for step in Step]


def _check(case: Case) -> Layout | None:
    """Check every answer about one case; return the first plan."""
    snapshot, demand = case.snapshot(), case.demand_units
    fits = feasible(snapshot, demand)
    assert fits == any_layout(snapshot, demand, Tier.TRANSFERS)
    assert fits == any_layout(in_grains(snapshot), demand, Tier.TRANSFERS)
    layouts = {effort: plan(snapshot, demand, *effort) for effort in EFFORTS}
    distinct: dict[object, Layout] = {}
    for (step, tier), layout in layouts.items():
        known = fits if (step, tier) == EFFORTS[-1] else any_plan(snapshot, demand, step, tier)
        assert (layout is not None) == known
        if layout is not None:
            assert (layout.step, layout.tier, layout.epoch_count) == (step, tier, 7)
            distinct.setdefault((layout.spans, tier), layout)
    for layout in distinct.values():
        ByteArena(case, layout).realize()
    _check_dominance([layouts[effort] is not None for effort in EFFORTS])
    first = first_plan(snapshot, demand)
    assert first == next((layout for layout in layouts.values() if layout is not None), None)
    obstacle = why_not(snapshot, demand)
    assert (obstacle is None) == fits
    assert obstacle is None or obstacle.units_short_units > 0
    return first


def _check_dominance(served: list[bool]) -> None:
    """What a step serves the next one does; what needs no transfer to end needs none ended."""
    stream, transfers = served[:3], served[3:]
    assert stream == sorted(stream)
    assert transfers == sorted(transfers)
    assert all(later for now, later in zip(stream, transfers, strict=True) if now)


def _case(seed: int) -> Case:
    return draw_case(random.Random(seed), plain=seed % 3 == 0)


def _check_batch(batch: int, count: int) -> None:
    for seed in range(batch * count, (batch + 1) * count):
        try:
            _check(_case(seed))
        except BaseException:
            print(f"seed {seed}: {_case(seed)}")
            raise


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_answer_equals_trying_everything_and_every_layout_can_be_carried_out(
    batch: int,
) -> None:
    _check_batch(batch, CASES_PER_BATCH)


@pytest.mark.sweep
@pytest.mark.parametrize("batch", range(1, 1 + SLOW_BATCHES))
def test_two_hundred_thousand_cases_more(batch: int) -> None:
    _check_batch(batch, SLOW_CASES_PER_BATCH)


def test_the_cases_reach_every_step_in_both_tiers_and_every_refusal() -> None:
    seen: Counter[object] = Counter()
    copied = 0
    for seed in range(3000):
        case = _case(seed)
        snapshot = case.snapshot()
        layout = first_plan(snapshot, case.demand_units)
        obstacle = why_not(snapshot, case.demand_units)
        seen[obstacle.kind if obstacle else (layout and (layout.step, layout.tier))] += 1
        copied += 0 if layout is None else ByteArena(case, layout).realize()
    assert min(seen.values()) >= 20
    assert len(seen) == 12
    assert copied > 100


@pytest.mark.parametrize("seed", range(100))
def test_less_demand_or_more_freed_units_never_turn_a_yes_into_a_no(seed: int) -> None:
    rng = random.Random(seed)
    case = _case(rng.randrange(1 << 30))
    snapshot, demand = case.snapshot(), case.demand_units
    less = tuple(rng.randint(0, more) for more in demand)
    freed = reclaimed(snapshot, _evictable(rng, case))
    for step, tier in EFFORTS:
        if plan(snapshot, demand, step, tier) is not None:
            assert plan(snapshot, less, step, tier) is not None
            assert plan(freed, demand, step, tier) is not None


def _evictable(rng: random.Random, case: Case) -> Units:
    return tuple(
        rng.randint(0, band.states.count(LIVE) - len({*band.hard, *band.soft}))
        for band in case.bands
    )


@pytest.mark.parametrize("seed", range(100))
def test_without_fixed_units_only_counts_matter(seed: int) -> None:
    case = draw_case(random.Random(seed), plain=True)
    snapshot = case.snapshot()
    live = tuple(band.live_units for band in snapshot.bands)
    packed = _with_room_of(snapshot, chain_snapshot(case.geometry, live))
    assert feasible(packed, case.demand_units) == feasible(snapshot, case.demand_units)


def _with_room_of(snapshot: ChainSnapshot, packed: ChainSnapshot) -> ChainSnapshot:
    bands = tuple(
        below._replace(promised_units=band.promised_units, id_room_count=band.id_room_count)
        for below, band in zip(packed.bands, snapshot.bands, strict=True)
    )
    return packed._replace(bands=bands)


@pytest.mark.parametrize("seed", range(100))
def test_an_empty_chain_answers_as_the_search_at_start_does(seed: int) -> None:
    case = _case(seed)
    empty = chain_snapshot(case.geometry, (0,) * len(case.bands))
    assert feasible(empty, case.demand_units) == fits_empty(case.geometry, case.demand_units)


@pytest.mark.parametrize("seed", range(100))
def test_asking_again_gives_the_same_layout(seed: int) -> None:
    case = _case(seed)
    assert first_plan(case.snapshot(), case.demand_units) == first_plan(
        case.snapshot(), case.demand_units
    )
