"""A group and its sessions: ranks gather, run as one incarnation, and end together.

A group forms when every rank of every stage has said hello. It starts when the memory of the ranks
before is quiet, and on the same arenas if its plan is the same. The end of any rank is the end of
all: requests are gone from the books at once, the memory only when it is quiet.
"""

import re
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from kvd import __version__
from kvd.alloc.checks import CheckLevel
from kvd.build import GroupStorage, build_group
from kvd.engine.incarnation import Incarnation
from kvd.errors import ServeError
from kvd.serve.arena import Arenas, check_room
from kvd.serve.group_memory import GroupMemory
from kvd.serve.leaving import Leaving
from kvd.serve.lifeline import Lifeline
from kvd.serve.memory import DescriptorKeeper, RankMemory
from kvd.serve.quiet import DriverCheck
from kvd_proto.codec import digest_of, encode
from kvd_proto.control import ErrorReply, Hello, Mode, Role, Welcome
from kvd_proto.errors import ErrorCode
from kvd_proto.memory import SizingInputs
from kvd_proto.version import PROTOCOL_VERSION

_GROUP_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Holders take it as part of a descriptor's name."""
MISSING_NAMED_COUNT = 16
"""Ranks that are named where a group waits for more: a hello may claim a million of them."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What a group takes from the daemon's settings."""

    epoch: int
    """Number of this run of the daemon, in every message."""
    sizing: SizingInputs
    level: CheckLevel
    leaks_raise: bool
    ring_entry_count_max: int
    lag_entry_count_max: int
    idle_moves_max: int
    batch_moves_max: int
    group_wait_ms: int
    lag_wait_ms: int
    quiet_wait_ms: int
    survivor_wait_ms: int
    heartbeat_ms: int
    frame_bytes_max: int
    arenas: Arenas
    """Where memory comes from; no arena is larger than its place."""
    driver: DriverCheck | None = None
    """Who knows which processes hold contexts; None where a process takes its streams along."""


@dataclass(slots=True)
class Session:
    """One rank of a group; ``token`` names it in every message after its welcome."""

    identity: bytes
    """ZeroMQ routing id; a message with this session's token from elsewhere is refused."""
    token: int
    lifeline: Lifeline
    hello: Hello
    group: "Group"
    ended: ErrorReply | None = None
    """What every later message is answered with, once the incarnation is over."""
    following: bool = False
    """Whether a follow waits for entries."""
    asked_index: int = 0
    """Index in the header of the newest message, which its answer carries back."""
    companions: list[Lifeline] = field(default_factory=list[Lifeline])
    """Further processes of the rank, each registered when it asked for the rank's memory."""

    @property
    def key(self) -> tuple[int, int]:
        """Return stage and rank."""
        return self.hello.stage, self.hello.rank

    @property
    def sends_operations(self) -> bool:
        """Return whether the rank's program decides; followers only apply."""
        return self.hello.mode is not Mode.FOLLOWER

    def describe(self) -> str:
        """Return stage, rank and process in words."""
        return f"stage {self.hello.stage} rank {self.hello.rank} (process {self.lifeline.pid})"


@dataclass(frozen=True, slots=True)
class Running:
    """One incarnation of the group: an engine per stage, memory per rank."""

    number_index: int
    storage: GroupStorage
    stages: tuple[Incarnation, ...]
    sessions: dict[tuple[int, int], Session]
    memories: dict[tuple[int, int], RankMemory]
    has_followers: bool


class Group:
    """One model instance."""

    def __init__(self, hello: Hello, *, settings: GroupSettings, keeper: DescriptorKeeper) -> None:
        """Plan the group from its first hello; raises KvdError for a model that has no plan."""
        self.name = hello.group
        self.tp, self.pp = hello.tp, hello.pp
        self.waiting: dict[tuple[int, int], Session] = {}
        self.running: Running | None = None
        self.memory = GroupMemory(hello.group, keeper=keeper, driver=settings.driver)
        self.incarnation_count = 0
        self.last_end = ""
        self._settings = settings
        self._declared = _declared(hello)
        self._build(hello, budget_bytes=hello.sizing.budget_bytes)

    @property
    def rank_count(self) -> int:
        """Return how many ranks the group needs."""
        return self.tp * self.pp

    @property
    def stages(self) -> tuple[Incarnation, ...]:
        """Return the engines of the incarnation that runs; none if none does."""
        return () if self.running is None else self.running.stages

    @property
    def state(self) -> str:
        """Return what the group is doing, in one word."""
        if self.running is not None:
            return "running"
        if self.memory.leaving:
            return "leaving"
        return "forming" if self.waiting else "empty"

    @property
    def is_empty(self) -> bool:
        """Return whether nothing of the group is left that has to be kept."""
        memory = self.memory
        return not (self.waiting or self.running or memory.leaving or memory.has_survivors)

    def missing(self) -> list[str]:
        """Return the ranks that have not said hello, in words; of many only the first ones."""
        absent = (
            f"stage {stage} rank {rank}"
            for stage in range(self.pp)
            for rank in range(self.tp)
            if (stage, rank) not in self.waiting
        )
        named = list(islice(absent, MISSING_NAMED_COUNT))
        rest_count = self.rank_count - len(self.waiting) - len(named)
        return [*named, f"{rest_count} more ranks"] if rest_count else named

    def join(self, session: Session) -> None:
        """Add a rank that said hello; raises ServeError if it does not belong."""
        if not self.waiting and self.running is None and _declared(session.hello) != self._declared:
            # Nobody is left who declared otherwise: the group starts anew.
            self._declared = _declared(session.hello)
            self.tp, self.pp = session.hello.tp, session.hello.pp
            self._build(session.hello, budget_bytes=session.hello.sizing.budget_bytes)
        _check_same(self._declared, _declared(session.hello), group=self.name)
        attached = self.running.sessions if self.running is not None else self.waiting
        other = attached.get(session.key)
        if other is not None:
            raise ServeError(
                f"stage {session.hello.stage} rank {session.hello.rank} of group {self.name!r} is "
                f"attached already, as process {other.lifeline.pid}",
                code=ErrorCode.RANK_TAKEN,
            )
        self.waiting[session.key] = session

    def start(self) -> dict[tuple[int, int], Welcome]:
        """Start the incarnation that gathered; returns each rank's welcome.

        Raises KvdError when the smallest budget is too small or memory cannot be had.
        """
        assert len(self.waiting) == self.rank_count
        assert self.running is None
        sessions = dict(sorted(self.waiting.items()))
        _check_modes(list(sessions.values()))
        asked = {
            key: session.hello.sizing.budget_bytes or self._settings.sizing.budget_bytes or 0
            for key, session in sessions.items()
        }
        minimum = min(asked, key=lambda key: (asked[key], key))
        first = next(iter(sessions.values())).hello
        storage = self._build(first, budget_bytes=asked[minimum])
        number = self.incarnation_count + 1
        plans = tuple(stage.storage for stage in storage.stages)
        places = {
            key: self._settings.arenas.place_of(session.hello.gpu_uuid)
            for key, session in sessions.items()
        }
        wanted_bytes = dict.fromkeys(places.values(), 0)
        for (stage_index, _), place in places.items():
            wanted_bytes[place] += plans[stage_index].total_bytes
        self._check_room(wanted_bytes)
        memories = self.memory.create(
            plans, number=number, places=places, maker=self._settings.arenas.create
        )
        legacies, redo = self.memory.inherit()
        self.incarnation_count = number
        self.waiting.clear()
        self.running = Running(
            number_index=number,
            storage=storage,
            stages=tuple(
                Incarnation(
                    stage,
                    number=number,
                    ranks=tuple(range(self.tp)),
                    level=self._settings.level,
                    leaks_raise=self._settings.leaks_raise,
                    ring_entries_max=self._settings.ring_entry_count_max,
                    lag_entries_max=self._settings.lag_entry_count_max,
                    idle_moves_max=self._settings.idle_moves_max,
                    batch_moves_max=self._settings.batch_moves_max,
                    legacy=legacy,
                )
                for stage, legacy in zip(storage.stages, legacies, strict=True)
            ),
            sessions=sessions,
            memories=memories,
            has_followers=any(session.hello.mode is Mode.FOLLOWER for session in sessions.values()),
        )
        return {
            key: msgspec.structs.replace(
                self._welcome(session, storage, asked[key], asked[minimum], minimum),
                position=legacies[session.hello.stage].end_position,
                redo=redo.get(key, b""),
                values=tuple(self.running.stages[key[0]].engine.requests.values.of_number),
            )
            for key, session in sessions.items()
        }

    def note_confirmed(self) -> None:
        """Read from every rank's memory up to where its effects have run."""
        if self.running is not None:
            self.memory.note_confirmed(self.running.stages)

    def end(self, cause: str, *, code: ErrorCode, now_s: float) -> list[Session]:
        """End the running incarnation; returns its sessions, each told what it will be answered."""
        running = self.running
        assert running is not None
        self.running = None
        self.last_end = cause
        message = f"incarnation {running.number_index} of group {self.name!r} ended: {cause}"
        for incarnation in running.stages:
            incarnation.end(cause)
        leaving: list[Leaving] = []
        for key, session in running.sessions.items():
            session.ended = ErrorReply(code=code.value, message=message)
            leaving.append(
                Leaving(
                    memory=running.memories[key],
                    processes=(session.lifeline, *session.companions),
                    rank=session.describe(),
                    key=key,
                    ended_at_s=now_s,
                    driver=self.memory.driver,
                )
            )
        self.memory.end(running.stages, leaving)
        return list(running.sessions.values())

    # ---- inside ---------------------------------------------------------------------------------

    def _build(self, hello: Hello, *, budget_bytes: int | None) -> GroupStorage:
        assert hello.declare is not None
        storage = build_group(
            hello.declare,
            inputs=msgspec.structs.replace(hello.sizing, budget_bytes=budget_bytes),
            settings=self._settings.sizing,
            tp_count=hello.tp,
            pp_count=hello.pp,
        )
        arenas = self._settings.arenas
        place = arenas.place_of(hello.gpu_uuid)
        if len(arenas.rooms_bytes()) == 1:
            total = sum(stage.storage.total_bytes for stage in storage.stages) * hello.tp
            self._check_room({place: total})
        else:
            # Where the other ranks are is known when all are there.
            largest = max(stage.storage.total_bytes for stage in storage.stages)
            self._check_room({place: largest})
        return storage

    def _check_room(self, wanted_bytes: dict[str, int]) -> None:
        check_room(self._settings.arenas, self.name, wanted_bytes, f"{self.tp} x {self.pp} ranks")

    def _welcome(
        self,
        session: Session,
        storage: GroupStorage,
        asked_bytes: int,
        granted_bytes: int,
        minimum: tuple[int, int],
    ) -> Welcome:
        return Welcome(
            version=PROTOCOL_VERSION,
            build=__version__,
            epoch=self._settings.epoch,
            token=session.token,
            incarnation=self.incarnation_count,
            heartbeat_ms=self._settings.heartbeat_ms,
            frame_bytes_max=self._settings.frame_bytes_max,
            next_index=0,
            position=0,
            asked_bytes=asked_bytes,
            granted_bytes=granted_bytes,
            minimum_rank=minimum[1],
            plan=storage.stages[session.hello.stage].storage,
            check_level=self._settings.level.word,
        )


def check_hello(hello: Hello) -> None:
    """Raise ServeError unless the hello's values make sense by themselves."""
    wrong: list[tuple[bool, str]] = [
        (
            _GROUP_NAME.fullmatch(hello.group) is None,
            f"group {hello.group!r} is no name: use 1 to 64 letters, digits, '.', '_' and '-'",
        ),
        (not 1 <= hello.tp <= 1024, f"tp {hello.tp} is outside [1, 1024]"),
        (not 1 <= hello.pp <= 1024, f"pp {hello.pp} is outside [1, 1024]"),
        (not 0 <= hello.stage < hello.pp, f"stage {hello.stage} is outside [0, {hello.pp})"),
        (not 0 <= hello.rank < hello.tp, f"rank {hello.rank} is outside [0, {hello.tp})"),
        (not 0 <= hello.program < 1024, f"program {hello.program} is outside [0, 1024)"),
        (
            hello.role is Role.WORKER and hello.mode is not Mode.FOLLOWER,
            f"role {hello.role.value} sends no operations, mode {hello.mode.value} does; a worker "
            f"is a {Mode.FOLLOWER.value}",
        ),
        (hello.declare is None, "declare is missing: say what the model stores"),
    ]
    for is_wrong, problem in wrong:
        if is_wrong:
            raise ServeError(problem, code=ErrorCode.BAD_HELLO)


def _check_modes(sessions: list[Session]) -> None:
    """Raise ServeError unless every stage is all mirrored, or has one leader and followers."""
    for stage in sorted({session.hello.stage for session in sessions}):
        hellos = [session.hello for session in sessions if session.hello.stage == stage]
        modes = [hello.mode for hello in hellos]
        if all(mode is Mode.MIRRORED for mode in modes):
            # Operations are compared within one program: otherwise nothing would be.
            programs = [hello.program for hello in hellos]
            if len(set(programs)) != 1:
                raise ServeError(
                    f"stage {stage} has programs {', '.join(map(str, programs))}; mirrored ranks "
                    f"send the operations of one program",
                    code=ErrorCode.GROUP_MISMATCH,
                )
            continue
        if modes.count(Mode.LEADER) != 1 or Mode.MIRRORED in modes:
            raise ServeError(
                f"stage {stage} has modes {', '.join(mode.value for mode in modes)}; all ranks are "
                f"mirrored, or one is the leader and the others follow",
                code=ErrorCode.GROUP_MISMATCH,
            )


def _declared(hello: Hello) -> dict[str, str]:
    """Return what all ranks of a group must declare alike, field by field, as text or digest."""
    sizing = msgspec.structs.replace(hello.sizing, budget_bytes=None)
    fields = {field: getattr(sizing, field) for field in sizing.__struct_fields__}
    return {
        "tp": str(hello.tp),
        "pp": str(hello.pp),
        "declare": f"digest {digest_of(encode(hello.declare)):016x}",
        **{f"sizing.{name}": str(value) for name, value in fields.items()},
    }


def _check_same(declared: dict[str, str], hello: dict[str, str], *, group: str) -> None:
    differing = [
        f"{name} is {hello[name]}, the other ranks said {declared[name]}"
        for name in declared
        if hello[name] != declared[name]
    ]
    if differing:
        raise ServeError(
            f"hello does not match group {group!r}: {'; '.join(differing)}",
            code=ErrorCode.GROUP_MISMATCH,
        )
