"""What has gone wrong elsewhere in capacity and admission, each with the numbers of its case.

The numbers in brackets are those of the project's list of public cases, part A.
"""

import math
from dataclasses import replace
from random import Random

import pytest

from kvd.alloc.admission import AdmissionPass
from kvd.alloc.chain import ChainAllocator, Shortage, UnitCounts
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.demand import DemandShape, RequestShape, Tracking, request_demand
from kvd.alloc.purpose import DemandPurpose
from kvd.alloc.requests import Grant
from kvd.alloc.window import WindowMode, pages_touched_max
from kvd.errors import InvariantError
from kvd.price.geometry import BandKind, chain_geometry
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason, Verdict
from tests.stateful.arena_bytes import ArenaBytes
from tests.stateful.chain_steps import array, free_pages, make_room, settled, take_pages
from tests.stateful.chains import ONE, THREE, World, admit, block, picture

FULL, WINDOW, STATE = Lifetime.FULL, Lifetime.WINDOW, Lifetime.STATE


def _chain(
    *, arena_bytes: int, sink_bytes: int, lifetimes: tuple[Lifetime, ...], units: tuple[int, ...]
) -> ChainAllocator:
    kinds = [BandKind.GROW_UP, *[BandKind.FLOAT] * (len(units) - 2), BandKind.GROW_DOWN]
    geometry = chain_geometry(
        arena_bytes=arena_bytes,
        sink_bytes=sink_bytes,
        bands=tuple(zip(lifetimes, kinds, units, strict=True)),
    )
    return ChainAllocator(
        geometry,
        lifetimes=lifetimes,
        virtual_page_count=geometry.bands[-1].unit_index_end_count,
        virtual_slot_count=geometry.bands[0].unit_index_end_count,
        monitor=CheckMonitor(CheckLevel.STRICT),
    )


# ---- one joint question [1] ----------------------------------------------------------------------


def _two_holes_each_and_a_gap_of_two() -> ChainAllocator:
    """A window and a full band of equal units: 2 holes in each, a gap of 2 units between them."""
    chain = _chain(arena_bytes=2 + 2 * 14, sink_bytes=2, lifetimes=(WINDOW, FULL), units=(2, 2))
    take_pages(chain, pages=6)
    free_pages(chain, 1, 2)
    assert [band.hole_units for band in chain.bands] == [2, 2]
    return chain


@pytest.mark.case("1")
@pytest.mark.parametrize(("pages", "fits"), [(2, True), (3, True), (4, False)])
def test_each_band_alone_says_yes_and_the_joint_question_knows_better(
    pages: int, fits: bool
) -> None:
    chain = _two_holes_each_and_a_gap_of_two()
    assert chain.fits((pages, 0))
    assert chain.fits((0, pages))
    assert chain.fits((pages, pages)) == fits


@pytest.mark.case("1")
@pytest.mark.parametrize(
    ("pages", "freed", "fits"),
    [
        (4, (0, 1), False),
        (4, (1, 0), False),
        (4, (1, 1), True),
        (5, (1, 1), False),
        (5, (2, 1), False),
        (5, (2, 2), True),
    ],
)
def test_eviction_goes_on_until_the_joint_question_says_yes(
    pages: int, freed: UnitCounts, fits: bool
) -> None:
    chain = _two_holes_each_and_a_gap_of_two()
    assert chain.fits((pages, pages), freed_units=freed) == fits


# ---- bytes that a peer holds [2, 4, 5] -----------------------------------------------------------


def _state_beside_full() -> tuple[ChainAllocator, ArenaBytes]:
    """1000 bytes for slots of 250 and pages of 100, of which 8 stand against a gap of 200."""
    chain = _chain(arena_bytes=1500, sink_bytes=500, lifetimes=(STATE, FULL), units=(250, 100))
    make_room(chain, (0, 8))
    chain.take_pages(8)
    memory = ArenaBytes(chain)
    memory.write_all()
    return chain, memory


@pytest.mark.case("2")
def test_a_state_without_bytes_is_no_state_without_ids() -> None:
    chain, _ = _state_beside_full()
    state = chain.bands[0]
    assert state.free_ids is not None
    assert len(state.free_ids) > 0
    assert not chain.fits((1, 0))
    shortage = chain.explain((1, 0))
    assert (shortage.reason, shortage.short_bytes) == (Reason.NO_BYTES, 50)
    assert not chain.fits((6, 0))
    assert chain.explain((6, 0)).reason is Reason.NO_IDS


@pytest.mark.case("2")
@pytest.mark.parametrize(("page", "moved"), [(8, 0), (4, 1), (1, 1)])
def test_a_page_freed_anywhere_lets_the_state_in_after_at_most_one_move(
    page: int, moved: int
) -> None:
    chain, memory = _state_beside_full()
    assert chain.fits((1, 0), freed_units=(0, 1))
    free_pages(chain, page)
    memory.move(make_room(chain, (1, 0)))
    chain.take_slots(1)
    chain.check()
    memory.verify_band(chain.owner_index)
    assert memory.moved_units == moved


@pytest.mark.case("4")
def test_the_first_victim_that_makes_room_is_the_last_one() -> None:
    # Victim A holds 2 pages and a slot as large as 2 pages, B and C hold 2 pages each; 4 are asked.
    chain = _chain(arena_bytes=1400, sink_bytes=200, lifetimes=(STATE, FULL), units=(200, 100))
    make_room(chain, (1, 10))
    chain.take_pages(10)
    chain.take_slots(1)
    assert not chain.fits((0, 4))
    assert not chain.fits((0, 4), freed_units=(0, 2))
    assert chain.fits((0, 4), freed_units=(1, 2))
    free_pages(chain, 1, 2)
    chain.bands[0].release(array(1))
    make_room(chain, (0, 4))
    assert chain.owner.live_units == 8


@pytest.mark.case("5")
def test_pages_that_only_a_window_lacks_are_looked_for_in_the_window() -> None:
    chain = _chain(arena_bytes=2 + 4 * 40, sink_bytes=2, lifetimes=(WINDOW, FULL), units=(2, 2))
    take_pages(chain, pages=40)
    demand = (12, 0)
    assert not chain.fits(demand, freed_units=(11, 0))
    assert chain.fits(demand, freed_units=(12, 0))
    chain.bands[0].release(array(*range(11, 23)))  # entries in the middle
    make_room(chain, demand)


# ---- states [6, 7] -------------------------------------------------------------------------------


@pytest.mark.case("6")
@pytest.mark.parametrize(
    ("tracking", "slots", "fits"),
    [(Tracking.STRICT, 3, False), (Tracking.BEST_EFFORT, 2, True), (Tracking.NONE, 1, True)],
)
def test_a_request_is_charged_the_slots_that_it_takes(
    tracking: Tracking, slots: int, fits: bool
) -> None:
    chain = _chain(
        arena_bytes=50 + 2 * 50 + 40, sink_bytes=50, lifetimes=(STATE, FULL), units=(50, 10)
    )
    shape = DemandShape((STATE, FULL), (0, 0), 16, 1, overlap=True, tracking=tracking)
    demand = request_demand(
        shape,
        RequestShape(prompt_tokens=16, new_tokens=16),
        purpose=DemandPurpose.ADMIT,
        mode=WindowMode.LAG,
        chunk_tokens=16,
    ).units
    assert demand[0] == slots
    assert chain.fits(demand) == fits


@pytest.mark.case("7")
def test_the_second_of_a_pass_is_charged_beside_the_states_of_the_first() -> None:
    # Pages of both and one state fit; the second state does not.
    world = World(
        arena_bytes=100 + 16 * 10 + 150,
        unit_bytes=(100, 10),
        lifetimes=(STATE, FULL),
        window_tokens=(0, 0),
    )
    table = world.table()
    one_pass = AdmissionPass(table, growth_permille=0)
    sizes = {"prompt_tokens": 8, "new_tokens_max": 24, "chunk_tokens": 8}
    assert one_pass.admit(1, **sizes).verdict is Verdict.FITS
    assert one_pass.admit(2, **sizes).verdict is Verdict.WAIT
    assert replace(world, arena_bytes=100 + 16 * 10 + 200).table().chain.fits((2, 16))


@pytest.mark.case("7")
@pytest.mark.parametrize("seed", range(8))
def test_all_takes_of_an_accepted_plan_succeed_without_any_free(seed: int) -> None:
    print("seed", seed)
    random = Random(seed)
    table = replace(THREE, arena_bytes=random.randint(150, 400), row_count=9).table()
    left: dict[int, list[int]] = {}
    for request in range(1, 9):
        prompt, new = random.randint(1, 30), random.randint(0, 20)
        answer = admit(table, request, prompt=prompt, new=new)
        if answer.verdict is Verdict.FITS:
            chunks = [min(8, prompt - start) for start in range(0, prompt, 8)]
            left[request] = chunks + [1] * answer.new_tokens
    assert left
    while left:
        request = random.choice(list(left))
        row = table.names.rows_of([request])
        tokens = left[request].pop(0)
        assert isinstance(table.take(row, tokens), Grant)
        table.advance(row, tokens)
        table.holdings.check()
        if not left[request]:
            del left[request]


# ---- bytes are the only limit [12, 13, 14, 16] ---------------------------------------------------


@pytest.mark.case("12")
@pytest.mark.parametrize("demand", [(0, 0, 65), (0, 53, 13), (32, 0, 14), (1, 1, 74), (13, 21, 26)])
def test_any_share_of_the_arena_may_go_to_any_band(demand: UnitCounts) -> None:
    chain = THREE.chain()
    assert sum(u * n for u, n in zip(THREE.unit_bytes, demand, strict=True)) <= 390
    make_room(chain, demand)


@pytest.mark.case("13")
def test_a_request_that_fits_no_empty_arena_is_told_so_each_time_and_at_once() -> None:
    table = replace(ONE, arena_bytes=100).table()
    assert admit(table, 1, prompt=4, new=4).verdict is Verdict.FITS
    for request in (2, 3):
        answer = admit(table, request, prompt=37, new=0)
        assert answer.verdict is Verdict.UNSCHEDULABLE
        assert answer.shortage is not None
        assert not answer.shortage.waiting_helps


@pytest.mark.case("14")
@pytest.mark.parametrize("k", [4, 7])
@pytest.mark.parametrize("extra_bytes", [-1, 0, 1])
@pytest.mark.parametrize("units", [(2, 3), (5, 7), (4, 6), (13, 11)])
def test_every_byte_that_grids_leave_is_used_around_a_common_multiple(
    units: tuple[int, int], k: int, extra_bytes: int
) -> None:
    arena_bytes = k * math.lcm(*units) + extra_bytes
    sink_bytes = max(units)
    chain = _chain(
        arena_bytes=arena_bytes, sink_bytes=sink_bytes, lifetimes=(WINDOW, FULL), units=units
    )
    low_bytes = -(-sink_bytes // units[0]) * units[0]
    top_bytes = arena_bytes // units[1] * units[1]
    for pages in range((top_bytes - low_bytes) // units[1] + 1):
        if (arena_bytes // units[1] - pages) * units[1] < sink_bytes:
            continue
        most = min(top_bytes - pages * units[1] - low_bytes, arena_bytes - low_bytes) // units[0]
        assert chain.fits((most, pages))
        assert not chain.fits((most + 1, pages))
        lost_bytes = arena_bytes - low_bytes - most * units[0] - pages * units[1]
        assert lost_bytes < units[0] + units[1]


@pytest.mark.case("16")
@pytest.mark.parametrize("seed", range(8))
def test_what_fits_an_empty_arena_is_admitted_once_the_others_are_gone(seed: int) -> None:
    print("seed", seed)
    random = Random(seed)
    table = replace(THREE, arena_bytes=random.randint(120, 400), row_count=9).table()
    waiting: dict[int, tuple[int, int]] = {}
    for request in range(1, 30):
        prompt, new = random.randint(1, 40), random.randint(0, 20)
        if admit(table, request, prompt=prompt, new=new).verdict is Verdict.WAIT:
            waiting[request] = prompt, new
    assert waiting
    for request, (prompt, new) in waiting.items():
        table.free(table.names.rows_of(sorted(table.names.row_of)))
        assert admit(table, request, prompt=prompt, new=new).verdict is Verdict.FITS


# ---- a verifier that sees drift [15] -------------------------------------------------------------


@pytest.mark.case("15")
@pytest.mark.parametrize(
    ("drift", "name"),
    [
        ("span", "chain.spans_ordered"),
        ("holes", "chain.snapshot_fresh"),
        ("lost", "band.conservation"),
        ("inbox", "band.holes_ordered"),
        ("promise", "chain.promises_covered"),
    ],
)
def test_drift_in_spans_holes_and_promises_is_found_at_once(drift: str, name: str) -> None:
    chain = THREE.chain()
    take_pages(chain, pages=5, slots=2)
    free_pages(chain, 2)
    chain.check()
    window = chain.bands[1]
    if drift == "span":
        window.start_index = 1
    elif drift == "holes":
        window.hole_units += 1
    elif drift == "lost":
        window.live_units -= 1
        window.hole_units += 1
        window.epoch_count += 1
    elif drift == "inbox":
        window.merge_freed()
        window._holes.take(1)  # pyright: ignore[reportPrivateUsage]
    else:
        chain.owner.promise(-1)
    with pytest.raises(InvariantError) as caught:
        chain.check()
    assert caught.value.name == name


# ---- windows [17, 20] ----------------------------------------------------------------------------


@pytest.mark.case("17")
def test_a_window_is_charged_what_it_retains_and_one_chunk() -> None:
    shape = DemandShape((WINDOW, FULL), (1024, 0), 16, 1)
    request = RequestShape(prompt_tokens=16_000, new_tokens=16)
    units = request_demand(
        shape, request, purpose=DemandPurpose.ADMIT, mode=WindowMode.STEP, chunk_tokens=8192
    ).units
    # (1024 + 8192) / 16 pages, and one more where the window's first row stands inside a page.
    assert units == (577, 1001)
    chain = _chain(
        arena_bytes=2 + 2 * 8 * (577 + 1001), sink_bytes=2, lifetimes=(WINDOW, FULL), units=(2, 2)
    )
    assert chain.fits((8 * 577, 8 * 1001))


@pytest.mark.case("20")
def test_a_window_shorter_than_a_page_needs_two_pages_and_no_more() -> None:
    assert pages_touched_max(32, 64) == 2
    world = World(
        arena_bytes=2 + 2 * (2 + 3),
        unit_bytes=(2, 2),
        lifetimes=(WINDOW, FULL),
        window_tokens=(32, 0),
        page_tokens=64,
        context_tokens=192,
        chunk_tokens=64,
    )
    table = world.table()
    assert admit(table, 1, prompt=64, new=128).verdict is Verdict.FITS
    row = table.names.rows_of([1])
    for tokens in [64] + [1] * 128:
        assert isinstance(table.take(row, tokens), Grant)
        table.advance(row, tokens)
        table.holdings.check()
    assert (
        replace(world, arena_bytes=world.arena_bytes - 1).table().chain.fits_empty((2, 3)) is False
    )


# ---- outcomes [22, 24, 29] -----------------------------------------------------------------------


@pytest.mark.case("22")
@pytest.mark.parametrize(
    ("units", "verdict", "chunk"),
    [
        (15, Verdict.UNSCHEDULABLE, 0),  # 13 pages and 3 of the window are the least
        (16, Verdict.FITS, 4),
        (20, Verdict.FITS, 20),
        (25, Verdict.FITS, 40),
        (26, Verdict.FITS, 52),  # everything at once
    ],
)
def test_a_chunk_shrinks_only_as_far_as_memory_asks_and_only_in_an_idle_arena(
    units: int, verdict: Verdict, chunk: int
) -> None:
    world = World(
        arena_bytes=2 + 2 * units,
        unit_bytes=(2, 2),
        lifetimes=(WINDOW, FULL),
        window_tokens=(4, 0),
        context_tokens=64,
    )
    busy, idle = world.table(), world.table()
    assert admit(busy, 1, prompt=1, new=0).verdict is Verdict.FITS
    shrunk = verdict is Verdict.FITS and chunk < 52
    answer = admit(busy, 2, prompt=52, new=0, chunk=52)
    assert answer.verdict is (Verdict.WAIT if verdict is Verdict.FITS else verdict)
    answer = admit(idle, 1, prompt=52, new=0, chunk=52)
    assert (answer.verdict, answer.chunk_tokens) == (verdict, chunk)
    assert shrunk == (answer.chunk_tokens not in (0, 52))


@pytest.mark.case("24")
def test_a_take_that_lacks_a_slot_takes_no_pages_either() -> None:
    table = replace(THREE, virtual_slot_count=3).table()
    for request in (1, 2):
        assert admit(table, request).verdict is Verdict.FITS
    table.holdings.lapse(table.names.rows_of([1, 2]))
    assert admit(table, 3).verdict is Verdict.FITS
    assert isinstance(table.take(table.names.rows_of([3, 1]), 8), Grant)
    before = picture(table)
    refused = table.take(table.names.rows_of([2]), 8)
    assert not isinstance(refused, Grant)
    assert (refused[0].reason, refused[0].band) == (Reason.NO_IDS, "state_0")
    assert refused[0].waiting_helps
    assert picture(table) == before
    table.free(table.names.rows_of([3]))
    assert isinstance(table.take(table.names.rows_of([2]), 8), Grant)


@pytest.mark.case("29")
def test_bytes_that_a_copy_reads_are_not_handed_out_though_nothing_live_is_there() -> None:
    chain = THREE.chain()
    take_pages(chain, pages=4)
    low = chain.bands[1].span[1] * 6
    high = chain.owner.span[0] * 5
    block(chain, ((20, chain.bands[1].span[0] * 6), (low, high)))
    before = settled(chain)
    assert chain.fits((0, 6, 6))
    shortage = chain.make_room((0, 6, 6))
    assert isinstance(shortage, Shortage)
    assert shortage.reason is Reason.TRANSFERS
    assert settled(chain) == before
    block(chain, ())
    make_room(chain, (0, 6, 6))


# ---- units of one's own [30, 31] -----------------------------------------------------------------


@pytest.mark.case("30")
def test_a_short_prompt_holds_one_page_of_each_band_and_its_slot() -> None:
    lifetimes = (STATE, WINDOW, WINDOW, FULL)
    shape = DemandShape(lifetimes, (0, 128, 4096, 0), 64, 1)
    units = request_demand(
        shape,
        RequestShape(prompt_tokens=12),
        purpose=DemandPurpose.ADMIT,
        mode=WindowMode.STEP,
        chunk_tokens=8192,
    ).units
    assert units == (1, 1, 1, 1)


@pytest.mark.case("31")
@pytest.mark.parametrize("units", [(12_648_448, 12_416), (12_648_448, 9_973, 12_416)])
def test_units_without_a_common_measure_are_placed_moved_and_never_overlap(
    units: tuple[int, ...],
) -> None:
    lifetimes = (STATE, *[WINDOW] * (len(units) - 2), FULL)
    chain = _chain(
        arena_bytes=5 * units[0] + 1, sink_bytes=units[0], lifetimes=lifetimes, units=units
    )
    take_pages(chain, pages=1500, slots=1)
    free_pages(chain, *range(1, 1450))
    slots = 2
    assert chain.fits((slots, *[0] * (len(units) - 1)))
    moved = make_room(chain, (slots, *[0] * (len(units) - 1)))
    assert moved
    chain.take_slots(slots)
    chain.check()
    end_bytes = units[0]
    for band in chain.bands:
        live = sorted(band.physical(band.bound_ids()).tolist())
        assert live[0] * band.geometry.unit_bytes >= end_bytes
        end_bytes = (live[-1] + 1) * band.geometry.unit_bytes
    assert end_bytes <= chain.geometry.arena_bytes
