"""All bands of an arena together: takes, the one capacity question, and the checks over a chain."""

# pyright: reportPrivateUsage=false

from dataclasses import replace

import pytest

from kvd.alloc.chain import ChainAllocator, UnitCounts
from kvd.alloc.checks import CheckLevel
from kvd.errors import InvariantError
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason
from tests.stateful.chain_steps import array, free_pages, make_room, take_pages
from tests.stateful.chains import ONE, PAIR, THREE, block, fix, picture

# ---- takes ---------------------------------------------------------------------------------------


def test_a_page_gets_a_unit_of_every_token_band() -> None:
    chain = THREE.chain()
    make_room(chain, (0, 3, 3))
    virtual, physical = chain.take_pages(3)
    assert virtual.tolist() == [1, 2, 3]
    assert len(physical) == len(chain.token_indices) == 2
    for index, units in zip(chain.token_indices, physical, strict=True):
        assert chain.bands[index].physical(virtual).tolist() == units.tolist()
    chain.check()


def test_slots_have_ids_of_their_own() -> None:
    chain = THREE.chain()
    make_room(chain, (2, 1, 1))
    virtual, _ = chain.take_pages(1)
    slots, units = chain.take_slots(2)
    assert (virtual.tolist(), slots.tolist(), units.tolist()) == ([1], [1, 2], [1, 2])
    chain.check()


def test_a_chain_has_one_owner() -> None:
    with pytest.raises(AssertionError):
        replace(PAIR, lifetimes=(Lifetime.FULL, Lifetime.FULL)).chain()


def test_a_band_may_use_every_byte_that_its_neighbours_left() -> None:
    chain = PAIR.chain()
    take_pages(chain, pages=3)
    free_pages(chain, 1, 2, 3)
    make_room(chain, (0, 6))
    chain.settle_freed()
    make_room(chain, (6, 0))


def test_room_that_is_made_and_not_promised_goes_back() -> None:
    chain = THREE.chain()
    empty = chain.spans
    make_room(chain, (3, 5, 7))
    chain.check()
    chain.settle_freed()
    assert [end - start for start, end in chain.spans] == [0, 0, 0]
    assert chain.spans[0] == empty[0]
    assert chain.spans[2] == empty[2]


def test_holes_that_are_there_are_taken_as_they_are() -> None:
    chain = THREE.chain()
    take_pages(chain, pages=6)
    free_pages(chain, 2, 3)
    before = picture(chain)
    assert make_room(chain, (0, 2, 2)) == []
    assert picture(chain) == before


def test_the_counts_are_those_of_the_bands() -> None:
    chain = THREE.chain()
    take_pages(chain, pages=2, slots=1)
    counts = chain.statistics()
    assert [(band.name, band.live_units) for band in counts] == [
        ("state_0", 1),
        ("window_1", 2),
        ("full_2", 2),
    ]


# ---- the one question ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "reason", "band", "units", "nbytes"),
    [
        ((0, 0, 80), Reason.NO_IDS, "full_2", 1, 0),
        ((40, 0, 0), Reason.NO_IDS, "state_0", 1, 0),
        ((39, 0, 2), Reason.NO_BYTES, "state_0", 1, 10),
        ((1, 70, 1), Reason.NO_BYTES, "window_1", 6, 36),
        ((20, 20, 30), Reason.NO_BYTES, "state_0", 8, 80),
    ],
)
def test_a_shortage_names_what_is_short(
    demand: UnitCounts, reason: Reason, band: str, units: int, nbytes: int
) -> None:
    chain = THREE.chain()
    assert not chain.fits(demand)
    shortage = chain.explain(demand)
    assert (shortage.reason, shortage.band) == (reason, band)
    assert (shortage.short_units, shortage.short_bytes) == (units, nbytes)


@pytest.mark.parametrize(
    ("own", "helps"), [((0, 0, 0), True), ((0, 3, 3), True), ((0, 4, 4), False)]
)
def test_waiting_helps_where_somebody_else_holds_something(own: UnitCounts, helps: bool) -> None:
    chain = THREE.chain()
    take_pages(chain, pages=4)
    shortage = chain.explain((0, 0, 71), own_units=own)
    assert shortage.waiting_helps is helps
    assert ("nobody but" in shortage.remover) is not helps


def test_waiting_helps_where_somebody_else_was_promised_something() -> None:
    chain = replace(ONE, virtual_page_count=11).chain()
    chain.owner.promise(6)
    assert chain.explain((5,)).waiting_helps
    assert not chain.explain((5,), own_units=(6,)).waiting_helps


@pytest.mark.parametrize("pages", [0, 1])
def test_waiting_does_not_help_what_no_empty_arena_holds(pages: int) -> None:
    chain = THREE.chain()
    take_pages(chain, pages=pages)
    shortage = chain.explain((0, 0, 80))
    assert not shortage.waiting_helps
    assert shortage.remover == "a larger budget"


def test_what_is_asked_beside_what_is_held_has_to_fit_an_empty_arena() -> None:
    chain = replace(ONE, arena_bytes=110, virtual_page_count=99).chain()
    take_pages(chain, pages=8)
    assert chain.explain((6,), own_units=(4,)).waiting_helps
    assert not chain.explain((7,), own_units=(4,)).waiting_helps


def test_ids_promised_to_others_are_not_there() -> None:
    chain = replace(ONE, virtual_page_count=11).chain()
    assert chain.fits((6,))
    chain.owner.promise(6)
    assert not chain.fits((5,))
    shortage = chain.explain((5,))
    assert (shortage.reason, shortage.short_units) == (Reason.NO_IDS, 1)
    assert "6 promised" in shortage.obstacle
    assert chain.fits((4,))


def test_fewer_ids_than_units_bound_what_an_empty_arena_serves() -> None:
    chain = replace(ONE, virtual_page_count=11).chain()
    assert chain.fits_empty((10,))
    assert not chain.fits_empty((11,))


def test_an_empty_arena_is_judged_as_empty_whatever_is_live_promised_fixed_or_blocked() -> None:
    chain = replace(ONE, virtual_page_count=11).chain()
    take_pages(chain, pages=5)
    chain.owner.promise(2)
    fix(chain.owner, hard=(36, 37), soft=None)
    block(chain, ((40, 60),))
    assert chain.fits_empty((10,))
    assert not chain.fits_empty((11,))


def test_each_band_fits_alone_and_the_pair_does_not() -> None:
    chain = PAIR.chain()
    assert chain.fits((4, 0))
    assert chain.fits((0, 4))
    assert not chain.fits((4, 4))
    assert chain.fits((3, 3))


def test_what_would_come_back_counts_as_free() -> None:
    chain = PAIR.chain()
    take_pages(chain, pages=2)
    for band in chain.bands:
        band.promise(1)
    assert not chain.fits((2, 2))
    assert not chain.fits((2, 2), freed_units=(1, 0))
    assert chain.fits((1, 1), freed_units=(1, 1))
    assert chain.fits((2, 2), freed_units=(1, 1), released_units=(1, 1))
    assert not chain.fits((2, 2), released_units=(1, 1))


# ---- freshness -----------------------------------------------------------------------------------


def test_every_change_of_a_capacity_fact_moves_the_epoch() -> None:
    chain = THREE.chain()
    seen = [chain.epoch_count]

    def moved() -> bool:
        seen.append(chain.epoch_count)
        return seen[-1] > seen[-2]

    make_room(chain, (1, 2, 2))
    assert moved()
    chain.take_pages(2)
    assert moved()
    chain.take_slots(1)
    assert moved()
    chain.bands[1].release(array(1))
    assert moved()
    chain.bands[1].promise(1)
    assert moved()
    chain.bands[1].promise(-1)
    assert moved()
    fix(chain.owner, hard=(78, 79), soft=None)
    assert moved()
    fix(chain.owner, hard=None, soft=None)
    assert moved()
    block(chain, ((20, 30),))
    assert moved()
    block(chain, ())
    assert moved()
    chain.settle_freed()
    assert moved()


@pytest.mark.parametrize("level", list(CheckLevel))
def test_the_snapshot_is_kept_while_nothing_changes(level: CheckLevel) -> None:
    chain = THREE.chain(level)
    take_pages(chain, pages=2)
    kept = chain.snapshot()
    chain.fits((1, 1, 1))
    chain.fits((9, 99, 9))
    assert chain.snapshot() is kept
    chain.owner.promise(1)
    assert chain.snapshot() is not kept


# ---- broken by hand ------------------------------------------------------------------------------


def _busy(level: CheckLevel = CheckLevel.STRICT) -> ChainAllocator:
    chain = THREE.chain(level)
    take_pages(chain, pages=3, slots=1)
    return chain


def _breaks(chain: ChainAllocator, name: str) -> None:
    with pytest.raises(InvariantError) as caught:
        chain.check()
    assert caught.value.name == name


@pytest.mark.parametrize("level", [CheckLevel.WARN, CheckLevel.STRICT])
def test_bands_that_overlap_break_chain_spans_ordered(level: CheckLevel) -> None:
    chain = _busy(level)
    chain.bands[1].start_index = 2
    _breaks(chain, "chain.spans_ordered")


def test_a_span_inside_the_sink_breaks_chain_spans_ordered() -> None:
    chain = _busy(CheckLevel.WARN)
    chain.bands[0].start_index = 0
    _breaks(chain, "chain.spans_ordered")


def test_a_span_past_the_arena_breaks_chain_spans_ordered() -> None:
    chain = _busy(CheckLevel.WARN)
    chain.owner.end_index += 1
    _breaks(chain, "chain.spans_ordered")


@pytest.mark.parametrize("promised", [80, -1])
@pytest.mark.parametrize("level", [CheckLevel.WARN, CheckLevel.STRICT])
def test_a_promise_that_no_layout_holds_breaks_chain_promises_covered(
    level: CheckLevel, promised: int
) -> None:
    chain = _busy(level)
    chain.bands[1].promise(promised)
    _breaks(chain, "chain.promises_covered")


def test_a_promise_without_ids_breaks_chain_promises_covered() -> None:
    chain = replace(ONE, virtual_page_count=4).chain(CheckLevel.WARN)
    chain.owner.promise(4)
    _breaks(chain, "chain.promises_covered")


def test_a_window_page_without_an_owner_breaks_chain_windows_on_owner() -> None:
    chain = _busy()
    chain.owner.release(array(2))
    _breaks(chain, "chain.windows_on_owner")


@pytest.mark.parametrize("what", ["holes", "fixed", "blocked", "live"])
def test_a_fact_that_changes_without_an_epoch_breaks_chain_snapshot_fresh(what: str) -> None:
    chain = _busy()
    chain.snapshot()
    if what == "holes":
        chain.owner.hole_units += 1
    elif what == "fixed":
        fix(chain.owner, hard=(78, 79), soft=None)
        chain.owner.usage.epoch_count -= 1
    elif what == "blocked":
        block(chain, ((20, 30),))
        chain.order.fences.epoch_count -= 1
    else:
        chain.bands[1].live_units -= 1
    with pytest.raises(InvariantError, match=r"^chain\.snapshot_fresh"):
        chain.fits((0, 0, 0))
    _breaks(chain, "chain.snapshot_fresh")


def test_nothing_is_checked_when_checks_are_off() -> None:
    chain = _busy(CheckLevel.OFF)
    chain.bands[1].promise(99)
    chain.bands[1].live_units = 99
    chain.check()
