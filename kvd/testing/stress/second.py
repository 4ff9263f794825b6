"""A second engine that decides everything again, and has to decide alike.

What an engine decides follows from operations alone: two engines that were told the same, in one
process or in two, never differ. Whatever depends on anything else, such as where an object lies in
memory or what was decided for somebody else, shows at the first operation that it changes.
"""

from kvd.alloc.checks import CheckLevel
from kvd.build import StageStorage
from kvd.engine.stage import StageEngine
from kvd.errors import OperationError
from kvd.testing.stress.failure import CheckName, StressFailure
from kvd_proto.codec import encode
from kvd_proto.operations import Operation, Released
from kvd_proto.outcomes import Outcome


class SecondEngine:
    """Decides again what an incarnation that began empty has decided."""

    def __init__(self, storage: StageStorage, *, idle_moves_max: int, batch_moves_max: int) -> None:
        self._engine = StageEngine(
            storage,
            level=CheckLevel.OFF,
            idle_moves_max=idle_moves_max,
            batch_moves_max=batch_moves_max,
        )

    def decide(self, program: int, operation: Operation, outcome: Outcome) -> None:
        """Decide an operation again; raises StressFailure unless the outcome is the same."""
        name = type(operation).__name__
        try:
            again = self._engine.decide(program, operation)
        except OperationError as error:
            raise _differs(name, f"called wrong use: {error.message}") from None
        if again != outcome and encode(again) != encode(outcome):
            raise _differs(name, f"{again.result}, {again.segments} instead of {outcome.result}")

    def refuse(self, program: int, operation: Operation, error: OperationError) -> None:
        """Decide again what was wrong use; raises StressFailure unless it is so again."""
        name = type(operation).__name__
        try:
            self._engine.decide(program, operation)
        except OperationError as again:
            if again.message != error.message:
                raise _differs(name, f"called wrong use otherwise: {again.message}") from None
            return
        raise _differs(name, "served")

    def release(self, entry: Released, outcome: Outcome) -> None:
        """Take in what is over; raises StressFailure unless the outcome is the same."""
        if encode(self._engine.release(entry)) != encode(outcome):
            raise _differs("Released", "taken in otherwise")

    def abort(self, step: int) -> None:
        """Take in one rank's word that it left a launch."""
        self._engine.abort_step(step)


def _differs(name: str, how: str) -> StressFailure:
    return StressFailure(CheckName.DIVERGENCE, f"decided again, {name} is {how:.300}")
