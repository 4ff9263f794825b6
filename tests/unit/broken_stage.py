"""One way to break each invariant of a stage by hand: what is under way, its log, and idleness."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.clearance import Hazard
from kvd.alloc.names import Asked
from kvd.alloc.signals import copy_signal
from kvd.alloc.uses import UseKind
from kvd.engine.idle import check_idle, is_idle
from kvd.engine.incarnation import Incarnation
from kvd.engine.lapse import Lapses
from kvd.engine.log import LogRecord, StageLog
from kvd.engine.stage import StageEngine
from kvd_proto.operations import Admit, BatchEnd, Free, Insert, Operation, Relief, Standing
from kvd_proto.outcomes import Outcome, Skipped
from tests.stateful.ranks import body_of, incarnation, int32s, int64s, stage

STRICT = CheckMonitor(CheckLevel.STRICT)


def admit(*requests: int) -> Admit:
    count = len(requests)
    eight = int32s([8] * count)
    return Admit(int64s(requests), eight, eight, eight, 0)


def engine_of(*operations: Operation) -> StageEngine:
    engine = StageEngine(stage(), level=CheckLevel.STRICT)
    for operation in (*operations, BatchEnd()):
        engine.decide(0, operation)
    engine.settle()
    engine.check()
    return engine


def idle_engine() -> StageEngine:
    """Return an engine that keeps a value, and from which a request has come and gone."""
    engine = engine_of(admit(1, 2), Insert(1, 1), Free(int64s([2])))
    assert is_idle(engine)
    check_idle(engine)
    return engine


def watched(*operations: Operation) -> Incarnation:
    chosen = incarnation()
    chosen.batch(rank=0, program=0, index=0, body=body_of(operations or (admit(1),)))
    chosen.settle()
    return chosen


# ---- under way -----------------------------------------------------------------------------------


def uses_owned() -> None:
    engine = engine_of(admit(1))
    owner = engine.chain.owner
    owner.usage.open(UseKind.COPY_READ, copy_signal(7), owner.physical(owner.bound_ids()))
    engine.check()


def refuse_is_pure() -> None:
    chosen = watched()
    free_ids = chosen.engine.chain.owner.free_ids
    assert free_ids is not None

    def refuse(program: int, operation: object) -> Outcome:
        free_ids.give(free_ids.take(1))
        return Outcome(Skipped(1))

    cast("Any", chosen.engine)._decide[Relief] = refuse
    chosen.batch(rank=0, program=0, index=2, body=body_of([Relief((0, 0, 0, 0))]))


def dues_match() -> None:
    lapses = Lapses()
    lapses.add(0, [1, 2], batches=2)
    lapses.check(STRICT)
    lapses._due_of.clear()
    lapses.check(STRICT)


def rows_live() -> None:
    engine = engine_of(admit(1), Standing(int64s([1])))
    standing = engine._standing[0]
    standing._rows = np.concatenate((standing._rows, standing._rows))
    standing._opened = np.concatenate((standing._opened, standing._opened))
    engine.check()


def positions_gapless() -> None:
    _log().reply(0, 5)


def bytes_exact() -> None:
    log = _log()
    log.check(STRICT)
    log.kept_bytes += 1
    log.check(STRICT)


def _log() -> StageLog:
    log = StageLog(ring_entries_max=8)
    log.extend([LogRecord(0, 0, b"one", b"entry")])
    return log


def positions_ordered() -> None:
    chosen = watched()
    chosen.watch.check()
    chosen.given[0] = 99
    chosen.watch.check()


def due_complete() -> None:
    chosen = watched()
    chosen._endings._due_copies[3] = None
    chosen.watch.check()


# ---- idle ----------------------------------------------------------------------------------------


def rows_free() -> None:
    engine = idle_engine()
    engine.requests.rows.free.take(1)
    check_idle(engine)


def nothing_open() -> None:
    engine = idle_engine()
    engine.chain.order.fences.add(0, 8, Hazard.COPY_READ, copy_signal(3))
    check_idle(engine)


def units_held() -> None:
    engine = idle_engine()
    one_page = (0, *(1 for _ in engine.chain.token_indices))
    assert isinstance(engine.chain.make_room(one_page), list)
    engine.chain.take_pages(1)
    check_idle(engine)


def waiters_fit() -> None:
    engine = idle_engine()
    engine.requests.names.wait(9, Asked(1 << 20, 1, 8))
    check_idle(engine)


def no_waiters() -> None:
    engine = idle_engine()
    engine.requests.names.wait(9, Asked(8, 8, 8))
    check_idle(engine)


BREAKERS: dict[str, Callable[[], None]] = {
    "ledger.uses_owned": uses_owned,
    "chain.refuse_is_pure": refuse_is_pure,
    "lapse.dues_match": dues_match,
    "standing.rows_live": rows_live,
    "log.positions_gapless": positions_gapless,
    "log.bytes_exact": bytes_exact,
    "rank.positions_ordered": positions_ordered,
    "ending.due_complete": due_complete,
    "idle.rows_free": rows_free,
    "idle.nothing_open": nothing_open,
    "idle.units_held": units_held,
    "idle.waiters_fit": waiters_fit,
    "idle.no_waiters": no_waiters,
}
