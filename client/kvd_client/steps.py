"""Steps of one rank: launched, recorded, processed, and the launch notices that are due.

A step is launched when its number and position are fixed, before any of its work is enqueued; it is
recorded when its end is enqueued behind that work; it is processed when a batch said so and was
answered. With overlap several steps are in flight, which means launched and not processed; without,
a step is processed before the next one is launched. One launch at a time is open: launched, and
neither recorded nor aborted.

Invariants:
    steps.in_order: `processed <= recorded <= launched`, at most one step is not recorded, and on a
        rank that decides its steps at most `in_flight_max` are not processed
    step.event_fresh: the end of a step is an event of its own, of which no earlier step made use
"""

from typing import Final

import msgspec

from kvd_client.calls import Call
from kvd_client.device.port import Event
from kvd_client.errors import KvdClientError, StepOrderError
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import Launch, Processed, WriteSet
from kvd_proto.outcomes import AnyResult, Done

STEPS_IN_FLIGHT_MAX: Final = 64
"""Steps launched and not processed, as many as the daemon allows: more than a pipeline needs."""


class Writes(msgspec.Struct, frozen=True):
    """What a launch states about the writes of its forward, as the notice says it."""

    kind: WriteSet = WriteSet.UNKNOWN
    requests: bytes = b""


UNKNOWN_WRITES: Final = Writes()


class StepBook:
    """Numbers of launched, recorded and processed steps, and the notices of the next batch."""

    def __init__(self, *, follows: bool, in_flight_max: int = 1) -> None:
        """Start before the first step; with ``follows`` the leader numbers and bounds the steps."""
        self._follows = follows
        self._in_flight_max = in_flight_max
        self._idle = False
        self._reads_done = False
        self._ends: dict[int, Event] = {}
        self.launched = 0
        self.recorded = 0
        self.processed = 0
        self.open_position = 0
        """Position of the open step; of the last one where none is open."""
        self.notices: list[Launch] = []
        """Launches since the last batch that was sent, in order; they head the next one."""

    @property
    def open(self) -> bool:
        """Return whether a step is launched, and neither recorded nor aborted."""
        return self.launched != self.recorded

    def check_closed(self, what: str) -> None:
        """Raise StepOrderError inside an open launch."""
        if self.open:
            raise StepOrderError(
                f"{what} inside the launch of step {self.launched}: leave its block first",
                code=ErrorCode.STEP_IN_FLIGHT,
            )

    def check_readable(self, what: str) -> None:
        """Raise StepOrderError once the open step has declared that its reads are done."""
        if self._reads_done and self.open:
            raise StepOrderError(
                f"ids.resolved_once: {what} asked for after reads_done() of step {self.launched}, "
                "when the allocator may change tables and rows; use what was resolved before"
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
        if self.launched - self.processed >= self._in_flight_max:
            raise StepOrderError(
                f"step {self.launched + 1} cannot be launched before a batch reports "
                f"processed({self.processed + 1}): {self._in_flight_max} in flight is the most"
                + (" without overlap" if self._in_flight_max == 1 else ""),
                code=ErrorCode.STEP_IN_FLIGHT,
            )
        if self._idle:
            raise StepOrderError(
                "launch between idle() and the next batch: the daemon may act on its own until then"
            )
        return self.launched + 1

    def begin(self, step: int, position: int, writes: Writes = UNKNOWN_WRITES) -> None:
        """Take note of a launch, whose notice heads the next batch."""
        self.launched = step
        self.open_position = position
        self._reads_done = False
        if not self._follows:
            self.notices.append(Launch(step, position, writes.kind, writes.requests))

    def declare_reads(self) -> None:
        """Take note that the open step reads tables and rows no more; once for each step."""
        if self._reads_done:
            raise StepOrderError(f"reads_done was declared already for step {self.launched}")
        self._reads_done = True

    def record(self, end: Event | None) -> None:
        """Take note that the open step is over for its launch, and of the event at its end.

        There is no event where it could not be recorded, and then the session is poisoned. Raises
        KvdClientError for an event that stands for another step: a wait for it ends too early.
        """
        self.recorded = self.launched
        for step, other in self._ends.items():
            if other is end:
                raise KvdClientError(
                    f"step.event_fresh: step {self.launched} ends with the event of step {step}",
                    code=ErrorCode.INVARIANT,
                )
        if end is not None and not self._follows:
            # A follower reports nothing as processed, so nobody will ask.
            self._ends[self.launched] = end

    def end_of(self, step: int) -> Event | None:
        """Return the event to wait for before a recorded step is over; None if it is over."""
        end = self._ends.get(step)
        return None if end is None or end.reached else end

    def check_processed(self, step: int, *, ahead: int) -> None:
        """Raise StepOrderError unless ``step`` is next, ``ahead`` notices being in the batch."""
        expected = self.processed + ahead + 1
        if step != expected or step > self.launched:
            last = f"the last launched is {self.launched}, the last processed {self.processed}"
            raise StepOrderError(f"processed({step}): step {expected} is next; {last}")
        if step > self.recorded:
            raise StepOrderError(f"processed({step}) inside the launch of step {step}")

    def note(self, call: Call, result: AnyResult) -> None:
        """Take in one answered notice."""
        if isinstance(call.operation, Processed) and isinstance(result, Done):
            self.processed = call.operation.step
            self._ends.pop(self.processed, None)

    def note_batch(self, *, idles: bool) -> None:
        """Take in that a batch was answered: its notices are in the log.

        A launch waits for a batch that is under way, so none was added since it was sent.
        """
        self.notices.clear()
        self._idle = idles

    def check(self) -> None:
        """Raise KvdClientError naming the first invariant that does not hold."""
        in_order = self.recorded <= self.launched and (
            self._follows
            or (
                self.processed <= self.recorded
                and self.launched - self.recorded <= 1
                and self.launched - self.processed <= self._in_flight_max
            )
        )
        if not in_order:
            raise KvdClientError(
                f"steps.in_order: step {self.launched} is launched, {self.recorded} recorded, "
                f"{self.processed} processed"
            )
