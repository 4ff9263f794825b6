"""What each message does, and how it is answered.

Everything here runs on the daemon's one thread. A message gets exactly one answer, at once or, for
a hello that waits for its group and a follow that waits for entries, later.
"""

import asyncio
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from kvd.engine.incarnation import Incarnation
from kvd.errors import DivergenceError, InvariantError, SessionError
from kvd.serve.group import Group, GroupSettings, Running, Session
from kvd.serve.lobby import Lobby, Send
from kvd.serve.memory import DescriptorKeeper
from kvd.serve.recorder import Recorder
from kvd.serve.timing import CoreTimes
from kvd_proto.codec import decode_control, decode_header, encode
from kvd_proto.control import (
    Ack,
    Books,
    Bye,
    Control,
    ErrorReply,
    Header,
    MessageKind,
    Ping,
    WhatIf,
)
from kvd_proto.errors import ErrorCode, FrameError, KvdError


@dataclass(frozen=True, slots=True)
class Parked:
    """A batch that waits until the slowest rank has caught up."""

    session: Session
    header: Header
    body: bytes
    timer: asyncio.TimerHandle


class Dispatcher:
    """The one place where messages come in and answers go out."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        settings: GroupSettings,
        keeper: DescriptorKeeper,
        send: Send,
        log: Callable[[str], None],
        recorder: Recorder | None = None,
    ) -> None:
        self.lobby = Lobby(
            loop,
            settings=settings,
            keeper=keeper,
            send=send,
            log=log,
            owner=self,
            recorder=recorder,
        )
        self.core_times = CoreTimes()
        self.error_counts: dict[str, int] = {}
        self._loop = loop
        self._settings = settings
        self._send = send
        self._log = log
        self._parked: list[Parked] = []
        self._unsettled: tuple[Group, Incarnation] | None = None
        self._recorder = recorder

    # ---- messages -------------------------------------------------------------------------------

    def message(self, identity: bytes, frames: list[bytes]) -> None:
        """Answer one message; whatever it holds, the daemon lives on."""
        token = index = 0
        session: Session | None = None
        try:
            if len(frames) > 2:
                frames = _without_torn_headers(frames)
            if len(frames) != 2:
                raise SessionError(
                    f"message of {len(frames)} frames; header and body are expected",
                    code=ErrorCode.BAD_FRAME,
                )
            header = decode_header(frames[0])
            token, index = header.token, header.index
            self._check_size(frames)
            if header.kind is MessageKind.HELLO:
                self.lobby.hello(identity, frames[1])
                return
            session = self._session(identity, header)
            if header.kind is MessageKind.BATCH:
                self._batch(session, header, frames[1])
                return
            self._other(session, header, frames[1])
        except KvdError as error:
            self._error(identity, token, index, session, error)
        except Exception:  # rim: a fault of our own must not take other groups down
            self._log(f"event=internal_error trace={traceback.format_exc()!r}")
            fault = SessionError("internal error, see the daemon's log", code=ErrorCode.INTERNAL)
            self._error(identity, token, index, session, fault)

    def after_send(self) -> None:
        """Do what the newest batch left for after its reply, and wake who waited for it."""
        if self._unsettled is None:
            return
        group, incarnation = self._unsettled
        self._unsettled = None
        try:
            if self._recorder is not None:
                self._recorder.look(incarnation)
            incarnation.settle()
        except InvariantError as error:
            self.lobby.end_group(group, error.message, code=error.code)
        news = incarnation.engine.monitor.news
        if news:
            for line in news:
                self._log(f"event=check_broken group={group.name} said={line!r}")
            news.clear()

    def refuse(self, identity: bytes, token: int, error: KvdError, *, index: int = 0) -> None:
        """Answer a message with an error and count it; ``index`` says which message it was."""
        self.error_counts[error.code.value] = self.error_counts.get(error.code.value, 0) + 1
        header = Header(MessageKind.ERROR, self._settings.epoch, token, index)
        body = ErrorReply(code=error.code.value, message=error.message, retry=error.retry)
        self._send(identity, encode(header), encode(body))

    def sessions_ended(self, sessions: Sequence[Session]) -> None:
        """Answer whatever these sessions wait for: their incarnation is over."""
        for session in sessions:
            parked = [item for item in self._parked if item.session is session]
            for item in parked:
                self._parked.remove(item)
                item.timer.cancel()
            if session.following or parked:
                session.following = False
                self._answer_ended(session)

    def _batch(self, session: Session, header: Header, body: bytes) -> None:
        """Decide a batch and answer it: the hot path."""
        started_ns = perf_counter_ns()
        stage, rank = session.hello.stage, session.hello.rank
        running = session.group.running
        assert running is not None
        incarnation = running.stages[stage]
        if not session.sends_operations:
            raise SessionError(
                f"rank {rank} follows the log and sends no operations", code=ErrorCode.FORBIDDEN
            )
        incarnation.confirm(rank, header.position)
        program = session.hello.program
        if incarnation.lags(program, header.index):
            self._park(session, header, body)
            return
        end_index, reply = incarnation.batch(
            rank=rank, program=program, index=header.index, body=body
        )
        answer = encode(
            Header(
                MessageKind.REPLY,
                self._settings.epoch,
                session.token,
                end_index,
                incarnation.log.end_position,
            )
        )
        self.core_times.add(perf_counter_ns() - started_ns)
        self._send(session.identity, answer, reply)
        self._unsettled = session.group, incarnation
        if running.has_followers:
            self._wake_followers(running, stage)
        if self._parked:
            self._retry_parked()
        if incarnation.ended is not None:
            self.lobby.end_group(session.group, incarnation.ended, code=ErrorCode.DRAINING)

    def _other(self, session: Session, header: Header, body: bytes) -> None:
        stage, rank = session.hello.stage, session.hello.rank
        running = session.group.running
        assert running is not None
        incarnation = running.stages[stage]
        if header.kind is MessageKind.FOLLOW:
            _check_body(header, body, Ping)
            incarnation.confirm(rank, header.position)
            session.following = True
            self._wake_followers(running, stage)
            self._retry_parked()
        elif header.kind is MessageKind.FACT:
            failed = incarnation.fact(rank, body)
            self._ack(session)
            self._wake_followers(running, stage)
            if failed is not None:
                cause = f"{session.describe()} cannot go on: {failed.reason}"
                self.lobby.end_group(session.group, cause, code=ErrorCode.RANK_LOST)
        elif header.kind is MessageKind.PING:
            _check_body(header, body, Ping)
            incarnation.confirm(rank, header.position)
            self._ack(session)
            self._retry_parked()
        elif header.kind is MessageKind.ASK:
            self._ask(session, incarnation, header, body)
        elif header.kind is MessageKind.BYE:
            _check_body(header, body, Bye)
            self._ack(session)
            cause = f"{session.describe()} left"
            self.lobby.end_group(session.group, cause, code=ErrorCode.RANK_LOST)
        else:
            raise SessionError(
                f"message kind {header.kind.value} is not for this socket",
                code=ErrorCode.BAD_FRAME,
            )

    # ---- inside ---------------------------------------------------------------------------------

    def _session(self, identity: bytes, header: Header) -> Session:
        """Return the session that a message belongs to; raises SessionError for a stale one."""
        session = self.lobby.sessions.get(header.token)
        if session is None or session.identity != identity:
            raise SessionError(
                "token is not one of this daemon's sessions; attach again", code=ErrorCode.FENCED
            )
        if header.epoch != self._settings.epoch:
            raise SessionError(
                f"epoch {header.epoch} is stale, this daemon's is {self._settings.epoch}; attach "
                f"again",
                code=ErrorCode.FENCED,
            )
        if session.ended is not None:
            raise SessionError(session.ended.message, code=ErrorCode(session.ended.code))
        if session.group.running is None:
            raise SessionError(
                "the group is not complete yet; wait for the welcome", code=ErrorCode.BAD_HELLO
            )
        session.asked_index = header.index
        return session

    def _check_size(self, frames: list[bytes]) -> None:
        longest = max(map(len, frames))
        if longest > self._settings.frame_bytes_max:
            raise SessionError(
                f"frame of {longest} bytes is over the cap of {self._settings.frame_bytes_max}",
                code=ErrorCode.FRAME_TOO_LARGE,
            )

    def _wake_followers(self, running: Running, stage: int) -> None:
        incarnation = running.stages[stage]
        for session in running.sessions.values():
            if not session.following or session.hello.stage != stage:
                continue
            reply = incarnation.follow(session.hello.rank)
            if reply is not None:
                session.following = False
                header = Header(
                    MessageKind.REPLY,
                    self._settings.epoch,
                    session.token,
                    session.asked_index,
                    incarnation.log.end_position,
                )
                self._send(session.identity, encode(header), reply)

    def _park(self, session: Session, header: Header, body: bytes) -> None:
        for parked in self._parked:
            if parked.session is session:
                return  # sent again while it waits
        timer = self._loop.call_later(
            self._settings.lag_wait_ms / 1000, self._gave_up_parked, session
        )
        self._parked.append(Parked(session, header, body, timer))

    def _retry_parked(self) -> None:
        """Decide what waited for slow ranks and waits no longer, one at a time.

        Each decision comes back here, because it may free others.
        """
        while True:
            item = next((one for one in self._parked if not self._still_lags(one)), None)
            if item is None:
                return
            self._parked.remove(item)
            item.timer.cancel()
            self.message(item.session.identity, [encode(item.header), item.body])

    def _still_lags(self, item: Parked) -> bool:
        running = item.session.group.running
        return running is not None and running.stages[item.session.hello.stage].lags(
            item.session.hello.program, item.header.index
        )

    def _gave_up_parked(self, session: Session) -> None:
        self._parked = [item for item in self._parked if item.session is not session]
        running = session.group.running
        assert running is not None
        incarnation = running.stages[session.hello.stage]
        slowest = min(incarnation.given, key=lambda rank: incarnation.given[rank])
        self.refuse(
            session.identity,
            session.token,
            SessionError(
                f"rank {slowest} has applied position {incarnation.applied[slowest]} of "
                f"{incarnation.log.end_position} and did not catch up within "
                f"{self._settings.lag_wait_ms} ms",
                code=ErrorCode.TIMED_OUT,
                retry=True,
            ),
            index=session.asked_index,
        )

    def _ask(self, session: Session, incarnation: Incarnation, asked: Header, body: bytes) -> None:
        question = decode_control(body)
        if isinstance(question, WhatIf):
            answer = encode(incarnation.what_if(question))
        elif isinstance(question, Books):
            incarnation.confirm(session.hello.rank, asked.position)
            answer = encode(incarnation.books(session.hello.rank))
        else:
            raise SessionError(
                f"{type(question).__name__} is no question", code=ErrorCode.BAD_FRAME
            )
        header = Header(MessageKind.ASK, self._settings.epoch, session.token, session.asked_index)
        self._send(session.identity, encode(header), answer)

    def _ack(self, session: Session) -> None:
        header = Header(MessageKind.ACK, self._settings.epoch, session.token, session.asked_index)
        self._send(session.identity, encode(header), encode(Ack()))

    def _answer_ended(self, session: Session) -> None:
        assert session.ended is not None
        header = Header(MessageKind.ERROR, self._settings.epoch, session.token, session.asked_index)
        self._send(session.identity, encode(header), encode(session.ended))

    def _error(
        self, identity: bytes, token: int, index: int, session: Session | None, error: KvdError
    ) -> None:
        fatal = isinstance(error, (DivergenceError, InvariantError))
        if session is not None and (fatal or error.code is ErrorCode.INTERNAL):
            self.lobby.end_group(session.group, error.message, code=error.code)
        self.refuse(identity, token, error, index=index)


def _check_body(header: Header, body: bytes, expected: type[Control]) -> None:
    """Raise KvdError unless the body is what a kind of message has, though nothing is read in it.

    A header alone is a few bytes, which damage may turn into another kind's.
    """
    found = decode_control(body)
    if not isinstance(found, expected):
        raise SessionError(
            f"message kind {header.kind.value} has a body of {type(found).__name__}; "
            f"{expected.__name__} is expected",
            code=ErrorCode.BAD_FRAME,
        )


def _without_torn_headers(frames: list[bytes]) -> list[bytes]:
    """Drop headers in front of a message whose sender was interrupted before their bodies left.

    ZeroMQ keeps a first frame until its message is complete, so what the sender repeats, or sends
    instead, arrives behind it. Frames that are no headers of the same session stay and are refused.
    """
    try:
        last = decode_header(frames[-2])
        torn = [decode_header(frame) for frame in frames[:-2]]
    except FrameError:
        return frames
    same = all((item.epoch, item.token) == (last.epoch, last.token) for item in torn)
    return frames[-2:] if same and last.token else frames
