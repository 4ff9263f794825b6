"""Steps of one rank: which forward is launched, which is over, and the notices that are due.

Without overlap a step is processed before the next one is launched, so at most one is in flight.

Invariants:
    steps.in_order: `processed <= launched <= processed + 1`, on a rank that decides its steps
"""

from kvd_client.calls import Call
from kvd_client.device.port import Event
from kvd_client.errors import KvdClientError, StepOrderError
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import Launch, Processed
from kvd_proto.outcomes import AnyResult, Done


class StepBook:
    """Numbers of launched and processed steps, and the launch notices of the next batch."""

    def __init__(self, *, follows: bool) -> None:
        """Start before the first step; with ``follows`` the leader numbers the steps."""
        self._follows = follows
        self._idle = False
        self.open = False
        self.launched = 0
        self.processed = 0
        self.notices: list[Launch] = []
        self._end: Event | None = None

    def check_closed(self, what: str) -> None:
        """Raise StepOrderError inside an open launch."""
        if self.open:
            raise StepOrderError(
                f"{what} inside the launch of step {self.launched}: leave its block first",
                code=ErrorCode.STEP_IN_FLIGHT,
            )

    def check_launch(self, step: int | None) -> int:
        """Return the number of the step to launch; raises StepOrderError if none may be."""
        self.check_closed("launch")
        if self._follows:
            if step is None or step <= self.launched:
                raise StepOrderError(
                    f"a follower launches the leader's steps: launch(step={step}) after "
                    f"step {self.launched}"
                )
            return step
        if step is not None and step != self.launched + 1:
            raise StepOrderError(f"launch(step={step}): step {self.launched + 1} is next")
        if self.launched != self.processed:
            raise StepOrderError(
                f"step {self.launched + 1} cannot be launched before a batch reports "
                f"processed({self.launched})",
                code=ErrorCode.STEP_IN_FLIGHT,
            )
        if self._idle:
            raise StepOrderError(
                "launch between idle() and the next batch: the daemon may act on its own until then"
            )
        return self.launched + 1

    def begin(self, step: int, position: int) -> None:
        """Take note of a launch, whose notice heads the next batch."""
        self.launched = step
        self._end = None
        if not self._follows:
            self.notices.append(Launch(step, position))
        self.open = True

    def note_end(self, end: Event) -> None:
        """Take note of the event behind the work of the step that was launched last."""
        self._end = end

    @property
    def unfinished(self) -> Event | None:
        """Return the event to wait for before the last step is over; None if it is over."""
        end = self._end
        return None if end is None or end.reached else end

    def check_processed(self, step: int, *, ahead: int) -> None:
        """Raise StepOrderError unless ``step`` is next, ``ahead`` notices being in the batch."""
        expected = self.processed + ahead + 1
        if step != expected or step > self.launched:
            last = f"the last launched is {self.launched}, the last processed {self.processed}"
            raise StepOrderError(f"processed({step}): step {expected} is next; {last}")

    def note(self, call: Call, result: AnyResult) -> None:
        """Take in one answered notice."""
        if isinstance(call.operation, Processed) and isinstance(result, Done):
            self.processed = call.operation.step

    def note_batch(self, *, idles: bool) -> None:
        """Take in that a batch was answered: its notices are in the log."""
        self.notices.clear()
        self._idle = idles

    def check(self) -> None:
        """Raise KvdClientError naming the first invariant that does not hold."""
        if not self._follows and not self.processed <= self.launched <= self.processed + 1:
            raise KvdClientError(
                f"steps.in_order: step {self.launched} is launched, {self.processed} processed"
            )
