"""A daemon for client tests: the real engine behind a function, no process and no socket."""

from collections.abc import Callable

from kvd.alloc.checks import CheckLevel
from kvd.build import StageStorage, build_group
from kvd.testing.in_process import InProcessDaemon
from kvd_client import Client, MockTransport, Mode, attach
from kvd_client.mock import Answer
from kvd_proto.codec import encode
from kvd_proto.control import ErrorReply, Header, MessageKind
from kvd_proto.errors import ErrorCode
from kvd_proto.memory import (
    AttentionPart,
    DeclaredLayers,
    DType,
    LayerDecl,
    SizingInputs,
    StatePart,
    StateTensor,
)

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

Hook = Callable[[int, Header, bytes], list[Answer] | None]


def build_storage() -> StageStorage:
    return build_group(LAYERS, inputs=SIZING).stages[0]


class EngineDaemon(InProcessDaemon):
    """A daemon for tests of the client; ``hook`` may answer first or swallow a message."""

    def __init__(
        self,
        *,
        ranks: int = 1,
        storage: StageStorage | None = None,
        level: CheckLevel = CheckLevel.STRICT,
    ) -> None:
        super().__init__(storage or build_storage(), ranks=ranks, level=level)
        self.hook: Hook | None = None
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
        self.asked_index = header.index
        if self.hook is not None:
            answers = self.hook(rank, header, body)
            if answers is not None:
                return answers
        return self.serve(rank, header, body)

    def serve(self, rank: int, header: Header, body: bytes) -> list[Answer]:
        """Answer like the real one, past the hook."""
        return super().answer(rank, header, body)

    def error(self, rank: int, code: ErrorCode, message: str) -> list[Answer]:
        reply = ErrorReply(code=code.value, message=message)
        return [(self.header(rank, MessageKind.ERROR), encode(reply))]

    def take_fact(self, rank: int, body: bytes) -> None:
        self.facts.append(body)
        super().take_fact(rank, body)


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
