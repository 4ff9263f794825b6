"""One rank's side of the protocol, without I/O: what may be sent, and what an answer means.

A flow is a generator that yields what its client has to do (`Exchange` a message, or wait on the
host) and goes on when that is done. The blocking and the asyncio client run the same flows.

A flow may be abandoned at any yield: an exception, a time-out, a signal or a cancellation leaves
the request in `_outstanding`, and whatever is called next receives and applies its answer first.
What cannot be abandoned half way, applying an answer, does not yield; left by an exception it
poisons the session, because memory, tables and log may then disagree.

Invariants:
    session.cursor: the next entry to apply stands at `applied + 1`
    session.one_outstanding: a message is sent only when no earlier one waits for its answer
"""

import copy
import os
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from kvd_client.backlog import Backlog
from kvd_client.book import RequestBook
from kvd_client.calls import Batch, Call
from kvd_client.device.apply import Applier
from kvd_client.device.assembly import decode_columns
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
from kvd_client.results import failure_of
from kvd_client.steps import StepBook
from kvd_client.tables import TableMirror
from kvd_client.transport import Frames, Message
from kvd_proto.codec import (
    decode_control,
    decode_header,
    decode_reply,
    digest_of,
    encode,
)
from kvd_proto.control import (
    Bye,
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
from kvd_proto.operations import AnyFact, RankFailed
from kvd_proto.outcomes import Entry, Failed
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
    ) -> None:
        self.welcome = welcome
        self.program = program
        self.mode = mode
        self.deadline_ms = deadline_ms
        self.applier = applier
        self.mirror = TableMirror(welcome.plan)
        self.book = RequestBook(welcome.plan.row_count)
        self.steps = StepBook(follows=mode == Mode.FOLLOWER)
        self.closed = False
        self._bands = tuple(band.name for band in welcome.plan.bands)
        self._pid = os.getpid()
        self._next_index = ProgramIndex(welcome.next_index)
        self._outstanding: Outstanding | None = None
        self._failure: KvdClientError | None = None
        self._report: str | None = None
        self.what_if_reply: WhatIfReply | None = None
        self.applying = False
        self._serial = 0
        self._facts: deque[AnyFact] = deque()
        self._backlog = Backlog()

    @property
    def applied(self) -> int:
        """Return the position up to which effects are enqueued."""
        return self.applier.applied

    def check_process(self) -> None:
        """Raise ForkedError in a process that did not attach itself."""
        if os.getpid() != self._pid:
            raise ForkedError(
                f"this client belongs to process {self._pid}; process {os.getpid()} is a fork of "
                "it and must attach itself"
            )

    def check_usable(self) -> None:
        """Raise the reason why nothing can be asked any more, if there is one."""
        self.check_process()
        if self.closed:
            raise ClosedError("this client was closed")
        if self.applying and self._failure is None:
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
        self.steps.check_closed("batch")
        return Batch(self._bands, self.steps.check_processed)

    # ---- flows ----------------------------------------------------------------------------

    def settle(self) -> Flow:
        """Receive and apply what an earlier call left behind, and send the facts that are due."""
        self.check_usable()
        if self._outstanding is not None:
            yield from self._complete(self._outstanding, self.deadline_ms)
        while self._facts:
            try:
                yield from self._ask(MessageKind.FACT, encode(self._facts[0]))
            except RefusedError:
                self._facts.popleft()
                raise
            # Only now: a fact sent twice is the same fact, one that was lost is missing.
            self._facts.popleft()

    def send_batch(self, batch: Batch) -> Flow:
        """Send a batch and apply its reply; raises OperationError for wrong use in it."""
        yield from self.settle()
        if batch.processed_steps and self.steps.unfinished is not None:
            yield HostWait(self._wait_step)
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
        if outstanding.failed is not None:
            raise failure_of(outstanding.failed)

    def follow(self, position: int, records: Sequence[bytes], deadline_ms: int) -> Flow:
        """Apply entries up to a position, no further; pull those that are missing."""
        if self.mode != Mode.FOLLOWER:
            raise UsageError(f"follow is for followers; this rank is attached as {self.mode.value}")
        self.steps.check_closed("follow")
        self._backlog.keep_records(records)
        yield from self.settle()
        while self.applied < position:
            if len(self._backlog):
                self._apply_backlog(position)
                continue
            outstanding = self._outstanding_of(MessageKind.FOLLOW, encode(Ping()))
            self._put_out(outstanding)
            yield from self._complete(outstanding, deadline_ms)

    def state_fact(self, fact: AnyFact) -> Flow:
        """State a fact; it stays due until the daemon has taken it."""
        self.check_usable()
        self._facts.append(fact)
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
        yield from self._ask(MessageKind.ASK, encode(question))

    def say_bye(self) -> Flow:
        """Settle and leave on purpose."""
        yield from self.settle()
        yield from self._ask(MessageKind.BYE, encode(Bye()))

    # ---- answers --------------------------------------------------------------------------

    def _ask(self, kind: MessageKind, body: bytes) -> Flow:
        outstanding = self._outstanding_of(kind, body)
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
            return header.kind == MessageKind.ASK and self._accept_what_if(answer.body)
        if header.kind != MessageKind.ACK:
            return False
        self._outstanding = None
        return True

    def _accept_what_if(self, body: bytes) -> bool:
        try:
            reply = decode_control(body)
        except FrameError as error:
            raise self._unreadable(error.message) from error
        if not isinstance(reply, WhatIfReply):
            raise self._unreadable(f"a what-if was answered by {type(reply).__name__}")
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
        if header.index < outstanding.index_start + len(outstanding.calls):
            return False
        entries = self._fresh_entries(body)
        calls = self._match(entries, outstanding)
        self._apply(entries, calls, outstanding)
        return True

    def _accept_follow(self, body: bytes) -> bool:
        entries = self._fresh_entries(body)
        if not entries:
            return False
        self._backlog.keep(entries)
        self._outstanding = None
        return True

    def _fresh_entries(self, body: bytes) -> Sequence[Entry]:
        """Return the entries behind the cursor; a gap before them poisons."""
        try:
            reply = decode_reply(body)
        except FrameError as error:
            raise self._unreadable(error.message) from error
        known = self.applied + len(self._backlog) + 1 - reply.position
        if known < 0:
            raise self._unreadable(
                f"session.cursor: position {self.applied + 1} is next, entries from "
                f"{reply.position} came"
            )
        return reply.entries[known:] if known else reply.entries

    def _match(self, entries: Sequence[Entry], outstanding: Outstanding) -> list[Call | None]:
        """Return the own operation of each entry, compared with what was decided."""
        matched: list[Call | None] = []
        calls, start = outstanding.calls, outstanding.index_start
        count = 0
        for entry in entries:
            if entry.program != self.program:
                matched.append(None)
                continue
            offset = entry.index - start
            if offset != count or offset >= len(calls):
                raise self._unreadable(
                    f"operation {entry.index} of program {self.program} came, this rank has "
                    f"{len(calls)} operations from {start} in flight and met {count} of them"
                )
            self._compare(entry, calls[offset])
            matched.append(calls[offset])
            count += 1
        if count != len(calls):
            raise self._unreadable(f"a reply to {len(calls)} operations answers {count} of them")
        return matched

    def _compare(self, entry: Entry, call: Call) -> None:
        """Raise DivergedError if another operation was decided than the one known here."""
        digest = digest_of(call.encoded)
        if digest == entry.digest:
            return
        cause = (
            f"operation {entry.index} of program {entry.program} is {call.operation!r:.200} here "
            f"(digest {digest:016x}), another one was decided (digest {entry.digest:016x}); "
            f"nothing behind position {self.applied} was applied"
        )
        self.poison(f"diverged: {cause}")
        self._failure = DivergedError(cause, code=ErrorCode.DIVERGED)
        raise self._failure

    def _apply_backlog(self, position: int) -> None:
        pairs = self._backlog.oldest(position - self.applied)
        for entry, call in pairs:
            if call is not None:
                self._compare(entry, call)
        self._apply([entry for entry, _ in pairs], [call for _, call in pairs], None)

    def _apply(
        self,
        entries: Sequence[Entry],
        calls: Sequence[Call | None],
        outstanding: Outstanding | None,
    ) -> None:
        """Bring mirror, books, handles and, last, the stream to the position of these entries."""
        with _Applying(self):
            outcomes = [entry.outcome for entry in entries]
            columns = decode_columns(outcomes)
            reply = self.applier.assemble_reply(self.applied + 1, outcomes, columns)
            for outcome, call, own_columns in zip(outcomes, calls, columns, strict=True):
                if outcome.segments:
                    self.mirror.apply(outcome, own_columns)
                if call is not None:
                    result = outcome.result
                    self.book.note(call, result, own_columns)
                    if call.handle is not None:
                        call.handle.settle(result, own_columns)
                    self.steps.note(call, result)
                    if outstanding is not None and isinstance(result, Failed):
                        outstanding.failed = outstanding.failed or result
            self.applier.enqueue_reply(reply)
            if outstanding is None:
                self._backlog.drop(len(entries))
            else:
                self._next_index = ProgramIndex(outstanding.index_start + len(outstanding.calls))
                self.steps.note_batch(
                    idles=outstanding.batch is not None and outstanding.batch.idles
                )
                self._outstanding = None

    def _wait_step(self) -> None:
        """Block until the last step's work is over; raises DeadlineError, or DeviceError."""
        end = self.steps.unfinished
        if end is None:
            return
        try:
            end.synchronize(self.deadline_ms)
        except DeviceError as error:
            step = self.steps.launched
            if error.code == ErrorCode.TIMED_OUT:
                raise DeadlineError(
                    f"step {step} is not over within {self.deadline_ms} ms, so processed({step}) "
                    "was not sent"
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


class _Applying:
    """Guards applying: leaving it by any exception, an interrupt included, poisons the session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.applying = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._session.applying = False
        else:
            self._session.poison(f"an answer cannot be applied: {kind.__name__}: {error}")
