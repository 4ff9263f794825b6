"""The named capacity questions, with numbers. In brackets: the project's list of public cases."""

from dataclasses import replace

import pytest

from kvd.alloc.capacity import (
    admits,
    ensure_capacity,
    fits_after_frees,
    load_back_fits,
    prealloc_fits,
    units_fit,
)
from kvd.alloc.chain import UnitCounts
from kvd.alloc.demand import RequestShape
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason
from tests.stateful.chain_steps import free_pages, make_room, take_pages
from tests.stateful.chains import World, picture

NOTHING = (0, 0)

FOURTEEN = World(
    arena_bytes=2 + 2 * 14,
    unit_bytes=(2, 2),
    lifetimes=(Lifetime.WINDOW, Lifetime.FULL),
    window_tokens=(8, 0),
    page_tokens=1,
)
"""A window against the owner, 14 units between them."""

TEN_WINDOW_PAGES = replace(
    FOURTEEN, arena_bytes=12 + 10 * 12 + 11, unit_bytes=(12, 1), window_tokens=(5, 0)
)
"""Ten window pages beside 11 pages of the owner, exactly."""


@pytest.mark.case("1")
def test_each_band_alone_says_yes_and_the_pair_no() -> None:  # [1]
    chain = FOURTEEN.chain()
    take_pages(chain, pages=6)
    free_pages(chain, 1, 2)
    assert [band.hole_units for band in chain.bands] == [2, 2]
    assert units_fit(chain, (4, 0))
    assert units_fit(chain, (0, 4))
    assert units_fit(chain, (3, 3))
    assert not units_fit(chain, (4, 4))


@pytest.mark.case("1")
@pytest.mark.parametrize(
    ("evictable", "fits"), [((0, 0), False), ((0, 1), False), ((1, 0), False), ((1, 1), True)]
)
def test_eviction_is_enough_once_both_bands_give_a_page(  # [1]
    evictable: UnitCounts, fits: bool
) -> None:
    chain = FOURTEEN.chain()
    take_pages(chain, pages=6)
    free_pages(chain, 1, 2)
    before = picture(chain)
    assert admits(chain, (4, 4), evictable_units=evictable) is fits
    assert fits_after_frees(chain, (4, 4), freed_units=evictable) is fits
    assert picture(chain) == before


@pytest.mark.parametrize(("pages", "fits"), [(13, True), (14, True), (15, False)])
def test_no_more_is_credited_than_a_band_holds(pages: int, fits: bool) -> None:
    chain = FOURTEEN.chain()
    take_pages(chain, pages=3)
    assert admits(chain, (0, pages), evictable_units=(99, 99)) is fits


def test_promises_to_others_are_over_once_they_have_ended() -> None:
    chain = FOURTEEN.chain()
    take_pages(chain, pages=2)
    chain.owner.promise(6)
    assert not fits_after_frees(chain, (0, 12), freed_units=(2, 2))
    assert not fits_after_frees(chain, (0, 12), freed_units=(0, 0), released_units=(0, 6))
    assert fits_after_frees(chain, (0, 12), freed_units=(2, 2), released_units=(0, 6))


@pytest.mark.parametrize("demand", [(0, 0), (3, 7), (10, 0), (5, 5)])
def test_what_has_capacity_is_taken(demand: UnitCounts) -> None:
    chain = FOURTEEN.chain()
    take_pages(chain, pages=2)
    assert ensure_capacity(chain, demand) is None
    assert units_fit(chain, demand)
    make_room(chain, demand)


def test_what_has_no_capacity_is_explained() -> None:
    chain = FOURTEEN.chain()
    take_pages(chain, pages=2)
    shortage = ensure_capacity(chain, (5, 6))
    assert shortage is not None
    assert (shortage.reason, shortage.short_bytes) == (Reason.NO_BYTES, 2)
    assert shortage.waiting_helps


@pytest.mark.case("9")
@pytest.mark.parametrize(("chunk", "fits"), [(5, True), (6, False)])
def test_what_is_loaded_and_the_first_chunk_are_asked_together(  # [9]
    chunk: int, fits: bool
) -> None:
    table = TEN_WINDOW_PAGES.table()
    request = RequestShape(prompt_tokens=25, host_tokens=5, host_window_tokens=(5, 0))
    assert units_fit(table.chain, (chunk, chunk))
    assert units_fit(table.chain, (5, 5))
    assert load_back_fits(table, request, evictable_units=NOTHING, chunk_tokens=chunk) is fits


def test_a_load_names_no_chunk_where_it_takes_the_stages_own() -> None:
    request = RequestShape(prompt_tokens=25, host_tokens=5, host_window_tokens=(5, 0))
    fits = [
        load_back_fits(
            replace(TEN_WINDOW_PAGES, chunk_tokens=chunk).table(), request, evictable_units=NOTHING
        )
        for chunk in (5, 6)
    ]
    assert fits == [True, False]


@pytest.mark.parametrize(("evictable", "fits"), [((3, 3), True), ((2, 3), False), ((3, 2), False)])
def test_a_load_may_count_on_eviction_in_every_band(evictable: UnitCounts, fits: bool) -> None:
    table = replace(TEN_WINDOW_PAGES, arena_bytes=12 + 10 * 12 + 10).table()
    take_pages(table.chain, pages=3)
    request = RequestShape(prompt_tokens=25, host_tokens=5, host_window_tokens=(5, 0))
    assert load_back_fits(table, request, evictable_units=evictable, chunk_tokens=5) is fits


@pytest.mark.parametrize(("held_back", "fits"), [((0, 1), True), ((0, 2), False), ((1, 0), False)])
def test_a_load_leaves_what_the_pass_let_in_before(held_back: UnitCounts, fits: bool) -> None:
    table = TEN_WINDOW_PAGES.table()
    request = RequestShape(prompt_tokens=25, host_tokens=5, host_window_tokens=(5, 0))
    answer = load_back_fits(
        table, request, evictable_units=NOTHING, chunk_tokens=5, held_back_units=held_back
    )
    assert answer is fits


# 6 tokens computed elsewhere and a reserve of 2: 8 pages of the owner, and 8 of the window of 8.
ARRIVING = RequestShape(prompt_tokens=6, new_tokens=4, reserve_tokens=2, retractable_tokens=2)


@pytest.mark.case("10")
@pytest.mark.parametrize(("units", "fits"), [(15, False), (16, True)])
def test_a_preallocation_asks_for_window_and_owner_jointly(units: int, fits: bool) -> None:  # [10]
    table = replace(FOURTEEN, arena_bytes=2 + 2 * units).table()
    assert units_fit(table.chain, (0, 8))
    assert units_fit(table.chain, (8, 0))
    assert units_fit(table.chain, (8, 8)) is fits
    answer = prealloc_fits(table, ARRIVING, held_back_units=NOTHING, evictable_units=NOTHING)
    assert answer is fits


@pytest.mark.parametrize(
    ("held_back", "evictable", "fits"),
    [
        ((0, 0), (0, 0), True),
        ((1, 1), (0, 0), True),
        ((1, 2), (0, 0), False),
        ((2, 2), (0, 0), False),
        ((2, 2), (1, 1), True),
        ((2, 2), (1, 0), False),
        ((3, 3), (2, 2), True),
    ],
)
def test_a_preallocation_leaves_what_is_held_back_and_counts_on_eviction(
    held_back: UnitCounts, evictable: UnitCounts, fits: bool
) -> None:
    table = replace(FOURTEEN, arena_bytes=2 + 2 * 22).table()
    take_pages(table.chain, pages=2)
    answer = prealloc_fits(table, ARRIVING, held_back_units=held_back, evictable_units=evictable)
    assert answer is fits
