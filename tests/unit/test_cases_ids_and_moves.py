"""What has gone wrong elsewhere with ids, moves and frees, each with the numbers of its case.

The numbers in brackets are those of the project's list of public cases, parts B, C and F.
"""

from dataclasses import replace
from random import Random

import pytest

from kvd.alloc.band import Moves
from kvd.alloc.chain import ChainAllocator, Shortage
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.requests import Grant
from kvd.engine.columns import ColumnBuilder
from kvd.engine.effects import EffectBuilder
from kvd.errors import InvariantError, OperationError
from kvd.price.geometry import BandKind, chain_geometry
from kvd.price.plans import first_plan
from kvd.price.snapshot import BandSnapshot, ChainSnapshot
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason, Verdict
from tests.stateful.arena_bytes import ArenaBytes
from tests.stateful.chain_steps import array, free_pages, make_room, settled, take_pages
from tests.stateful.chains import ONE, PAIR, THREE, World, admit, block, fix, picture

FULL, WINDOW, STATE = Lifetime.FULL, Lifetime.WINDOW, Lifetime.STATE


# ---- ids [34, 35, 41, 43] ------------------------------------------------------------------------


@pytest.mark.case("34")
@pytest.mark.parametrize(("ids", "pages"), [(5, 4), (40, 39), (200, 39)])
def test_the_room_for_ids_and_the_room_for_units_are_two_numbers(ids: int, pages: int) -> None:
    chain = replace(ONE, virtual_page_count=ids).chain()
    assert chain.fits((pages,))
    assert not chain.fits((pages + 1,))
    take_pages(chain, pages=pages)
    shortage = chain.explain((1,))
    assert shortage.reason is (Reason.NO_IDS if ids <= 40 else Reason.NO_BYTES)


@pytest.mark.case("35")
def test_a_window_mints_no_ids_and_maps_the_whole_id_space_of_the_owner() -> None:
    chain = replace(THREE, virtual_page_count=300).chain()
    state, window, owner = chain.bands
    assert (state.free_ids is None, window.free_ids is None, owner.free_ids is None) == (
        False,
        True,
        False,
    )
    assert window.physical(array(299)).tolist() == [0]
    with pytest.raises(IndexError):
        window.physical(array(300))


@pytest.mark.case("41")
def test_a_recycled_page_has_no_binding_of_its_last_tenant() -> None:
    world = World(
        arena_bytes=400,
        unit_bytes=(6, 5),
        lifetimes=(WINDOW, FULL),
        window_tokens=(3, 0),
        virtual_page_count=6,
        chunk_tokens=16,
    )
    table = world.table()
    window = table.chain.bands[0]
    for request in range(1, 200):  # every id is reused many times
        assert admit(table, request, prompt=16, new=0).verdict is Verdict.FITS
        row = table.names.rows_of([request])
        grant = table.take(row, 16)
        assert isinstance(grant, Grant)
        table.advance(row, 16)
        assert window.physical(grant.virtual[:3]).tolist() == [0, 0, 0]
        table.free(row)
        assert window.physical(grant.virtual).tolist() == [0] * 4
        table.holdings.check()


@pytest.mark.case("43")
@pytest.mark.parametrize("page_units", [(6, 5), (5, 5)])
def test_the_sink_is_never_freed_and_free_units_never_exceed_the_band(
    page_units: tuple[int, int],
) -> None:
    chain = replace(PAIR, arena_bytes=200, unit_bytes=page_units, lifetimes=(WINDOW, FULL)).chain()
    take_pages(chain, pages=8)
    chain.bands[0].release(array(1, 2))  # slid out: unbound in the window, bound in the owner
    for band in chain.bands:
        for _ in range(3):
            before = picture(band)
            with pytest.raises(OperationError, match="is the sink"):
                band.release(array(3, 0))
            assert picture(band) == before
    with pytest.raises(OperationError, match=r"page 1 .* not bound"):
        chain.bands[0].release(array(1))
    free_pages(chain, 3, 4, 5)
    chain.check()
    for band in chain.bands:
        assert band.live_units + band.hole_units <= band.geometry.room_units


# ---- offsets past 32 bits [45] -------------------------------------------------------------------

SLOT_BYTES = 53_600_000
"""Slot 41 starts past 2^31, slot 81 past 2^32."""


def _large() -> ChainAllocator:
    geometry = chain_geometry(
        arena_bytes=100 * SLOT_BYTES,
        sink_bytes=SLOT_BYTES,
        bands=(
            ("state", BandKind.GROW_UP, SLOT_BYTES),
            ("full", BandKind.GROW_DOWN, 1_000_003),
        ),
    )
    return ChainAllocator(
        geometry,
        lifetimes=(STATE, FULL),
        virtual_page_count=geometry.bands[1].unit_index_end_count,
        virtual_slot_count=geometry.bands[0].unit_index_end_count,
        monitor=CheckMonitor(CheckLevel.STRICT),
    )


@pytest.mark.case("45")
@pytest.mark.parametrize("slots", [41, 81, 99])
def test_slots_past_two_and_four_gigabytes_are_counted_to_the_byte(slots: int) -> None:
    chain = _large()
    room_bytes = (99 - slots) * SLOT_BYTES
    top = chain.owner.geometry.unit_index_end_count
    lost_bytes = chain.geometry.arena_bytes - top * 1_000_003
    pages = (room_bytes - lost_bytes) // 1_000_003 if slots < 99 else 0
    assert chain.fits((slots, pages)) == (slots < 99)
    assert not chain.fits((slots, pages + 1))


@pytest.mark.case("45")
@pytest.mark.parametrize("slot", [40, 41, 80, 81])
def test_a_zero_of_bytes_past_two_and_four_gigabytes_is_cut_off_from_their_read(slot: int) -> None:
    geometry = _large().geometry
    inside = (slot * SLOT_BYTES + SLOT_BYTES - 1) // 1_000_003
    for page, segments in ((inside, 2), (inside + 1, 1)):
        effects = EffectBuilder(geometry, ColumnBuilder())
        effects.move(0, Moves(array(1), array(slot), array(2)))
        effects.zero(1, effects.columns.add(array(page)), array(page))
        assert len(effects.segments()) == segments


@pytest.mark.case("45")
def test_a_slot_past_four_gigabytes_is_moved_and_found_again() -> None:
    chain = _large()
    make_room(chain, (90, 0))
    chain.take_slots(90)
    chain.bands[0].release(array(*range(5, 85)))
    ((index, moves),) = make_room(chain, (0, 4000))
    assert index == 0
    assert moves.sources.max() * SLOT_BYTES > 1 << 32
    chain.take_pages(4000)
    chain.check()


# ---- transfers in flight [49, 50, 51, 53] --------------------------------------------------------

WIDE = World(
    arena_bytes=10 + 10 * 30,
    unit_bytes=(10, 10, 10),
    lifetimes=(STATE, WINDOW, FULL),
    window_tokens=(0, 8, 0),
)
DEMANDS = {
    BandKind.GROW_UP: (0, 0, 22),
    BandKind.FLOAT: (17, 0, 0),
    BandKind.GROW_DOWN: (22, 0, 0),
}
"""What makes the band of that kind move its far unit, if nothing holds it."""


def _scattered() -> tuple[ChainAllocator, ArenaBytes]:
    """Fill 6 slots and 6 pages, and free all but the outermost units of every band."""
    chain = WIDE.chain()
    take_pages(chain, pages=6, slots=6)
    memory = ArenaBytes(chain)
    memory.write_all()
    free_pages(chain, 2, 3, 4, 5)
    chain.bands[0].release(array(1, 2, 3, 4, 5))
    chain.settle_freed()
    return chain, memory


def _far_unit(chain: ChainAllocator, kind: BandKind) -> tuple[int, int, int]:
    """Return the band of a kind, its unit farthest from the anchor, and the id bound to it."""
    index = [band.geometry.kind for band in chain.bands].index(kind)
    band = chain.bands[index]
    unit_of = {int(band.physical(array(page))[0]): page for page in band.bound_ids().tolist()}
    far = min(unit_of) if kind is BandKind.GROW_DOWN else max(unit_of)
    return index, far, unit_of[far]


@pytest.mark.parametrize("kind", list(BandKind))
def test_units_that_nothing_holds_move_when_they_are_in_the_way(kind: BandKind) -> None:
    chain, memory = _scattered()
    index, far, name = _far_unit(chain, kind)
    memory.move(make_room(chain, DEMANDS[kind]))
    memory.verify()
    assert chain.bands[index].physical(array(name)).tolist() != [far]


@pytest.mark.case("49", "50")
@pytest.mark.parametrize("hold", ["soft", "hard"])
@pytest.mark.parametrize("kind", list(BandKind))
def test_units_that_a_transfer_reads_stay_whatever_is_asked(kind: BandKind, hold: str) -> None:
    chain, memory = _scattered()
    index, far, name = _far_unit(chain, kind)
    band = chain.bands[index]
    extent = (far, far + 1)
    fix(band, hard=extent if hold == "hard" else None, soft=extent if hold == "soft" else None)
    refused_count = 0
    for demand in ((0, 0, 25), (25, 0, 0), (0, 25, 0), DEMANDS[kind], (5, 5, 5), (8, 8, 8)):
        before = settled(chain)
        if not chain.fits(demand):
            assert hold == "hard"
            refused_count += 1
            continue
        moved = chain.make_room(demand)
        if isinstance(moved, Shortage):
            assert (hold, moved.reason) == ("soft", Reason.TRANSFERS)
            assert settled(chain) == before
            refused_count += 1
            continue
        memory.move(moved)
        memory.verify()
        chain.check()
        assert band.physical(array(name)).tolist() == [far]
    assert refused_count > 0
    memory.move(chain.compact(99))
    memory.verify()
    assert band.physical(array(name)).tolist() == [far]


@pytest.mark.case("53")
@pytest.mark.parametrize("hold", ["soft", "hard"])
def test_relief_for_a_short_side_asks_the_same_gate_as_compaction(hold: str) -> None:
    chain = PAIR.chain()
    take_pages(chain, pages=3)
    free_pages(chain, 1, 2)
    chain.settle_freed()
    far = chain.owner.start_index
    extent = (far, far + 1)
    fix(
        chain.owner,
        hard=extent if hold == "hard" else None,
        soft=extent if hold == "soft" else None,
    )
    before = settled(chain)
    assert chain.fits((3, 1)) == (hold == "soft")
    assert isinstance(chain.make_room((3, 1)), Shortage)
    assert settled(chain) == before
    assert [index for index, _ in chain.compact(9)] == [0]
    assert chain.owner.start_index == far


@pytest.mark.case("51")
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_gates_that_open_and_close_never_leave_a_stale_answer(seed: int) -> None:
    print("seed", seed)
    random = Random(seed)
    chain, memory = _scattered()
    for _ in range(100):
        band = random.choice(chain.bands)
        start, end = band.span
        extent = (start, end) if end > start and random.random() < 0.5 else None
        if random.random() < 0.5:
            fix(band, hard=None, soft=extent)
        else:
            low = chain.bands[1].span[1] * 10
            high = chain.owner.span[0] * 10
            block(chain, ((low, high),) if low < high and random.random() < 0.5 else ())
        demand = tuple(random.randint(0, 9) for _ in chain.bands)
        kept = first_plan(chain.snapshot(), demand)
        fresh = ChainSnapshot(
            chain.geometry.arena_bytes,
            chain.geometry.sink_bytes,
            tuple(_fresh(chain, index) for index in range(3)),
            blocked=chain.snapshot().blocked,
            epoch_count=chain.epoch_count,
        )
        assert chain.snapshot() == fresh
        assert first_plan(fresh, demand) == kept
        moved = chain.make_room(demand) if chain.fits(demand) else []
        if isinstance(moved, Shortage):
            assert moved.reason is Reason.TRANSFERS
        else:
            memory.move(moved)
        memory.verify()


def _fresh(chain: ChainAllocator, index: int) -> BandSnapshot:
    """Return a band's snapshot made from its counts alone."""
    band = chain.bands[index]
    return BandSnapshot(
        band.geometry,
        band.start_index,
        band.end_index,
        band.live_units,
        band.hole_units,
        hard_fixed=band.usage.hard_extent(),
        soft_fixed=band.usage.soft_extent(),
        id_room_count=None if band.free_ids is None else len(band.free_ids),
    )


# ---- pages, whole and once [83, 84, 86] ----------------------------------------------------------


@pytest.mark.case("83")
@pytest.mark.parametrize("tokens", [1, 4, 5, 13, 16])
def test_a_ragged_end_frees_its_page_whole(tokens: int) -> None:
    table = replace(ONE, chunk_tokens=16).table()
    admit(table, 1, prompt=16, new=0)
    row = table.names.rows_of([1])
    table.take(row, tokens)
    ((_, virtual),) = table.free(row)
    assert virtual.size == -(-tokens // 4)
    assert table.chain.owner.live_units == 0
    table.holdings.check()


@pytest.mark.case("83")
def test_consecutive_pieces_of_a_window_share_no_page() -> None:
    world = World(
        arena_bytes=400, unit_bytes=(6, 5), lifetimes=(WINDOW, FULL), window_tokens=(3, 0)
    )
    table = world.table()
    admit(table, 1, prompt=40, new=0, chunk=40)
    row = table.names.rows_of([1])
    table.take(row, 40)
    freed: list[int] = []
    for tokens in (1, 5, 2, 9, 3, 20):
        for _, virtual in table.advance(row, tokens):
            freed += virtual.tolist()
        table.holdings.check()
    freed += table.free(row)[0].virtual.tolist()
    assert sorted(freed) == list(range(1, 11))


@pytest.mark.case("84")
def test_a_page_that_is_counted_twice_is_found_and_its_band_named() -> None:
    chain = THREE.chain()
    take_pages(chain, pages=5)
    assert chain.owner.free_ids is not None
    chain.owner.free_ids.give(array(3))  # free and bound at once
    chain.owner.epoch_count += 1
    with pytest.raises(InvariantError, match=r"^band\.ids_partition: band full_2"):
        chain.check()


@pytest.mark.case("86")
@pytest.mark.parametrize("page_tokens", [1, 2, 16, 256])
@pytest.mark.parametrize("level", list(CheckLevel))
def test_a_duplicate_free_is_refused_at_every_page_size(
    page_tokens: int, level: CheckLevel
) -> None:
    table = replace(
        ONE, page_tokens=page_tokens, context_tokens=4 * page_tokens, chunk_tokens=4 * page_tokens
    ).table(level)
    admit(table, 1, prompt=3 * page_tokens, new=0)
    row = table.names.rows_of([1])
    grant = table.take(row, 3 * page_tokens)
    assert isinstance(grant, Grant)
    table.free(row)
    with pytest.raises(OperationError, match="not bound"):
        table.chain.owner.release(grant.virtual)
    with pytest.raises(OperationError, match="request 1 has ended"):
        table.names.rows_of([1])
    assert table.chain.owner.live_units == 0
