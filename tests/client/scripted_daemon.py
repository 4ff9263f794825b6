"""A daemon that decides what the test says, over a plan small enough to be checked by hand."""

from collections import deque

from kvd.testing.small_rank import PLAN
from kvd_client import Client, MockTransport, Mode, attach
from kvd_client.device.port import Stream
from kvd_proto.codec import (
    decode_control,
    decode_fact,
    decode_operation,
    digest_of,
    encode,
    join_batch,
    split_batch,
)
from kvd_proto.control import Ack, Header, Hello, MessageKind, Welcome
from kvd_proto.memory import SizingInputs
from kvd_proto.operations import AnyFact, Operation, Relief
from kvd_proto.outcomes import BatchReply, Done, Entry, Outcome
from kvd_proto.version import PROTOCOL_VERSION
from tests.client.engine_daemon import LAYERS, Answer

EPOCH, TOKEN = 7, 100
OTHER_PROGRAM = 5
DONE = Outcome(Done())
DEADLINE_MS = 5_000
STALL_MS = 50
"""How long something that must not happen is given to happen."""


class ScriptedDaemon:
    """Answers batches with `Done`, and reliefs with the outcomes that wait in ``reliefs``.

    ``others`` are entries of other programs, or facts, that come into the log before the next
    batch does.
    """

    def __init__(self) -> None:
        self.reliefs: deque[Outcome] = deque()
        self.others: deque[Entry] = deque()
        self.entries: list[Entry] = []
        self.batches: list[list[Operation]] = []
        self.positions: list[int] = []
        """Up to where the sender of each batch said that it had applied."""
        self.facts: list[AnyFact] = []
        self.hellos: list[Hello] = []
        self._given = 0

    def attach(
        self,
        mode: Mode = Mode.MIRRORED,
        *,
        overlap: bool = True,
        stream: Stream | None = None,
        sizing: SizingInputs | None = None,
    ) -> Client:
        return attach(
            "ipc:///nowhere",
            group="g",
            mode=mode,
            declare=LAYERS,
            deadline_ms=DEADLINE_MS,
            transport=MockTransport(self.answer),
            overlap=overlap,
            stream=stream,
            sizing=sizing,
        )

    def answer(self, header: Header, body: bytes) -> list[Answer]:
        kind = header.kind
        if kind is MessageKind.HELLO:
            hello = decode_control(body)
            assert isinstance(hello, Hello)
            self.hellos.append(hello)
            return [(Header(MessageKind.WELCOME), encode(_welcome()))]
        if kind is MessageKind.BATCH:
            return [self._batch(header, body)]
        if kind is MessageKind.FOLLOW:
            return [(self._header(kind=MessageKind.REPLY, index=0), self._reply(header.position))]
        if kind is MessageKind.FACT:
            self.facts.append(decode_fact(body))
        return [(self._header(kind=MessageKind.ACK, index=header.index), encode(Ack()))]

    def other(self, outcome: Outcome = DONE, *, program: int = OTHER_PROGRAM) -> None:
        """Have an entry of somebody else decided before the next batch."""
        self.others.append(Entry(program, 0, 0, outcome))

    def decide(self, *operations: Operation, program: int = 0) -> bytes:
        """Decide operations that a leader sent elsewhere; return its record of them."""
        first_index = sum(entry.program == program for entry in self.entries)
        encoded = [encode(operation) for operation in operations]
        self._append(program, first_index, encoded)
        return encode((program, first_index, join_batch(encoded)))

    def _batch(self, header: Header, body: bytes) -> Answer:
        encoded = [bytes(raw) for raw in split_batch(body)]
        self.batches.append([decode_operation(raw) for raw in encoded])
        self.positions.append(header.position)
        self._append(0, header.index, encoded)
        given, self._given = self._given, len(self.entries)
        reply = BatchReply(given + 1, tuple(self.entries[given:]))
        return self._header(MessageKind.REPLY, header.index + len(encoded)), encode(reply)

    def _append(self, program: int, first_index: int, encoded: list[bytes]) -> None:
        while self.others:
            self.entries.append(self.others.popleft())
        for index, raw in enumerate(encoded, first_index):
            relief = isinstance(decode_operation(raw), Relief)
            outcome = self.reliefs.popleft() if relief and self.reliefs else DONE
            self.entries.append(Entry(program, index, digest_of(raw), outcome))

    def _reply(self, applied: int) -> bytes:
        return encode(BatchReply(applied + 1, tuple(self.entries[applied:])))

    def _header(self, kind: MessageKind, index: int) -> Header:
        return Header(kind, EPOCH, TOKEN, index, len(self.entries))


def send(kv: Client, daemon: ScriptedDaemon, *outcomes: Outcome, processed: int = 0) -> None:
    """Send a batch of one relief for each outcome."""
    daemon.reliefs.extend(outcomes)
    with kv.batch() as batch:
        if processed:
            batch.processed(processed)
        for _ in outcomes:
            batch.relief((0, 0))


def _welcome() -> Welcome:
    return Welcome(
        version=PROTOCOL_VERSION,
        build="test",
        epoch=EPOCH,
        token=TOKEN,
        incarnation=1,
        heartbeat_ms=1_000,
        frame_bytes_max=1 << 20,
        next_index=0,
        position=0,
        asked_bytes=1,
        granted_bytes=1,
        minimum_rank=0,
        plan=PLAN,
    )
