"""Waits of a rank's copy streams: each left out beside what it keeps the copy apart from.

An applier on the modelled device is given effects as the daemon decides them. LD and BK run behind
what A was given before and behind every forward that was launched; A waits a copy where an effect
says so.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvd.errors import RaceError
from kvd.testing.modelled.choice import InOrder
from kvd.testing.modelled.device import ModelledDevice, ModelledWork
from kvd.testing.modelled.shadow import Accesses
from kvd.testing.modelled.world import World
from kvd.testing.mutants.fault import Fault, planted
from kvd.testing.mutants.ranks import BENCH_FAULTS
from kvd.testing.mutants.registry import FAULTS
from kvd.testing.small_rank import FULL, PLAN, TOTAL_BYTES, outcome
from kvd_client.device.apply import Applier
from kvd_proto.outcomes import AnyEffect, Column, Copy, CopyStream, Wait, Zero
from tests.mutation.mutant import Kill, Mutant

UNIT = 20
PLACES = 4
UNITS, HOST, OTHER_UNITS = Column(0), Column(1), Column(2)
"""Columns of every entry: the unit that all of this is about, its place in the pool, another."""


class CopyBench:
    """An applier, a forward stream, and a pool for the full band."""

    def __init__(self) -> None:
        self.world = World(InOrder())
        device = ModelledDevice(self.world, declares_only=True)
        self._memory = device.allocate(TOTAL_BYTES)
        self._forward = device.stream("forward")
        self._applier = Applier(
            device=device,
            memory=self._memory,
            plan=PLAN,
            stream=device.stream("allocator"),
            overlaps=True,
        )
        self._applier.copies.add_pool(PLAN.bands[FULL].name, PLACES)

    def apply(self, *entries: Sequence[AnyEffect]) -> None:
        """Enqueue the effects of entries as one reply."""
        columns = [[UNIT], [0], [UNIT + 1]]
        self._applier.apply_reply(
            self._applier.applied + 1, [outcome(effects, columns=columns) for effects in entries]
        )

    def launch(self) -> None:
        """Launch a forward that writes the unit and reads no tables."""
        reads_end = self._forward.record()
        unit_bytes = PLAN.bands[FULL].unit_bytes
        accesses = Accesses(writes=(self._memory.extent([UNIT * unit_bytes], unit_bytes),))
        self._forward.submit(ModelledWork("forward", lambda: accesses))
        self._applier.note_step(1, self._forward.record(), barrier=reads_end)


def back_up_behind_a_forward(bench: CopyBench) -> None:
    """A running forward writes the unit that is to be backed up."""
    bench.launch()
    bench.apply([Copy(1, CopyStream.BACKUP, FULL, UNITS, HOST)])


def back_up_ahead_of_a_wait(bench: CopyBench) -> None:
    """The same, and a later entry of the reply has A wait for that forward."""
    bench.launch()
    bench.apply([Copy(1, CopyStream.BACKUP, FULL, UNITS, HOST)], [Wait(1), Zero(FULL, OTHER_UNITS)])


def load_behind_a_forward(bench: CopyBench) -> None:
    """A running forward writes the unit that is to be loaded."""
    bench.launch()
    bench.apply([Copy(1, CopyStream.LOAD, FULL, UNITS, HOST)])


def load_behind_zeroing(bench: CopyBench) -> None:
    """The unit is zeroed and loaded."""
    bench.apply([Zero(FULL, UNITS), Copy(1, CopyStream.LOAD, FULL, UNITS, HOST)])


def back_up_behind_zeroing(bench: CopyBench) -> None:
    """The unit is zeroed by one entry and backed up by the next."""
    bench.apply([Zero(FULL, UNITS)])
    bench.apply([Copy(1, CopyStream.BACKUP, FULL, UNITS, HOST)])


def zero_behind_a_backup(bench: CopyBench) -> None:
    """The unit is backed up, freed and handed out."""
    bench.apply([Copy(1, CopyStream.BACKUP, FULL, UNITS, HOST)])
    bench.apply([Wait(copy=1), Zero(FULL, UNITS)])


def zero_behind_a_load(bench: CopyBench) -> None:
    """The unit is loaded, given up and handed out, all in one entry."""
    bench.apply([Copy(1, CopyStream.LOAD, FULL, UNITS, HOST), Wait(copy=1), Zero(FULL, UNITS)])


class CopyRule(NamedTuple):
    """A wait, the fault that is to be without it, and the effects for which it is there."""

    name: str
    scene: Callable[[CopyBench], None]
    fault: Fault

    def play(self) -> None:
        """Play with every wait in place; raises RaceError."""
        bench = CopyBench()
        self.scene(bench)
        bench.world.run()

    def attack(self) -> Kill | None:
        """Play without the wait; returns how that was noticed, None if it was not."""
        bench = CopyBench()
        with planted(self.fault):
            self.scene(bench)
        try:
            bench.world.run()
        except RaceError as error:
            return Kill(error.message, bench.world.ran_count)
        return None

    @property
    def mutant(self) -> Mutant:
        """Return the wait's removal."""
        return Mutant(
            name=self.name,
            removes=self.fault.rule,
            test=f"test_copy_rules.py::test_without_its_wait_two_actions_race[{self.name}]",
            attack=self.attack,
        )


def _rule(name: str, scene: Callable[[CopyBench], None], *, fault: str = "") -> CopyRule:
    return CopyRule(name, scene, FAULTS[fault or name])


RULES: tuple[CopyRule, ...] = (
    _rule("backup-waits-f", back_up_behind_a_forward),
    # Also where A waits for the forward later in the same reply.
    _rule("backup-waits-f-first", back_up_ahead_of_a_wait, fault="backup-waits-f"),
    CopyRule("load-waits-f", load_behind_a_forward, BENCH_FAULTS[0]),
    _rule("load-waits-a", load_behind_zeroing),
    _rule("backup-waits-a", back_up_behind_zeroing),
    _rule("copy-wait", zero_behind_a_backup),
    # Also for a copy of the same entry.
    _rule("copy-wait-within", zero_behind_a_load, fault="copy-wait"),
)
