"""One incarnation of a stress run: an engine that is watched, and all ranks attached to it."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from kvd.alloc.checks import CheckLevel
from kvd.engine.incarnation import Incarnation
from kvd.engine.legacy import Legacy
from kvd.errors import OperationError
from kvd.testing.in_process import (
    IncarnationNumber,
    InProcessDaemon,
    InProcessTransport,
    RankMemories,
)
from kvd.testing.modelled.ranks import DEADLINE_MS, GROUP
from kvd.testing.stress.contents import WORD_BYTES
from kvd.testing.stress.hand import Hand, PlanForward, mode_of
from kvd.testing.stress.played_rank import PlayedRank
from kvd.testing.stress.program import Program
from kvd.testing.stress.shapes import StressStage
from kvd_client import Client, attach
from kvd_client.device.port import Device
from kvd_proto.codec import decode_own_entry
from kvd_proto.operations import AnyFact, AnyOwnEntry, Operation, RankFailed, StepAborted
from kvd_proto.outcomes import OWN_PROGRAM, Outcome

POISON = 0xAB
"""Fills memory that nothing was written to."""
IDLE_MOVES_MAX = 6

AttachRank: TypeAlias = "Callable[[int, InProcessTransport], PlayedRank[Any]]"


class Watcher(Protocol):
    """Is told of everything that is decided, once."""

    def before(self, operation: Operation) -> None:
        """See an operation that is about to be decided."""
        ...

    def wrong(self, operation: Operation, error: OperationError) -> None:
        """See one that was wrong use."""
        ...

    def after(self, operation: Operation, outcome: Outcome, position: int) -> None:
        """See what was decided, and where in the log it stands."""
        ...

    def own(self, entry: AnyOwnEntry, outcome: Outcome) -> None:
        """See an entry of the daemon's own."""
        ...

    def aborted(self, step: int) -> None:
        """See a rank's word, which is news, that it left a launch."""
        ...


class WatchedIncarnation(Incarnation):
    """An incarnation whose decisions somebody sees as they are made."""

    watcher: Watcher | None = None
    program: int = 0
    """The program whose operation was decided last, or is being."""
    broken: Exception | None = None
    """What the engine raised that is no answer; whoever asked hears of it in other words."""

    def _decide(self, program: int, operation: Operation, position: int) -> Outcome:
        watcher = self.watcher
        self.program = program
        if watcher is None:
            return super()._decide(program, operation, position)
        with self._keeping():
            watcher.before(operation)
            try:
                outcome = super()._decide(program, operation, position)
            except OperationError as error:
                watcher.wrong(operation, error)
                raise
            watcher.after(operation, outcome, position)
        return outcome

    def _append(self, program: int, index: int, body: bytes, outcome: Outcome) -> None:
        super()._append(program, index, body, outcome)
        if self.watcher is not None and program == OWN_PROGRAM:
            with self._keeping():
                self.watcher.own(decode_own_entry(body), outcome)

    def _is_news(self, rank: int, fact: AnyFact, body: bytes) -> bool:
        news = super()._is_news(rank, fact, body)
        if news and self.watcher is not None and isinstance(fact, StepAborted):
            self.watcher.aborted(fact.step)
        return news

    def settle(self) -> None:
        """Do what the newest batch left for after its reply."""
        with self._keeping():
            super().settle()

    def fact(self, rank: int, body: bytes) -> RankFailed | None:
        """Log one rank's statement once."""
        with self._keeping():
            return super().fact(rank, body)

    @contextmanager
    def _keeping(self) -> Generator[None]:
        """Keep what is raised that is no answer: on its way to a rank it loses its name."""
        try:
            yield
        except OperationError:
            raise
        except Exception as error:  # rim: the run reports it as a finding
            self.broken = self.broken or error
            raise


def attach_client(
    program: Program,
    built: StressStage,
    *,
    index: int,
    transport: InProcessTransport,
    device: Device,
    deadline_ms: int = DEADLINE_MS,
) -> Client:
    """Attach one rank of a program to its daemon."""
    return attach(
        "ipc:///nowhere",
        group=GROUP,
        rank=index,
        tp=program.ranks_count,
        mode=mode_of(leader=program.leader, index=index),
        declare=built.layers,
        sizing=built.sizing,
        deadline_ms=deadline_ms,
        transport=transport,
        device=device,
        overlap=program.overlap,
    )


class StressRanks:
    """All ranks of one incarnation."""

    def __init__(
        self,
        program: Program,
        built: StressStage,
        *,
        memories: RankMemories,
        number: IncarnationNumber,
        legacy: Legacy | None,
        redo: Sequence[bytes],
        attach_rank: AttachRank,
        plan_forward: PlanForward,
    ) -> None:
        """Attach every rank; the memories stay the caller's."""
        self.daemon = InProcessDaemon(
            built.storage,
            ranks=program.ranks_count,
            level=CheckLevel.WARN,
            idle_moves_max=IDLE_MOVES_MAX,
            batch_moves_max=built.batch_moves_max,
            number=number,
            legacy=legacy,
            redo=redo,
            decides=WatchedIncarnation,
        )
        incarnation = self.daemon.incarnation
        assert isinstance(incarnation, WatchedIncarnation)
        self.incarnation = incarnation
        self._memories = memories
        self.hands: list[Hand[PlayedRank[Any]]] = []
        for index in range(program.ranks_count):
            rank = attach_rank(index, InProcessTransport(self.daemon, memories, rank=index))
            follows = program.leader and index > 0
            self.hands.append(Hand(rank, follows=follows, plan_forward=plan_forward))

    @property
    def ranks(self) -> list[PlayedRank[Any]]:
        """Return all ranks."""
        return [hand.rank for hand in self.hands]

    def die(self, killed: Sequence[int]) -> tuple[Legacy, list[bytes]]:
        """Let ranks die where they are and the others leave; return what is left.

        That is the legacy, and for every rank what its memory lacks of the log; nothing where
        nothing survives.
        """
        for index in killed:
            self.hands[index].rank.kill()
        for index, hand in enumerate(self.hands):
            if index not in killed:
                hand.leave()
        incarnation = self.incarnation
        incarnation.watcher = None
        positions = self.progress_positions()
        for index, position in enumerate(positions):
            incarnation.note_confirmed(index, position)
        incarnation.end("a rank died")
        legacy = incarnation.legacy()
        if legacy.engine is None or not all(legacy.reaches(position) for position in positions):
            return legacy.without_survivors(), []
        return legacy, [legacy.redo(position) for position in positions]

    def progress_positions(self) -> list[int]:
        """Return the positions of all ranks' progress words, as their memory shows them."""
        return [self._progress(index) for index in range(len(self.hands))]

    def _progress(self, index: int) -> int:
        """Return the position of a rank's progress word, as its memory shows it."""
        start = self.daemon.storage.storage.region.progress.offset_bytes
        word = self._memories.content(index, start, start + WORD_BYTES)
        return int.from_bytes(word, sys.byteorder)


def poisoned_memories(total_bytes: int, *, ranks: int) -> RankMemories:
    """Return memory of every rank, full of bytes that nobody wrote."""
    memories = RankMemories(total_bytes, ranks=ranks)
    for rank in range(ranks):
        memories.fill(rank, bytes([POISON]) * total_bytes)
    return memories
