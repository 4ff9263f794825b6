"""Room made by rearranging the arena: what moves, on bytes, and what a refusal leaves."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvd.alloc.chain import BandMoves, ChainAllocator, Shortage, UnitCounts
from kvd.price.layout import Step
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason
from tests.stateful.arena_bytes import ArenaBytes
from tests.stateful.chain_steps import array, free_pages, make_room, settled, take_pages
from tests.stateful.chains import PAIR, THREE, World, fix, worlds

# ---- by example ---------------------------------------------------------------------------------


def _far_page(chain: ChainAllocator) -> ArenaBytes:
    """Fill a pair, and free everything but the page at both frontiers."""
    take_pages(chain, pages=3)
    memory = ArenaBytes(chain)
    memory.write_all()
    free_pages(chain, 1, 2)
    return memory


def test_a_page_at_the_frontier_is_moved_to_its_anchor_when_the_other_end_needs_the_bytes() -> None:
    chain = PAIR.chain()
    memory = _far_page(chain)
    ((index, moves),) = make_room(chain, (3, 1))
    assert (index, moves.virtual.tolist()) == (1, [3])
    assert (moves.sources.tolist(), moves.destinations.tolist()) == ([4], [6])
    memory.move([BandMoves(index, moves)])
    memory.verify()
    assert chain.relief_counts == {"no_move": 1, "flush_ends": 1, "relayout": 0}
    chain.check()


def test_a_float_is_relocated_when_its_neighbour_needs_the_bytes() -> None:
    chain = THREE.chain()
    take_pages(chain, pages=5)
    memory = ArenaBytes(chain)
    memory.write_all()
    before = chain.bands[1].span
    moved = make_room(chain, (33, 0, 0))
    assert [index for index, _ in moved] == [1]
    memory.move(moved)
    memory.verify()
    after = chain.bands[1].span
    assert after[0] > before[0]
    assert chain.relief_counts["relayout"] == 1
    chain.check()


def test_more_than_fits_is_refused_before_anything_moves() -> None:
    chain = PAIR.chain()
    _far_page(chain)
    before = settled(chain)
    assert not chain.fits((4, 1))
    assert chain.explain((4, 1)).reason is Reason.NO_BYTES
    assert settled(chain) == before


@pytest.mark.case("117")
@pytest.mark.parametrize("demand", [(0, 0, 80), (40, 0, 0), (20, 20, 30), (1, 70, 1)])
def test_a_refusal_changes_nothing(demand: UnitCounts) -> None:
    chain = THREE.chain()
    take_pages(chain, pages=3, slots=2)
    free_pages(chain, 2)
    before = settled(chain)
    assert not chain.fits(demand)
    assert chain.explain(demand).reason in (Reason.NO_BYTES, Reason.NO_IDS)
    assert isinstance(chain.make_room(demand), Shortage)
    assert settled(chain) == before


def test_relief_that_transfers_stand_in_the_way_of_is_refused_and_changes_nothing() -> None:
    chain = PAIR.chain()
    _far_page(chain)
    fix(chain.owner, hard=None, soft=(4, 5))
    before = settled(chain)
    assert chain.fits((3, 1))
    shortage = chain.make_room((3, 1))
    assert isinstance(shortage, Shortage)
    assert (shortage.reason, shortage.waiting_helps) == (Reason.TRANSFERS, True)
    assert settled(chain) == before
    fix(chain.owner, hard=None, soft=None)
    make_room(chain, (3, 1))


@pytest.mark.parametrize("step", list(Step))
def test_every_layout_is_counted_by_its_step(step: Step) -> None:
    chain = THREE.chain()
    assert chain.relief_counts[step.value] == 0
    if step is Step.NO_MOVE:
        take_pages(chain, pages=1)
    elif step is Step.RELAYOUT:
        take_pages(chain, pages=5)
        make_room(chain, (33, 0, 0))
    else:
        chain = PAIR.chain()
        _far_page(chain)
        make_room(chain, (3, 1))
    assert chain.relief_counts[step.value] == 1


def test_unasked_compaction_is_bounded_in_all_bands_together() -> None:
    chain = PAIR.chain()
    memory = _far_page(chain)
    moved = chain.compact(1)
    assert [(index, moves.sources.size) for index, moves in moved] == [(0, 1)]
    memory.move(moved)
    moved = chain.compact(5)
    assert [(index, moves.sources.size) for index, moves in moved] == [(1, 1)]
    memory.move(moved)
    memory.verify()
    assert chain.compact(5) == []
    assert chain.spans == ((1, 2), (6, 7))
    chain.check()


# ---- random chains on bytes ----------------------------------------------------------------------


def _play(world: World, random: Random, *, steps: int) -> tuple[ChainAllocator, ArenaBytes]:
    """Take where there is room and free at random, with every byte followed."""
    chain = world.chain()
    memory = ArenaBytes(chain)
    for _ in range(steps):
        pages, slots = random.randint(0, 5), random.randint(0, 2) * (chain.state_index is not None)
        demand = tuple(
            slots if lifetime is Lifetime.STATE else pages for lifetime in world.lifetimes
        )
        if chain.fits(demand):
            moved = chain.make_room(demand)
            assert not isinstance(moved, Shortage)
            memory.move(moved)
            virtual, physical = chain.take_pages(pages)
            for index, units in zip(chain.token_indices, physical, strict=True):
                memory.write(index, virtual, units)
            if slots:
                assert chain.state_index is not None
                memory.write(chain.state_index, *chain.take_slots(slots))
        _free_some(chain, random)
        chain.check()
        memory.verify()
    return chain, memory


def _free_some(chain: ChainAllocator, random: Random) -> None:
    """Let pages slide out of windows, and end some pages and slots."""
    ending = [page for page in chain.owner.bound_ids().tolist() if random.random() < 0.3]
    for index, band in enumerate(chain.bands):
        if band is chain.owner:
            continue
        if index == chain.state_index:
            leaving = [slot for slot in band.bound_ids().tolist() if random.random() < 0.3]
        else:
            bound = band.bound_ids().tolist()
            leaving = [page for page in bound if page in ending or random.random() < 0.3]
        band.release(array(*leaving))
    chain.owner.release(array(*ending))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(0, 1 << 32), st.data())
def test_room_is_made_on_bytes_of_nobody(world: World, seed: int, data: st.DataObject) -> None:
    chain, memory = _play(world, Random(seed), steps=6)
    demand = tuple(data.draw(st.integers(0, 8), label=name) for name in world.lifetimes)
    before = settled(chain)
    if not chain.fits(demand):
        chain.explain(demand)
        assert isinstance(chain.make_room(demand), Shortage)
        assert settled(chain) == before
        return
    memory.move(make_room(chain, demand))
    chain.check()
    memory.verify()
    for index, (band, units) in enumerate(zip(chain.bands, demand, strict=True)):
        memory.write(index, array(*([-1] * units)), band.acquire(units))
    memory.verify()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(0, 1 << 32), st.integers(1, 6))
def test_what_was_promised_is_taken_whatever_others_did_meanwhile(
    world: World, seed: int, pages: int
) -> None:
    chain = world.chain()
    promised = tuple(1 if lifetime is Lifetime.STATE else pages for lifetime in world.lifetimes)
    if not chain.fits(promised):
        return
    for band, units in zip(chain.bands, promised, strict=True):
        band.promise(units)
    random = Random(seed)
    memory = ArenaBytes(chain)
    for _ in range(8):
        demand = tuple(random.randint(0, 4) for _ in world.lifetimes)
        if chain.fits(demand):
            chain.make_room(demand)
        if chain.fits(tuple(min(demand) for _ in demand)):
            moved = chain.make_room(tuple(min(demand) for _ in demand))
            assert not isinstance(moved, Shortage)
            memory.move(moved)
            chain.take_pages(min(demand))
            memory.write_all()
        chain.check()
    moved = chain.make_room(promised)
    assert not isinstance(moved, Shortage)
    memory.move(moved)
    memory.verify()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(0, 1 << 32), st.integers(0, 6))
def test_unasked_compaction_changes_no_answer(world: World, seed: int, units_max: int) -> None:
    chain, memory = _play(world, Random(seed), steps=5)
    demands = [
        tuple(Random(seed + number).choices(range(7), k=len(chain.bands))) for number in range(12)
    ]
    before = [chain.fits(demand) for demand in demands]
    moved = chain.compact(units_max)
    assert sum(moves.sources.size for _, moves in moved) <= units_max
    memory.move(moved)
    memory.verify()
    chain.check()
    assert [chain.fits(demand) for demand in demands] == before
