"""A scenario for every cell of the clearance tables that asks for something.

A scenario brings its hazard about, lets the next writer or reader come, and runs everything. With
the tables as they are nothing races, and A was made to wait for what the cell says, once. With the
cell read as "nothing", two actions race.

Some cells have a companion: another rule that keeps the same two accesses apart, so that nothing
hangs on either alone. Those are removed together, and the scenario has to be clean with either.
"""

from typing import NamedTuple, TypeAlias

from kvd.alloc.checks import CheckLevel
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
from kvd.errors import RaceError
from tests.mutation.bench import Bench
from tests.mutation.mutant import Kill, Mutant
from tests.mutation.scenes import (
    BLOCKED,
    FIXED,
    FORWARDS_IN_ORDER,
    LOADS_FOLLOW,
    VACATED,
    Companion,
    Scene,
    back_up,
    backed_up,
    forward_may_write,
    forward_writes,
    left,
    left_by_what_is_sent,
    load_writes,
    loaded,
    moved_from_under,
    moved_from_under_a_peer,
    nothing_pends,
    peer_writes,
    pending,
    read_by,
    received,
    row_without_following,
    sent,
    vacated,
    zeroed,
)

ASKING = (Cell.WAIT, Cell.WAIT_AND_FOLLOW, Cell.SETTLE, Cell.NEVER_OPEN)
"""Codes of cells that ask for something, so that their removal has to be noticed."""
LEFT = "-left"
"""Ends the names of cases whose hazard is met on bytes that had left the band."""
REMOVED = Rule(Cell.NOTHING, "removed")
STEP, COPY = step_signal(1), copy_signal(1)
_C, _H, _R, _W = Consumer, Hazard, Reader, Writer
STREAMS_OF: dict[Consumer | Reader | Hazard | Writer, str] = {
    _C.FORWARD_WRITE: "second forward",
    _C.ZEROING: "allocator",
    _C.MOVE_DESTINATION: "allocator",
    _C.HOST_LOAD: "load",
    _C.PEER_WRITE: "network/receive",
    _C.STATE_WRITE: "second forward",
    _H.VACATED_READ: "forward",
    _H.PENDING: "forward",
    _H.COPY_READ: "backup",
    _H.COPY_WRITE: "load",
    _H.NETWORK_SEND: "network/send",
    _H.NETWORK_RECEIVE: "network/receive",
    _H.ALLOCATOR_WORK: "allocator",
    _R.MOVE_SOURCE: "allocator",
    _R.BACKUP: "backup",
    _R.NETWORK_SEND: "network/send",
    _W.FORWARD_WRITE: "forward",
    _W.UNKNOWN_WRITE: "forward",
    _W.COPY_WRITE: "load",
    _W.NETWORK_RECEIVE: "network/receive",
}
"""Streams on which whoever acts acts; or what their names begin with."""

Place: TypeAlias = tuple[Consumer | Reader, Hazard | Writer]


class CellCase(NamedTuple):
    """One cell and the scenario in which its removal shows."""

    consumer: Consumer | Reader
    hazard: Hazard | Writer
    scene: Scene
    waits: tuple[Signal, ...] = ()
    """What A waits for with the cell in place."""
    refusal: str = ""
    """The check that turns the consumer away with the cell in place, where it cannot be served."""
    is_turned_down: bool = False
    """With its companion in place as well, the question is answered with a shortage before that."""
    companion: Companion | None = None
    off: Scene | None = None
    """What removes the cell beside its entry in the table, for code that knows it by heart."""
    variant: str = ""

    @property
    def name(self) -> str:
        """Return the cell's name, such as ``c2-h4``."""
        hazard = self.hazard.value.replace(" ", "-").replace(",", "")
        return f"{self.consumer.value}-{hazard}{self.variant}"

    @property
    def code(self) -> str:
        """Return what the table says there."""
        if isinstance(self.consumer, Consumer):
            assert isinstance(self.hazard, Hazard)
            return CLEARANCE[self.consumer, self.hazard].cell.value
        assert isinstance(self.hazard, Writer)
        return READ_CLEARANCE[self.consumer, self.hazard].cell.value

    @property
    def streams(self) -> tuple[str, str]:
        """Return whose actions race without the cell: the consumer's, and the hazard's."""
        return STREAMS_OF[self.consumer], STREAMS_OF[self.hazard]

    def bench(self, *, cell: bool, companion: bool, level: CheckLevel = CheckLevel.STRICT) -> Bench:
        """Return a bench with or without the cell, and with or without what stands beside it."""
        clearance, read_clearance = dict(CLEARANCE), dict(READ_CLEARANCE)
        if not cell:
            if isinstance(self.consumer, Consumer):
                assert isinstance(self.hazard, Hazard)
                clearance[self.consumer, self.hazard] = REMOVED
            else:
                assert isinstance(self.hazard, Writer)
                read_clearance[self.consumer, self.hazard] = REMOVED
        bench = Bench(clearance=clearance, read_clearance=read_clearance, level=level)
        if not cell and self.off is not None:
            self.off(bench)
        if not companion:
            assert self.companion is not None
            self.companion.remove(bench)
        return bench

    def play(self, bench: Bench) -> None:
        """Play the scenario to its end; raises RaceError or InvariantError."""
        self.scene(bench)
        bench.run()

    def attack(self) -> Kill | None:
        """Play without the cell; returns how that was noticed, None if it was not."""
        bench = self.bench(cell=False, companion=self.companion is None)
        try:
            self.play(bench)
        except RaceError as error:
            return Kill(error.message, bench.world.ran_count)
        return None

    @property
    def mutant(self) -> Mutant:
        """Return the cell's removal."""
        what = f"{self.hazard.name} before {self.consumer.name}: {self.code}"
        return Mutant(
            name=self.name,
            removes=what,
            test=f"test_cells.py::test_without_its_cell_two_actions_race[{self.name}]",
            attack=self.attack,
            beside="" if self.companion is None else self.companion.name,
        )


# ---- all of them -------------------------------------------------------------------------------


def _writer_cases() -> list[CellCase]:
    cases: list[CellCase] = []
    for consumer in Consumer:
        on_f = consumer in (_C.FORWARD_WRITE, _C.STATE_WRITE)
        load = LOADS_FOLLOW if consumer is _C.HOST_LOAD else None
        if not on_f:
            cases.append(
                CellCase(consumer, _H.VACATED_READ, vacated(consumer), (STEP,), companion=load)
            )
        cases += [
            CellCase(
                consumer,
                _H.PENDING,
                pending(consumer),
                (STEP,),
                companion=FORWARDS_IN_ORDER if on_f else load,
                off=nothing_pends,
            ),
            CellCase(consumer, _H.COPY_READ, backed_up(consumer), (COPY,)),
            CellCase(consumer, _H.COPY_WRITE, loaded(consumer), (COPY,)),
            CellCase(consumer, _H.NETWORK_SEND, sent(consumer), companion=VACATED),
            CellCase(consumer, _H.COPY_READ, left(consumer, back_up), (COPY,), variant=LEFT),
            CellCase(consumer, _H.COPY_WRITE, left(consumer, load_writes), (COPY,), variant=LEFT),
        ]
        if consumer is not _C.MOVE_DESTINATION:
            cases.append(
                CellCase(
                    consumer,
                    _H.NETWORK_SEND,
                    left_by_what_is_sent(consumer),
                    refusal="band.take_cleared",
                    is_turned_down=True,
                    companion=BLOCKED,
                    variant=LEFT,
                )
            )
    cases.append(CellCase(_C.PEER_WRITE, _H.NETWORK_RECEIVE, received, companion=VACATED))
    for consumer in (_C.HOST_LOAD, _C.PEER_WRITE):
        others = Companion(
            f"the other cells of {consumer.value} that say A*", row_without_following(consumer)
        )
        cases.append(CellCase(consumer, _H.ALLOCATOR_WORK, zeroed(consumer), companion=others))
    return cases


def _reader_cases() -> list[CellCase]:
    unmoved = "band.move_cleared"
    return [
        CellCase(_R.MOVE_SOURCE, _W.FORWARD_WRITE, moved_from_under(forward_writes), (STEP,)),
        CellCase(_R.MOVE_SOURCE, _W.UNKNOWN_WRITE, moved_from_under(forward_may_write), (STEP,)),
        CellCase(_R.MOVE_SOURCE, _W.COPY_WRITE, moved_from_under(load_writes), (COPY,)),
        CellCase(
            _R.MOVE_SOURCE,
            _W.NETWORK_RECEIVE,
            moved_from_under_a_peer,
            refusal=unmoved,
            is_turned_down=True,
            companion=FIXED,
        ),
        CellCase(_R.BACKUP, _W.COPY_WRITE, read_by(load_writes, Bench.back_up), (COPY,)),
        CellCase(
            _R.BACKUP, _W.NETWORK_RECEIVE, read_by(peer_writes, Bench.back_up), refusal=unmoved
        ),
        *(
            CellCase(_R.NETWORK_SEND, writer, read_by(begin, Bench.send), refusal=unmoved)
            for writer, begin in (
                (_W.FORWARD_WRITE, forward_writes),
                (_W.UNKNOWN_WRITE, forward_may_write),
                (_W.COPY_WRITE, load_writes),
            )
        ),
    ]


CASES: tuple[CellCase, ...] = (*_writer_cases(), *_reader_cases())

UNASKED: frozenset[Place] = frozenset({(_R.FORWARD_READ, _W.NETWORK_RECEIVE)})
"""Cells that ask for something, but that no code reads; see `tests.mutation.registry`."""


def asking_cells() -> set[Place]:
    """Return every cell of both tables that asks for something."""
    writers: list[Place] = [place for place, rule in CLEARANCE.items() if rule.cell in ASKING]
    readers: list[Place] = [place for place, rule in READ_CLEARANCE.items() if rule.cell in ASKING]
    return {*writers, *readers}
