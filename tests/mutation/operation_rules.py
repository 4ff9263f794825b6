"""Cells and waits as operations meet them: values, copies and transfers of a whole stage.

Each scenario is clean with everything in place, and A waits for exactly what is listed. Without the
cell, or the wait, two actions race. A scenario whose operation is turned down lets the action come
all the same once nothing turns it down any more.
"""

from collections.abc import Callable
from typing import NamedTuple

from kvd.alloc.arena_order import ArenaOrder
from kvd.alloc.band import Band
from kvd.alloc.band_units import Units
from kvd.alloc.clearance import (
    CLEARANCE,
    READ_CLEARANCE,
    Cell,
    Consumer,
    Hazard,
    Reader,
    Rule,
    Writer,
)
from kvd.alloc.signals import Signal, copy_signal, step_signal
from kvd.alloc.usage import PageUsage
from kvd.engine.outcome import OutcomeBuilder
from kvd.errors import InvariantError, OperationError, RaceError
from kvd_proto.operations import (
    Admit,
    Advance,
    Evict,
    Insert,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Operation,
    Publish,
    ResetSink,
)
from kvd_proto.outcomes import Pump
from tests.mutation.mutant import Kill, Mutant, Patch, do_nothing
from tests.mutation.operations_bench import OperationsBench
from tests.stateful.ranks import PAGE_TOKENS, int32s, int64s
from tests.stateful.values import (
    FULL,
    LONG_WINDOW,
    STATE,
    backup,
    held,
    hold,
    hosts,
    missing,
    pages,
    post,
)

Scene = Callable[[OperationsBench], str]
"""Plays, and returns why the last operation was turned down, if it was."""
Removal = Callable[[Patch, OperationsBench], None]
VALUE_TOKENS = 32
SERVED = ""


class OperationRule(NamedTuple):
    """A cell or a wait, how to do without it, and the operations in which that shows."""

    name: str
    removes: str
    scene: Scene
    remove: Removal
    waits: tuple[Signal, ...] = ()
    turned_down: str = SERVED
    """Why the last operation is turned down while the rule stands; empty if it is served."""
    companion: Removal | None = None
    beside: str = ""
    refusal: str = ""
    """What turns it down with the companion left out alone."""

    def play(self, *, rule: bool, companion: bool) -> tuple[OperationsBench, str, RaceError | None]:
        """Play; returns the bench, why the last operation was turned down, and the race."""
        with Patch.context() as patch:
            bench = OperationsBench()
            if not rule:
                self.remove(patch, bench)
            if not companion:
                assert self.companion is not None
                self.companion(patch, bench)
            turned_down = SERVED
            try:
                turned_down = self.scene(bench)
                bench.run()
            except (OperationError, InvariantError) as error:
                turned_down = error.message
            except RaceError as error:
                return bench, turned_down, error
        return bench, turned_down, None

    def attack(self) -> Kill | None:
        """Play without the rule; returns how that was noticed, None if it was not."""
        bench, _, race = self.play(rule=False, companion=self.companion is None)
        return None if race is None else Kill(race.message, bench.world.ran_count)

    @property
    def mutant(self) -> Mutant:
        """Return the rule's removal."""
        return Mutant(
            name=self.name,
            removes=self.removes,
            test=f"test_operation_rules.py::test_without_its_rule_two_actions_race[{self.name}]",
            attack=self.attack,
            beside=self.beside,
        )


# ---- what is left out ------------------------------------------------------------------------


def writer_cell(consumer: Consumer, hazard: Hazard) -> Removal:
    """Read one cell of the writers' table as nothing."""

    def remove(patch: Patch, bench: OperationsBench) -> None:
        removed = Rule(Cell.NOTHING, "removed")
        bench.order.clearance = {**CLEARANCE, (consumer, hazard): removed}

    return remove


def reader_cell(reader: Reader, writer: Writer) -> Removal:
    """Read one cell of the readers' table as nothing."""

    def remove(patch: Patch, bench: OperationsBench) -> None:
        removed = Rule(Cell.NOTHING, "removed")
        bench.order.read_clearance = {**READ_CLEARANCE, (reader, writer): removed}

    return remove


def nothing_is_vacated(patch: Patch, bench: OperationsBench) -> None:
    patch.setattr(Band, "_let_go", getattr(Band, "_add_holes"))  # noqa: B009


def nothing_pends(patch: Patch, bench: OperationsBench) -> None:
    patch.setattr(Band, "_disown", getattr(Band, "_let_go"))  # noqa: B009


def copies_beside_forwards(patch: Patch, bench: OperationsBench) -> None:
    bench.copies_follow_forwards = False


def peers_beside_the_allocator(patch: Patch, bench: OperationsBench) -> None:
    bench.peers_follow = False


def transfers_are_not_pumped(patch: Patch, bench: OperationsBench) -> None:
    def none(usage: PageUsage, units: Units) -> tuple[Signal, ...]:
        return ()

    patch.setattr(PageUsage, "transfers", none)


def waits_are_lost(patch: Patch, bench: OperationsBench) -> None:
    patch.setattr(OutcomeBuilder, "waits", do_nothing)


def no_wait_for_steps(patch: Patch, bench: OperationsBench) -> None:
    patch.setattr(ArenaOrder, "wait_step", do_nothing)


# ---- where it shows --------------------------------------------------------------------------


def admit(request: int, tokens: int) -> Operation:
    return Admit(int64s([request]), int32s([tokens]), int32s([0]), int32s([tokens]), tokens)


def take_behind_a_backup(bench: OperationsBench) -> str:
    """A value is backed up, evicted and its pages handed out."""
    bench.decide(backup(1, FULL, pages(bench.engine, FULL)), Evict(int64s([1])))
    bench.decide(admit(3, VALUE_TOKENS))
    return SERVED


def slot_behind_a_backup(bench: OperationsBench) -> str:
    """A value's state is backed up, evicted and its slot handed out, to be cleared by a launch."""
    bench.decide(backup(1, STATE, pages(bench.engine, STATE)), Evict(int64s([1])))
    bench.decide(admit(3, PAGE_TOKENS))
    bench.launch(writes=[3])
    return SERVED


def load_into_value(bench: OperationsBench, number: int = 1) -> list[int]:
    """Load two pages of value 1; returns them."""
    names = missing(bench.engine, LONG_WINDOW)[-2:]
    bench.decide(
        LoadReserve(number, 1, (0, 2, 0, 0)),
        LoadName(number, LONG_WINDOW, int64s(names)),
        LoadSubmit(number, hosts(LONG_WINDOW, 2)),
    )
    return names


def take_behind_a_load(bench: OperationsBench) -> str:
    """A value is evicted while a load fills it, and its pages are handed out."""
    load_into_value(bench)
    bench.decide(Evict(int64s([1])), admit(3, VALUE_TOKENS))
    return SERVED


def take_behind_a_send(bench: OperationsBench) -> str:
    """A value is evicted while a peer reads it, and pages are handed out."""
    sent = bench.decide(post(1, FULL, pages(bench.engine, FULL)))
    bench.tell_peer(sent, writes=False)
    bench.decide(Evict(int64s([1])), admit(3, VALUE_TOKENS))
    return SERVED


def second_value(bench: OperationsBench) -> None:
    """Insert value 2, and use up every hole of the long window."""
    bench.decide(admit(3, VALUE_TOKENS), Advance(int64s([3]), VALUE_TOKENS), Insert(2, 3))
    holes = bench.bands[LONG_WINDOW].hole_units
    if holes:
        bench.decide(admit(4, holes * PAGE_TOKENS))


def load_where_value_1_lay(bench: OperationsBench) -> None:
    """Evict value 1 and load a page of value 2, for which no other hole is left."""
    bench.decide(Evict(int64s([1])))
    value = bench.engine.requests.values.get(2)
    names = value.missing(LONG_WINDOW)[:2].tolist()
    bench.decide(
        LoadReserve(2, 2, (0, len(names), 0, 0)),
        LoadName(2, LONG_WINDOW, int64s(names)),
        LoadSubmit(2, hosts(LONG_WINDOW, len(names))),
    )


def load_behind_a_backup(bench: OperationsBench) -> str:
    """A load takes the place of a value that is being backed up."""
    second_value(bench)
    bench.decide(backup(1, LONG_WINDOW, pages(bench.engine, LONG_WINDOW)))
    load_where_value_1_lay(bench)
    return SERVED


def load_behind_a_step(bench: OperationsBench) -> str:
    """A load takes the place of a value that a running step reads."""
    second_value(bench)
    bench.launch((LONG_WINDOW, pages(bench.engine, LONG_WINDOW)), writes=[2])
    load_where_value_1_lay(bench)
    return SERVED


def publish(bench: OperationsBench, number: int) -> str:
    outcome = bench.decide(Publish(number))
    if isinstance(outcome.result, Pump):
        return "pump"
    bench.tell_peer(outcome, writes=True)
    return SERVED


def receive_behind_a_backup(bench: OperationsBench) -> str:
    """A peer is to write pages that are being backed up."""
    ids = held(bench.engine, 2, FULL)
    bench.decide(backup(1, FULL, ids), hold(1, FULL, ids))
    return publish(bench, 1)


def receive_behind_a_load(bench: OperationsBench) -> str:
    """A peer is to write pages that a load fills."""
    ids = load_into_value(bench)
    bench.decide(hold(1, LONG_WINDOW, ids))
    return publish(bench, 1)


def receive_behind_zeroing(bench: OperationsBench) -> str:
    """A peer is to write pages that were handed out and are to be zeroed."""
    bench.decide(admit(3, PAGE_TOKENS))
    bench.decide(hold(1, FULL, held(bench.engine, 3, FULL)))
    return publish(bench, 1)


def receive_behind_a_send(bench: OperationsBench) -> str:
    """A peer is to write pages that another one reads."""
    ids = held(bench.engine, 2, FULL)
    bench.tell_peer(bench.decide(post(1, FULL, ids)), writes=False)
    bench.decide(hold(2, FULL, ids))
    return publish(bench, 2)


def back_up_behind_a_load(bench: OperationsBench) -> str:
    """Pages are backed up that a load fills."""
    bench.decide(backup(2, LONG_WINDOW, load_into_value(bench)))
    return SERVED


def back_up_behind_a_receive(bench: OperationsBench) -> str:
    """Pages are to be backed up that a peer writes."""
    ids = held(bench.engine, 2, FULL)
    bench.decide(hold(1, FULL, ids))
    publish(bench, 1)
    bench.decide(backup(1, FULL, ids))
    return SERVED


def send_behind_a_step(bench: OperationsBench) -> str:
    """Pages are to be sent that a running step writes."""
    ids = held(bench.engine, 2, FULL)
    bench.launch((FULL, ids), writes=[2])
    bench.tell_peer(bench.decide(post(1, FULL, ids)), writes=False)
    return SERVED


def send_behind_an_unknown_step(bench: OperationsBench) -> str:
    """Pages are to be sent while a step runs that may write them."""
    ids = held(bench.engine, 2, FULL)
    bench.launch((FULL, ids), writes=None)
    bench.tell_peer(bench.decide(post(1, FULL, ids)), writes=False)
    return SERVED


def send_behind_a_load(bench: OperationsBench) -> str:
    """Pages are to be sent that a load fills."""
    bench.tell_peer(bench.decide(post(1, LONG_WINDOW, load_into_value(bench))), writes=False)
    return SERVED


def reset_sink_behind_a_step(bench: OperationsBench) -> str:
    """The sink is zeroed while a running step reads it."""
    bench.launch(writes=[2], reads_sink=True)
    bench.decide(ResetSink())
    return SERVED


COPY, STEP = copy_signal(1), step_signal(1)
_C, _H, _R, _W = Consumer, Hazard, Reader, Writer
HAS_IT = "still has"
RULES: tuple[OperationRule, ...] = (
    OperationRule(
        "take-behind-backup",
        "COPY_READ before ZEROING: A",
        take_behind_a_backup,
        writer_cell(_C.ZEROING, _H.COPY_READ),
        (COPY,),
    ),
    OperationRule(
        "slot-behind-backup",
        "COPY_READ before ZEROING: A, which slots are handed out by as well",
        slot_behind_a_backup,
        writer_cell(_C.ZEROING, _H.COPY_READ),
        (COPY,),
    ),
    OperationRule(
        "take-behind-load",
        "COPY_WRITE before ZEROING: A",
        take_behind_a_load,
        writer_cell(_C.ZEROING, _H.COPY_WRITE),
        (COPY,),
    ),
    OperationRule(
        "take-behind-send",
        "NETWORK_SEND before ZEROING: N",
        take_behind_a_send,
        writer_cell(_C.ZEROING, _H.NETWORK_SEND),
        companion=nothing_is_vacated,
        beside="a unit that a transfer may touch is no hole",
        refusal="band.take_cleared",
    ),
    OperationRule(
        "load-behind-backup",
        "COPY_READ before HOST_LOAD: A*",
        load_behind_a_backup,
        writer_cell(_C.HOST_LOAD, _H.COPY_READ),
        (COPY,),
    ),
    OperationRule(
        "load-behind-step",
        "PENDING before HOST_LOAD: S",
        load_behind_a_step,
        nothing_pends,
        (STEP,),
        companion=copies_beside_forwards,
        beside="a load waits the tail of F",
    ),
    OperationRule(
        "receive-behind-backup",
        "COPY_READ before PEER_WRITE: A*",
        receive_behind_a_backup,
        writer_cell(_C.PEER_WRITE, _H.COPY_READ),
        (COPY,),
    ),
    OperationRule(
        "receive-behind-load",
        "COPY_WRITE before PEER_WRITE: A*",
        receive_behind_a_load,
        writer_cell(_C.PEER_WRITE, _H.COPY_WRITE),
        (COPY,),
    ),
    OperationRule(
        "receive-behind-zeroing",
        "a peer is told a place once A reached the entry that says so",
        receive_behind_zeroing,
        peers_beside_the_allocator,
    ),
    OperationRule(
        "receive-behind-send",
        "NETWORK_SEND before PEER_WRITE: N",
        receive_behind_a_send,
        writer_cell(_C.PEER_WRITE, _H.NETWORK_SEND),
        turned_down="pump",
        companion=transfers_are_not_pumped,
        beside="a publication waits for the transfers that touch its place",
        refusal="band.take_cleared",
    ),
    OperationRule(
        "backup-behind-load",
        "load before BACKUP: A*",
        back_up_behind_a_load,
        reader_cell(_R.BACKUP, _W.COPY_WRITE),
        (COPY,),
    ),
    OperationRule(
        "backup-behind-receive",
        "receive before BACKUP: N",
        back_up_behind_a_receive,
        reader_cell(_R.BACKUP, _W.NETWORK_RECEIVE),
        turned_down=HAS_IT,
    ),
    OperationRule(
        "send-behind-step",
        "forward before NETWORK_SEND: N",
        send_behind_a_step,
        reader_cell(_R.NETWORK_SEND, _W.FORWARD_WRITE),
        turned_down=HAS_IT,
    ),
    OperationRule(
        "send-behind-unknown-step",
        "forward, unknown before NETWORK_SEND: N",
        send_behind_an_unknown_step,
        reader_cell(_R.NETWORK_SEND, _W.UNKNOWN_WRITE),
        turned_down=HAS_IT,
    ),
    OperationRule(
        "send-behind-load",
        "load before NETWORK_SEND: N",
        send_behind_a_load,
        reader_cell(_R.NETWORK_SEND, _W.COPY_WRITE),
        turned_down=HAS_IT,
    ),
    OperationRule(
        "sink-behind-step",
        "the sink is zeroed behind every step that was launched",
        reset_sink_behind_a_step,
        no_wait_for_steps,
        (STEP,),
    ),
    *(
        OperationRule(
            f"waits-of-{operation}",
            f"what {operation} has to be behind becomes effects",
            scene,
            waits_are_lost,
            (COPY,),
        )
        for operation, scene in (
            ("take", take_behind_a_backup),
            ("load-reserve", load_behind_a_backup),
            ("publish", receive_behind_a_backup),
            ("backup", back_up_behind_a_load),
        )
    ),
)
