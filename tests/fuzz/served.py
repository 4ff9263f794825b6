"""Send damaged frames to a daemon process through its sockets, and see that it serves the rest.

Messages go one at a time, so that each has its own answer, or none if it is one of those that wait.
Beside the sender an idle group keeps its books, and a client of a third one works.
"""

import os
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from kvd_client.device import descriptors
from kvd_proto.codec import decode_control, decode_header, decode_reply, encode
from kvd_proto.control import Books, BooksReply, ErrorReply, MessageKind
from kvd_proto.errors import MESSAGE_CHARACTERS_MAX, ErrorCode, FrameError
from kvd_proto.operations import Admit, Advance, Insert, Launch, LoadReserve, Standing, Take
from tests.e2e.daemon_process import DaemonProcess, wait_until
from tests.e2e.ranks import Ranks, admit
from tests.e2e.wire import ANSWER_WAIT_MS, Peer
from tests.fuzz.frames import Sender, message
from tests.fuzz.operations import Known, suiting
from tests.fuzz.run import counted
from tests.fuzz.trees import damaged
from tests.fuzz.world import tree_of
from tests.proto.samples import SAMPLES, int32s, int64s

if TYPE_CHECKING:
    from kvd_client import Client

FRAME_BYTES_MAX: Final = 1 << 16
FRAME_BYTES_CUT: Final = 4 * FRAME_BYTES_MAX
"""ZeroMQ hangs up on whoever sends a longer frame."""
SETTINGS: Final = (
    *("--group-wait-ms", "100"),
    *("--lag-wait-ms", "100"),
    *("--frame-bytes-max", "64KiB"),
    *("--check-level", "strict"),
)
LATE_MS: Final = {MessageKind.FOLLOW: 2, MessageKind.HELLO: 5, MessageKind.BATCH: 100}
"""How long the answer of a kind that may wait is waited for; later it counts when it comes."""
SILENT_MS: Final = 1000
"""Longer than anything waits for its turn here."""
ENDED: Final = frozenset({"RANK_LOST", "DIVERGED", "DRAINING"})
OURS: Final = frozenset({ErrorCode.INTERNAL.value, ErrorCode.INVARIANT.value})
WORK_EVERY_FRAMES: Final = 200
LIFELINE_EVERY_FRAMES: Final = 20
"""How often something damaged goes to the descriptor socket."""
SEAT_FRAMES_MAX: Final = 1000
MEMORY_GROWTH_BYTES_MAX: Final = 32 << 20
"""Most that the daemon may grow by, however many messages come: what its largest ones took stays
with its heap. Without sockets free memory is given back first, and the bound is far closer."""


@dataclass
class ServedReport:
    """What became of the frames that went through sockets."""

    seed: int
    frames: int = 0
    answers: Counter[str] = field(default_factory=Counter[str])
    """By kind of message."""
    errors: Counter[str] = field(default_factory=Counter[str])
    late: int = 0
    """Messages without an answer at once, of the kinds that may wait."""
    cut: int = 0
    """Messages over the hard cap, which cost their sender its connection."""
    lifelines: Counter[str] = field(default_factory=Counter[str])
    """Answers of the descriptor socket."""
    served: int = 0
    groups: int = 0
    elapsed_s: float = 0.0
    memory_before_bytes: int = 0
    memory_after_bytes: int = 0

    def lines(self) -> list[str]:
        """Return what to print."""
        return [
            f"seed {self.seed}: {self.frames} messages through sockets in {self.elapsed_s:.1f} s, "
            f"{self.frames / max(self.elapsed_s, 1e-9):.0f} messages/s",
            f"answers: {counted(self.answers)}; {self.late} waited, {self.cut} cut off",
            f"errors by code: {counted(self.errors)}",
            f"descriptor socket: {counted(self.lifelines)}",
            f"groups: {self.groups} lived and ended, beside {self.served} requests served",
            f"memory of the daemon: {self.memory_before_bytes >> 10} KiB at the start, "
            f"{self.memory_after_bytes >> 10} KiB at the end",
        ]


class ServedFuzzer:
    """One sender at a daemon, with its group begun again whenever it ends."""

    def __init__(self, daemon: DaemonProcess, seed: int) -> None:
        self.daemon = daemon
        self.rng = Random(seed)
        self.report = ServedReport(seed)
        self.index = self.position = self._admitted = self._seat_frames = 0
        self._group_number = 0
        self.peer = self._attach()

    def run(self, frames: int, work: "Beside") -> None:
        """Send so many messages while the client beside works."""
        began = monotonic()
        for number in range(frames):
            self._seat_frames += 1
            if self._seat_frames > SEAT_FRAMES_MAX:
                self.renew()
            if number % LIFELINE_EVERY_FRAMES == 0:
                self._lifeline()
            if number % WORK_EVERY_FRAMES == 0:
                work.serve_one()
                self.report.served += 1
            self._one(work)
        self._drain(SILENT_MS)
        self.report.elapsed_s += monotonic() - began

    def close(self) -> None:
        """End the sender's group."""
        self.peer.close()

    def renew(self) -> None:
        """End the sender's group and begin another."""
        self._drain(0)
        self.peer.close()
        self.peer = self._attach()
        self.report.groups += 1

    def _attach(self) -> Peer:
        self._group_number += 1
        self.index = self.position = self._seat_frames = 0
        self._admitted = 4
        peer = Peer(self.daemon.address)
        peer.attach(f"sender{self._group_number}")
        ids, tokens = int64s(1, 2, 3, 4), int32s(12, 12, 12, 12)
        for operations in (
            (Admit(ids, tokens, tokens, tokens), Standing(int64s(1, 2))),
            (Advance(ids, 12), Insert(1, 4)),
            (Launch(1, 0), Take(int64s(1), 4)),
            (LoadReserve(1, 1, (0, 1, 0)),),
        ):
            reply = peer.batch(*operations, index=self.index, position=self.position)
            self.index += len(operations) + 1
            self.position = reply.position + len(reply.entries) - 1
        return peer

    # ---- one message ----------------------------------------------------------------------------

    def _one(self, work: "Beside") -> None:
        welcome = self.peer.welcome
        assert welcome is not None
        others = [(welcome.epoch, work.token), (welcome.epoch, 0), (1, welcome.token)]
        sender = Sender(welcome.epoch, welcome.token, self.index, self.position, others)
        frames = message(
            self.rng,
            sender,
            self._operations,
            tree_of(self.peer.hello("stray")),
            frame_bytes_max=FRAME_BYTES_MAX,
        )
        self.report.frames += 1
        self._drain(0)
        self.peer.send(*frames)
        if max(map(len, frames)) > FRAME_BYTES_CUT:
            self.report.cut += 1
            self.renew()
            return
        late_ms = LATE_MS.get(_kind(frames))
        if not self.peer.dealer.poll(late_ms or ANSWER_WAIT_MS):
            assert late_ms, f"no answer: {[frame[:200] for frame in frames[:4]]}"
            self.report.late += 1
            return
        self._drain(0)

    def _operations(self) -> list[Any]:
        """Return operations by what is believed; the books may say otherwise by now."""
        self._admitted += 2
        books = Known(
            live=[1, 2, 3, 4, max(1, self._admitted - 2)],
            highest_id=self._admitted,
            pages=list(range(1, 12)),
            values=[1, 2],
            launched_count=self.rng.randrange(4),
            position=self.position,
        )
        return suiting(books, self.rng)

    def _drain(self, silent_ms: int) -> None:
        """Take in answers until none came for so long."""
        while self.peer.dealer.poll(silent_ms):
            header, body = self.peer.answer()
            self.report.answers[header.kind.value] += 1
            if header.kind is MessageKind.REPLY and header.index > self.index:
                reply = decode_reply(body)
                self.index = header.index
                self.position = reply.position + len(reply.entries) - 1
            if header.kind is MessageKind.ERROR:
                self._judge_error(body)

    def _judge_error(self, body: bytes) -> None:
        reply = decode_control(body)
        assert isinstance(reply, ErrorReply)
        assert reply.code in ErrorCode.__members__, reply
        assert reply.code not in OURS, reply
        assert 0 < len(reply.message) <= MESSAGE_CHARACTERS_MAX, len(reply.message)
        self.report.errors[reply.code] += 1
        if reply.code in ENDED:
            self._seat_frames = SEAT_FRAMES_MAX  # its group is over: begin another

    # ---- the descriptor socket ------------------------------------------------------------------

    def _lifeline(self) -> None:
        """Send something damaged to the descriptor socket, where no honest client would."""
        name = self.rng.choice([one for one in SAMPLES if one.startswith("control.")])
        tree = damaged(tree_of(SAMPLES[name]), self.rng, times=self.rng.choice((0, 1, 2)))
        payload = encode(tree)
        if self.rng.random() < 0.3:
            payload = self.rng.randbytes(self.rng.choice((1, 9, 300)))
        sock = descriptors.connect(f"{self.daemon.socket_path}.fd", timeout_ms=ANSWER_WAIT_MS)
        try:
            descriptors.receive_message(sock, 0)  # the ticket
            sock.send(payload[: 2 * descriptors.MESSAGE_BYTES_MAX])
            try:
                answer, fds = descriptors.receive_message(sock, 4)
            except ConnectionResetError:
                answer, fds = b"", []
            assert not fds, "memory was given to a stranger"
            found = type(decode_control(answer)).__name__ if answer else "hung up"
            self.report.lifelines[found] += 1
        finally:
            sock.close()


class Beside:
    """An idle group whose books are compared, and a client that goes on with its work."""

    def __init__(self, address: str, ranks: Ranks) -> None:
        self.client: Client = ranks.attach()
        self._request = 0
        self._kept = Peer(address)
        welcome = self._kept.attach("kept")
        self.token = welcome.token
        ids, tokens = int64s(1, 2, 3), int32s(12, 12, 12)
        reply = self._kept.batch(Admit(ids, tokens, tokens, tokens), Advance(ids, 12), Insert(1, 3))
        self._position = reply.position + len(reply.entries) - 1

    def serve_one(self) -> None:
        """Serve one request from admission to its end."""
        self._request += 1
        admit(self.client, [self._request])
        with self.client.batch() as batch:
            batch.advance([self._request], 8)
            batch.free([self._request])

    def books(self) -> BooksReply:
        """Return digests of all that the idle group's tables hold."""
        self._kept.ask(MessageKind.ASK, Books(), position=self._position)
        _, body = self._kept.answer()
        reply = decode_control(body)
        assert isinstance(reply, BooksReply), reply
        return reply

    def close(self) -> None:
        """End the idle group; the client is its ranks' to close."""
        self._kept.close()


@contextmanager
def beside(address: str) -> Generator[Beside]:
    """Give the groups beside the sender and end them."""
    with Ranks(address, "working") as ranks:
        one = Beside(address, ranks)
        try:
            yield one
        finally:
            one.close()


def fuzz_served(daemon: DaemonProcess, frames: int, seed: int) -> ServedReport:
    """Send messages to a running daemon and return the report.

    Raises AssertionError where the daemon breaks its word. A tenth of them runs before memory is
    first measured.
    """
    errors_before = _error_counts(daemon)
    with beside(daemon.address) as work:
        fuzzer = ServedFuzzer(daemon, seed)
        report = fuzzer.report
        try:
            books = work.books()
            fuzzer.run(max(frames // 10, 200), work)
            report.memory_before_bytes = resident_bytes(daemon.pid)
            fuzzer.run(frames - report.frames, work)
            report.memory_after_bytes = resident_bytes(daemon.pid)
            assert work.books() == books, "a frame changed what is another's"
            work.serve_one()
        finally:
            fuzzer.close()
    grown_bytes = report.memory_after_bytes - report.memory_before_bytes
    assert grown_bytes <= MEMORY_GROWTH_BYTES_MAX, report.lines()
    _check_counts(daemon, errors_before, report)
    return report


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process that is its own alone."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        _, resident, shared, *_ = map(int, statm.read().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _check_counts(daemon: DaemonProcess, before: Counter[str], report: ServedReport) -> None:
    """Hold the daemon's counts against the answers: whatever it refused it counted, and answered.

    Answers that were on their way to a sender whose connection was cut are in its counts alone, and
    so is the end told to what waited; both are few.
    """
    answered = sum(report.answers.values())
    assert report.frames - report.late - report.cut <= answered <= report.frames, report.lines()

    def counted() -> bool:
        counts = _error_counts(daemon)
        counts.subtract(before)
        return all(counts[code] >= count for code, count in report.errors.items())

    wait_until("the daemon has counted its refusals", counted)


def _error_counts(daemon: DaemonProcess) -> Counter[str]:
    return Counter(daemon.fresh_stats()["counters"]["errors"])


def _kind(frames: list[bytes]) -> MessageKind:
    """Return the kind by the header that counts, behind torn ones; that of garbage is an error."""
    try:
        return decode_header(frames[-2] if len(frames) > 1 else frames[0]).kind
    except FrameError:
        return MessageKind.ERROR
