"""Breaking an engine's state by hand: the reference names the check that does not hold."""

from collections.abc import Callable

import numpy as np
import pytest

from kvd.alloc.band_units import HOLE, OUTSIDE
from kvd.testing.stress.failure import StressFailure
from kvd_proto.operations import BackupSubmit, Free, Hold, Launch, Processed, WriteSet
from tests.stateful.ranks import int64s
from tests.stateful.values import FULL, LONG_WINDOW, STATE, hosts, pages
from tests.stress.beside import Beside

Break = Callable[[Beside], None]


def _count_a_step(beside: Beside) -> None:
    beside.engine.steps.launched_count += 1


def _swap_places(beside: Beside) -> None:
    places = beside.band()._physical_of
    first, second = pages(beside.engine, FULL)[:2]
    places[[first, second]] = places[[second, first]]


def _swap_names(beside: Beside) -> None:
    names = beside.band()._owner_of
    first, second = beside.units()[:2]
    names[[first, second]] = names[[second, first]]


def _bind_a_unit_twice(beside: Beside) -> None:
    places = beside.band()._physical_of
    first, second = pages(beside.engine, FULL)[:2]
    places[first] = places[second]


def _give_back_what_pends(beside: Beside) -> None:
    beside.decide(beside.launch(2), Free(int64s([2])))
    states = beside.band()._owner_of
    (unit,) = list(beside.oracle.units.pending[FULL])[:1]
    states[unit] = HOLE


def _name_what_is_reserved(beside: Beside) -> None:
    beside.decide(beside.reserve())
    reserved = beside.engine.uses.copies.loads[1].reserved[LONG_WINDOW]
    beside.band(LONG_WINDOW)._owner_of[reserved[0]] = HOLE


def _lose_a_load(beside: Beside) -> None:
    beside.decide(beside.reserve())
    beside.engine.uses.copies.loads[1].submitted = True


def _lose_a_hole(beside: Beside) -> None:
    band = beside.band()
    beside.decide(Free(int64s([2])))
    hole = (band._owner_of == HOLE).nonzero()[0][0]
    band._owner_of[hole] = OUTSIDE


def _count_a_unit_twice(beside: Beside) -> None:
    beside.band().live_units += 1


def _grow_into_the_neighbour(beside: Beside) -> None:
    state = beside.band(STATE)
    other = min(
        [band.start_index * band.geometry.unit_bytes for band in beside.engine.chain.bands[1:]]
    )
    end = other // state.geometry.unit_bytes + 1
    added = end - state.end_index
    state._owner_of[state.end_index : end] = HOLE
    state.end_index = end
    state.hole_units += added


def _forget_a_write(beside: Beside) -> None:
    beside.decide(beside.launch(2))
    beside.band().usage._writes.clear()


def _forget_a_copy(beside: Beside) -> None:
    names = beside.value_names()
    count = len(pages(beside.engine, FULL))
    beside.decide(BackupSubmit(1, names, hosts(FULL, count)))
    uses = beside.band().usage._uses
    for key in list(uses):
        uses[key] = uses[key][1:]


def _wait_for_nothing(beside: Beside) -> None:
    _count_units(beside)
    signal = next(iter(beside.band().usage._uses))[1]
    beside.engine.chain.order.waited[signal] = None


def _count_units(beside: Beside) -> None:
    count = len(pages(beside.engine, FULL))
    beside.decide(BackupSubmit(1, beside.value_names(), hosts(FULL, count)))


def _lengthen_a_request(beside: Beside) -> None:
    rows = beside.engine.requests.rows
    rows.tokens[beside.engine.requests.names.row_of[2]] += 1


def _forget_a_request(beside: Beside) -> None:
    del beside.engine.requests.names.row_of[2]


def _forget_a_value(beside: Beside) -> None:
    beside.engine.requests.values.of_number.clear()


def _forget_a_transfer(beside: Beside) -> None:
    beside.decide(Hold(1, beside.value_names()))
    beside.engine.uses.transfers.open.clear()


def _promise_more(beside: Beside) -> None:
    beside.band().promised_units += 1


def _free_a_name_twice(beside: Beside) -> None:
    names = beside.band().free_ids
    assert names is not None
    names._ring[names._head] = names._ring[names._head + 1]


def _free_a_row_twice(beside: Beside) -> None:
    rows = beside.engine.requests.rows.free
    rows._ring[rows._head] = rows._ring[rows._head + 1]


def _remember_too_long(beside: Beside) -> None:
    chain = beside.engine.chain
    snapshot = chain.snapshot()
    bands = list(snapshot.bands)
    bands[FULL] = bands[FULL]._replace(hole_units=bands[FULL].hole_units + 1)
    chain._snapshot = snapshot._replace(bands=tuple(bands))


BREAKS: tuple[tuple[Break, str], ...] = (
    (_count_a_step, "stress.steps"),
    (_swap_places, "stress.maps"),
    (_swap_names, "stress.maps"),
    (_bind_a_unit_twice, "stress.maps"),
    (_give_back_what_pends, "stress.pending"),
    (_name_what_is_reserved, "stress.reservations"),
    (_lose_a_load, "stress.reservations"),
    (_lose_a_hole, "stress.conservation"),
    (_count_a_unit_twice, "stress.conservation"),
    (_grow_into_the_neighbour, "stress.disjoint"),
    (_forget_a_write, "stress.ledger"),
    (_forget_a_copy, "stress.ledger"),
    (_wait_for_nothing, "stress.ledger"),
    (_lengthen_a_request, "stress.holdings"),
    (_forget_a_request, "stress.holdings"),
    (_forget_a_value, "stress.holdings"),
    (_forget_a_transfer, "stress.reservations"),
    (_promise_more, "stress.promises"),
    (_free_a_name_twice, "stress.ids"),
    (_free_a_row_twice, "stress.ids"),
    (_remember_too_long, "stress.snapshot"),
)


@pytest.mark.parametrize(
    ("break_it", "check"), BREAKS, ids=[item[0].__name__.strip("_") for item in BREAKS]
)
def test_what_is_broken_by_hand_is_named(break_it: Break, check: str) -> None:
    beside = Beside()

    break_it(beside)

    with pytest.raises(StressFailure) as raised:
        beside.oracle.comparison.check()
    assert raised.value.check == check


def test_what_is_not_broken_is_not_named() -> None:
    beside = Beside()
    _count_units(beside)
    beside.decide(
        beside.reserve(2),
        Hold(1, beside.value_names()) if not beside.oracle.uses.backups else beside.launch(2),
        Free(int64s([2])),
        Processed(1),
        Launch(2, 0, WriteSet.UNKNOWN, b""),
    )

    beside.oracle.comparison.check()

    assert beside.oracle.judged_count > 5
    assert np.count_nonzero(beside.band()._physical_of) == len(pages(beside.engine, FULL))
