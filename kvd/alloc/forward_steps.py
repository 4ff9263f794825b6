"""The forwards of a stage: launched, processed and retired, which are three different things.

A step is *launched* when the books learn of it: whatever is freed from then on may still be
touched by it. It is *processed* when its result was handled, and *retired* when nothing that the
allocator's stream does from now on can meet it any more: because it was processed, or because
every rank's allocator stream was told to wait for its end. A step that retired by such a wait is
still in flight: what is freed later may be read by it on other streams, so it pends all the same.

A fourth state, recorded, is local to each rank: it queues what lies behind a step's launch until
the step's end is recorded, so that a wait for any launched step finds something to wait for.

Invariants:
    step.order: steps are launched and processed in order, each once;
    step.counters_ordered: 0 <= processed <= retired <= launched, at most `STEPS_IN_FLIGHT_MAX` are
        in flight, and the newest of those is what freed units pend under.
"""

from collections import deque

from kvd.alloc.checks import CheckMonitor
from kvd.alloc.clearings import SlotClearings
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode

STEPS_IN_FLIGHT_MAX = 64
"""Steps launched and not processed; more than any pipeline has micro-batches."""


class ForwardSteps:
    """Counters of a stage's steps; a step's number counts from 1."""

    def __init__(self) -> None:
        self.launched_count = 0
        self.processed_count = 0
        self.retired_count = 0
        self.aborted_count = 0
        self.pending_key = 0
        """Newest step in flight, under which whatever is freed now pends; 0 if there is none."""
        self.clearings = SlotClearings()
        self._position = 0
        self._aborted: deque[int] = deque(maxlen=STEPS_IN_FLIGHT_MAX)

    @property
    def in_flight_count(self) -> int:
        """Return how many launched steps are not processed."""
        return self.launched_count - self.processed_count

    @property
    def unretired(self) -> bool:
        """Return whether the allocator's stream may still meet a step."""
        return self.retired_count != self.launched_count

    def check_launch(self, step: int, position: int) -> None:
        """Raise OperationError unless this step can be launched behind this position."""
        if step != self.launched_count + 1:
            raise OperationError(
                f"step.order: step {step} launched, the next step is {self.launched_count + 1}",
                code=ErrorCode.STEP_ORDER,
            )
        if self.in_flight_count >= STEPS_IN_FLIGHT_MAX:
            raise OperationError(
                f"step {step} launched, but {self.in_flight_count} steps are in flight, which is "
                f"the most there may be; step {self.processed_count + 1} has to be processed",
                code=ErrorCode.STEP_IN_FLIGHT,
            )
        if position < self._position:
            raise OperationError(
                f"step.order: step {step} launched behind position {position}, the step before "
                f"it behind {self._position}",
                code=ErrorCode.STEP_ORDER,
            )

    def launch(self, step: int, position: int) -> None:
        """Record that a step was launched behind the effects up to ``position``.

        Raises OperationError, with nothing changed, for a step that is not next.
        """
        self.check_launch(step, position)
        self.launched_count = self.pending_key = step
        self._position = position
        self.clearings.launch(step, position)

    def process(self, step: int) -> None:
        """Record that a launched step is over and its result was handled.

        Raises OperationError, with nothing changed, for a step that is not the oldest in flight.
        """
        if step != self.processed_count + 1 or step > self.launched_count:
            expected = (
                f"step {self.processed_count + 1} is the oldest in flight"
                if self.in_flight_count
                else f"no step is in flight, the newest was {self.launched_count}"
            )
            raise OperationError(
                f"step.order: step {step} processed, but {expected}", code=ErrorCode.STEP_ORDER
            )
        self.processed_count = step
        self.retired_count = max(self.retired_count, step)
        if step == self.launched_count:
            self.pending_key = 0

    def retire_through(self, step: int) -> None:
        """Record that the allocator's stream waits for a step, and so for all before it."""
        assert step <= self.launched_count
        self.retired_count = max(self.retired_count, step)

    def abort(self, step: int) -> None:
        """Record one rank's word that it left a launch by an exception.

        The word may come before the notice of the launch, and each rank has its own.
        """
        if not 1 <= step <= self.launched_count + STEPS_IN_FLIGHT_MAX:
            raise OperationError(
                f"step.order: step {step} aborted, the newest step is {self.launched_count}",
                code=ErrorCode.STEP_ORDER,
            )
        self.aborted_count += 1
        self._aborted.append(step)

    def was_aborted(self, step: int) -> bool:
        """Return whether a rank left this step's launch by an exception; for steps in flight."""
        return step in self._aborted

    def check(self, monitor: CheckMonitor) -> None:
        """Check the counters: step.counters_ordered."""
        in_order = 0 <= self.processed_count <= self.retired_count <= self.launched_count
        newest = self.launched_count if self.in_flight_count else 0
        if not in_order or self.in_flight_count > STEPS_IN_FLIGHT_MAX or self.pending_key != newest:
            monitor.fail(
                "step.counters_ordered",
                f"{self.launched_count} steps are launched, {self.retired_count} retired and "
                f"{self.processed_count} processed; freed units pend under {self.pending_key}",
            )
