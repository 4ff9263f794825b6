"""kvd itself as an adapter: the engine of a stage, without sockets, ranks or memory."""

from collections.abc import Sequence

from kvd.engine.incarnation import Incarnation
from kvd.engine.log import LogRecord
from kvd.engine.snap import StageSnap, take_snap
from kvd.engine.start import IncarnationStart
from kvd.errors import FileError
from kvd.trace.adapter import Asked, BatchEvent, Decision, Event, FactEvent
from kvd.trace.forms import encoded_form
from kvd.trace.head import validate_start
from kvd.trace.records import Head, records_of, source_of
from kvd_proto.codec import join_batch


def incarnation_of(start: IncarnationStart, *, ring_entries_max: int = 0) -> Incarnation:
    """Return the incarnation that begins here."""
    return Incarnation(
        start.shape,
        number=start.incarnation,
        ranks=start.ranks,
        level=start.level,
        ring_entries_max=ring_entries_max,
        lag_entries_max=1,
        idle_moves_max=start.idle_moves_max,
        batch_moves_max=start.batch_moves_max,
        legacy=start.legacy(),
    )


class StageAdapter:
    """Decides with the engine of this build."""

    def __init__(self, name: str = "kvd", *, ring_entries_max: int = 0) -> None:
        """Remember its name; ``ring_entries_max`` entries stay in the log for somebody to read."""
        self.name = name
        self._ring_entries_max = ring_entries_max
        self._incarnation: Incarnation | None = None
        self._position = 0

    @property
    def incarnation(self) -> Incarnation:
        """Return the incarnation that plays; there is one after `start`."""
        assert self._incarnation is not None
        return self._incarnation

    def start(self, head: Head) -> Sequence[Decision]:
        """Build the stage anew from a head; raises FileError for one that no daemon wrote."""
        validate_start(head.start)
        try:
            self._incarnation = incarnation_of(head.start, ring_entries_max=self._ring_entries_max)
        except MemoryError as error:
            raise FileError("the stage needs more memory than this machine has") from error
        self._position = head.start.position
        return self._decided()

    def feed(self, event: Event) -> Sequence[Decision]:
        """Have the engine decide; raises FileError for what no daemon would have logged."""
        world = self.incarnation
        if isinstance(event, BatchEvent):
            body = join_batch([_encoded(asked) for asked in event.operations])
            rank = world.start.ranks[0]
            index = world.next_index(event.program)
            world.batch(rank=rank, program=event.program, index=index, body=body)
        elif isinstance(event, FactEvent):
            world.fact(event.rank, _encoded(event))
        elif event.at_once:
            world.end(event.cause)
        else:
            world.submit_end(event.cause)
        decided = self._decided()
        # Nobody asks again: what was compared need not be kept.
        for rank in world.start.ranks:
            world.confirm(rank, world.log.end_position)
        world.settle()
        return decided

    def snap(self) -> StageSnap | None:
        """Return where the stage stands."""
        return take_snap(self.incarnation.engine)

    def fits(self, units: tuple[int, ...]) -> bool | None:
        """Ask the one capacity question there is: does some layout hold it beside all promises."""
        return self.incarnation.engine.chain.fits(units)

    def close(self) -> None:
        """Do nothing: there is nothing but memory."""

    def _decided(self) -> list[Decision]:
        """Return what entered the log since the last event."""
        log = self.incarnation.log
        first, self._position = self._position + 1, log.end_position
        logged = log.records(first, log.end_position) if log.end_position >= first else []
        return [decision_of(position, record) for position, record in enumerate(logged, first)]


def decision_of(position: int, logged: LogRecord) -> Decision:
    """Return an entry of the log as what an adapter answers."""
    entered, res = records_of(position, logged)
    return Decision(
        source=source_of(entered),
        type=entered.type,
        answer=res.answer,
        position=position,
        digest=res.digest,
        outcome=res.outcome,
    )


def _encoded(asked: Asked | FactEvent) -> bytes:
    """Return the bytes of an operation or a fact; raises FileError."""
    return encoded_form(asked.type, asked.args, asked.body, name=asked.type)
