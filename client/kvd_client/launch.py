"""A launch: the bracket around one forward, ordered with the allocator's work by streams.

A launch fixes the step's number and its position p, which is what is applied then. The forward runs
behind the effects up to p. Until the step is recorded, nothing behind p is applied, neither to the
host's tables nor to the stream (`kvd_client.cursor`), so whatever is asked inside the block is true
as of p. From `Step.reads_done` on, or from the step's end where that is not called, the tables on
the device may change under the forward: ask for everything before.

The block may be entered, used and left by one thread while another sends batches: those are decided
and answered, and applied when the block ends. A launch waits for a batch that is under way, and so
for the step that this one reports as processed. Inside the block ask for tables in its thread;
outside of launches only in the thread that sends batches, because they change as a batch is
applied. Two launches are never open at a time. On mirrored ranks launches and batches have to come
in the same order on every rank, whatever threads they come from.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvd_client.arrays import id_array
from kvd_client.calls import Ids, StandingSet
from kvd_client.device.fences import Lane, LaneNumber
from kvd_client.device.port import Event, LaneWriter, Stream
from kvd_client.errors import StepOrderError, UsageError
from kvd_client.flow import Flow
from kvd_client.guards import Enqueuing
from kvd_client.results import Int64s, Ragged, StampedArray
from kvd_client.session import Session
from kvd_client.steps import UNKNOWN_WRITES, Writes
from kvd_proto.control import Mode
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import StepAborted, WriteSet

Table = Ragged | NDArray[np.signedinteger]
"""What `write_slots`, `page_table`, `virtual_pages`, `block_table` and `state_slots` return."""


class Step:
    """One forward between its launch and the end of what it enqueues.

    The forward stream runs behind the effects up to ``position``, and no effect of a later position
    is enqueued before the step's end is recorded.
    """

    def __init__(
        self, session: Session, *, number: int, allocator: Stream, forward: Stream, lane: Lane
    ) -> None:
        self._session = session
        self._allocator = allocator
        self._forward = forward
        self._lane = lane
        self._lane_number = LaneNumber(0)
        self._reads_end: Event | None = None
        self._slots: dict[bytes, Int64s] = {}
        self._open = False
        self.number = number
        self.position = session.applied

    @property
    def stream(self) -> Stream:
        """Return the stream that this forward runs on."""
        return self._forward

    @property
    def is_open(self) -> bool:
        """Return whether the step is launched and not recorded."""
        return self._open

    def submit(self, work: Callable[[], None]) -> None:
        """Run host-side work in the forward stream's order; raises StepOrderError after the end."""
        self._check_open("submit")
        self._forward.submit(work)

    def state_slots(self, ids: Ids) -> Int64s:
        """Return the physical state slot of each request as this step's launch found it.

        They are resolved once: the same ids give the same array, also after `reads_done` and after
        the step's end, when a row may belong to another request. So a late phase of the forward
        that writes states asks here. Raises StepOrderError for ids that were not resolved in time,
        and otherwise what `Client.state_slots` does.
        """
        key = b"standing" if isinstance(ids, StandingSet) else id_array(ids).tobytes()
        slots = self._slots.get(key)
        if slots is None:
            self._check_open("state_slots")
            session = self._session
            session.check_usable()
            session.steps.check_readable("state_slots")
            slots = self._slots[key] = session.mirror.state_slots(session.book.rows(ids))
            slots.flags.writeable = False
        return slots

    def reads_done(self) -> None:
        """Declare that tables and rows are read: what follows uses ids that were resolved before.

        With overlap the allocator may change them from here on in the stream's order, instead of
        from the step's end. Where a step does not declare it, its whole end counts. Raises
        StepOrderError if it was declared already.
        """
        self._check_open("reads_done")
        self._session.steps.declare_reads()
        if self._session.overlaps:
            self._reads_end = self._forward.record()

    def begin(self, writes: Writes = UNKNOWN_WRITES, tables: Sequence[Table] = ()) -> None:
        """Order the forward behind the effects, clear what it needs cleared, and count it.

        What is cleared lies ahead of the step's own work and so before the end of its reads: no
        later effect can move a slot that is still to be cleared.
        """
        session = self._session
        with session.order:
            self.position = session.applied
            if tables:
                check_tables(session, tables)
            with Enqueuing(session, f"step {self.number} cannot be launched"):
                if isinstance(self._forward, LaneWriter):
                    # Before its work: whoever looks at a dead rank must not find less begun.
                    self._lane_number = self._lane.begin()
                self._order_forward()
                session.applier.enqueue_launch_work(self._forward)
                # Still guarded: what was enqueued must not be left without a step that ends it.
                session.steps.begin(self.number, self.position, writes)
                session.cursor.note_launch(self.number)
                self._open = True

    def end(self, *, aborted: bool = False) -> None:
        """Record the step where it stands; later effects run behind it.

        Of a step that was left by an exception nothing is known, whatever it declared: the
        allocator waits for its whole end. With that this rank is safe; what the step may have
        written on the others' behalf, the fact tells the daemon.
        """
        session = self._session
        with session.order:
            self._open = False
            end: Event | None = None
            try:
                with Enqueuing(session, f"the end of step {self.number} cannot be recorded"):
                    end = self._forward.record()
                    if self._lane_number and isinstance(self._forward, LaneWriter):
                        self._forward.write_done(self._lane, self._lane_number)
                        self._lane.mark_submitted(self._lane_number)
                    self._order_allocator(end, None if aborted else self._reads_end)
                    session.last_forward = self._forward, end
            finally:
                session.steps.record(end)
            session.drain()

    def aborted(self) -> StepAborted:
        """Return the fact that this step was left by an exception."""
        return StepAborted(self.number)

    def _order_forward(self) -> None:
        """Have the forward run behind the effects up to the position, and behind earlier steps.

        Steps run in the order of their numbers, whatever streams they are given: a page that one
        step leaves to the next is written by that one without a wait of the allocator.
        """
        session, forward = self._session, self._forward
        last = session.last_forward
        if last is not None and last[0] is not forward and not last[1].reached:
            forward.wait(last[1])
        if forward is self._allocator:
            return
        effects = session.applier.position_event
        if effects is None:
            forward.wait(self._allocator.record())
        elif not effects.reached:
            forward.wait(effects)

    def _order_allocator(self, end: Event, reads_end: Event | None) -> None:
        """Have later effects run behind the end of the step's reads, or behind the whole step."""
        applier = self._session.applier
        if self._session.overlaps:
            applier.note_step(self.number, end, barrier=reads_end or end)
            return
        if self._forward is not self._allocator:
            self._allocator.wait(end)
        applier.note_ordered_step(self.number)

    def _check_open(self, what: str) -> None:
        if not self._open:
            raise StepOrderError(f"{what}: step {self.number} is not being launched")


class Launching:
    """What the launch blocks of both clients share: from what was asked to the open step."""

    def __init__(
        self,
        session: Session,
        *,
        allocator: Stream,
        forward: Stream,
        lane: Lane,
        number: int | None,
        position: int | None,
        writes: Ids | None,
        tables: Sequence[Table],
    ) -> None:
        self._session = session
        self._allocator = allocator
        self._forward = forward
        self._lane = lane
        self._number = number
        self._position = position
        self._writes = writes
        self._tables = tables
        self._step: Step | None = None

    @property
    def step(self) -> Step:
        """Return the step, once `opening` has run."""
        assert self._step is not None
        return self._step

    def opening(self, deadline_ms: int) -> Flow:
        """Settle what is under way, then launch; the last part is not to be interrupted by I/O."""
        session = self._session
        yield from session.prepare_launch(self._number, self._position, deadline_ms)
        writes = UNKNOWN_WRITES
        if self._writes is not None:
            writes = stated_writes(session, self._writes)
        step = Step(
            session,
            number=session.steps.launched + 1 if self._number is None else self._number,
            allocator=self._allocator,
            forward=self._forward,
            lane=self._lane,
        )
        self._step = step
        step.begin(writes, self._tables)

    def abandon(self) -> None:
        """End a step that was launched, but whose block was never entered because of an interrupt.

        It is aborted like one whose block was left by an exception; the fact goes out when the next
        call settles what is due.
        """
        step = self._step
        if step is not None and step.is_open:
            step.end(aborted=True)
            self._session.owe_fact(step.aborted())


def stated_writes(session: Session, writes: Ids) -> Writes:
    """Return what the notice of a launch says about its writes.

    Raises UnknownRequestError, or UsageError for a set that cannot be stated: the daemon would find
    out only when the forward is running.
    """
    if session.mode == Mode.FOLLOWER:
        raise UsageError("a follower states no write set: its leader's notice does")
    if isinstance(writes, StandingSet):
        return Writes(WriteSet.REQUESTS)
    ids = id_array(writes)
    if not len(ids):
        raise UsageError(
            "writes=[] names nobody; leave it out where it is not known what the forward writes"
        )
    session.book.rows(ids)
    ids = np.sort(ids)
    if np.count_nonzero(ids[1:] == ids[:-1]):
        raise UsageError(f"writes names a request twice: {ids.tolist()!r:.120}")
    return Writes(WriteSet.REQUESTS, ids.tobytes())


def check_tables(session: Session, tables: Sequence[Table]) -> None:
    """Raise StepOrderError unless tables are true for a launch at the applied position."""
    now = session.cursor.stamp
    for table in tables:
        made_at = table.made_at if isinstance(table, Ragged | StampedArray) else None
        if made_at is None:
            raise UsageError(
                "tables= takes what the client's table calls returned; "
                f"a {type(table).__name__} without their stamp came"
            )
        if made_at.position > now.position or made_at.move_epoch != now.move_epoch:
            raise StepOrderError(
                f"a table made at position {made_at.position}, move epoch {made_at.move_epoch}, is "
                f"stale for a launch at position {now.position}, move epoch {now.move_epoch}: "
                "units it names may have moved; ask for it again",
                code=ErrorCode.STEP_ORDER,
            )
