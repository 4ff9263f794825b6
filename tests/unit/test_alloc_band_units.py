"""Units between owners: what a choice of holes prefers, waits for and refuses."""

# pyright: reportPrivateUsage=false

import numpy as np
import pytest

from kvd.alloc.arena_order import ArenaOrder
from kvd.alloc.band import Band, Units
from kvd.alloc.band_units import VACATED
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.clearance import Consumer, Hazard
from kvd.alloc.signals import copy_signal, step_signal, transfer_signal
from kvd.alloc.uses import UseKind
from kvd.errors import InvariantError
from kvd.price.geometry import BandGeometry, BandKind

UNIT_BYTES = 10


def _units(*units: int) -> Units:
    return np.array(units, dtype=np.int64)


class Stocked:
    """A band over units 1 to 9 of which 1 to 6 are live under ids 1 to 6, and 7 to 9 are holes."""

    def __init__(self, *, launched: int = 0) -> None:
        monitor = CheckMonitor(CheckLevel.STRICT)
        self.order = ArenaOrder(monitor)
        for step in range(1, launched + 1):
            self.order.steps.launch(step, 0)
        geometry = BandGeometry("full", BandKind.GROW_UP, UNIT_BYTES, 1, 20)
        self.band = Band(geometry, id_count=20, mints=True, monitor=monitor, order=self.order)
        self.band.grow((1, 10))
        assert self.band.free_ids is not None
        self.ids = self.band.free_ids.take(6)
        self.band.bind(self.ids, self.band.acquire(6))

    def copy(self, number: int, kind: UseKind, *units: int) -> None:
        self.band.usage.open(kind, copy_signal(number), _units(*units))


def test_holes_that_nobody_uses_come_first_whatever_their_place() -> None:
    stocked = Stocked()
    stocked.copy(5, UseKind.COPY_READ, 7, 8)
    assert stocked.band.acquire(1).tolist() == [9]
    assert stocked.order.take_waits() == ()


@pytest.mark.case("89")
def test_a_hole_that_a_copy_reads_is_handed_out_behind_the_copy() -> None:
    stocked = Stocked()
    stocked.copy(5, UseKind.COPY_READ, 7, 8)
    stocked.copy(6, UseKind.COPY_WRITE, 9)
    assert stocked.band.acquire(3).tolist() == [7, 8, 9]
    assert stocked.order.take_waits() == (copy_signal(5), copy_signal(6))


def test_a_hole_on_fenced_bytes_is_handed_out_behind_the_step_that_may_read_them() -> None:
    stocked = Stocked(launched=2)
    stocked.order.fences.add(78, 92, Hazard.VACATED_READ, step_signal(2))
    stocked.copy(5, UseKind.COPY_READ, 7)
    assert stocked.band.acquire(1).tolist() == [8]
    assert stocked.order.take_waits() == (step_signal(2),)


def test_a_state_slot_needs_no_wait_for_a_forward_that_runs_before_its_next_one() -> None:
    stocked = Stocked(launched=2)
    stocked.order.fences.add(70, 100, Hazard.VACATED_READ, step_signal(2))
    assert stocked.band.acquire(1, consumer=Consumer.STATE_WRITE).tolist() == [7]
    assert stocked.order.take_waits() == ()
    assert stocked.band.acquire(1, consumer=Consumer.ZEROING).tolist() == [8]
    assert stocked.order.take_waits() == (step_signal(2),)


def test_a_unit_under_a_transfer_is_vacated_when_freed_and_a_hole_when_released() -> None:
    stocked = Stocked()
    band = stocked.band
    band.usage.open(UseKind.NETWORK_SEND, transfer_signal(3), _units(2, 3))
    band.release(_units(1, 2, 3))
    assert (band.hole_units, band.vacated_units, band.live_units) == (4, 2, 3)
    assert band.snapshot().vacated_network_units == 2
    band.check()
    band.release_signal(transfer_signal(3))
    assert (band.hole_units, band.vacated_units) == (6, 0)
    band.check()


def test_a_unit_that_pends_under_a_step_and_a_transfer_waits_for_both() -> None:
    stocked = Stocked(launched=1)
    band = stocked.band
    band.usage.open(UseKind.NETWORK_SEND, transfer_signal(3), _units(2))
    band.release(_units(2))
    assert (band.pending_units, band.vacated_units) == (1, 0)
    stocked.order.steps.process(1)
    band.release_pending_through(1)
    assert (band.pending_units, band.vacated_units, band.hole_units) == (0, 1, 3)
    band.release_signal(transfer_signal(3))
    assert (band.vacated_units, band.hole_units) == (0, 4)


def test_a_used_unit_among_the_holes_is_never_handed_out() -> None:
    stocked = Stocked()
    stocked.copy(5, UseKind.LOAD_RESERVATION, 7, 8, 9)
    with pytest.raises(InvariantError, match=r"band\.take_cleared"):
        stocked.band.acquire(1)


def test_a_vacated_unit_that_the_ledger_does_not_know_breaks_conservation() -> None:
    stocked = Stocked()
    stocked.band._owner_of[8] = VACATED
    with pytest.raises(InvariantError, match=r"band\.conservation"):
        stocked.band.check()


@pytest.mark.parametrize("known", [True, False])
def test_a_move_waits_for_who_may_write_its_source_and_fences_what_others_may_read(
    known: bool,
) -> None:
    stocked = Stocked(launched=3)
    band, order = stocked.band, stocked.order
    band.open_writes(1, _units(1, 6))
    band.open_writes(2, _units(6))
    band.open_writes(3, _units(2) if known else None)
    order.steps.process(1)
    order.retire(1)
    band.usage.open(UseKind.COPY_READ, copy_signal(9), _units(6))
    band.release(_units(1))
    band.release_pending_through(3)  # as if the take had settled it
    moves = band.rearrange((1, 6))
    assert moves is not None
    assert (moves.sources.tolist(), moves.destinations.tolist()) == ([6], [1])
    assert order.take_waits() == (step_signal(2 if known else 3),)
    fences = {signal: size for _, signal, size in order.fences.records()}
    assert fences == {copy_signal(9): 10} | ({step_signal(3): 10} if known else {})


def test_an_unasked_move_stops_at_what_it_would_have_to_wait_for() -> None:
    stocked = Stocked(launched=1)
    band = stocked.band
    band.open_writes(1, _units(5))
    band.usage.release(copy_signal(1))
    band._let_go(band.physical(_units(1)))
    band._owner_of[1], band._physical_of[1], band.live_units = -1, 0, 5
    band.free_ids.give(_units(1))  # type: ignore[union-attr]
    moves = band.compact(8)
    assert moves is not None
    assert moves.sources.tolist() == [6]
    assert stocked.order.take_waits() == ()
    assert band.span == (1, 6)
