"""A daemon for client tests: the real engine behind a function, no process and no socket."""

from collections.abc import Callable

from kvd.alloc.checks import CheckLevel
from kvd.build import StageStorage, build_group
from kvd.engine.incarnation import Incarnation
from kvd_client import Client, MockTransport, Mode, attach
from kvd_proto.codec import decode_control, encode
from kvd_proto.control import Ack, ErrorReply, Header, MessageKind, Welcome, WhatIf
from kvd_proto.errors import ErrorCode, KvdError
from kvd_proto.memory import (
    AttentionPart,
    DeclaredLayers,
    DType,
    LayerDecl,
    SizingInputs,
    StatePart,
    StateTensor,
)
from kvd_proto.version import PROTOCOL_VERSION

EPOCH = 7
PAGE_TOKENS = 4
WINDOW_TOKENS = 8
CONTEXT_TOKENS = 64

LAYERS = DeclaredLayers(
    layers=(
        LayerDecl(
            parts=(AttentionPart(kv_head_count=2, key_element_count=8, value_element_count=4),)
        ),
        LayerDecl(
            parts=(
                AttentionPart(
                    kv_head_count=2,
                    key_element_count=8,
                    value_element_count=4,
                    window_tokens=WINDOW_TOKENS,
                ),
            )
        ),
        LayerDecl(
            parts=(
                StatePart(
                    conv=(StateTensor(shape=(4, 8), dtype=DType.BFLOAT16),),
                    recurrent=StateTensor(shape=(2, 4, 4), dtype=DType.FLOAT32),
                ),
            )
        ),
        LayerDecl(shares_layer_index=0),
    ),
    context_tokens=CONTEXT_TOKENS,
)
SIZING = SizingInputs(
    budget_bytes=4 << 20,
    page_tokens=PAGE_TOKENS,
    context_tokens=CONTEXT_TOKENS,
    running_requests_count=16,
    chunk_tokens=16,
)

Answer = tuple[Header, bytes]
Hook = Callable[[int, Header, bytes], list[Answer] | None]


def build_storage() -> StageStorage:
    return build_group(LAYERS, inputs=SIZING).stages[0]


class EngineDaemon:
    """Answers like `kvd serve` for one stage; ``hook`` may answer first or swallow a message."""

    def __init__(
        self,
        *,
        ranks: int = 1,
        storage: StageStorage | None = None,
        level: CheckLevel = CheckLevel.STRICT,
    ) -> None:
        self.storage = storage or build_storage()
        self.incarnation = Incarnation(
            self.storage,
            number=1,
            ranks=tuple(range(ranks)),
            level=level,
            ring_entries_max=4096,
            lag_entries_max=4096,
        )
        self.hook: Hook | None = None
        self._asked_index = 0
        self.facts: list[bytes] = []
        self.transports: dict[int, MockTransport] = {}

    def transport(self, rank: int = 0) -> MockTransport:
        self.transports[rank] = MockTransport(lambda header, body: self.answer(rank, header, body))
        return self.transports[rank]

    def batches(self, rank: int = 0) -> int:
        """Return how many batches a rank has sent."""
        sent = self.transports[rank].sent
        return sum(header.kind is MessageKind.BATCH for header, _ in sent)

    def attach(self, rank: int = 0, mode: Mode = Mode.MIRRORED, *, overlap: bool = False) -> Client:
        return attach(
            "ipc:///nowhere",
            group="g",
            rank=rank,
            mode=mode,
            declare=LAYERS,
            sizing=SIZING,
            deadline_ms=5_000,
            transport=self.transport(rank),
            overlap=overlap,
        )

    def answer(self, rank: int, header: Header, body: bytes) -> list[Answer]:
        self._asked_index = header.index
        if self.hook is not None:
            answers = self.hook(rank, header, body)
            if answers is not None:
                return answers
        return self.serve(rank, header, body)

    def serve(self, rank: int, header: Header, body: bytes) -> list[Answer]:
        try:
            return self._serve(rank, header, body)
        except KvdError as error:
            reply = ErrorReply(code=error.code.value, message=error.message, retry=error.retry)
            return [(self._header(rank, MessageKind.ERROR), encode(reply))]

    def error(self, rank: int, code: ErrorCode, message: str) -> list[Answer]:
        reply = ErrorReply(code=code.value, message=message)
        return [(self._header(rank, MessageKind.ERROR), encode(reply))]

    def _serve(self, rank: int, header: Header, body: bytes) -> list[Answer]:
        kind = header.kind
        if kind is MessageKind.HELLO:
            return [(Header(MessageKind.WELCOME), encode(self._welcome(rank)))]
        if kind is MessageKind.BATCH:
            self.incarnation.confirm(rank, header.position)
            end_index, reply = self.incarnation.batch(
                rank=rank, program=0, index=header.index, body=body
            )
            answer = self._header(rank, MessageKind.REPLY, end_index), reply
            self.incarnation.settle()
            return [answer]
        if kind is MessageKind.FOLLOW:
            self.incarnation.confirm(rank, header.position)
            reply_or_none = self.incarnation.follow(rank)
            if reply_or_none is None:
                return []
            return [(self._header(rank, MessageKind.REPLY), reply_or_none)]
        if kind is MessageKind.ASK:
            question = decode_control(body)
            assert isinstance(question, WhatIf)
            answered = self.incarnation.what_if(question)
            return [(self._header(rank, MessageKind.ASK), encode(answered))]
        if kind is MessageKind.FACT:
            self.facts.append(body)
            self.incarnation.fact(rank, body)
        return [(self._header(rank, MessageKind.ACK), encode(Ack()))]

    def _header(self, rank: int, kind: MessageKind, index: int | None = None) -> Header:
        index = self._asked_index if index is None else index
        return Header(kind, EPOCH, 100 + rank, index, self.incarnation.log.end_position)

    def _welcome(self, rank: int) -> Welcome:
        return Welcome(
            version=PROTOCOL_VERSION,
            build="test",
            epoch=EPOCH,
            token=100 + rank,
            incarnation=1,
            heartbeat_ms=1_000,
            frame_bytes_max=1 << 20,
            next_index=0,
            position=0,
            asked_bytes=4 << 20,
            granted_bytes=4 << 20,
            minimum_rank=0,
            plan=self.storage.storage,
        )


def admit_three_tokens_each(kv: Client, ids: list[int]) -> None:
    """Admit requests of three tokens that may grow by thirty, as standing ones."""
    with kv.batch() as batch:
        batch.admit(
            ids,
            prompt_tokens=[3] * len(ids),
            new_tokens_max=[30] * len(ids),
            take_tokens=[3] * len(ids),
        )
        batch.standing(add=ids)
