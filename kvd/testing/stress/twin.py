"""A second engine that decides the same operations again, and has to decide alike.

It stands where the first one stood when an incarnation began. What was turned down it is not asked,
so that a trace which a refusal left behind shows in what comes later; and on a seeded share of the
operations its own checks are strict. When a batch's rest is settled differs between the two.
"""

from copy import deepcopy
from random import Random

from kvd.alloc.checks import CheckLevel
from kvd.engine.stage import StageEngine
from kvd.errors import StressFailure
from kvd.testing.stress.failure import CheckName
from kvd_proto.codec import encode
from kvd_proto.operations import Admit, Operation, Released
from kvd_proto.outcomes import Outcome, Pump, Refusal, Skipped

STRICT_PERMILLE = 50
"""Share of the operations on which kvd's own strict checks are made."""
PERMILLE = 1000


class Twin:
    """An engine beside another one."""

    def __init__(self, engine: StageEngine, *, seed: int) -> None:
        """Stand beside an engine; ``seed`` draws where checks are strict."""
        self.engine = deepcopy(engine)
        self.strict_count = 0
        """Operations on which checks were strict."""
        self._random = Random(seed)

    def after(
        self,
        program: int,
        operation: Operation,
        outcome: Outcome,
        encoded: bytes,
        *,
        position: int,
    ) -> None:
        """Decide an operation that was decided, ``encoded`` being its outcome.

        It stands at a position of the log.

        Raises StressFailure if this engine decides otherwise, and InvariantError.
        """
        if isinstance(outcome.result, Refusal | Pump | Skipped) and not isinstance(
            operation, Admit
        ):
            return
        strict = self._random.randrange(PERMILLE) < STRICT_PERMILLE
        self.strict_count += strict
        self.engine.monitor.level = CheckLevel.STRICT if strict else CheckLevel.WARN
        again = self.engine.decide(program, operation)
        self.engine.steps.clearings.place(position)
        self._compare(type(operation).__name__, outcome, encoded, again)

    def released(self, entry: Released, outcome: Outcome, encoded: bytes) -> None:
        """Take in what is over."""
        self._compare("Released", outcome, encoded, self.engine.release(entry))

    def aborted(self, step: int) -> None:
        """Take in that a rank left a launch."""
        self.engine.abort_step(step)

    def _compare(self, what: str, outcome: Outcome, encoded: bytes, again: Outcome) -> None:
        if encode(again) != encoded:
            raise StressFailure(
                CheckName.DIVERGENCE,
                f"{what} was decided as {outcome}; the same operations again, but for what was "
                f"turned down, give {again}",
            )
