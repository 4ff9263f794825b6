"""The lobby: where ranks arrive, wait for their group, and leave again.

It keeps the groups and sessions, starts incarnations when they can start, and sees to it that
memory is given back when it is quiet. What messages mean beyond that is the dispatcher's business.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Protocol

from kvd.errors import ServeError, SessionError
from kvd.serve.group import Group, GroupSettings, Session, check_hello
from kvd.serve.lifeline import Lifeline, LifelineServer
from kvd.serve.memory import DescriptorKeeper
from kvd_proto.codec import decode_control, encode
from kvd_proto.control import Descriptors, Header, Hello, MessageKind, Role
from kvd_proto.errors import ErrorCode, KvdError
from kvd_proto.version import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN

QUIET_POLL_S = 0.005
"""How often memory of ranks that ended is looked at; a stream runs dry in about this time."""

Send = Callable[[bytes, bytes, bytes], None]
"""Sends header and body to a routing id."""


class LobbyOwner(Protocol):
    """Who answers ranks that wait for something."""

    def refuse(self, identity: bytes, token: int, error: KvdError) -> None:
        """Answer a message with an error."""
        ...

    def sessions_ended(self, sessions: Sequence[Session]) -> None:
        """Answer whatever these sessions wait for: their incarnation is over."""
        ...


class Lobby:
    """Groups, sessions, and their comings and goings."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        settings: GroupSettings,
        keeper: DescriptorKeeper,
        send: Send,
        log: Callable[[str], None],
        owner: LobbyOwner,
    ) -> None:
        self.groups: dict[str, Group] = {}
        self.sessions: dict[int, Session] = {}
        self.draining = False
        self._loop = loop
        self._settings = settings
        self._keeper = keeper
        self._send = send
        self._log = log
        self._owner = owner
        self._lifelines: LifelineServer | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def attach_lifelines(self, lifelines: LifelineServer) -> None:
        """Name the descriptor socket, which needs this lobby to exist first."""
        self._lifelines = lifelines

    # ---- hello ----------------------------------------------------------------------------------

    def hello(self, identity: bytes, body: bytes) -> None:
        """Take in a rank; its answer comes when the group is complete. Raises KvdError."""
        hello = decode_control(body)
        if not isinstance(hello, Hello):
            raise ServeError(
                f"hello expected, {type(hello).__name__} came", code=ErrorCode.BAD_HELLO
            )
        if self.draining:
            raise ServeError("the daemon is stopping", code=ErrorCode.DRAINING, retry=True)
        if not hello.version_min <= PROTOCOL_VERSION <= hello.version_max:
            raise ServeError(
                f"client speaks protocol {hello.version_min} to {hello.version_max}, this daemon "
                f"{PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION}; use builds that share a version",
                code=ErrorCode.BAD_VERSION,
            )
        check_hello(hello)
        if hello.role not in (Role.SCHEDULER, Role.WORKER):
            raise ServeError(
                f"role {hello.role.value} reads statistics, which the socket with the suffix "
                f".stats gives without a hello",
                code=ErrorCode.BAD_HELLO,
            )
        assert self._lifelines is not None
        lifeline = self._lifelines.claim(hello.ticket)
        group = self.groups.get(hello.group)
        if group is None:
            group = Group(hello, settings=self._settings, keeper=self._keeper)
        session = Session(identity, secrets.randbits(63) | 1, lifeline, hello, group)
        group.join(session)
        self.groups[group.name] = group
        self.sessions[session.token] = session
        self._log(f"event=hello group={group.name} rank={session.describe()!r}")
        if group.name not in self._timers:
            self._timers[group.name] = self._loop.call_later(
                self._settings.group_wait_ms / 1000, self._gave_up_waiting, group
            )
        self._start_if_ready(group)

    def _start_if_ready(self, group: Group) -> None:
        if len(group.waiting) < group.rank_count or group.running is not None or group.leaving:
            return
        sessions = list(group.waiting.values())
        self._stop_timer(group)
        try:
            welcomes = group.start()
        except KvdError as error:
            self._turn_away(group, error)
            return
        assert group.running is not None
        for session in sessions:
            welcome = welcomes[session.key]
            header = Header(MessageKind.WELCOME, self._settings.epoch, session.token)
            self._send(session.identity, encode(header), encode(welcome))
        self._log(
            f"event=incarnation_start group={group.name} number={group.incarnation_count} "
            f"ranks={group.rank_count} arena_bytes={welcomes[0, 0].plan.arena_bytes}"
        )

    def _gave_up_waiting(self, group: Group) -> None:
        """Answer the ranks that came, naming what their group waited for in vain."""
        del self._timers[group.name]
        waited_ms = self._settings.group_wait_ms
        if group.leaving:
            problem = ServeError(
                f"memory of the last incarnation of group {group.name!r} is still in use after "
                f"{waited_ms} ms by {group.blockers()}; end those processes",
                code=ErrorCode.BUSY,
                retry=True,
            )
        elif group.running is not None:
            problem = ServeError(
                f"group {group.name!r} runs with other ranks", code=ErrorCode.RANK_TAKEN
            )
        else:
            problem = ServeError(
                f"group {group.name!r} is incomplete after {waited_ms} ms: missing "
                f"{', '.join(group.missing())}",
                code=ErrorCode.GROUP_INCOMPLETE,
                retry=True,
            )
        self._turn_away(group, problem)

    def _turn_away(self, group: Group, error: KvdError) -> None:
        """Refuse every rank that waits; they may say hello again with new lifelines."""
        for session in list(group.waiting.values()):
            self._owner.refuse(session.identity, 0, error)
            del self.sessions[session.token]
        group.waiting.clear()
        self._drop_if_empty(group)

    # ---- ends -----------------------------------------------------------------------------------

    def lifeline_ended(self, lifeline: Lifeline, cause: str) -> None:
        """Take in that a client hung up or died: the end of its rank."""
        session = next((item for item in self.sessions.values() if item.lifeline is lifeline), None)
        if session is None:
            self._finish(lifeline)
            return
        group = session.group
        if group.waiting.get(session.key) is session:
            del group.waiting[session.key]
            del self.sessions[session.token]
            self._finish(lifeline)
            self._log(f"event=hello_withdrawn group={group.name} cause={cause!r}")
            if not group.waiting:
                self._stop_timer(group)
            self._drop_if_empty(group)
        elif session.ended is None:
            self.end_group(
                group, f"{session.describe()} is lost: {cause}", code=ErrorCode.RANK_LOST
            )
        else:
            del self.sessions[session.token]
            self._finish(lifeline)

    def _finish(self, lifeline: Lifeline) -> None:
        """Stop watching a process once it hung up and none of its memory is left."""
        leaving = (item.lifeline for group in self.groups.values() for item in group.leaving)
        if not lifeline.connected and all(item is not lifeline for item in leaving):
            lifeline.stop_watching()

    def drain(self) -> None:
        """Take nothing new and end every incarnation at its next gate."""
        self.draining = True
        for group in list(self.groups.values()):
            if group.waiting:
                self._stop_timer(group)
                self._turn_away(
                    group,
                    ServeError("the daemon is stopping", code=ErrorCode.DRAINING, retry=True),
                )
            if group.running is not None:
                for incarnation in group.running.stages:
                    incarnation.submit_end("the daemon is stopping")
                if all(incarnation.ended for incarnation in group.running.stages):
                    self.end_group(group, "the daemon is stopping", code=ErrorCode.DRAINING)

    def end_all(self, cause: str) -> None:
        """End every incarnation at once."""
        for group in list(self.groups.values()):
            if group.running is not None:
                self.end_group(group, cause, code=ErrorCode.DRAINING)

    @property
    def running_count(self) -> int:
        """Return how many incarnations run."""
        return sum(group.running is not None for group in self.groups.values())

    def end_group(self, group: Group, cause: str, *, code: ErrorCode) -> None:
        """End a group's incarnation, if it has one, and give memory back as it falls quiet."""
        if group.running is None:
            return
        self._log(f"event=incarnation_end group={group.name} code={code.value} cause={cause!r}")
        sessions = group.end(cause, code=code)
        self._owner.sessions_ended(sessions)
        for session in sessions:
            if not session.lifeline.connected:
                self.sessions.pop(session.token, None)
        deadline = self._loop.time() + self._settings.quiet_wait_ms / 1000
        self._release(group, deadline)

    def _release(self, group: Group, deadline: float | None) -> None:
        """Give memory back as it falls quiet; past the deadline say once who keeps it."""
        for item in group.release_quiet():
            self._finish(item.lifeline)
            self._log(f"event=memory_released group={group.name} rank={item.rank!r}")
        for problem in group.release_problems:
            self._log(f"event=release_problem group={group.name} problem={problem!r}")
        group.release_problems.clear()
        if group.leaving:
            if deadline is not None and self._loop.time() > deadline:
                self._log(
                    f"event=memory_quarantined group={group.name} kept_by={group.blockers()!r}"
                )
                deadline = None
            self._loop.call_later(QUIET_POLL_S, self._release, group, deadline)
            return
        self._start_if_ready(group)
        self._drop_if_empty(group)

    def _drop_if_empty(self, group: Group) -> None:
        if group.is_empty and self.groups.get(group.name) is group:
            del self.groups[group.name]

    # ---- descriptors ----------------------------------------------------------------------------

    def descriptors(self, lifeline: Lifeline, token: int) -> tuple[Descriptors, Sequence[int]]:
        """Return what a session may map: its arena and its fence page."""
        session = self.sessions.get(token)
        if session is None or session.lifeline is not lifeline or session.group.running is None:
            raise SessionError(
                "descriptors are given to a welcomed session over its own lifeline",
                code=ErrorCode.FENCED,
            )
        memory = session.group.running.memories[session.key]
        return (
            Descriptors(
                names=("arena", "fence"), sizes_bytes=(memory.arena_bytes, memory.fence_bytes)
            ),
            (memory.arena, memory.fence),
        )

    def _stop_timer(self, group: Group) -> None:
        timer = self._timers.pop(group.name, None)
        if timer is not None:
            timer.cancel()
