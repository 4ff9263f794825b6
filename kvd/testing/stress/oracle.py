"""The reference allocator: told every operation and its outcome, it says what must hold.

It keeps books of its own, from operations and outcomes alone, in plain sets and dictionaries: units
(`unit_model`), accesses (`open_accesses`), requests and values (`request_books`), copies and
transfers (`use_books`). What kvd is free to choose, which free unit it takes and what it moves, is
taken over after asking whether it may. Then everything kvd has is compared (`comparison`), and on a
seeded share of the operations its answers are found again by trying every layout (`answers`).

Checks:
    stress.answers: a yes is a take that succeeds, a no means that no layout exists;
    stress.outcome: an outcome's columns and effects say what the operation did, and nothing else;
    stress.clearance: no unit is written, read or told a peer without the waits of table 8.3;
    stress.pinned: units that a load or a peer knows by their place do not move;
    stress.pure: what was turned down left no trace;
    those of `kvd.testing.stress.comparison`.
"""

from kvd.engine.stage import StageEngine
from kvd.errors import OperationError
from kvd.testing.stress.answers import Answers
from kvd.testing.stress.broken import require
from kvd.testing.stress.comparison import Comparison
from kvd.testing.stress.judge import Judge
from kvd.testing.stress.purity import State, require_same, state_of
from kvd.testing.stress.request_books import RequestBooks
from kvd.testing.stress.request_operations import RequestOperations
from kvd.testing.stress.told import told_by
from kvd.testing.stress.unit_model import UnitModel
from kvd.testing.stress.use_books import UseBooks
from kvd.testing.stress.use_operations import UseOperations
from kvd_proto.operations import LoadReserve, Operation, Publish, Released, Relief, Take
from kvd_proto.outcomes import AdmitResult, Outcome, Pump, Refusal, Skipped, Verdict

REFUSED = (Take, Relief, LoadReserve, Publish)
"""Operations that may be refused: those always show that nothing changed, others at their turn."""


class Oracle:
    """The reference beside one engine, from its start on."""

    def __init__(
        self,
        engine: StageEngine,
        *,
        seed: int = 0,
        share_permille: int = 1000,
        before: "Oracle | None" = None,
    ) -> None:
        """Stand beside an engine that has decided nothing yet.

        ``share_permille`` of the operations have their answers found by trying every layout; which
        ones, ``seed`` decides. ``before`` stood beside the engine whose values this one took over.
        """
        self.engine = engine
        table, chain = engine.requests, engine.chain
        self.units = UnitModel(chain.geometry)
        self.books = RequestBooks(
            self.units,
            table.shape,
            chunk_tokens=table.chunk_tokens,
            row_count=table.rows.request_id.size,
        )
        self.uses = UseBooks(self.books)
        id_counts = [
            None if band.free_ids is None else band.physical_map().size - 1 for band in chain.bands
        ]
        self.answers = Answers(self.units, self.books, id_counts)
        self.comparison = Comparison(engine, self.books, self.uses, self.answers)
        self.judge = Judge(
            chain, self.books, self.answers, seed=seed, share_permille=share_permille
        )
        self._served = {
            **RequestOperations(self.judge).operations(),
            **UseOperations(engine, self.judge, self.uses).operations(),
        }
        self._state: State | None = None
        if before is not None:
            self.books.adopt(before.books, list(engine.requests.values.of_number))
        self.comparison.check()

    @property
    def judged_count(self) -> int:
        """Return how many operations had their answers found again."""
        return self.judge.judged_count

    # ---- what happened --------------------------------------------------------------------------

    def before(self, operation: Operation, *, daring: bool = False) -> None:
        """Look at the engine as it is about to decide an operation; a daring one may be wrong."""
        self.judge.draw()
        watched = daring or self.judge.judges or isinstance(operation, REFUSED)
        self._state = state_of(self.engine) if watched else None

    def after(self, program: int, operation: Operation, outcome: Outcome, position: int) -> None:
        """Take in an operation that was decided, and where in the log it stands.

        Raises StressFailure, naming the check.
        """
        result = outcome.result
        self.books.position = position
        if isinstance(result, Skipped):
            self._skipped(operation, outcome, result)
        elif isinstance(result, Refusal | Pump):
            require(not outcome.segments, "outcome", f"a {type(result).__name__} has effects")
            self._refused(program, operation, result)
            self._require_pure(operation, "turned down")
        else:
            self._served[type(operation)](program, operation, result, told_by(outcome))
            if isinstance(result, AdmitResult) and not self._gave(outcome, result):
                self._require_pure(operation, "refused to all", asked=True)
        self._compare()

    def wrong(self, operation: Operation, error: OperationError) -> None:
        """Take in that an operation was called wrong use: nothing may have changed."""
        self._require_pure(operation, f"called wrong ({error.message})")
        self._compare()

    def released(self, entry: Released) -> None:
        """Take in what the last rank has said is over."""
        self.uses.release(entry)
        self._compare()

    def aborted(self, step: int) -> None:
        """Take in one rank's word that it left a launch."""
        self.units.accesses.abort(step)
        self._compare()

    # ---- inside ---------------------------------------------------------------------------------

    def _compare(self) -> None:
        self.comparison.check()
        self.judge.after()

    def _require_pure(self, operation: Operation, what: str, *, asked: bool = False) -> None:
        if self._state is not None:
            label = f"{type(operation).__name__}, {what},"
            require_same(self._state, self.engine, label, asked=asked)

    def _skipped(self, operation: Operation, outcome: Outcome, result: Skipped) -> None:
        require(
            result.request in self.books.refused_now,
            "answers",
            f"{type(operation).__name__} was skipped for request {result.request}, which was not "
            f"refused in this batch; refused were {sorted(self.books.refused_now)}",
        )
        require(not outcome.segments, "outcome", "what was skipped has effects")
        self._require_pure(operation, "skipped")

    def _gave(self, outcome: Outcome, result: AdmitResult) -> bool:
        """Return whether an admission gave anything to anybody, or ended somebody."""
        told = told_by(outcome)
        return Verdict.FITS in told.column(result.verdicts) or bool(told.column(result.retracted))

    def _refused(self, program: int, operation: Operation, result: Refusal | Pump) -> None:
        if isinstance(operation, Publish):
            others = self.uses.in_the_way(operation.transfer)
            told = result.transfers if isinstance(result, Pump) else None
            require(
                others == told,
                "answers",
                f"transfer {operation.transfer} waits for {told}, in its way are {others}",
            )
            return
        if isinstance(result, Pump):
            require(
                result.transfers == self.uses.awaited,
                "answers",
                f"transfers {result.transfers} are said to be in the way, open are "
                f"{self.uses.awaited}",
            )
        answer = "pump" if isinstance(result, Pump) else "refusal"
        judge = self.judge
        if isinstance(operation, Take):
            if judge.judges:
                taking = judge.grows(program, operation)
                victims = judge.victims(program, operation.victims)
                judge.verdict(self.answers.take(judge.snapshot(), taking, victims), answer)
        elif isinstance(operation, Relief):
            judge.room(operation.demand_units, answer)
        else:
            assert isinstance(operation, LoadReserve)
            judge.room(operation.units, answer)
