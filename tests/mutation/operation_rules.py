"""Cells and waits as operations meet them: values, copies and transfers of a whole stage.

Each scenario is clean with everything in place, and A waits for exactly what is listed. Without the
cell, or the wait, two actions race. A scenario whose operation is turned down lets the action come
all the same once nothing turns it down any more.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

from kvd.alloc.clearance import Consumer, Hazard, Reader, Writer
from kvd.alloc.signals import Signal, copy_signal, step_signal
from kvd.errors import InvariantError, OperationError, RaceError
from kvd.testing.mutants.fault import Fault, Uncleared, Unread, planted
from kvd.testing.mutants.registry import FAULTS
from tests.mutation.applier_bench import ApplierBench
from tests.mutation.mutant import Kill, Mutant
from tests.mutation.operation_scenes import (
    SERVED,
    back_up_before_a_clearing,
    back_up_behind_a_load,
    back_up_behind_a_receive,
    load_behind_a_backup,
    load_behind_a_step,
    receive_behind_a_backup,
    receive_behind_a_load,
    receive_behind_a_send,
    receive_behind_zeroing,
    receive_into_a_new_slot,
    receive_into_a_slot_under_clearing,
    reset_sink_behind_a_step,
    send_before_a_clearing,
    send_behind_a_load,
    send_behind_a_step,
    send_behind_an_unknown_step,
    send_under_a_clearing,
    slot_behind_a_backup,
    take_behind_a_backup,
    take_behind_a_load,
    take_behind_a_send,
    take_behind_a_send_and_a_step,
)
from tests.mutation.operations_bench import OperationsBench

Scene = Callable[[OperationsBench], str]
"""Plays, and returns why the last operation was turned down, if it was."""
Removal = Fault | Callable[[OperationsBench], None]
"""A rule of the product, or what the bench does in place of an engine."""


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
    new_bench: Callable[[], OperationsBench] = OperationsBench

    def play(
        self,
        *,
        rule: bool,
        companion: bool,
        new_bench: Callable[[], OperationsBench] | None = None,
    ) -> tuple[OperationsBench, str, RaceError | None]:
        """Play; returns the bench, why the last operation was turned down, and the race."""
        with ExitStack() as stack:
            bench = (new_bench or self.new_bench)()
            if not rule:
                stack.enter_context(left_out(self.remove, bench))
            if not companion:
                assert self.companion is not None
                stack.enter_context(left_out(self.companion, bench))
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


def writer_cell(consumer: Consumer, hazard: Hazard) -> Fault:
    """Read one cell of the writers' table as nothing."""
    return Fault(f"{consumer.value}-{hazard.value}", "a cell", (Uncleared(consumer, hazard),))


def reader_cell(reader: Reader, writer: Writer) -> Fault:
    """Read one cell of the readers' table as nothing."""
    return Fault(f"{reader.value}-{writer.value}", "a cell", (Unread(reader, writer),))


def copies_beside_forwards(bench: OperationsBench) -> None:
    bench.copies_follow_forwards = False


def peers_beside_the_allocator(bench: OperationsBench) -> None:
    bench.peers_follow = False


@contextmanager
def left_out(removal: Removal, bench: OperationsBench) -> Generator[None]:
    """Do without something for a while."""
    if isinstance(removal, Fault):
        with planted(removal):
            yield
    else:
        removal(bench)
        yield


nothing_is_vacated = FAULTS["vacated-becomes-hole"]
nothing_pends = FAULTS["pending-to-holes"]
transfers_are_not_pumped = FAULTS["publish-beside-transfers"]
waits_are_lost = FAULTS["waits-forgotten-by-operations"]
slots_are_received_as_they_are = FAULTS["received-slots-not-zeroed"]
launches_clear_all_the_same = FAULTS["clears-yield"]
no_wait_for_steps = FAULTS["sink-beside-steps"]
applier_bench = partial(ApplierBench, as_replies=False)
COPY, STEP = copy_signal(1), step_signal(1)
_C, _H, _R, _W = Consumer, Hazard, Reader, Writer
HAS_IT = "still has"
CLEARED = "clears it"
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
        "take-behind-send-and-step",
        "NETWORK_SEND before ZEROING: N, also for what pended first",
        take_behind_a_send_and_a_step,
        writer_cell(_C.ZEROING, _H.NETWORK_SEND),
        (STEP,),
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
        "a peer is told a place once A reached the entry that says so, which is the engine's part",
        receive_behind_zeroing,
        peers_beside_the_allocator,
    ),
    *(
        OperationRule(name, removes, scene, remove, new_bench=applier_bench)
        for name, removes, scene, remove in (
            (
                "receive-into-new-slot",
                "a slot that a peer is to write is zeroed on A, and no launch clears it any more",
                receive_into_a_new_slot,
                slots_are_received_as_they_are,
            ),
            (
                "receive-into-cleared-slot",
                "and so it is behind the launch that is clearing it",
                receive_into_a_slot_under_clearing,
                slots_are_received_as_they_are,
            ),
            (
                "clears-yield",
                "a launch leaves alone what was written since it was asked to clear it",
                receive_into_a_new_slot,
                launches_clear_all_the_same,
            ),
        )
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
        "backup-before-clearing",
        "a slot that no launch has cleared is not backed up",
        back_up_before_a_clearing,
        FAULTS["uncleared-is-readable"],
        turned_down=CLEARED,
    ),
    OperationRule(
        "send-before-clearing",
        "nor is it sent",
        send_before_a_clearing,
        FAULTS["uncleared-is-readable"],
        turned_down=CLEARED,
    ),
    OperationRule(
        "send-under-clearing",
        "a slot that a launch in flight clears is not sent",
        send_under_a_clearing,
        FAULTS["clearing-is-sent"],
        turned_down=CLEARED,
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
