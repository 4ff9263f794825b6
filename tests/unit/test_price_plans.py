"""The capacity question and the least rearrangement, on examples small enough to draw."""

import pytest

from kvd.price.layout import Layout, Step
from kvd.price.plans import feasible, first_plan, plan
from kvd.price.search import Spans, Units
from kvd.price.snapshot import ChainSnapshot, Tier, reclaimed
from tests.stateful.price_model import chain_of, changed

CHAIN = chain_of((8, 1, 5, 3), (6, 9, 13, 3), (4, 24, 30, 5), arena_bytes=120, sink_bytes=8)
"""State bytes [8, 40), window [54, 78), full [96, 120); one hole each."""

STEPS = tuple(Step)


def _least(snapshot: ChainSnapshot, demand: Units) -> tuple[Step, Tier] | None:
    layout = first_plan(snapshot, demand)
    assert (layout is not None) == feasible(snapshot, demand)
    return None if layout is None else (layout.step, layout.tier)


def test_of_gaps_that_are_equally_large_a_float_grows_into_the_upper_one() -> None:
    """The lower one has 45 bytes, which are four whole units as above."""
    chain = chain_of(
        (15, 1, 3, 2), (10, 9, 13, 4), (10, 17, 100, 83), arena_bytes=1000, sink_bytes=15
    )
    layout = first_plan(chain, (0, 2, 0))
    assert layout is not None
    assert layout.spans[1] == (9, 15)


@pytest.mark.parametrize(
    ("demand", "step", "spans", "flushed", "relocated"),
    [
        pytest.param(
            (1, 0, 2), Step.NO_MOVE, ((1, 5), (9, 13), (23, 30)), (), (), id="holes and growth"
        ),
        pytest.param(
            (0, 4, 3), Step.FLUSH_ENDS, ((1, 4), (6, 13), (22, 30)), (0,), (), id="low end only"
        ),
        pytest.param(
            (0, 0, 6), Step.RELAYOUT, ((1, 5), (9, 12), (19, 30)), (), (1,), id="window moves down"
        ),
        pytest.param(
            (3, 1, 0), Step.RELAYOUT, ((1, 7), (10, 14), (24, 30)), (), (1,), id="window moves up"
        ),
    ],
)
def test_the_worked_example(
    demand: Units,
    step: Step,
    spans: Spans,
    flushed: tuple[int, ...],
    relocated: tuple[int, ...],
) -> None:
    assert first_plan(CHAIN, demand) == Layout(step, Tier.STREAM, spans, flushed, relocated, 0)
    assert feasible(CHAIN, demand)
    assert all(
        plan(CHAIN, demand, less, Tier.STREAM) is None for less in STEPS[: STEPS.index(step)]
    )


def test_the_worked_example_refuses_what_padding_eats() -> None:
    assert not feasible(
        CHAIN, (0, 4, 6)
    )  # 110 of 112 bytes, but a byte 78 window and a byte 76 end
    assert first_plan(CHAIN, (0, 4, 6)) is None
    assert [plan(CHAIN, (0, 4, 6), step, tier) for tier in Tier for step in Step] == [None] * 6


def test_free_bytes_that_add_up_are_no_layout() -> None:
    snapshot = chain_of((5, 3, 3, 0), (12, 1, 1, 0), (7, 8, 8, 0), arena_bytes=60, sink_bytes=12)
    assert 2 * 12 + 3 * 7 == 45 <= 60 - 12
    assert not feasible(snapshot, (0, 2, 3))
    assert feasible(snapshot, (0, 2, 1))


def test_each_band_alone_fits_where_the_pair_does_not_until_something_in_both_is_freed() -> None:
    # Two holes each and two free units between: 4 or 4 fit, 3 and 3 do, 4 and 4 do not.
    snapshot = chain_of((2, 0, 5, 3), (2, 7, 12, 3), arena_bytes=24, sink_bytes=0)
    assert [feasible(snapshot, pair) for pair in ((4, 0), (0, 4), (3, 3), (4, 4))] == [
        True,
        True,
        True,
        False,
    ]
    assert not feasible(reclaimed(snapshot, (0, 1)), (4, 4))
    assert feasible(reclaimed(snapshot, (1, 1)), (4, 4))


def test_a_band_short_of_bytes_gets_them_from_a_peer_once_that_is_flushed() -> None:
    full_owns_all = chain_of((250, 0, 0, 0), (100, 2, 10, 8), arena_bytes=1000, sink_bytes=0)
    assert not feasible(full_owns_all, (1, 0))
    one_freed = reclaimed(full_owns_all, (0, 1))
    assert first_plan(one_freed, (1, 0)) == Layout(
        Step.FLUSH_ENDS, Tier.STREAM, ((0, 1), (3, 10)), (1,), (), 0
    )


def test_freeing_a_peers_slot_can_be_enough() -> None:
    snapshot = chain_of((200, 0, 3, 3), (100, 6, 10, 4), arena_bytes=1000, sink_bytes=0)
    assert not feasible(snapshot, (0, 4))
    assert not feasible(reclaimed(snapshot, (0, 2)), (0, 4))
    assert _least(reclaimed(snapshot, (1, 2)), (0, 4)) == (Step.FLUSH_ENDS, Tier.STREAM)


@pytest.mark.parametrize(("slots", "fits"), [(2, True), (3, False)])
def test_every_unit_of_a_demand_is_priced(slots: int, fits: bool) -> None:
    gap_for_two = chain_of((10, 1, 3, 2), (7, 8, 10, 2), arena_bytes=75, sink_bytes=10)
    assert feasible(gap_for_two, (slots, 0)) is fits


def test_promises_are_priced_beside_the_demand() -> None:
    assert feasible(CHAIN, (3, 1, 0))
    assert not feasible(changed(CHAIN, 2, promised_units=6), (3, 1, 0))
    assert _least(changed(CHAIN, 0, promised_units=1), (1, 0, 0)) == (Step.NO_MOVE, Tier.STREAM)


def test_bytes_do_not_replace_ids() -> None:
    few_ids = changed(CHAIN, 2, id_room_count=2, promised_units=1)
    assert feasible(few_ids, (0, 0, 1))
    assert not feasible(few_ids, (0, 0, 2))
    assert first_plan(few_ids, (0, 0, 2)) is None
    assert [plan(few_ids, (0, 0, 2), step, tier) for tier in Tier for step in Step] == [None] * 6


def test_promises_beyond_the_ids_are_nobodys_business_who_asks_for_none() -> None:
    assert feasible(changed(CHAIN, 2, id_room_count=0, promised_units=1), (1, 0, 0))


def test_a_band_cannot_hold_more_units_than_its_grid_has() -> None:
    snapshot = chain_of((2, 1, 2, 1), (50, 2, 2, 0), arena_bytes=101)
    assert feasible(snapshot, (48, 0))
    assert not feasible(snapshot, (50, 0))


def test_what_stream_order_frees_needs_no_transfer_to_end() -> None:
    pending = changed(
        CHAIN, 2, hole_units=0, live_units=2, pending_units=2, vacated_forward_units=2
    )
    assert _least(pending, (0, 0, 4)) == (Step.NO_MOVE, Tier.STREAM)


def test_room_that_a_transfer_holds_is_used_only_where_nothing_else_serves() -> None:
    sending = changed(CHAIN, 2, live_units=1, hole_units=0, vacated_network_units=5)._replace(
        blocked=((100, 120),)
    )
    assert _least(sending, (0, 0, 4)) == (Step.NO_MOVE, Tier.STREAM)
    assert _least(sending, (0, 0, 8)) == (Step.RELAYOUT, Tier.STREAM)
    assert _least(sending, (4, 1, 6)) == (Step.RELAYOUT, Tier.TRANSFERS)
    only_end = chain_of((4, 24, 30, 1), arena_bytes=120, sink_bytes=96)
    only_end = changed(only_end, 0, hole_units=0, vacated_network_units=5)
    assert _least(only_end, (5,)) == (Step.NO_MOVE, Tier.TRANSFERS)


def test_units_a_transfer_touches_move_only_where_nothing_else_serves() -> None:
    touched = changed(CHAIN, 1, soft_fixed=(9, 13))
    assert _least(touched, (0, 0, 4)) == (Step.NO_MOVE, Tier.STREAM)
    assert _least(touched, (3, 1, 0)) == (Step.RELAYOUT, Tier.TRANSFERS)
    assert _least(changed(touched, 1, hard_fixed=(9, 10)), (3, 1, 0)) is None


def test_blocked_bytes_are_waited_for_and_quarantined_ones_are_not() -> None:
    blocked = CHAIN._replace(blocked=((44, 46), (90, 92)))
    assert _least(blocked, (0, 0, 3)) == (Step.NO_MOVE, Tier.TRANSFERS)
    astray = blocked._replace(quarantined=((90, 92),))
    assert _least(astray, (0, 0, 3)) is None
    assert _least(astray, (2, 0, 2)) == (Step.NO_MOVE, Tier.TRANSFERS)


def test_a_quarantined_unit_stays_and_so_does_its_band() -> None:
    # All of the window was freed but one unit that a lost transfer may still write to.
    snapshot = changed(CHAIN, 1, live_units=1, hole_units=3, hard_fixed=(11, 12))
    snapshot = snapshot._replace(blocked=((66, 72),), quarantined=((66, 72),))
    assert _least(snapshot, (4, 0, 0)) == (Step.RELAYOUT, Tier.STREAM)  # bytes [8, 64)
    assert _least(snapshot, (6, 0, 0)) is None


def test_a_float_with_units_pending_is_opaque_until_they_are_settled() -> None:
    emptied = changed(CHAIN, 1, live_units=0, hole_units=0, pending_units=4)
    assert plan(emptied, (4, 0, 0), Step.FLUSH_ENDS, Tier.TRANSFERS) is None
    layout = first_plan(emptied, (4, 0, 0))
    assert layout == Layout(Step.RELAYOUT, Tier.STREAM, ((1, 8), (9, 9), (24, 30)), (), (1,), 0)


def test_a_layout_belongs_to_the_epoch_of_its_snapshot() -> None:
    snapshot = CHAIN._replace(epoch_count=41)
    epochs: list[int] = []
    for demand in ((0, 0, 0), (0, 0, 2), (0, 0, 6)):
        layout = first_plan(snapshot, demand)
        assert layout is not None
        epochs.append(layout.epoch_count)
    assert epochs == [41, 41, 41]


def test_a_single_band_is_a_chain() -> None:
    lone = chain_of((4, 24, 30, 5), arena_bytes=120, sink_bytes=8)
    assert _least(lone, (23,)) == (Step.NO_MOVE, Tier.STREAM)
    assert _least(lone, (24,)) is None


def test_two_ends_without_floats_are_a_chain() -> None:
    pair = chain_of((8, 1, 5, 3), (4, 24, 30, 5), arena_bytes=120, sink_bytes=8)
    assert _least(pair, (8, 0)) == (Step.NO_MOVE, Tier.STREAM)
    assert _least(pair, (1, 14)) == (Step.NO_MOVE, Tier.STREAM)
    assert _least(pair, (0, 17)) == (Step.FLUSH_ENDS, Tier.STREAM)
    assert _least(pair, (0, 18)) is None
