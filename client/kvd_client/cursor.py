"""Where a rank stands in the log: which entries are applied, and which wait in the launch queue.

To apply an entry is to bring the host's copy of the tables, the request book and, last, the stream
to its position. The launch queue is the one rule of this module: while a launch is open, which is
from `note_launch` until the step is recorded or aborted, nothing behind the step's position is
applied. So tables asked for inside a launch are those of its position, and every wait that later
effects need finds the work it waits for enqueued already. What batches, follows and facts bring in
meanwhile is kept, and applied in order and as one submission by `drain`. The daemon decides on
regardless, and the answers of such a batch are given at once: they are numbers on the host.

Decided without knowledge of a step: entries between a step's position p and its own launch notice,
which the daemon meets only in the next batch. Say step n is launched at p, another program's free
is decided at p + 1 and its take at p + 2, and the notice of n comes at p + 3. The books knew of no
step at p + 1, so the pages were free at once, and p + 2 has them zeroed while step n still writes
to them. So behind the first such entry the stream waits for the whole end of step n before the next
effects, be they in front of the notice or behind it: a free has no effects, the take behind the
notice that reuses its pages does. Facts and step notices free nothing and do not count. A rank that
does not know which entry is the notice, as a follower without records, waits for every step.

Invariants:
    step.queue_until_recorded: while a launch is open, `applied` is the position of its step
"""

from collections.abc import Sequence

from kvd_client.backlog import Backlog, Held
from kvd_client.book import RequestBook
from kvd_client.calls import Call
from kvd_client.device.apply import Applier, StepGuard
from kvd_client.device.columns import Columns, decode_columns
from kvd_client.errors import KvdClientError
from kvd_client.results import TableStamp
from kvd_client.steps import StepBook
from kvd_client.tables import TableMirror
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import Launch, Processed
from kvd_proto.outcomes import FACT_PROGRAM, Done, Entry, Failed, ReleasedResult


class Cursor:
    """Applies entries in order, when they may be; the only place where a position moves on."""

    def __init__(
        self,
        *,
        applier: Applier,
        mirror: TableMirror,
        book: RequestBook,
        steps: StepBook,
        overlaps: bool,
        follows: bool,
    ) -> None:
        self._applier = applier
        self._mirror = mirror
        self._book = book
        self._steps = steps
        self._overlaps = overlaps
        self._follows = follows
        self._backlog = Backlog()
        self._told_position = 0
        self._unaware: dict[int, bool] = {}
        """Steps whose notice was not met yet, oldest first; True once an entry decided without
        knowledge of the step may have freed something."""
        self.stamp = TableStamp(applier.applied, 0)
        """What tables made now are stamped with."""
        self.released: list[ReleasedResult] = []
        """What the log said to be over, until somebody takes it."""

    @property
    def applied(self) -> int:
        """Return the position up to which effects are enqueued."""
        return self._applier.applied

    @property
    def known(self) -> int:
        """Return the position up to which entries are here, applied or waiting."""
        return self._applier.applied + len(self._backlog)

    @property
    def holds_entries(self) -> bool:
        """Return whether entries wait to be applied."""
        return len(self._backlog) > 0

    def note_launch(self, step: int) -> None:
        """Take note of a step that is launched at the applied position."""
        # Without overlap everything enqueued later runs behind the step's end anyway.
        if self._overlaps:
            self._unaware[step] = False

    def keep_records(self, records: Sequence[bytes]) -> None:
        """Keep what a leader recorded; raises UsageError."""
        self._backlog.keep_records(records)

    def keep(self, entries: Sequence[Entry]) -> None:
        """Keep entries of a follower until `advance` is told to apply them; raises UsageError."""
        self._backlog.keep(entries)

    def check_room(self, count: int) -> None:
        """Raise UsageError if so many entries would have to wait behind too many others."""
        self._backlog.check_room(count)

    def take_in(self, entries: Sequence[Entry], calls: Sequence[Call | None]) -> Failed | None:
        """Take in the answer to an own batch, and apply it unless a launch is open.

        Handles have their answers when this returns. Returns the first operation that was wrong
        use. Inside an open launch `check_room` comes before.
        """
        columns = decode_columns([entry.outcome for entry in entries])
        if self._steps.open:
            self._backlog.keep(entries, calls)
            return self._answer(entries, calls, columns)
        assert not len(self._backlog), "entries wait although no launch is open"
        return self._apply(entries, calls, columns, answers=True)

    def held(self, position: int) -> list[Held]:
        """Return the waiting entries up to a position, with what is recorded of them."""
        return self._backlog.oldest(position - self.applied)

    def advance(self, position: int) -> None:
        """Apply what waits up to a position; inside an open launch, when that is recorded."""
        self._told_position = max(self._told_position, position)
        if not self._steps.open:
            self._apply_held(position)

    def drain(self) -> None:
        """Apply what waited for the end of a launch."""
        self._apply_held(self._told_position if self._follows else self.known)

    def check(self) -> None:
        """Raise KvdClientError naming the first invariant that does not hold."""
        if self._steps.open and self.applied != self._steps.open_position:
            raise KvdClientError(
                f"step.queue_until_recorded: step {self._steps.launched} is open at position "
                f"{self._steps.open_position}, and position {self.applied} is applied",
                code=ErrorCode.INVARIANT,
            )

    def _apply_held(self, position: int) -> None:
        held = self.held(position)
        if not held:
            return
        entries = [entry for entry, _ in held]
        calls = [call for _, call in held]
        columns = decode_columns([entry.outcome for entry in entries])
        self._apply(entries, calls, columns, answers=self._follows)
        self._backlog.drop(len(held))

    def _apply(
        self,
        entries: Sequence[Entry],
        calls: Sequence[Call | None],
        columns: Sequence[Columns],
        *,
        answers: bool,
    ) -> Failed | None:
        """Bring answers, mirror, book and, last, the stream to the position of these entries."""
        if self._steps.open:
            raise KvdClientError(
                f"step.queue_until_recorded: position {self.applied + 1} would be applied inside "
                f"the launch of step {self._steps.launched}",
                code=ErrorCode.INVARIANT,
            )
        outcomes = [entry.outcome for entry in entries]
        guard = self._guard_of(entries, calls) if self._unaware else None
        reply = self._applier.assemble_reply(self.applied + 1, outcomes, columns, guard)
        failed = self._answer(entries, calls, columns) if answers else None
        for entry, call, own_columns in zip(entries, calls, columns, strict=True):
            outcome = entry.outcome
            if outcome.segments:
                self._mirror.apply(outcome, own_columns)
            if call is not None:
                self._book.note(call, outcome.result, own_columns)
            elif isinstance(outcome.result, ReleasedResult):
                self.released.append(outcome.result)
            elif entry.program != FACT_PROGRAM:
                self._book.note_other(outcome.result, own_columns, self._mirror.without_pages)
        self._applier.enqueue_reply(reply)
        self.stamp = TableStamp(self.applied, self._mirror.move_epoch)
        return failed

    def _answer(
        self,
        entries: Sequence[Entry],
        calls: Sequence[Call | None],
        columns: Sequence[Columns],
    ) -> Failed | None:
        """Settle the handles of operations, and take in step notices; return the first failure."""
        failed: Failed | None = None
        for entry, call, own_columns in zip(entries, calls, columns, strict=True):
            if call is None:
                continue
            result = entry.outcome.result
            if call.handle is not None:
                call.handle.settle(result, own_columns)
            self._steps.note(call, result)
            if failed is None and isinstance(result, Failed):
                failed = result
        return failed

    def _guard_of(self, entries: Sequence[Entry], calls: Sequence[Call | None]) -> StepGuard | None:
        """Return which step the effects of these entries wait for because of what nobody knew.

        It is the newest of those in question; waiting for it covers the others.
        """
        unaware = self._unaware
        for place, (entry, call) in enumerate(zip(entries, calls, strict=True)):
            if not unaware:
                return None
            if entry.outcome.segments:
                guard = StepGuard(place, next(reversed(unaware)))
                unaware.clear()
                return guard
            operation = None if call is None else call.operation
            if isinstance(operation, Launch) and isinstance(entry.outcome.result, Done):
                if unaware.get(operation.step) is False:
                    del unaware[operation.step]
            elif entry.program != FACT_PROGRAM and not isinstance(operation, Processed):
                for step in unaware:
                    unaware[step] = True
        return None
