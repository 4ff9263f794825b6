"""Faults planted in kvd: the reference names the check that each breaks."""

from collections.abc import Callable
from typing import Any

import pytest

from kvd.alloc.arena_order import ArenaOrder
from kvd.alloc.band_units import BandUnits
from kvd.alloc.chain import ChainAllocator
from kvd.alloc.copies import Copies
from kvd.alloc.ids import FreeIds
from kvd.alloc.names import RequestNames
from kvd.alloc.usage import PageUsage
from kvd.engine.effects import EffectBuilder
from kvd.engine.outcome import OutcomeBuilder
from kvd.engine.stage import StageEngine
from kvd.testing.stress.failure import StressFailure
from kvd_proto.operations import (
    Admit,
    Advance,
    BackupSubmit,
    BatchEnd,
    CancelHold,
    Evict,
    Free,
    Hold,
    Idle,
    LoadCancel,
    LoadName,
    LoadSubmit,
    Post,
    Processed,
    Publish,
    Released,
    Relief,
    Take,
)
from tests.stateful.ranks import int32s, int64s
from tests.stateful.values import FULL, LONG_WINDOW, hosts, pages
from tests.stress.beside import Beside

Plant = Callable[[pytest.MonkeyPatch], None]
Scene = Callable[[Beside], None]


def _instead(owner: Any, name: str, make: Callable[[Any], Any]) -> Plant:
    """Return what replaces a function by one made from it."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(owner, name, make(getattr(owner, name)))

    return plant


def _says(answer: object) -> Callable[[Any], Any]:
    """Return a maker of functions that answer one thing."""
    return lambda _: lambda *_args, **_named: answer


def _and_then(effect: Callable[..., object]) -> Callable[[Any], Any]:
    """Return a maker of functions that do something more at their end."""

    def make(original: Any) -> Any:
        def replaced(*args: Any, **named: Any) -> Any:
            found = original(*args, **named)
            effect(*args)
            return found

        return replaced

    return make


# ---- scenes ---------------------------------------------------------------------------------


def _grow(beside: Beside) -> None:
    for _ in range(4):
        beside.decide(Take(int64s([2]), 8), Advance(int64s([2]), 8))


def _crowd(beside: Beside) -> None:
    for request in range(3, 7):
        ids, tokens = int64s([request]), int32s([8])
        beside.decide(Admit(ids, tokens, int32s([60]), tokens, reserve_batches=request))
        beside.decide(BatchEnd())


def _process(beside: Beside) -> None:
    beside.decide(beside.launch(2), Processed(1))


def _take_behind_a_backup(beside: Beside) -> None:
    ids = pages(beside.engine, FULL)
    beside.decide(
        BackupSubmit(1, beside.value_names(), hosts(FULL, len(ids))),
        Evict(int64s([1])),
        beside.admit(3, 32),
        Relief((0, 0, 0, 20)),
    )


def _take_under_a_step(beside: Beside) -> None:
    beside.decide(
        beside.launch(2),
        Evict(int64s([1])),
        *[beside.admit(request, 16) for request in range(3, 6)],
        Relief((0, 9, 9, 40)),
        Processed(1),
    )


def _move_under_a_step(beside: Beside) -> None:
    beside.decide(beside.admit(3, 16), beside.admit(4, 16), beside.launch(2, 3, 4))
    beside.decide(Free(int64s([3])), Evict(int64s([1])), BatchEnd(), Idle())
    beside.decide(Relief((9, 0, 0, 0)), Processed(1))


def _send(beside: Beside) -> None:
    beside.decide(Post(1, beside.value_names()), Evict(int64s([1])), Idle())
    beside.decide(Relief((5, 9, 9, 0)), beside.admit(3, 16))
    beside.release(Released(transfers=(1,)))


def _receive(beside: Beside) -> None:
    beside.decide(Hold(1, beside.value_names()), Relief((3, 3, 3, 3)), Publish(1), Idle())
    beside.release(Released(transfers=(1,)))


def _load(beside: Beside) -> None:
    names = beside.missing()[-2:]
    beside.decide(
        beside.reserve(1),
        LoadName(1, LONG_WINDOW, int64s(names)),
        LoadSubmit(1, hosts(LONG_WINDOW, 2)),
    )
    beside.release(Released(copies=(1,)))


def _cancel(beside: Beside) -> None:
    beside.decide(beside.reserve(1), LoadCancel(1), Hold(1, beside.value_names()), CancelHold(1))


def _refuse(beside: Beside) -> None:
    beside.decide(Relief((0, 0, 0, 75)))


def _ask_wrong(beside: Beside) -> None:
    beside.misuse(Free(int64s([2, 99])))


def _remember_the_first(original: Any) -> Any:
    """Return a snapshot that never changes."""
    kept: list[Any] = []

    def snapshot(chain: ChainAllocator) -> Any:
        kept.append(original(chain))
        return kept[0]

    return snapshot


def _count_up(engine: StageEngine, *_: object) -> None:
    engine.chain.bands[FULL].epoch_count += 1


def _drop_a_name(ids: FreeIds, *_: object) -> None:
    ids.take(1)


FAULTS: tuple[tuple[str, Plant, Scene, str], ...] = (
    ("no_answer_is_yes", _instead(ChainAllocator, "fits", _says(False)), _grow, "answers"),
    ("nothing_fits", _instead(ChainAllocator, "fits_empty", _says(False)), _grow, "answers"),
    ("no_room_now", _instead(ChainAllocator, "has_room_now", _says(False)), _grow, "answers"),
    (
        "promises_are_forgotten",
        _instead(ChainAllocator, "_with_promises", lambda _: lambda _self, asked, _over: asked),
        _crowd,
        "answers",
    ),
    ("nothing_is_zeroed", _instead(EffectBuilder, "zero", _says(None)), _grow, "outcome"),
    (
        "rows_are_not_reset",
        _instead(OutcomeBuilder, "reset_rows", _says(None)),
        _take_under_a_step,
        "outcome",
    ),
    (
        "slots_are_left_in_rows",
        _instead(OutcomeBuilder, "ended", lambda _: lambda self, _rows, freed: self.freed(freed)),
        _move_under_a_step,
        "outcome",
    ),
    (
        "units_that_came_back_are_not_counted",
        _instead(EffectBuilder, "unmap_units", _says(None)),
        _move_under_a_step,
        "outcome",
    ),
    (
        "loads_are_named_the_other_way_round",
        _instead(
            OutcomeBuilder,
            "bound",
            lambda original: (
                lambda self, band, virtual, physical: original(self, band, virtual, physical[::-1])
            ),
        ),
        _load,
        "reservations",
    ),
    (
        "copies_are_not_waited_for",
        _instead(PageUsage, "hazards", _says(())),
        _take_behind_a_backup,
        "clearance",
    ),
    (
        "the_word_of_one_rank_is_enough",
        _instead(ChainAllocator, "process_step", lambda done: lambda *args: done(*args) < 0),
        _process,
        "clearance",
    ),
    (
        "waits_are_swallowed",
        _instead(ArenaOrder, "take_waits", lambda original: lambda self: original(self)[:0]),
        _take_under_a_step,
        "pending",
    ),
    (
        "nothing_pends",
        _instead(BandUnits, "_disown", lambda _: BandUnits._let_go),
        _take_under_a_step,
        "pending",
    ),
    (
        "peers_hold_nothing_back",
        _instead(BandUnits, "_let_go", lambda _: BandUnits._add_holes),
        _send,
        "pending",
    ),
    (
        "a_copy_is_forgotten",
        _instead(Copies, "end", _says(None)),
        _load,
        "ledger",
    ),
    (
        "a_name_is_lost",
        _instead(FreeIds, "give", _and_then(_drop_a_name)),
        _take_under_a_step,
        "ids",
    ),
    (
        "answers_are_remembered_too_long",
        _instead(ChainAllocator, "snapshot", _remember_the_first),
        _take_under_a_step,
        "snapshot",
    ),
    ("a_refusal_counts", _instead(StageEngine, "_refused", _and_then(_count_up)), _refuse, "pure"),
    (
        "wrong_use_leaves_a_trace",
        _instead(
            RequestNames,
            "rows_of",
            lambda original: lambda self, ids: (self.row_of.pop(ids[0], 0), original(self, ids)),
        ),
        _ask_wrong,
        "pure",
    ),
)


@pytest.mark.parametrize(
    ("plant", "scene", "check"),
    [fault[1:] for fault in FAULTS],
    ids=[fault[0] for fault in FAULTS],
)
def test_a_planted_fault_is_named(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, scene: Scene, check: str
) -> None:
    beside = Beside()

    plant(monkeypatch)

    with pytest.raises(StressFailure) as raised:
        scene(beside)
    assert raised.value.check == f"stress.{check}"


SCENES = (
    _grow,
    _crowd,
    _process,
    _take_behind_a_backup,
    _take_under_a_step,
    _move_under_a_step,
    _send,
    _receive,
    _load,
    _cancel,
    _refuse,
    _ask_wrong,
)


@pytest.mark.parametrize("scene", SCENES, ids=[scene.__name__.strip("_") for scene in SCENES])
def test_kvd_as_it_is_breaks_nothing(scene: Scene) -> None:
    beside = Beside()

    scene(beside)

    assert beside.oracle.judged_count > 5
