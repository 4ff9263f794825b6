"""Places for one band: fixed units, blocked bytes and grids."""

from typing import Any

import pytest

from kvd.price.need import (
    Need,
    end_span,
    first_start,
    flushes,
    foreign_bytes,
    last_start,
    meets,
    nearest_start,
    needs_of,
)
from kvd.price.snapshot import Interval, Tier
from tests.stateful.price_model import chain_of, changed

CHAIN = chain_of((8, 1, 5, 3), (6, 9, 13, 3), (4, 24, 30, 5), arena_bytes=120, sink_bytes=8)
STATE, WINDOW, FULL = 0, 1, 2


def _need(index: int, demand: int, tier: Tier = Tier.STREAM, **fields: Any) -> Need:
    snapshot = changed(CHAIN, index, **fields)
    return needs_of(snapshot, tuple(demand if at == index else 0 for at in range(3)), tier)[index]


def test_live_promised_and_asked_units_need_room() -> None:
    assert _need(WINDOW, 2, promised_units=1).width_units == 3 + 1 + 2


def test_vacated_units_need_room_until_their_transfer_ends() -> None:
    fields = {"hole_units": 0, "vacated_network_units": 1}
    assert _need(WINDOW, 2, Tier.STREAM, **fields).width_units == 6
    assert _need(WINDOW, 2, Tier.TRANSFERS, **fields).width_units == 5


def test_a_float_with_nothing_but_vacated_units_may_park() -> None:
    need = _need(WINDOW, 0, live_units=0, hole_units=3, vacated_network_units=1)
    assert need.width_units == 0


@pytest.mark.parametrize(
    ("tier", "fields", "keep"),
    [
        (Tier.STREAM, {}, (20, 0)),
        (Tier.STREAM, {"hard_fixed": (11, 12)}, (11, 12)),
        (Tier.STREAM, {"soft_fixed": (9, 10)}, (9, 10)),
        (Tier.STREAM, {"hard_fixed": (11, 12), "soft_fixed": (9, 10)}, (9, 12)),
        (Tier.TRANSFERS, {"hard_fixed": (11, 12), "soft_fixed": (9, 10)}, (11, 12)),
        (Tier.TRANSFERS, {"soft_fixed": (9, 10)}, (20, 0)),
        (Tier.TRANSFERS, {"movable": False}, (9, 13)),
        (Tier.STREAM, {"movable": False, "live_units": 0, "hole_units": 4}, (20, 0)),
    ],
)
def test_fixed_units_stay_inside(tier: Tier, fields: dict[str, Any], keep: tuple[int, int]) -> None:
    need = _need(WINDOW, 0, tier, **fields)
    assert (need.keep_start_index, need.keep_end_index) == keep


def test_counts_that_do_not_add_up_to_the_span_are_an_error() -> None:
    with pytest.raises(AssertionError):
        _need(WINDOW, 0, hole_units=2)


@pytest.mark.parametrize(
    ("blocked", "foreign"),
    [
        (((40, 50),), ((40, 50),)),
        (((60, 66),), ()),
        (((50, 60),), ((50, 54),)),
        (((70, 90),), ((78, 90),)),
        (((50, 90),), ((50, 54), (78, 90))),
        (((48, 54), (78, 80)), ((48, 54), (78, 80))),
    ],
)
def test_blocked_bytes_inside_a_bands_own_span_are_no_obstacle_to_it(
    blocked: tuple[Interval, ...], foreign: tuple[Interval, ...]
) -> None:
    assert foreign_bytes(CHAIN.bands[WINDOW], blocked) == foreign  # it spans bytes [54, 78)


def test_where_a_parked_float_lay_is_nothing_of_its_own() -> None:
    parked = changed(CHAIN, WINDOW, start_index=9, end_index=9, live_units=0, hole_units=0)
    assert foreign_bytes(parked.bands[WINDOW], ((50, 60),)) == ((50, 60),)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, False), (0, 11, True), (19, 25, True), (20, 25, False), (15, 15, False)],
)
def test_half_open_intervals_meet(low: int, high: int, expected: bool) -> None:
    assert meets(((10, 20),), low, high) is expected


@pytest.mark.parametrize(
    ("index", "demand", "fields", "least", "in_present"),
    [
        (STATE, 0, {}, (1, 4), (1, 5)),
        (STATE, 2, {}, (1, 6), (1, 6)),
        (STATE, 0, {"hard_fixed": (4, 5)}, (1, 5), (1, 5)),
        (FULL, 0, {}, (25, 30), (24, 30)),
        (FULL, 3, {}, (22, 30), (22, 30)),
        (FULL, 0, {"hard_fixed": (24, 25)}, (24, 30), (24, 30)),
    ],
)
def test_an_end_spans_what_it_needs_from_its_anchor(
    index: int,
    demand: int,
    fields: dict[str, Any],
    least: tuple[int, int],
    in_present: tuple[int, int],
) -> None:
    need = _need(index, demand, **fields)
    assert end_span(need, in_present=False) == least
    assert end_span(need, in_present=True) == in_present


@pytest.mark.parametrize(("index", "demand"), [(STATE, 12), (FULL, 24)])
def test_an_end_does_not_leave_its_grid(index: int, demand: int) -> None:
    assert end_span(_need(index, demand - 1), in_present=False) is not None
    assert end_span(_need(index, demand), in_present=False) is None


@pytest.mark.parametrize(("index", "byte"), [(STATE, 45), (FULL, 90)])
def test_an_end_does_not_grow_over_blocked_bytes(index: int, byte: int) -> None:
    need = _need(index, 4)._replace(foreign=((byte, byte + 1),))
    assert end_span(need, in_present=True) is None


def test_only_ends_that_shrink_are_flushed_the_low_one_first() -> None:
    def choices(demand: tuple[int, ...]) -> list[tuple[bool, bool]]:
        return flushes(needs_of(CHAIN, demand, Tier.STREAM))

    assert choices((0, 0, 0)) == [(True, False), (False, True), (True, True)]
    assert choices((0, 0, 1)) == [(True, False)]
    assert choices((1, 0, 0)) == [(False, True)]
    assert choices((1, 0, 1)) == []


def test_a_single_band_can_be_flushed() -> None:
    lone = chain_of((4, 24, 30, 5), arena_bytes=120)
    assert flushes(needs_of(lone, (0,), Tier.STREAM)) == [(False, True)]


@pytest.mark.parametrize(
    ("ground", "foreign", "start"),
    [
        (40, (), 7),
        (42, (), 7),
        (43, (), 8),
        (0, (), 2),
        (102, (), 17),
        (103, (), None),
        (40, ((59, 60),), 10),
        (40, ((60, 61),), 7),
        (40, ((45, 46), (64, 65)), 11),
        (40, ((100, 101),), 7),
    ],
)
def test_the_first_place_above_the_ground(
    ground: int, foreign: tuple[Interval, ...], start: int | None
) -> None:
    assert first_start(_need(WINDOW, 0)._replace(foreign=foreign), ground) == start


@pytest.mark.parametrize(
    ("ceiling", "foreign", "start"),
    [
        (96, (), 13),
        (95, (), 12),
        (30, (), 2),
        (29, (), None),
        (500, (), 17),
        (96, ((90, 91),), 12),
        (96, ((78, 79),), 10),
        (96, ((77, 78),), 13),
        (96, ((70, 71), (90, 91)), 12),
        (96, ((76, 77), (90, 91)), 9),
    ],
)
def test_the_last_place_below_the_ceiling(
    ceiling: int, foreign: tuple[Interval, ...], start: int | None
) -> None:
    need = _need(WINDOW, 0)._replace(foreign=foreign)
    assert last_start(need, ceiling, need.unit_index_end_count) == start


def test_fixed_units_bound_both_places() -> None:
    need = _need(WINDOW, 0, hard_fixed=(10, 12))
    assert first_start(need, 60) == 10
    assert first_start(need, 61) is None
    assert last_start(need, 72, 20) == 9
    assert last_start(need, 71, 20) is None
    assert last_start(need, 120, 20) == 10


def test_a_fixed_extent_wider_than_the_units_widens_the_span() -> None:
    need = _need(WINDOW, 0, hard_fixed=(9, 13))
    assert last_start(need, 78, 20) == 9
    assert last_start(need, 77, 20) is None
    assert first_start(need._replace(foreign=((77, 78),)), 0) is None


@pytest.mark.parametrize(
    ("ground", "ceiling", "foreign", "start"),
    [
        pytest.param(40, 96, (), 9, id="where it is"),
        pytest.param(60, 96, (), 10, id="just above the ground"),
        pytest.param(40, 66, (), 8, id="just below the ceiling"),
        pytest.param(40, 100, ((56, 57),), 10, id="past blocked bytes, upwards"),
        pytest.param(40, 100, ((66, 67),), 8, id="past blocked bytes, downwards"),
    ],
)
def test_a_float_moves_no_further_than_it_must(
    ground: int, ceiling: int, foreign: tuple[Interval, ...], start: int
) -> None:
    need = _need(WINDOW, 0)._replace(foreign=foreign)
    latest = last_start(need, ceiling, 20)
    assert latest is not None
    assert nearest_start(need, ground, ceiling, latest) == start


def test_a_parked_float_is_placed_in_the_middle() -> None:
    need = _need(WINDOW, 3, start_index=9, end_index=9, live_units=0, hole_units=0)
    assert last_start(need, 96, 20) == 13
    assert nearest_start(need, 40, 96, 13) == 10
