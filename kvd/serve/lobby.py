"""The lobby: where ranks arrive, wait for their group, and leave again.

It keeps the groups and sessions, starts incarnations when they can start, and sees to it that
memory is given back when it is quiet. What messages mean beyond that is the dispatcher's business.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from kvd.errors import ServeError, SessionError
from kvd.serve.group import Group, GroupSettings, Session, check_hello
from kvd.serve.lifeline import Lifeline, LifelineServer
from kvd.serve.memory import DescriptorKeeper
from kvd.serve.recorder import Recorder
from kvd_proto.codec import decode_control, encode
from kvd_proto.control import Descriptors, FreeQuarantined, Header, Hello, MessageKind, Role
from kvd_proto.errors import ErrorCode, KvdError, clip_text
from kvd_proto.version import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN

QUIET_POLL_S = 0.005
"""How often memory of ranks that ended is looked at; a stream runs dry in about this time."""
QUARANTINE_POLL_S = 0.1
"""How often it is looked at once its time is over."""

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
        recorder: Recorder | None = None,
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
        self._recorder = recorder
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
        self._settings.arenas.place_of(hello.gpu_uuid)
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
        if (
            len(group.waiting) < group.rank_count
            or group.running is not None
            or group.memory.leaving
        ):
            return
        if not self._settings.arenas.prepare(self._loop, lambda: self._start_if_ready(group)):
            return
        sessions = list(group.waiting.values())
        self._stop_timer(group)
        try:
            welcomes = group.start()
        except KvdError as error:
            self._turn_away(group, error)
            return
        assert group.running is not None
        if self._recorder is not None:
            for incarnation in group.stages:
                self._recorder.begin(group.name, incarnation)
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
        if group.memory.leaving:
            problem = ServeError(
                f"memory of the last incarnation of group {group.name!r} is still in use after "
                f"{waited_ms} ms by {group.memory.blockers()}; end those processes, or "
                f"state what proves that they are done with it: kvd release-quarantine",
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
            self._companion_ended(lifeline, cause)
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

    def _companion_ended(self, lifeline: Lifeline, cause: str) -> None:
        """Take in that a process beside a rank is gone: its rank's end, unless it took its leave.

        Only one that has nothing to do with the memory any more is forgotten.
        """
        for session in self.sessions.values():
            if lifeline not in session.companions or session.ended is not None:
                continue
            if lifeline.parted:
                session.companions.remove(lifeline)
            else:
                problem = f"{session.describe()} is lost: {cause}, a process beside its own"
                self.end_group(session.group, problem, code=ErrorCode.RANK_LOST)
            break
        self._finish(lifeline)

    def _finish(self, lifeline: Lifeline) -> None:
        """Stop watching a process once it hung up and none of its memory is left."""
        leaving = [
            process
            for group in self.groups.values()
            for item in group.memory.leaving
            for process in item.processes
        ]
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
        stages = group.stages
        cause = clip_text(cause)  # a rank's own words may be in it
        self._log(f"event=incarnation_end group={group.name} code={code.value} cause={cause!r}")
        sessions = group.end(cause, code=code, now_s=monotonic())
        if self._recorder is not None:
            for incarnation in stages:
                self._recorder.end(incarnation)
        self._owner.sessions_ended(sessions)
        for session in sessions:
            if not session.lifeline.connected:
                self.sessions.pop(session.token, None)
        self._release(group)

    def _release(self, group: Group) -> None:
        """Give memory back as it falls quiet; past its time it is set aside, with the reason."""
        memory = group.memory
        for item in memory.release_quiet():
            for process in item.processes:
                self._finish(process)
            self._log(
                f"event=memory_quiet group={group.name} rank={item.rank!r} proof={item.reason!r}"
            )
        for item in memory.quarantine(monotonic(), wait_ms=self._settings.quiet_wait_ms):
            self._log(
                f"event=memory_quarantined group={group.name} kept_by={item.rank!r} "
                f"bytes={item.bytes} reason={item.reason!r}"
            )
        self._tell_problems(group)
        if memory.leaving:
            waits = any(item.quarantined_at_s is None for item in memory.leaving)
            poll_s = QUIET_POLL_S if waits else QUARANTINE_POLL_S
            self._loop.call_later(poll_s, self._release, group)
            return
        self._start_if_ready(group)
        if memory.has_survivors and group.running is None:
            wait_s = self._settings.survivor_wait_ms / 1000
            self._loop.call_later(wait_s, self._forget, group, group.incarnation_count)
        self._drop_if_empty(group)

    def _forget(self, group: Group, incarnation_count: int) -> None:
        """Give up what survived an incarnation, unless another has begun on it or is about to."""
        if group.running or group.waiting or group.incarnation_count != incarnation_count:
            return
        if group.memory.has_survivors and not group.memory.leaving:
            group.memory.forget_survivors()
            self._log(f"event=survivors_lost group={group.name} reason='nobody came for them'")
            self._drop_if_empty(group)

    def _drop_if_empty(self, group: Group) -> None:
        if group.is_empty and self.groups.get(group.name) is group:
            if group.memory.has_arenas:
                group.memory.release_arenas()
                self._log(f"event=memory_released group={group.name}")
            self._tell_problems(group)
            del self.groups[group.name]

    def _tell_problems(self, group: Group) -> None:
        for problem in group.memory.problems:
            self._log(f"event=release_problem group={group.name} problem={problem!r}")
        group.memory.problems.clear()

    def note_confirmed(self) -> None:
        """Read up to where the effects of every running rank have run."""
        for group in self.groups.values():
            group.note_confirmed()

    def free_quarantined(self, request: FreeQuarantined, *, pid: int) -> None:
        """Give a dead rank's memory back on an administrator's word; raises ServeError."""
        group = self.groups.get(request.group)
        held = [] if group is None else group.memory.leaving
        item = next((one for one in held if one.key == (request.stage, request.rank)), None)
        if item is None or item.quarantined_at_s is None:
            state = "is not in quarantine" if item is None else "is not over its time yet"
            raise ServeError(
                f"memory of stage {request.stage} rank {request.rank} of group {request.group!r} "
                f"{state}; kvd stats shows what is in quarantine",
                code=ErrorCode.BAD_ARGUMENT,
            )
        if not request.evidence.strip():
            raise ServeError(
                "evidence is empty: say what proves that nobody touches the memory any more",
                code=ErrorCode.BAD_ARGUMENT,
            )
        evidence = clip_text(request.evidence)
        self._log(
            f"event=quarantine_overruled group={request.group} rank={item.rank!r} "
            f"by_process={pid} evidence={evidence!r} reason={item.reason!r}"
        )
        item.free_on_proof(evidence)

    # ---- descriptors ----------------------------------------------------------------------------

    def descriptors(self, lifeline: Lifeline, token: int) -> tuple[Descriptors, Sequence[int]]:
        """Return what a rank may map: its arena and its fence page.

        Whoever gets it is watched: a process that is not the session's own becomes one of the
        rank's, whose memory is not quiet before that one ended or let go as well.
        """
        session = self.sessions.get(token)
        running = None if session is None else session.group.running
        if session is None or running is None or running.sessions.get(session.key) is not session:
            raise SessionError(
                "descriptors are given to a welcomed session while its incarnation runs",
                code=ErrorCode.FENCED,
            )
        if lifeline.parting:
            raise SessionError("this process has taken its leave", code=ErrorCode.FENCED)
        if session.lifeline is not lifeline and lifeline not in session.companions:
            if lifeline.claimed:
                raise SessionError("this process is another rank's", code=ErrorCode.FENCED)
            lifeline.claimed = True
            session.companions.append(lifeline)
            self._log(
                f"event=companion group={session.group.name} rank={session.describe()!r} "
                f"process={lifeline.pid}"
            )
        memory = running.memories[session.key]
        return (
            Descriptors(
                names=("arena", "fence"),
                sizes_bytes=(memory.arena.size_bytes, memory.fence_bytes),
            ),
            (memory.arena.descriptor, memory.fence),
        )

    def _stop_timer(self, group: Group) -> None:
        timer = self._timers.pop(group.name, None)
        if timer is not None:
            timer.cancel()
