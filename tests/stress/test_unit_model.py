"""The reference for places: what may not be taken or moved is named as it is tried."""

from collections.abc import Callable

import pytest

from kvd.alloc.signals import copy_signal, transfer_signal
from kvd.alloc.uses import UseKind
from kvd.testing.stress.failure import StressFailure
from kvd.testing.stress.told import ToldMove
from kvd.testing.stress.unit_model import UnitModel
from tests.stateful.ranks import stage

STATE, LONG, SHORT, FULL = range(4)
NAME, UNIT, OTHER, FREE = 7, 40, 41, 50


def _model() -> UnitModel:
    """Return a model of four bands in which name 7 of the owner means unit 40, and 8 means 41."""
    model = UnitModel(stage().sized.geometry)
    model.hand_out(FULL, [NAME, NAME + 1], [UNIT, OTHER])
    return model


def _use(model: UnitModel, kind: UseKind, unit: int) -> None:
    copies = (UseKind.COPY_READ, UseKind.COPY_WRITE, UseKind.LOAD_RESERVATION)
    signal = copy_signal(1) if kind in copies else transfer_signal(1)
    model.accesses.open(kind, signal, model.grains(FULL, [unit]))


def _move(model: UnitModel, *, unasked: bool = False) -> None:
    model.move(ToldMove(FULL, [NAME], [UNIT], [FREE]), unasked=unasked)


def _take_twice(model: UnitModel) -> None:
    model.hand_out(FULL, [NAME + 2], [UNIT])


def _take_beyond_the_arena(model: UnitModel) -> None:
    model.hand_out(FULL, [NAME + 2], [model.geometry.bands[FULL].unit_index_end_count])


def _take_the_sink(model: UnitModel) -> None:
    model.hand_out(FULL, [NAME + 2], [0])


def _name_twice(model: UnitModel) -> None:
    model.hand_out(FULL, [NAME], [FREE])


def _take_bytes_of_another_band(model: UnitModel) -> None:
    start = UNIT * model.geometry.bands[FULL].unit_bytes
    model.hand_out(STATE, [1], [start // model.geometry.bands[STATE].unit_bytes])


def _take_what_a_copy_reads(model: UnitModel) -> None:
    _use(model, UseKind.COPY_READ, FREE)
    model.hand_out(FULL, [NAME + 2], [FREE])


def _take_what_a_peer_writes(model: UnitModel) -> None:
    _use(model, UseKind.NETWORK_RECEIVE, FREE)
    model.hand_out(FULL, [NAME + 2], [FREE])


def _take_what_a_step_reads(model: UnitModel) -> None:
    model.accesses.launch(1, set())
    _move(model)
    model.hand_out(FULL, [NAME + 2], [UNIT])


def _take_what_pends(model: UnitModel) -> None:
    model.accesses.launch(1, set())
    model.free_names(FULL, [NAME])
    model.hand_out(FULL, [NAME + 2], [UNIT])


def _take_what_a_peer_holds_back(model: UnitModel) -> None:
    _use(model, UseKind.NETWORK_SEND, UNIT)
    model.free_names(FULL, [NAME])
    model.hand_out(FULL, [NAME + 2], [UNIT])


def _move_what_a_peer_knows(model: UnitModel) -> None:
    _use(model, UseKind.NETWORK_SEND, UNIT)
    _move(model)


def _move_what_a_load_reserved(model: UnitModel) -> None:
    _use(model, UseKind.LOAD_RESERVATION, UNIT)
    _move(model)


def _move_what_is_held_unasked(model: UnitModel) -> None:
    _use(model, UseKind.RECEIVE_HOLD, UNIT)
    _move(model, unasked=True)


def _move_what_a_load_fills(model: UnitModel) -> None:
    _use(model, UseKind.COPY_WRITE, UNIT)
    _move(model)


def _move_what_a_step_writes(model: UnitModel) -> None:
    model.accesses.launch(1, model.grains(FULL, [UNIT]))
    _move(model)


def _move_from_elsewhere(model: UnitModel) -> None:
    model.move(ToldMove(FULL, [NAME], [OTHER], [FREE]), unasked=False)


def _move_nothing(model: UnitModel) -> None:
    model.move(ToldMove(FULL, [], [], []), unasked=False)


def _free_twice(model: UnitModel) -> None:
    model.free_names(FULL, [NAME, NAME])


def _name_what_is_not_reserved(model: UnitModel) -> None:
    model.name_reserved(FULL, [NAME + 2], [FREE])


TRIED: tuple[tuple[Callable[[UnitModel], None], str], ...] = (
    (_take_twice, "disjoint"),
    (_take_beyond_the_arena, "disjoint"),
    (_take_the_sink, "disjoint"),
    (_take_bytes_of_another_band, "disjoint"),
    (_name_twice, "ids"),
    (_take_what_a_copy_reads, "clearance"),
    (_take_what_a_peer_writes, "clearance"),
    (_take_what_a_step_reads, "clearance"),
    (_take_what_pends, "pending"),
    (_take_what_a_peer_holds_back, "disjoint"),
    (_move_what_a_peer_knows, "pinned"),
    (_move_what_a_load_reserved, "pinned"),
    (_move_what_is_held_unasked, "pinned"),
    (_move_what_a_load_fills, "clearance"),
    (_move_what_a_step_writes, "clearance"),
    (_move_from_elsewhere, "maps"),
    (_move_nothing, "outcome"),
    (_free_twice, "holdings"),
    (_name_what_is_not_reserved, "reservations"),
)


@pytest.mark.parametrize(
    ("tried", "check"), TRIED, ids=[item[0].__name__.strip("_") for item in TRIED]
)
def test_what_may_not_be_is_named(tried: Callable[[UnitModel], None], check: str) -> None:
    model = _model()

    with pytest.raises(StressFailure) as raised:
        tried(model)
    assert raised.value.check == f"stress.{check}"


def test_a_hold_follows_its_unit_and_a_wait_lets_it_move() -> None:
    model = _model()
    _use(model, UseKind.RECEIVE_HOLD, UNIT)
    _use(model, UseKind.COPY_WRITE, UNIT)
    model.accesses.wait(copy_signal(1))

    _move(model)

    held = model.accesses.uses[UseKind.RECEIVE_HOLD, transfer_signal(1)]
    assert held == model.grains(FULL, [FREE])
    assert model.place_of[FULL] == {NAME: FREE, NAME + 1: OTHER}


def test_what_a_peer_held_back_is_free_once_it_is_over() -> None:
    model = _model()
    _use(model, UseKind.NETWORK_SEND, UNIT)
    model.free_names(FULL, [NAME])
    assert model.vacated[FULL] == {UNIT}

    model.release(transfer_signal(1))

    model.hand_out(FULL, [NAME + 2], [UNIT])
    assert model.vacated[FULL] == set()
