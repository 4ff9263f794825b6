"""A daemon without sockets and without a clock: its dispatcher, with groups that have live state.

One group is left alone: whatever comes from others must not change it. The other group is the
sender's own, whose valid messages are obeyed. Time passes by being told to.
"""

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from kvd.alloc.checks import CheckLevel
from kvd.engine.incarnation import Incarnation
from kvd.engine.stage import StageEngine
from kvd.errors import ServeError
from kvd.serve.arena import HostArenas
from kvd.serve.dispatch import Dispatcher
from kvd.serve.group import GroupSettings, Session
from kvd_proto.codec import decode_control, decode_header, decode_reply, encode
from kvd_proto.control import Header, Hello, MessageKind, Welcome
from kvd_proto.errors import ErrorCode
from kvd_proto.memory import SizingInputs
from kvd_proto.operations import (
    Admit,
    Advance,
    Free,
    Hold,
    Insert,
    Launch,
    LoadReserve,
    Operation,
    Processed,
    Standing,
    Take,
    WriteSet,
)
from kvd_proto.outcomes import BatchReply, Failed, Refusal, Skipped
from kvd_proto.version import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from tests.e2e.ranks import LAYERS, SIZING
from tests.e2e.wire import batch_body
from tests.proto.samples import int32s, int64s
from tests.unit.serve_parts import FakeProcess, Keeper

if TYPE_CHECKING:
    from kvd.serve.lifeline import LifelineServer

EPOCH: Final = 7
FRAME_BYTES_MAX: Final = 1 << 18
TICK_S: Final = 0.001
"""What a message takes on the clock here."""


class ManualLoop(asyncio.AbstractEventLoop):
    """Timers that fire when time is moved; nothing else of a loop is there."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._numbers = count()
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now_s

    def get_debug(self) -> bool:
        return False

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.now_s + delay, callback, args, self)
        entry = (handle.when(), next(self._numbers), handle, lambda: callback(*args))
        heapq.heappush(self._timers, entry)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it in the heap, where its time passes."""

    def pass_time(self, seconds: float) -> None:
        """Fire what is due within the next seconds; what a timer raises comes through."""
        self.now_s += seconds
        while self._timers and self._timers[0][0] <= self.now_s:
            _, _, handle, call = heapq.heappop(self._timers)
            if not handle.cancelled():
                call()


@dataclass
class FakeLifeline(FakeProcess):
    """A client's descriptor connection."""

    ticket: int = 0
    uid: int = 0
    connected: bool = True
    parting: bool = False
    claimed: bool = False

    def stop_watching(self) -> None:
        self.process_ended = True


class FakeLifelines:
    """Hands out one lifeline a ticket, as the descriptor socket does."""

    def __init__(self) -> None:
        self.waiting: dict[int, FakeLifeline] = {}
        self._tickets = count(1001)

    def open(self) -> FakeLifeline:
        lifeline = FakeLifeline(ticket=next(self._tickets))
        self.waiting[lifeline.ticket] = lifeline
        return lifeline

    def claim(self, ticket: int) -> FakeLifeline:
        found = self.waiting.pop(ticket, None)
        if found is None:
            raise ServeError(f"ticket {ticket} is nobody's", code=ErrorCode.BAD_HELLO)
        found.claimed = True
        return found


@dataclass
class Seat:
    """One rank of a group of its own, with what it may say next."""

    identity: bytes
    group: str
    lifeline: FakeLifeline
    session: Session
    welcome: Welcome
    index: int = 0
    position: int = 0


Answer = tuple[bytes, Header, bytes]


class World:
    """The dispatcher, what it sent and what it logged."""

    def __init__(self, level: CheckLevel) -> None:
        self.loop = ManualLoop()
        self.keeper = Keeper()
        self.answers: list[Answer] = []
        self.faults: list[str] = []
        """What the daemon logged about faults of its own."""
        self.log_line_characters_max = 0
        self.lifelines = FakeLifelines()
        self.dispatcher = Dispatcher(
            self.loop,
            settings=settings(level),
            keeper=self.keeper,
            send=self._send,
            log=self._log,
        )
        self.lobby = self.dispatcher.lobby
        self.lobby.attach_lifelines(cast("LifelineServer", self.lifelines))
        self._group_numbers = count(1)

    def message(self, identity: bytes, frames: list[bytes]) -> list[Answer]:
        """Let a message come in; returns what was sent meanwhile, to whomever."""
        self.dispatcher.message(identity, frames)
        self.dispatcher.after_send()
        return self.take_answers()

    def take_answers(self) -> list[Answer]:
        answers, self.answers = self.answers, []
        return answers

    def pass_time(self, seconds: float) -> list[Answer]:
        self.loop.pass_time(seconds)
        return self.take_answers()

    def hello(self, group: str) -> Hello:
        """Return a hello with a fresh lifeline."""
        return Hello(
            version_min=PROTOCOL_VERSION_MIN,
            version_max=PROTOCOL_VERSION,
            build="fuzz",
            ticket=self.lifelines.open().ticket,
            group=group,
            declare=LAYERS,
            sizing=SIZING,
        )

    def attach(self, name: str) -> Seat:
        """Return the only rank of a new group, with live requests, a value, a load and a hold."""
        group = f"{name}{next(self._group_numbers)}"
        hello, identity = self.hello(group), group.encode()
        lifeline = self.lifelines.waiting[hello.ticket]
        answers = self.message(identity, [encode(Header(MessageKind.HELLO)), encode(hello)])
        welcome = decode_control(answers[-1][2])
        assert isinstance(welcome, Welcome), welcome
        session = self.lobby.sessions[welcome.token]
        seat = Seat(identity, group, lifeline, session, welcome)
        self._populate(seat)
        return seat

    def leave(self, seat: Seat) -> None:
        """Let a rank's process end, and time pass until its memory is given back."""
        seat.lifeline.process_ended, seat.lifeline.connected = True, False
        self.lobby.lifeline_ended(cast("Any", seat.lifeline), "process 7 died")
        self.pass_time(5.0)

    def batch(self, seat: Seat, *operations: Operation) -> BatchReply:
        """Let a rank send a batch that is right."""
        header = Header(MessageKind.BATCH, EPOCH, seat.welcome.token, seat.index, seat.position)
        (answer,) = self.message(seat.identity, [encode(header), batch_body(*operations)])
        assert answer[1].kind is MessageKind.REPLY, decode_control(answer[2])
        reply = decode_reply(answer[2])
        self.note_reply(seat, answer[1], reply)
        return reply

    def serve_one(self, seat: Seat) -> None:
        """Let a rank serve a request from admission to its end, one step behind its launches."""
        request = self.engine(seat).requests.names.highest_id + 1
        step = self.engine(seat).steps.launched_count + 1
        ids = int64s(request)
        self._done(self.batch(seat, Admit(ids, int32s(12), int32s(4), int32s(12))))
        self._done(self.batch(seat, Launch(step, seat.position, WriteSet.REQUESTS, ids)))
        self._done(self.batch(seat, Processed(step - 1), Advance(ids, 12), Take(ids, 1)))
        self._done(self.batch(seat, Advance(ids, 1)))
        self._done(self.batch(seat, Free(ids)))

    def note_reply(self, seat: Seat, header: Header, reply: BatchReply) -> None:
        seat.index = header.index
        seat.position = reply.position + len(reply.entries) - 1

    def incarnation(self, seat: Seat) -> Incarnation:
        """Return the log and engine of a seat whose group runs."""
        running = seat.session.group.running
        assert running is not None
        return running.stages[0]

    def engine(self, seat: Seat) -> StageEngine:
        """Return the books of a seat whose group runs."""
        return self.incarnation(seat).engine

    def _populate(self, seat: Seat) -> None:
        ids = int64s(1, 2, 3, 4)
        tokens = int32s(12, 12, 12, 12)
        self._done(self.batch(seat, Admit(ids, tokens, tokens, tokens), Standing(int64s(1, 2))))
        self._done(self.batch(seat, Advance(ids, 12), Insert(1, 4)))
        self._done(self.batch(seat, Launch(1, seat.position), Take(int64s(1), 4)))
        page = int(self.engine(seat).chain.owner.bound_ids().max())
        self._done(self.batch(seat, LoadReserve(1, 1, (0, 1, 0))))
        self._done(self.batch(seat, Hold(1, (b"", b"", int64s(page)))))

    def _done(self, reply: BatchReply) -> None:
        for entry in reply.entries:
            result = entry.outcome.result
            assert not isinstance(result, Failed | Refusal | Skipped), result

    def _send(self, identity: bytes, header: bytes, body: bytes) -> None:
        self.answers.append((identity, decode_header(header), body))

    def _log(self, line: str) -> None:
        self.log_line_characters_max = max(self.log_line_characters_max, len(line))
        if "internal_error" in line:
            self.faults.append(line)


def settings(level: CheckLevel) -> GroupSettings:
    """Return settings of small bounds, so that all of them are met."""
    return GroupSettings(
        epoch=EPOCH,
        sizing=SizingInputs(),
        level=level,
        ring_entry_count_max=64,
        lag_entry_count_max=256,
        idle_moves_max=4,
        batch_moves_max=0,
        leaks_raise=True,
        group_wait_ms=50,
        lag_wait_ms=50,
        quiet_wait_ms=100,
        survivor_wait_ms=50,
        heartbeat_ms=1000,
        frame_bytes_max=FRAME_BYTES_MAX,
        arenas=HostArenas(),
    )


def tree_of(value: object) -> Any:
    """Return a message as the lists, objects and values that its bytes hold."""
    return msgspec.msgpack.decode(encode(value))
