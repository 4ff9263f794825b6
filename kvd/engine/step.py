"""The order of forwards: launched, then processed, one at a time in this build.

Overlap comes with the page lifecycle; until then a step is processed before anything is taken,
freed or moved, which is what lets freed units be reused at once.

Invariants:
    step.order: steps are launched and processed in order, each once.
"""

from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode


class StepOrder:
    """Newest launched and newest processed step of a stage."""

    def __init__(self) -> None:
        self.launched_count = 0
        self.processed_count = 0
        self.aborted_count = 0
        self._position = 0

    @property
    def in_flight(self) -> bool:
        """Return whether a launched step is not processed."""
        return self.launched_count != self.processed_count

    def require_none_in_flight(self, what: str) -> None:
        """Raise OperationError while a launched step is not processed."""
        if self.in_flight:
            raise OperationError(
                f"{what} has to wait: step {self.launched_count} is launched and not processed",
                code=ErrorCode.STEP_IN_FLIGHT,
            )

    def launch(self, step: int, position: int) -> None:
        """Record that a step was launched behind the effects up to ``position``."""
        if step != self.launched_count + 1:
            raise OperationError(
                f"step.order: step {step} launched, the next step is {self.launched_count + 1}",
                code=ErrorCode.STEP_ORDER,
            )
        self.require_none_in_flight(f"launch of step {step}")
        if position < self._position:
            raise OperationError(
                f"step.order: step {step} launched behind position {position}, the step before "
                f"it behind {self._position}",
                code=ErrorCode.STEP_ORDER,
            )
        self.launched_count = step
        self._position = position

    def process(self, step: int) -> None:
        """Record that the launched step is over and its result was handled."""
        if step != self.processed_count + 1 or step > self.launched_count:
            expected = (
                f"step {self.launched_count} is in flight"
                if self.launched_count != self.processed_count
                else f"no step is in flight, the newest was {self.launched_count}"
            )
            raise OperationError(
                f"step.order: step {step} processed, but {expected}", code=ErrorCode.STEP_ORDER
            )
        self.processed_count = step

    def abort(self, step: int) -> None:
        """Record one rank's word that it left a launch by an exception."""
        if not 1 <= step <= self.launched_count + 1:
            raise OperationError(
                f"step.order: step {step} aborted, the newest step is {self.launched_count}",
                code=ErrorCode.STEP_ORDER,
            )
        self.aborted_count += 1
