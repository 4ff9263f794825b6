"""All bands of an arena together: room, ids, promises, and the checks over the chain."""

# pyright: reportPrivateUsage=false

from dataclasses import replace

import numpy as np
import pytest

from kvd.alloc.chain import ChainAllocator
from kvd.alloc.checks import CheckLevel
from kvd.errors import InvariantError
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason
from tests.stateful.chains import ONE, THREE, World, picture

PAIR = World(
    arena_bytes=14,
    unit_bytes=(2, 2),
    lifetimes=(Lifetime.WINDOW, Lifetime.FULL),
    window_tokens=(8, 0),
)
"""Six units of room: a window from the low end against the owner."""


def _take(chain: ChainAllocator, demand: tuple[int, ...]) -> None:
    """Take pages and slots for a demand that has room."""
    assert chain.make_room(demand) is None
    chain.take_pages(demand[chain.owner_index])
    if chain.state_index is not None and demand[chain.state_index]:
        chain.take_slots(demand[chain.state_index])
    chain.check()


def test_a_page_gets_a_unit_of_every_token_band() -> None:
    chain = THREE.chain()
    assert chain.make_room((0, 3, 3)) is None
    virtual, physical = chain.take_pages(3)
    assert virtual.tolist() == [1, 2, 3]
    assert len(physical) == len(chain.token_indices) == 2
    for index, units in zip(chain.token_indices, physical, strict=True):
        assert chain.bands[index].physical(virtual).tolist() == units.tolist()
    chain.check()


def test_slots_have_ids_of_their_own() -> None:
    chain = THREE.chain()
    assert chain.make_room((2, 1, 1)) is None
    virtual, _ = chain.take_pages(1)
    slots, units = chain.take_slots(2)
    assert (virtual.tolist(), slots.tolist(), units.tolist()) == ([1], [1, 2], [1, 2])
    chain.check()


def test_a_chain_has_one_owner() -> None:
    with pytest.raises(AssertionError):
        replace(PAIR, lifetimes=(Lifetime.FULL, Lifetime.FULL)).chain()


@pytest.mark.parametrize(
    ("demand", "reason", "band", "units", "nbytes"),
    [
        ((0, 0, 80), Reason.NO_IDS, "full_2", 1, 0),
        ((40, 0, 0), Reason.NO_IDS, "state_0", 1, 0),
        ((39, 0, 2), Reason.NO_BYTES, "state_0", 39, 390),
        ((1, 70, 1), Reason.NO_BYTES, "window_1", 70, 420),
    ],
)
def test_a_shortage_names_what_is_short(
    demand: tuple[int, ...], reason: Reason, band: str, units: int, nbytes: int
) -> None:
    shortage = THREE.chain().make_room(demand)
    assert shortage is not None
    assert (shortage.reason, shortage.band) == (reason, band)
    assert (shortage.units_short_units, shortage.bytes_short_bytes) == (units, nbytes)
    assert shortage.waiting_helps


def test_ids_promised_to_others_are_not_there() -> None:
    chain = replace(ONE, virtual_page_count=11).chain()
    assert chain.make_room((6,)) is None
    chain.owner.promised_units = 6
    shortage = chain.make_room((5,))
    assert shortage is not None
    assert (shortage.reason, shortage.units_short_units) == (Reason.NO_IDS, 1)
    assert "6 promised" in shortage.obstacle
    assert chain.make_room((4,)) is None


def test_fewer_ids_than_units_bound_what_an_empty_arena_serves() -> None:
    chain = replace(ONE, virtual_page_count=11).chain()
    assert chain.fits_empty((10,))
    assert not chain.fits_empty((11,))


def test_an_empty_arena_is_judged_as_empty_whatever_is_live() -> None:
    chain = replace(ONE, virtual_page_count=11).chain()
    _take(chain, (7,))
    assert chain.fits_empty((10,))


def test_a_layout_that_needs_a_move_is_refused_with_that_reason() -> None:
    chain = PAIR.chain()
    _take(chain, (6 // 2, 3))
    chain.owner.release(np.array([1, 2], dtype=np.int64))  # the far page stays at the frontier
    chain.bands[0].release(np.array([1, 2], dtype=np.int64))
    shortage = chain.make_room((4, 2))
    assert shortage is not None
    assert shortage.reason is Reason.NO_BYTES
    shortage = chain.make_room((3, 1))
    assert shortage is not None
    assert shortage.reason is Reason.NEEDS_REARRANGEMENT
    assert shortage.obstacle == "live pages would have to move"


def test_each_band_fits_alone_and_the_pair_is_refused() -> None:
    chain = PAIR.chain()
    assert chain.make_room((4, 0)) is None
    chain.settle_freed()
    assert chain.make_room((0, 4)) is None
    chain.settle_freed()
    assert chain.make_room((4, 4)) is not None
    assert chain.make_room((3, 3)) is None


@pytest.mark.parametrize("demand", [(0, 0, 80), (40, 0, 0), (20, 20, 30), (1, 70, 1)])
def test_a_refusal_changes_nothing(demand: tuple[int, ...]) -> None:
    chain = THREE.chain()
    _take(chain, (2, 3, 3))
    chain.settle_freed()
    before = picture(chain)
    assert chain.make_room(demand) is not None
    assert picture(chain) == before


def test_room_that_is_made_and_not_promised_goes_back() -> None:
    chain = THREE.chain()
    empty = chain.spans
    assert chain.make_room((3, 5, 7)) is None
    chain.check()
    chain.settle_freed()
    assert [end - start for start, end in chain.spans] == [0, 0, 0]
    assert chain.spans[0] == empty[0]
    assert chain.spans[2] == empty[2]


def test_a_band_may_use_every_byte_that_its_neighbours_left() -> None:
    chain = PAIR.chain()
    _take(chain, (3, 3))
    pages = chain.owner.bound_ids()
    chain.bands[0].release(pages.copy())
    chain.owner.release(pages)
    assert chain.make_room((0, 6)) is None
    chain.settle_freed()
    assert chain.make_room((6, 0)) is None


def test_the_counts_are_those_of_the_bands() -> None:
    chain = THREE.chain()
    _take(chain, (1, 2, 2))
    counts = chain.statistics()
    assert [(band.name, band.live_units) for band in counts] == [
        ("state_0", 1),
        ("window_1", 2),
        ("full_2", 2),
    ]


# ---- broken by hand ----------------------------------------------------------------------------


def _busy(level: CheckLevel = CheckLevel.STRICT) -> ChainAllocator:
    chain = THREE.chain(level)
    assert chain.make_room((1, 3, 3)) is None
    chain.take_pages(3)
    chain.take_slots(1)
    chain.check()
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


@pytest.mark.parametrize("promised", [1, -1])
@pytest.mark.parametrize("level", [CheckLevel.WARN, CheckLevel.STRICT])
def test_a_promise_without_holes_breaks_chain_promises_covered(
    level: CheckLevel, promised: int
) -> None:
    chain = _busy(level)
    chain.bands[1].promised_units = promised
    _breaks(chain, "chain.promises_covered")


def test_a_promise_without_ids_breaks_chain_promises_covered() -> None:
    chain = replace(ONE, virtual_page_count=4).chain(CheckLevel.WARN)
    chain.owner.grow((30, 40))
    chain.owner.promised_units = 4
    _breaks(chain, "chain.promises_covered")


def test_a_window_page_without_an_owner_breaks_chain_windows_on_owner() -> None:
    chain = _busy()
    chain.owner.release(np.array([2], dtype=np.int64))
    _breaks(chain, "chain.windows_on_owner")


def test_nothing_is_checked_when_checks_are_off() -> None:
    chain = _busy(CheckLevel.OFF)
    chain.bands[1].promised_units = 99
    chain.bands[1].live_units = 99
    chain.check()
