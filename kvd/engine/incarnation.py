"""One incarnation of a stage: which ranks follow its log, and how they agree.

Every operation is decided once, when the first rank sends it. A mirrored rank that sends the same
program index later is compared with what was decided, byte by byte, and gets the same entries. A
difference ends the incarnation: nobody can tell which rank is right.
"""

from collections import deque
from dataclasses import dataclass

from kvd.alloc.checks import IDLE_LEAKS, CheckLevel
from kvd.build import StageStorage
from kvd.engine.books import books
from kvd.engine.describe import describe_operation
from kvd.engine.endings import Endings
from kvd.engine.legacy import Legacy
from kvd.engine.log import LogRecord, StageLog
from kvd.engine.shape import StageShape
from kvd.engine.stage import DONE, StageEngine
from kvd.engine.start import start_of
from kvd.engine.watch import Watch
from kvd.engine.what_if import what_if
from kvd.errors import DivergenceError, OperationError, SessionError
from kvd_proto.codec import (
    decode_entry,
    decode_fact,
    decode_operation,
    digest_of,
    encode,
    join_reply,
    split_batch,
)
from kvd_proto.control import BooksReply, WhatIf, WhatIfReply
from kvd_proto.errors import ErrorCode, FrameError
from kvd_proto.operations import (
    AnyFact,
    BatchEnd,
    CopyEnded,
    Idle,
    IncarnationEnd,
    Insert,
    Launch,
    Operation,
    Processed,
    RankFailed,
    StepAborted,
    TablesRewritten,
    TransferEnded,
)
from kvd_proto.outcomes import FACT_PROGRAM, OWN_PROGRAM, Done, Entry, Failed, NotRun, Outcome

NOT_RUN = Outcome(NotRun())
BATCH_OPERATIONS_MAX = 4096
"""Operations of one batch; it bounds how long one message keeps the daemon busy."""
FACTS_MAX = 65536
"""Facts that one incarnation remembers in order to ignore repetitions."""
REDO_ENTRIES_MAX = 65536
"""Entries that are kept for a redo alone; past them nothing would survive a rank's death."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A decided batch, kept until every mirrored rank has applied it."""

    first_index: int
    end_index: int
    body: bytes
    rank: int
    start_position: int
    end_position: int
    reply: bytes
    """The reply to a rank that had applied everything before the batch."""
    confirmed_position: int
    """Up to where effects have run on every rank that sends this batch."""


class Program:
    """One program's numbering, and the batches that some rank may still send or ask for again."""

    def __init__(self) -> None:
        self.next_index = 0
        self.idle = False
        self.batches: deque[BatchRecord] = deque()


class Incarnation:
    """Log, engine and cursors of one stage while one set of ranks is attached."""

    def __init__(
        self,
        stage: StageStorage | StageShape,
        *,
        number: int,
        ranks: tuple[int, ...],
        level: CheckLevel,
        ring_entries_max: int,
        lag_entries_max: int,
        idle_moves_max: int = 0,
        batch_moves_max: int = 0,
        legacy: Legacy | None = None,
        leaks_raise: bool = True,
    ) -> None:
        """Start with an empty stage, or with what the incarnation before left on this memory.

        Without ``leaks_raise`` a leak that is found at idle is counted, in strict mode aside.
        """
        legacy = legacy or Legacy(0)
        start_position = legacy.end_position
        self.number = number
        self.log = StageLog(
            ring_entries_max=ring_entries_max,
            end_position=start_position,
            records=list(legacy.records),
        )
        self.applied = dict.fromkeys(ranks, start_position)
        self.given = dict.fromkeys(ranks, start_position)
        """Up to where each rank was given entries; some may be on their way, or were lost on it."""
        self.confirmed: dict[int, int] = {}
        """Up to where effects are known to have run, of the ranks of which that is known."""
        self._launch_positions: dict[int, int] = {}
        """Of the steps that are not processed: what their forwards wait for."""
        self.ended: str | None = None
        self._lag_entries_max = lag_entries_max
        self._programs: dict[int, Program] = {}
        self._facts: dict[tuple[int, bytes], None] = {}
        self.engine = legacy.engine or StageEngine(
            stage, level=level, idle_moves_max=idle_moves_max, batch_moves_max=batch_moves_max
        )
        self.start = start_of(
            self.engine, number=number, ranks=ranks, position=start_position, legacy=legacy
        )
        if legacy.engine is not None:
            self._append(OWN_PROGRAM, 0, encode(TablesRewritten()), self.engine.bindings())
        self.engine.monitor.counted = () if leaks_raise else IDLE_LEAKS
        self._endings = Endings(ranks, self.engine.uses.copies, self.engine.uses.transfers)
        self.watch = Watch(
            self.engine,
            self.log,
            self._endings,
            applied=self.applied,
            given=self.given,
            confirmed=self.confirmed,
        )
        self.check_at(level)
        self._end: IncarnationEnd | None = None
        self._gate_due = False
        """Whether something of the daemon's own is to enter the log at the next gate."""

    # ---- batches --------------------------------------------------------------------------------

    def batch(self, *, rank: int, program: int, index: int, body: bytes) -> tuple[int, bytes]:
        """Decide a batch, or compare it with what was decided.

        Returns the index behind the batch and the reply's body, whose last entry is the batch's.

        Raises FrameError, OperationError or SessionError with nothing changed, and DivergenceError
        when the ranks disagree.
        """
        state = self._programs.get(program)
        if state is None:
            state = self._programs[program] = Program()
        if index == state.next_index:
            record = self._decide_batch(state, program=program, rank=rank, body=body)
        elif index > state.next_index:
            raise SessionError(
                f"batch starts at index {index}, program {program} continues at {state.next_index}",
                code=ErrorCode.BAD_INDEX,
            )
        else:
            record = self._compare_batch(state, program=program, rank=rank, index=index, body=body)
        self.given[rank] = max(self.given[rank], record.end_position)
        if record.confirmed_position:
            self.note_confirmed(rank, record.confirmed_position)
        if self.applied[rank] == record.start_position:
            return record.end_index, record.reply
        return record.end_index, self._reply(rank, record.end_position)

    def check_at(self, level: CheckLevel) -> None:
        """Check at this level from the next batch on."""
        self.engine.monitor.level = level
        is_strict = level is CheckLevel.STRICT
        self._decide_one = self.watch.decide if is_strict else self.engine.decide

    def settle(self) -> None:
        """Do what the newest batch left for after its reply."""
        self.engine.settle()
        self._prune()
        if self.ended is None:
            self.watch.settle()

    def confirm(self, rank: int, applied_position: int) -> None:
        """Take in how far a rank has applied; raises SessionError for an impossible position."""
        before = self.applied[rank]
        if not before <= applied_position <= self.log.end_position:
            raise SessionError(
                f"rank {rank} says it applied position {applied_position}; it had applied "
                f"{before} and the log ends at {self.log.end_position}",
                code=ErrorCode.BAD_INDEX,
            )
        self.applied[rank] = applied_position
        self.given[rank] = max(self.given[rank], applied_position)

    def note_confirmed(self, rank: int, position: int) -> None:
        """Take in up to where a rank's effects have run, as it says or as its memory shows.

        A word that an earlier incarnation left, or nobody wrote yet, may say anything: what was not
        given to the rank cannot have run.
        """
        before = self.confirmed.get(rank, 0)
        self.confirmed[rank] = max(before, min(position, self.given[rank]))

    def next_index(self, program: int) -> int:
        """Return the index of the program's next operation."""
        state = self._programs.get(program)
        return 0 if state is None else state.next_index

    def lags(self, program: int, index: int) -> bool:
        """Return whether a batch has to wait until the slowest rank has caught up.

        What a rank was given counts, not what it says it applied: a follower that was given much at
        once works through it without a word, and its leader may wait for nothing else.
        """
        if index != self.next_index(program):
            return False
        return self.log.end_position - min(self.given.values()) > self._lag_entries_max

    def follow(self, rank: int) -> bytes | None:
        """Return the entries behind a follower's cursor, or None while there are none."""
        if self.applied[rank] >= self.log.end_position:
            return None
        return self._reply(rank, self.log.end_position)

    def what_if(self, question: WhatIf) -> WhatIfReply:
        """Answer what a demand would meet now; nothing is logged and nothing changes.

        Raises OperationError for a question that makes no sense.
        """
        return what_if(self.engine.requests, question)

    def books(self, rank: int) -> BooksReply:
        """Return what a rank's tables hold at the log's end, and from which position on."""
        applied, end_position = self.applied[rank], self.log.end_position
        position_min = applied
        for position, record in enumerate(self.log.records(applied + 1, end_position), applied + 1):
            if decode_entry(record.entry).outcome.segments:
                position_min = position
        return books(self.engine.requests, position_min=position_min, position=end_position)

    # ---- facts and the daemon's own entries -----------------------------------------------------

    def fact(self, rank: int, body: bytes) -> RankFailed | None:
        """Log one rank's statement once; return it if it means that the rank cannot go on."""
        fact = decode_fact(body)
        body = encode(fact)  # the same statement, however it was written
        if not self._is_news(rank, fact, body):
            return None
        self._append(FACT_PROGRAM, rank, body, DONE)
        if self._endings.is_due:
            self._submit()
        return fact if isinstance(fact, RankFailed) else None

    def submit_end(self, cause: str) -> None:
        """End the incarnation at the next gate: behind the next step notices, or now if idle.

        An incarnation ends once: the first cause is the one that the log shows.
        """
        if self.ended is None and self._end is None:
            self._end = IncarnationEnd(cause)
            self._submit()

    def end(self, cause: str) -> None:
        """End the incarnation at once: nothing is decided any more, so no gate is needed."""
        if self.ended is None:
            self._end = IncarnationEnd(cause)
            self._pass_gate()

    def legacy(self) -> Legacy:
        """Return what this incarnation, which has ended, leaves to the next on its memory."""
        assert self.ended is not None
        confirmed_position = min(self.confirmed.get(rank, 0) for rank in self.applied)
        log, engine = self.log, self.engine.survivor(confirmed_position)
        if engine is None:
            return Legacy(log.end_position)
        return Legacy(
            log.end_position,
            engine,
            tuple(log.records(log.first_position, log.end_position)),
            dict(self.confirmed),
        )

    # ---- inside ---------------------------------------------------------------------------------

    def _decide_batch(self, state: Program, *, program: int, rank: int, body: bytes) -> BatchRecord:
        raws = split_batch(body)
        operations = [decode_operation(raw) for raw in raws]
        _check_batch(operations)
        first_index, start_position = state.next_index, self.log.end_position
        state.idle = False
        wrong = gated = False
        confirmed_position = 0
        records: list[LogRecord] = []
        for index, (raw, operation) in enumerate(zip(raws, operations, strict=True), first_index):
            if self._gate_due and not isinstance(operation, (Launch, Processed)):
                self.log.extend(records)
                records, gated = [], True
                self._pass_gate()
            if self.ended is not None or (wrong and not isinstance(operation, BatchEnd)):
                outcome = NOT_RUN
            else:
                position = self.log.end_position + len(records) + 1
                try:
                    outcome = self._decide(program, operation, position)
                    confirmed_position = max(confirmed_position, self._confirmed_by(operation))
                except OperationError as error:
                    wrong = True
                    outcome = Outcome(Failed(error.code.value, error.message))
            records.append(_record(program, index, bytes(raw), outcome))
        self.log.extend(records)
        state.next_index = first_index + len(operations)
        end_position = self.log.end_position
        record = BatchRecord(
            first_index=first_index,
            end_index=state.next_index,
            body=body,
            rank=rank,
            start_position=start_position,
            end_position=end_position,
            reply=self.log.reply(start_position, end_position)
            if gated
            else join_reply(start_position + 1, [item.entry for item in records]),
            confirmed_position=confirmed_position,
        )
        state.batches.append(record)
        if not wrong and any(isinstance(operation, Idle) for operation in operations):
            state.idle = True
            if self._is_idle:
                self.watch.note_idle()
            if self._gate_due:
                self._pass_gate()
        return record

    def _note_position(self, operation: Operation, outcome: Outcome, position: int) -> None:
        """Take in where slots were handed out, a value came to be or a step was processed."""
        uses = self.engine.uses
        self.engine.steps.clearings.place(position)
        if isinstance(operation, Processed):
            uses.note_processed(operation.step, position)
        elif isinstance(operation, Insert) and isinstance(outcome.result, Done):
            uses.values.get(operation.value_id).position = position

    def _confirmed_by(self, operation: Operation) -> int:
        """Return up to where effects have run on whoever sends this operation; 0 for no news.

        A rank calls a step processed when its own forward is over, and that ran behind all effects
        up to its launch's position.
        """
        if isinstance(operation, Launch):
            self._launch_positions[operation.step] = operation.position
        elif isinstance(operation, Processed):
            return self._launch_positions.pop(operation.step, 0)
        return 0

    def _decide(self, program: int, operation: Operation, position: int) -> Outcome:
        """Decide an operation that stands at a position behind the log's end."""
        if isinstance(operation, Launch) and operation.position > self.log.end_position:
            raise OperationError(
                f"step.order: step {operation.step} launched behind position "
                f"{operation.position}, the log ends at {self.log.end_position}",
                code=ErrorCode.STEP_ORDER,
            )
        outcome = self._decide_one(program, operation)
        self._note_position(operation, outcome, position)
        return outcome

    def _compare_batch(
        self, state: Program, *, program: int, rank: int, index: int, body: bytes
    ) -> BatchRecord:
        for record in state.batches:
            if record.first_index == index:
                break
        else:
            raise SessionError(
                f"batch starts at index {index}, where no batch of program {program} that is "
                f"still kept starts; the program continues at {state.next_index}",
                code=ErrorCode.BAD_INDEX,
            )
        # Operations are compared, not messages: their array may have been written in another way.
        if body != record.body and not _same_operations(body, record.body):
            raise self._divergence(record, program=program, rank=rank, body=body)
        return record

    def _divergence(
        self, record: BatchRecord, *, program: int, rank: int, body: bytes
    ) -> DivergenceError:
        """Return the error that shows the first operation in which two ranks differ."""
        decided, sent = split_batch(record.body), split_batch(body)
        shared = min(len(decided), len(sent))
        place = next(
            (i for i in range(shared) if bytes(decided[i]) != bytes(sent[i])),
            shared,
        )
        shown = [
            describe_operation(bytes(side[place])) if place < len(side) else "nothing"
            for side in (decided, sent)
        ]
        who = "sent again" if rank == record.rank else "sent"
        return DivergenceError(
            f"ranks diverged at program {program} index {record.first_index + place}: "
            f"rank {record.rank} sent {shown[0]}, rank {rank} {who} {shown[1]}; rank "
            f"{record.rank} has applied position {self.applied[record.rank]}, rank {rank} "
            f"position {self.applied[rank]}"
        )

    def _reply(self, rank: int, end_position: int) -> bytes:
        applied = self.applied[rank]
        self.given[rank] = max(self.given[rank], end_position)
        return self.log.reply(applied, max(applied, end_position))

    def _append(self, program: int, index: int, body: bytes, outcome: Outcome) -> None:
        self.log.extend([_record(program, index, body, outcome)])

    def _is_news(self, rank: int, fact: AnyFact, body: bytes) -> bool:
        """Take in a rank's statement; return whether it was not made before.

        Words about copies and transfers are many, and forgotten once those are over.
        """
        if isinstance(fact, CopyEnded):
            return self._endings.copy_ended(rank, fact)
        if isinstance(fact, TransferEnded):
            return self._endings.transfer_ended(rank, fact)
        if (rank, body) in self._facts:
            return False
        if len(self._facts) >= FACTS_MAX:
            raise OperationError(f"one incarnation takes at most {FACTS_MAX} facts")
        if isinstance(fact, StepAborted):
            self.engine.abort_step(fact.step)
        self._facts[(rank, body)] = None
        return True

    def _submit(self) -> None:
        """Have the daemon's own entries enter the log at the next gate, or now if all is idle."""
        self._gate_due = True
        if self._is_idle:
            self._pass_gate()
            if self.ended is None:
                self.engine.settle()
                self.watch.check_idle()

    @property
    def _is_idle(self) -> bool:
        """Return whether no program launches anything before its next batch."""
        return all(program.idle for program in self._programs.values())

    def _pass_gate(self) -> None:
        """Log the daemon's own entries; the end of the incarnation stands last."""
        self._gate_due = False
        released = self._endings.take_due()
        if released is not None and self.ended is None:
            self._append(OWN_PROGRAM, 0, encode(released), self.engine.release(released))
        if self._end is not None:
            self._append(OWN_PROGRAM, 0, encode(self._end), DONE)
            self.ended, self._end = self._end.cause, None

    def _prune(self) -> None:
        """Forget what every rank has applied, and entries that also have run, save for the ring."""
        slowest = min(self.applied.values())
        for state in self._programs.values():
            batches = state.batches
            # A rank's newest batch may be sent again until a later one proves its reply arrived.
            while len(batches) > 1 and batches[0].end_position <= slowest:
                batches.popleft()
        # What runs still may have to be redone, the entry that the progress word names included.
        running = min(self.confirmed.values(), default=slowest + 1) - 1
        self.log.trim(min(slowest, max(running, slowest - REDO_ENTRIES_MAX)))


def _record(program: int, index: int, body: bytes, outcome: Outcome) -> LogRecord:
    return LogRecord(program, index, body, encode(Entry(program, index, digest_of(body), outcome)))


def _same_operations(body: bytes, decided: bytes) -> bool:
    """Return whether two batches hold the same operations, byte by byte; raises FrameError."""
    return [bytes(raw) for raw in split_batch(body)] == [bytes(raw) for raw in split_batch(decided)]


def _check_batch(operations: list[Operation]) -> None:
    """Raise FrameError unless the batch is bounded and its one batch_end stands last."""
    if len(operations) > BATCH_OPERATIONS_MAX:
        raise FrameError(
            f"batch of {len(operations)} operations, at most {BATCH_OPERATIONS_MAX} are allowed"
        )
    count = [type(operation) for operation in operations].count(BatchEnd)
    if count != 1 or type(operations[-1]) is not BatchEnd:
        raise FrameError(
            f"batch of {len(operations)} operations has {count} batch_end; exactly one is needed, "
            f"as its last operation"
        )
