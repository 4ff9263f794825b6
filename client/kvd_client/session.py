"""One rank's side of the protocol, without I/O: what may be sent, and what an answer means.

A flow is a generator that yields what its client has to do (`Exchange` a message, or wait on the
host) and goes on when that is done. The blocking and the asyncio client run the same flows.

A flow may be abandoned at any yield: an exception, a time-out, a signal or a cancellation leaves
the request in `_outstanding`, and whatever is called next receives and applies its answer first.
A batch whose block was left is sent exactly once, too: where something that comes before it fails,
it stays due, and whatever is called next sends it. So whoever meets an error that says that trying
again can help calls anything, `ping` for one, and never repeats the batch.
What cannot be abandoned half way, applying an answer, does not yield; left by an exception it
poisons the session, because memory, tables and log may then disagree.

Threads: flows are run by one thread at a time, which the clients see to. The block of a launch may
be left in another thread than the one that runs a flow meanwhile. `order` keeps the two apart for
as long as either changes what stands here; nobody waits for anything while holding it.

Invariants:
    session.cursor: the next entry to apply stands at `applied + 1`
    session.one_outstanding: a message is sent only when no earlier one waits for its answer
"""

import copy
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from kvd_client.answers import compare, fresh_entries, match_calls
from kvd_client.book import RequestBook
from kvd_client.calls import Batch
from kvd_client.cursor import Cursor
from kvd_client.device.apply import Applier
from kvd_client.device.port import Event, Stream
from kvd_client.errors import (
    ClosedError,
    DeadlineError,
    DeviceError,
    DivergedError,
    EndedError,
    ForkedError,
    KvdClientError,
    PoisonedError,
    RefusedError,
    ReplyError,
    StepOrderError,
    UsageError,
    error_of,
)
from kvd_client.flow import Exchange, Flow, HostWait, Outstanding
from kvd_client.guards import Applying, Reading
from kvd_client.process import PROCESS
from kvd_client.results import failure_of
from kvd_client.steps import STEPS_IN_FLIGHT_MAX, StepBook
from kvd_client.tables import TableMirror
from kvd_client.transport import Frames, Message
from kvd_proto.codec import decode_control, decode_header, encode
from kvd_proto.control import (
    Books,
    BooksReply,
    Bye,
    Control,
    ErrorReply,
    Header,
    MessageKind,
    Mode,
    Ping,
    Welcome,
    WhatIf,
    WhatIfReply,
)
from kvd_proto.errors import ErrorCode, FrameError
from kvd_proto.operations import AnyFact, CopyEnded, RankFailed
from kvd_proto.scalars import ProgramIndex

SERIAL_START: Final = 1 << 48
"""Numbers of requests that are no batches start behind every program index."""
STALE_ANSWERS_MAX: Final = 8
"""Answers to an earlier sending of a request that are dropped before the session gives up."""


class Session:
    """State of one attached rank: cursor, books, and the reason why nothing goes any more."""

    def __init__(
        self,
        *,
        welcome: Welcome,
        program: int,
        mode: Mode,
        applier: Applier,
        deadline_ms: int,
        overlaps: bool = False,
    ) -> None:
        self.welcome = welcome
        self.program = program
        self.mode = mode
        self.deadline_ms = deadline_ms
        self.applier = applier
        self.mirror = TableMirror(welcome.plan)
        self.book = RequestBook(welcome.plan.row_count)
        self.overlaps = overlaps
        follows = mode == Mode.FOLLOWER
        self.steps = StepBook(follows=follows, in_flight_max=STEPS_IN_FLIGHT_MAX if overlaps else 1)
        self.cursor = Cursor(
            applier=applier,
            mirror=self.mirror,
            book=self.book,
            steps=self.steps,
            overlaps=overlaps,
            follows=follows,
        )
        # Reentrant, and so harmless to its own thread if an interrupt keeps it from being released.
        self.order = threading.RLock()
        self.last_forward: tuple[Stream, Event] | None = None
        """The stream of the step launched last, and the event at that step's end."""
        self.closed = False
        self._bands = tuple(band.name for band in welcome.plan.bands)
        self._pid = PROCESS.pid
        self._next_index = ProgramIndex(welcome.next_index)
        self._outstanding: Outstanding | None = None
        self._due_batch: Batch | None = None
        """A batch whose block was left and that is not on its way yet."""
        self._failure: KvdClientError | None = None
        self._report: str | None = None
        self.what_if_reply: WhatIfReply | None = None
        self.books_reply: BooksReply | None = None
        self.applying = False
        self._serial = 0
        self._facts: deque[AnyFact] = deque()

    @property
    def applied(self) -> int:
        """Return the position up to which effects are enqueued."""
        return self.applier.applied

    def check_process(self) -> None:
        """Raise ForkedError in a process that did not attach itself."""
        if PROCESS.pid != self._pid:
            raise ForkedError(
                f"this client belongs to process {self._pid}; process {PROCESS.pid} is a fork of "
                "it and must attach itself"
            )

    def check_usable(self) -> None:
        """Raise the reason why nothing can be asked any more, if there is one."""
        self.check_process()
        if self.closed:
            raise ClosedError("this client was closed")
        if self.applying and self._failure is None:
            with self.order:
                # Not another thread that is at it right now: that one held the lock until here.
                interrupted = self.applying
            if interrupted:
                self.poison("an answer was being applied when something interrupted it")
        if self._failure is not None:
            # A copy each time: one object raised again and again would pile up tracebacks.
            raise copy.copy(self._failure) from self._failure

    def poison(self, cause: str) -> None:
        """Refuse everything from now on and have the daemon told; the first cause stays."""
        self.applier.poison(cause)
        if self._failure is None:
            self._failure = PoisonedError(f"this rank is poisoned: {cause}")
            self._report = cause

    def diverge(self, error: DivergedError) -> None:
        """Refuse everything from now on, because another operation was decided than ours."""
        self.poison(f"diverged: {error.message}")
        self._failure = error

    def take_report(self) -> Frames | None:
        """Return the message that tells the daemon of a failed rank, once."""
        cause, self._report = self._report, None
        if cause is None:
            return None
        return self._frames(MessageKind.FACT, encode(RankFailed(cause)))

    def new_batch(self) -> Batch:
        """Return an empty batch; raises UsageError or StepOrderError where none may begin."""
        self.check_usable()
        if self.mode == Mode.FOLLOWER:
            raise UsageError("a follower sends no operations; its leader does")
        if not self.overlaps:
            self.steps.check_closed("batch")
        return Batch(self._bands, self.steps.check_processed, self.applier.copies.check_places)

    # ---- flows ----------------------------------------------------------------------------

    def settle(self) -> Flow:
        """Receive and apply what an earlier call left behind, and send what is due."""
        self.check_usable()
        if self._outstanding is not None:
            yield from self._complete(self._outstanding, self.deadline_ms)
        self._facts.extend(CopyEnded(copy) for copy in self.applier.copies.take_ended())
        while self._facts:
            try:
                yield from self._ask(MessageKind.FACT, encode(self._facts[0]))
            except RefusedError:
                self._facts.popleft()
                raise
            # Only now: a fact sent twice is the same fact, one that was lost is missing.
            self._facts.popleft()
        if self._due_batch is not None:
            yield from self._send_due(self._due_batch)

    def send_batch(self, batch: Batch) -> Flow:
        """Send a batch and apply its reply; raises OperationError for wrong use in it."""
        self._due_batch = batch
        yield from self.settle()
        if batch.failed is not None:
            raise failure_of(batch.failed)

    def _send_due(self, batch: Batch) -> Flow:
        if batch.processed_steps:
            # The last covers the others: steps end in order.
            step = batch.processed_steps[-1]
            end = self.steps.end_of(step)
            if end is not None:
                yield HostWait(partial(self._wait_step, step, end))
        self._due_batch = None
        index = self._next_index
        calls, body = batch.seal(self.program, index, self.steps.notices)
        bytes_max = self.welcome.frame_bytes_max
        if len(body) > bytes_max:
            raise UsageError(
                f"a batch of {len(body)} bytes is over the daemon's cap of {bytes_max} bytes",
                code=ErrorCode.FRAME_TOO_LARGE,
            )
        message = Message(self._frames(MessageKind.BATCH, body, index))
        outstanding = Outstanding(MessageKind.BATCH, message, calls, index, batch)
        self._put_out(outstanding)
        yield from self._complete(outstanding, self.deadline_ms)

    def follow(self, position: int, records: Sequence[bytes], deadline_ms: int) -> Flow:
        """Apply entries up to a position, no further; pull those that are missing.

        Inside an open launch they are pulled, and applied when it ends.
        """
        if self.mode != Mode.FOLLOWER:
            raise UsageError(f"follow is for followers; this rank is attached as {self.mode.value}")
        if not self.overlaps:
            self.steps.check_closed("follow")
        cursor = self.cursor
        cursor.keep_records(records)
        yield from self.settle()
        known = -1
        while True:
            self._advance(position)
            if cursor.known >= position:
                return
            if cursor.known == known:
                # Asked once more, the daemon would repeat what waits here instead of waiting.
                raise StepOrderError(
                    f"follow({position}) inside the launch of step {self.steps.launched}: the log "
                    f"ends at {known} so far; leave the block, then it can be waited for",
                    code=ErrorCode.STEP_IN_FLIGHT,
                )
            known = cursor.known if self.steps.open else -1
            outstanding = self._outstanding_of(MessageKind.FOLLOW, encode(Ping()))
            self._put_out(outstanding)
            yield from self._complete(outstanding, deadline_ms)

    def owe_fact(self, fact: AnyFact) -> None:
        """Have a fact go out before anything else is asked."""
        self._facts.append(fact)

    def state_fact(self, fact: AnyFact) -> Flow:
        """State a fact; it stays due until the daemon has taken it."""
        self.check_usable()
        self.owe_fact(fact)
        yield from self.settle()

    def prepare_launch(self, step: int | None, position: int | None, deadline_ms: int) -> Flow:
        """Settle, and bring a follower to the position that its leader launched at."""
        self.check_usable()
        follows = self.mode == Mode.FOLLOWER
        if follows != (position is not None):
            raise UsageError(
                "a follower launches with step= and position= as its leader told it; "
                "whoever sends operations launches without"
            )
        self.steps.check_launch(step)
        if position is None:
            yield from self.settle()
        else:
            yield from self.follow(position, (), deadline_ms)
            if self.applied != position:
                raise StepOrderError(
                    f"launch at position {position}: this rank has applied {self.applied} already"
                )
        # Again: what was settled may have been a batch that ended with idle.
        self.steps.check_launch(step)

    def ping(self) -> Flow:
        """Show the daemon that this rank lives."""
        yield from self.settle()
        yield from self._ask(MessageKind.PING, encode(Ping()))

    def what_if(self, question: WhatIf) -> Flow:
        """Ask what a demand would meet now; the answer is `what_if_reply`."""
        yield from self.settle()
        self.what_if_reply = None
        yield from self._ask(MessageKind.ASK, encode(question), WhatIfReply)

    def books(self) -> Flow:
        """Ask what this rank's tables hold by the daemon's books; see `books_reply`."""
        yield from self.settle()
        self.books_reply = None
        yield from self._ask(MessageKind.ASK, encode(Books()), BooksReply)

    def say_bye(self) -> Flow:
        """Settle and leave on purpose."""
        yield from self.settle()
        yield from self._ask(MessageKind.BYE, encode(Bye()))

    # ---- answers --------------------------------------------------------------------------

    def _ask(
        self, kind: MessageKind, body: bytes, answer_type: type[Control] | None = None
    ) -> Flow:
        outstanding = self._outstanding_of(kind, body)
        outstanding.answer_type = answer_type
        self._put_out(outstanding)
        yield from self._complete(outstanding, self.deadline_ms)

    def _put_out(self, outstanding: Outstanding) -> None:
        """Make a request the one that waits; raises KvdClientError while another does."""
        if self._outstanding is not None:
            raise KvdClientError(
                f"session.one_outstanding: a {outstanding.kind.value} would be sent while the "
                f"answer to a {self._outstanding.kind.value} is out"
            )
        self._outstanding = outstanding

    def _complete(self, outstanding: Outstanding, deadline_ms: int) -> Flow:
        """Exchange until the answer to this request came; it is applied then."""
        for _ in range(STALE_ANSWERS_MAX):
            yield Exchange(outstanding.message, deadline_ms)
            answer = outstanding.message.answer
            assert answer is not None
            if self._accept(outstanding, answer):
                return
            outstanding.message.answer = None
        raise self._unreadable(
            f"{STALE_ANSWERS_MAX} answers in a row do not belong to the {outstanding.kind.value}"
        )

    def _accept(self, outstanding: Outstanding, answer: Frames) -> bool:
        """Take in an answer; False if it belongs to an earlier sending of something else."""
        try:
            header = decode_header(answer.header)
            if header.kind == MessageKind.ERROR:
                reply = decode_control(answer.body)
                if not isinstance(reply, ErrorReply):
                    raise FrameError(f"an error holds {type(reply).__name__}")
                if header.index != outstanding.index_start and not self._ends(reply):
                    return False
                raise self._refused(outstanding, reply)
        except FrameError as error:
            raise self._unreadable(error.message) from error
        if (header.epoch, header.token) != (self.welcome.epoch, self.welcome.token):
            return False
        if outstanding.kind == MessageKind.BATCH:
            return header.kind == MessageKind.REPLY and self._accept_batch(
                outstanding, header, answer.body
            )
        if outstanding.kind == MessageKind.FOLLOW:
            return header.kind == MessageKind.REPLY and self._accept_follow(answer.body)
        if header.index != outstanding.index_start:
            return False
        if outstanding.kind == MessageKind.ASK:
            return header.kind == MessageKind.ASK and self._accept_answer(outstanding, answer.body)
        if header.kind != MessageKind.ACK:
            return False
        self._outstanding = None
        return True

    def _accept_answer(self, outstanding: Outstanding, body: bytes) -> bool:
        try:
            reply = decode_control(body)
        except FrameError as error:
            raise self._unreadable(error.message) from error
        if type(reply) is not outstanding.answer_type:
            raise self._unreadable(f"a question was answered by {type(reply).__name__}")
        if isinstance(reply, BooksReply):
            self.books_reply = reply
        elif isinstance(reply, WhatIfReply):
            self.what_if_reply = reply
        self._outstanding = None
        return True

    def _ends(self, reply: ErrorReply) -> bool:
        """Return whether an error ends the session, whichever request it answers."""
        return isinstance(error_of(reply.code, reply.message, retry=reply.retry), EndedError)

    def _refused(self, outstanding: Outstanding, reply: ErrorReply) -> KvdClientError:
        """Return the error to raise for an error reply; nothing of the request was done."""
        error = error_of(reply.code, reply.message, retry=reply.retry)
        if isinstance(error, EndedError):
            self._failure = error
        if outstanding.batch is not None:
            for handle in outstanding.batch.handles:
                handle.fail(error)
        self._outstanding = None
        return error

    def _accept_batch(self, outstanding: Outstanding, header: Header, body: bytes) -> bool:
        calls = outstanding.calls
        if header.index < outstanding.index_start + len(calls):
            return False
        cursor = self.cursor
        with self.order:
            with Reading(self):
                entries = fresh_entries(body, cursor.known)
                matched = match_calls(
                    entries, self.program, calls, outstanding.index_start, cursor.applied
                )
            if self.steps.open:
                cursor.check_room(len(entries))
            with Applying(self):
                failed = cursor.take_in(entries, matched)
                if outstanding.batch is not None:
                    outstanding.batch.failed = failed
                self._next_index = ProgramIndex(outstanding.index_start + len(calls))
                self.steps.note_batch(
                    idles=outstanding.batch is not None and outstanding.batch.idles
                )
                self._outstanding = None
        return True

    def _accept_follow(self, body: bytes) -> bool:
        with self.order:
            with Reading(self):
                entries = fresh_entries(body, self.cursor.known)
            if not entries and not self.steps.open:
                return False
            self.cursor.keep(entries)
            self._outstanding = None
        return True

    def _advance(self, position: int) -> None:
        """Apply what waits up to a position, or have it applied when the open launch ends."""
        with self.order:
            with Reading(self):
                for entry, call in self.cursor.held(position):
                    if call is not None:
                        compare(entry, call, self.applied)
            with Applying(self):
                self.cursor.advance(position)

    def drain(self) -> None:
        """Apply what waited for the end of a launch; the caller holds `order`."""
        if self.cursor.holds_entries:
            with Applying(self):
                self.cursor.drain()

    def _wait_step(self, step: int, end: Event) -> None:
        """Block until a step's work is over; raises DeadlineError, or DeviceError."""
        try:
            end.synchronize(self.deadline_ms)
        except DeviceError as error:
            if error.code == ErrorCode.TIMED_OUT:
                raise DeadlineError(
                    f"step {step} is not over within {self.deadline_ms} ms, so the batch with "
                    f"processed({step}) waits; the next call sends it"
                ) from error
            self.poison(f"step {step} failed: {error.message}")
            raise

    def _unreadable(self, cause: str) -> ReplyError:
        """Poison the session over an answer and return the error to raise."""
        self.poison(cause)
        return ReplyError(cause)

    def _outstanding_of(self, kind: MessageKind, body: bytes) -> Outstanding:
        """Return a request that is no batch, numbered so that its answer is told from others."""
        self._serial += 1
        index = ProgramIndex(SERIAL_START + self._serial)
        return Outstanding(kind, Message(self._frames(kind, body, index)), [], index)

    def _frames(self, kind: MessageKind, body: bytes, index: int = 0) -> Frames:
        header = Header(
            kind=kind,
            epoch=self.welcome.epoch,
            token=self.welcome.token,
            index=index,
            position=self.applied,
        )
        return Frames(encode(header), body)
