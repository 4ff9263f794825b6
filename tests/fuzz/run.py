"""Send damaged frames to a daemon without sockets, and hold it to its word after each.

Every frame is accepted, answered with an error of a stable code, or waits for its turn. A frame
that is refused changes nothing, nor does any frame change what belongs to others, one of which goes
on with its work all the while. Whatever comes, memory stays as it was.
"""

import gc
import secrets
import sys
from collections import Counter
from ctypes import CDLL
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Any, Final
from unittest.mock import patch

from kvd.alloc.checks import CheckLevel
from kvd.serve.timing import RING_COUNT
from kvd_proto.codec import decode_control, decode_reply
from kvd_proto.control import ErrorReply, Header, MessageKind
from kvd_proto.errors import MESSAGE_CHARACTERS_MAX, ErrorCode
from kvd_proto.outcomes import Failed, NotRun
from tests.fuzz.digests import digest
from tests.fuzz.frames import Sender, message
from tests.fuzz.operations import known, suiting
from tests.fuzz.world import EPOCH, FRAME_BYTES_MAX, TICK_S, Answer, World, tree_of

SEAT_FRAMES_MAX: Final = 2000
"""Frames after which a sender's group ends and another begins, if it lives so long."""
LOOK_EVERY_FRAMES: Final = 500
"""How often everything the sender's group holds is compared around a frame."""
KEPT_EVERY_FRAMES: Final = 2000
"""How often everything that an idle group holds is compared with what it held at first."""
WORK_EVERY_FRAMES: Final = 250
"""How often a third group serves a request from admission to its end."""
LOG_LINE_CHARACTERS_MAX: Final = 12 * MESSAGE_CHARACTERS_MAX
"""Longest line of the log: what a peer says in it is cut, and escaped."""
MEMORY_GROWTH_BYTES_MAX: Final = 4 << 20
"""Most that the process may grow by, whatever the number of frames, for what its heap cannot give
back."""
BLOCKS_GROWTH_MAX: Final = 4000
"""Most by which the number of objects may grow: the group that works fills rings of 1024 batches.
One object kept per refusal is far more in a full run."""
STRANGER: Final = b"stranger"
CURSORS: Final = frozenset(
    {"applied", "given", "confirmed", "_applied", "_given", "_confirmed"}  # the latter in its watch
)
"""What a rank has applied, which a header states whatever its body says."""
SETTLED: Final = frozenset({"_lapses", "_refused_now", "_settle_due", "_standing"})
"""What a batch changes in an engine though none of its operations took effect: its end is counted,
and a standing set remembers where its requests are."""
OURS: Final = frozenset({ErrorCode.INTERNAL.value, ErrorCode.INVARIANT.value})
"""Codes that say that the daemon is at fault."""


@dataclass
class Report:
    """What became of the frames."""

    seed: int
    frames: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """``accepted``, ``answered`` with an error, or ``waiting``."""
    errors: Counter[str] = field(default_factory=Counter[str])
    operations: Counter[str] = field(default_factory=Counter[str])
    groups: int = 0
    looks: int = 0
    served: int = 0
    """Requests that the group beside served meanwhile."""
    elapsed_s: float = 0.0
    digest_before: int = 0
    digest_after: int = 0
    memory_before_bytes: int = 0
    memory_after_bytes: int = 0
    blocks_before: int = 0
    blocks_after: int = 0

    def lines(self) -> list[str]:
        """Return what to print."""
        return [
            f"seed {self.seed}: {self.frames} frames in {self.elapsed_s:.1f} s, "
            f"{self.frames / max(self.elapsed_s, 1e-9):.0f} frames/s",
            "outcomes: " + counted(self.outcomes),
            "errors by code: " + counted(self.errors),
            "operations decided: " + counted(self.operations),
            f"groups: {self.groups} lived and ended, beside {self.served} requests served; "
            f"{self.looks} frames with everything compared",
            f"memory: {self.memory_before_bytes >> 10} KiB at the start, "
            f"{self.memory_after_bytes >> 10} KiB at the end; "
            f"{self.blocks_before} objects, then {self.blocks_after}",
            f"digest of the group left alone: {self.digest_before:016x}, then "
            f"{self.digest_after:016x}",
        ]


@dataclass(frozen=True)
class Look:
    """What a refused frame may not change; nothing of it once the sender's group has ended."""

    counts: tuple[int, ...] = ()
    lapsed_count: int = 0
    """Promises that lapsed, as they do at the end of a batch whose time it is."""
    incarnation: int = 0
    engine: int = 0
    """Digests of all that they hold, where everything is compared."""


class Fuzzer:
    """One daemon, one group that is left alone, and one sender whose frames are damaged."""

    def __init__(self, seed: int, *, level: CheckLevel = CheckLevel.STRICT) -> None:
        self.rng = Random(seed)
        self.report = Report(seed)
        self.world = World(level)
        self.kept = self.world.attach("kept")
        self.beside = self.world.attach("beside")
        self.seat = self.world.attach("sender")
        self._seat_frames = 0
        self._kept = self._kept_digest()

    def run(self, frames: int) -> None:
        """Send so many frames, with groups ended and begun as they wear out."""
        began = monotonic()
        for _ in range(frames):
            self._one()
        self.report.elapsed_s += monotonic() - began

    def renew(self) -> None:
        """End the sender's group and begin another."""
        self.world.leave(self.seat)
        for lifeline in list(self.world.lifelines.waiting.values()):
            del self.world.lifelines.waiting[lifeline.ticket]
        self._end_strays()
        self.seat = self.world.attach("sender")
        self._seat_frames = 0
        self.report.groups += 1

    def mark(self) -> None:
        """Take the figures that the end is compared with."""
        self.renew()
        times = self.world.dispatcher.core_times
        for elapsed_ns in range(10**6, 10**6 + RING_COUNT):
            times.add(elapsed_ns)  # so that none of the ring's places is filled later
        report = self.report
        report.memory_before_bytes, report.blocks_before = _memory()
        report.digest_before = self._kept_digest()

    def finish(self) -> None:
        """Take the figures at the end, in the same state as at the mark."""
        self.renew()
        report = self.report
        report.digest_after = self._kept_digest()
        report.memory_after_bytes, report.blocks_after = _memory()

    # ---- one frame ------------------------------------------------------------------------------

    def _one(self) -> None:
        rng, world, seat = self.rng, self.world, self.seat
        if seat.session.group.running is None or self._seat_frames >= SEAT_FRAMES_MAX:
            self.renew()
            seat = self.seat
        self._seat_frames += 1
        identity = seat.identity if rng.random() < 0.92 else STRANGER
        sender = Sender(
            EPOCH,
            seat.welcome.token,
            seat.index,
            seat.position,
            [
                (EPOCH, self.kept.welcome.token),
                (EPOCH, self.beside.welcome.token),
                (EPOCH, 0),
                (EPOCH - 1, seat.welcome.token),
            ],
        )
        hello: Any = tree_of(world.hello("stray")) if rng.random() < 0.05 else {}
        frames = message(
            rng,
            sender,
            lambda: suiting(known(world, seat), rng),
            hello,
            frame_bytes_max=FRAME_BYTES_MAX,
        )
        looks = self.report.frames % LOOK_EVERY_FRAMES == 0
        before = self._look(deep=looks)
        answers = world.message(identity, frames)
        try:
            self._judge(identity, frames, answers, before, looks=looks)
        except AssertionError as error:
            error.add_note(f"seed {self.report.seed}, frame {self.report.frames}: {_show(frames)}")
            error.add_note("\n".join(world.faults))
            raise
        self.report.frames += 1
        world.pass_time(TICK_S)
        if self.report.frames % WORK_EVERY_FRAMES == 0:
            world.serve_one(self.beside)
            self.report.served += 1
        if self.report.frames % KEPT_EVERY_FRAMES == 0:
            self._end_strays()
            assert self._kept_digest() == self._kept, "a frame changed what is another's"

    def _judge(
        self,
        identity: bytes,
        frames: list[bytes],
        answers: list[Answer],
        before: Look,
        *,
        looks: bool,
    ) -> None:
        report, world = self.report, self.world
        assert not world.faults, "the daemon had a fault of its own"
        own = [answer for answer in answers if answer[0] == identity]
        others = (self.kept.identity, self.beside.identity)
        assert all(who not in others for who, _, _ in answers)
        if not own:
            report.outcomes["waiting"] += 1
            return
        _, header, body = own[0]
        if header.kind is MessageKind.ERROR:
            self._judge_error(body)
            after = self._look(deep=looks)
            ended = self.seat.session.ended is not None
            assert ended or after == before, "a refused frame changed something"
            return
        report.outcomes["accepted"] += 1
        if header.kind is MessageKind.REPLY and identity == self.seat.identity:
            self._judge_reply(header, body, before, looks=looks)

    def _judge_error(self, body: bytes) -> None:
        reply = decode_control(body)
        assert isinstance(reply, ErrorReply)
        assert reply.code in ErrorCode.__members__, reply
        assert reply.code not in OURS, reply
        assert 0 < len(reply.message) <= MESSAGE_CHARACTERS_MAX, len(reply.message)
        self.report.outcomes["answered"] += 1
        self.report.errors[reply.code] += 1

    def _judge_reply(self, header: Header, body: bytes, before: Look, *, looks: bool) -> None:
        reply = decode_reply(body)
        if header.index > self.seat.index:
            self.world.note_reply(self.seat, header, reply)
        results = [entry.outcome.result for entry in reply.entries if entry.program >= 0]
        self.report.operations.update(type(result).__name__ for result in results)
        failed = [result for result in results if isinstance(result, Failed)]
        for result in failed:
            assert result.code in ErrorCode.__members__, result
            assert len(result.message) <= MESSAGE_CHARACTERS_MAX, len(result.message)
            self.report.errors[result.code] += 1
        if not looks or self.seat.session.ended is not None:
            return
        first = next(iter(results), None)
        others = [result for result in results[1:-1] if not isinstance(result, NotRun)]
        # What a batch finds due comes before its operations: copies and transfers that are over.
        alone = len(results) == len(reply.entries)
        if isinstance(first, Failed) and not others and alone:
            after = self._look(deep=True)
            # Position and index went on; what the engine holds did not.
            lapsed = after.lapsed_count != before.lapsed_count
            unchanged = lapsed or after.engine == before.engine
            assert unchanged, f"a wrong operation changed something: {reply}"

    # ---- what is compared -----------------------------------------------------------------------

    def _look(self, *, deep: bool) -> Look:
        """Return what a refused frame may not change; with ``deep`` everything."""
        incarnation = self.world.incarnation(self.seat) if self._runs() else None
        if incarnation is None:
            return Look()
        log, engine, lobby = incarnation.log, incarnation.engine, self.world.lobby
        counts = (
            log.end_position,
            log.bytes_total,
            incarnation.next_index(0),
            engine.chain.epoch_count,
            engine.requests.names.epoch_count,
            engine.requests.live_count,
            len(engine.requests.values.of_number),
            len(lobby.sessions),
            len(lobby.groups),
        )
        lapsed_count = engine.counters["lapsed"]
        if not deep:
            return Look(counts, lapsed_count)
        self.report.looks += 1
        return Look(
            counts,
            lapsed_count,
            digest(incarnation, skipped=CURSORS),
            digest(engine, skipped=SETTLED),
        )

    def _runs(self) -> bool:
        return self.seat.session.group.running is not None

    def _kept_digest(self) -> int:
        return digest(self.world.incarnation(self.kept))

    def _end_strays(self) -> None:
        """Let the processes of whoever attached by chance end."""
        mine = (self.kept.session, self.beside.session, self.seat.session)
        lobby = self.world.lobby
        for session in [one for one in lobby.sessions.values() if one not in mine]:
            session.lifeline.connected = False
            session.lifeline.process_ended = True  # type: ignore[misc]  # a fake
            lobby.lifeline_ended(session.lifeline, "process 7 died")
        self.world.pass_time(1.0)


def fuzz(frames: int, seed: int, *, level: CheckLevel = CheckLevel.STRICT) -> Report:
    """Send frames and return the report; raises AssertionError with the frame that shows a fault.

    A tenth of the frames, at least a few thousand, runs before memory is first measured.
    """
    with patch.object(secrets, "randbits", Random(seed).getrandbits):  # so that seeds repeat
        return _fuzz(frames, seed, level)


def _fuzz(frames: int, seed: int, level: CheckLevel) -> Report:
    fuzzer = Fuzzer(seed, level=level)
    warm = min(max(frames // 10, 2000), frames // 2)
    fuzzer.run(warm)
    fuzzer.mark()
    fuzzer.run(frames - warm)
    fuzzer.finish()
    report = fuzzer.report
    assert report.digest_after == report.digest_before
    assert fuzzer.world.log_line_characters_max <= LOG_LINE_CHARACTERS_MAX
    grown_bytes = report.memory_after_bytes - report.memory_before_bytes
    assert grown_bytes <= MEMORY_GROWTH_BYTES_MAX, report.lines()
    assert report.blocks_after - report.blocks_before <= BLOCKS_GROWTH_MAX, report.lines()
    return report


def _memory() -> tuple[int, int]:
    """Return resident bytes of this process, and how many blocks its objects take."""
    gc.collect()
    trim = getattr(CDLL(None), "malloc_trim", None)  # of glibc: free memory is no growth
    if trim is not None:
        trim(0)
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[1])
    return pages * 4096, sys.getallocatedblocks()


def counted(counts: Counter[str]) -> str:
    """Return counts as words, the most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"


def _show(frames: list[bytes]) -> str:
    shown = [f"{frame[:400]!r}" + ("..." if len(frame) > 400 else "") for frame in frames[:4]]
    return f"{len(frames)} frames of {[len(frame) for frame in frames[:9]]} bytes: " + ", ".join(
        shown
    )
