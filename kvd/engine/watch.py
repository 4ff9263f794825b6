"""What is checked around the decisions of an incarnation: behind its batches, and while idle.

An engine checks its own books; here stands what needs the log, the ranks and their words as well,
and when the rest is looked at. Nothing of it changes a decision: an incarnation without checks
gives the same outcomes.

Invariants:
    rank.positions_ordered: effects have run, and are applied, only up to what a rank was given, and
        nobody was given more than the log has;
    chain.refuse_is_pure: an operation that was refused, skipped or wrong leaves the digest of what
        decisions are made of as it was.
"""

from kvd.alloc.checks import CheckLevel
from kvd.engine.endings import Endings
from kvd.engine.idle import check_idle, is_idle
from kvd.engine.log import StageLog
from kvd.engine.snap import state_digest
from kvd.engine.stage import StageEngine
from kvd.errors import OperationError
from kvd_proto.operations import Operation
from kvd_proto.outcomes import Outcome, Pump, Refusal, Skipped


class Watch:
    """The checks of one incarnation."""

    def __init__(
        self,
        engine: StageEngine,
        log: StageLog,
        endings: Endings,
        *,
        applied: dict[int, int],
        given: dict[int, int],
        confirmed: dict[int, int],
    ) -> None:
        """Watch an engine; the dictionaries say per rank up to where it got, as they go on."""
        self._engine = engine
        self._monitor = engine.monitor
        self._log = log
        self._endings = endings
        self._applied = applied
        self._given = given
        self._confirmed = confirmed
        self._idle_due = False
        self._idle_state: tuple[int, ...] = ()
        self.idle_count = 0
        """How often the stage was found idle and checked."""

    def decide(self, program: int, operation: Operation) -> Outcome:
        """Decide as the engine does, in strict mode; what it turns down may change nothing."""
        self._engine.settle()
        before = state_digest(self._engine)
        try:
            outcome = self._engine.decide(program, operation)
        except OperationError:
            self._check_pure(before, operation, "was wrong")
            raise
        if isinstance(outcome.result, (Refusal, Pump, Skipped)):
            self._check_pure(before, operation, "was refused")
        return outcome

    def note_idle(self) -> None:
        """Take in that no program launches anything before its next batch."""
        self._idle_due = True

    def settle(self) -> None:
        """Check what is due behind a batch that is settled."""
        if self._monitor.level is CheckLevel.STRICT:
            self.check()
        if self._idle_due:
            self._idle_due = False
            self.check_idle()

    def check_idle(self) -> None:
        """Check a stage that is idle, from its maps; one that is not, or was just checked, passes.

        Linear in the ids, units and kept log entries of the stage.
        """
        engine = self._engine
        is_on = self._monitor.level >= CheckLevel.WARN
        if not is_on or self._endings.is_due or not is_idle(engine):
            return
        names = engine.requests.names
        state = (engine.chain.epoch_count, names.epoch_count, names.waiting_count)
        if state == self._idle_state:
            return
        self._idle_state = state
        self.idle_count += 1
        check_idle(engine)
        self._log.check(self._monitor)
        self.check()

    def check(self) -> None:
        """Check ranks' positions and words: rank.positions_ordered, ending.due_complete."""
        end_position = self._log.end_position
        for rank, given in self._given.items():
            applied, confirmed = self._applied[rank], self._confirmed.get(rank, 0)
            if not (0 <= applied <= given <= end_position and 0 <= confirmed <= given):
                self._monitor.fail(
                    "rank.positions_ordered",
                    f"rank {rank} was given entries up to {given} of {end_position}, has applied "
                    f"{applied} and run {confirmed}",
                )
        self._endings.check(self._monitor)

    def _check_pure(self, before: int, operation: Operation, how: str) -> None:
        if state_digest(self._engine) != before:
            self._monitor.fail(
                "chain.refuse_is_pure", f"{type(operation).__name__} {how} and changed the books"
            )
