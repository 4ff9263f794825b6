"""Ranks of one group, attached by threads of this process, each with a client of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, Final, TypeVar

from kvd_client import Admitted, Client, Mode, SizingInputs, attach
from kvd_client.errors import KvdClientError
from kvd_proto.memory import (
    AttentionPart,
    DeclaredLayers,
    DType,
    LayerDecl,
    StatePart,
    StateTensor,
)
from kvd_proto.outcomes import Verdict

T = TypeVar("T")
DEADLINE_MS: Final = 10_000
PAGE_TOKENS: Final = 4
CONTEXT_TOKENS: Final = 64
_ATTENTION = AttentionPart(kv_head_count=2, key_element_count=8, value_element_count=4)
LAYERS: Final = DeclaredLayers(
    layers=(
        LayerDecl(parts=(_ATTENTION,)),
        LayerDecl(
            parts=(
                AttentionPart(
                    kv_head_count=2, key_element_count=8, value_element_count=4, window_tokens=8
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
    ),
    context_tokens=CONTEXT_TOKENS,
)
"""A model with all three lifetimes, a few bytes per token."""
BUDGET_BYTES: Final = 2 << 20
SIZING: Final = SizingInputs(
    budget_bytes=BUDGET_BYTES,
    page_tokens=PAGE_TOKENS,
    context_tokens=CONTEXT_TOKENS,
    running_requests_count=16,
    chunk_tokens=16,
)


class Ranks:
    """Attaches and closes; a context that leaves no thread and no client behind."""

    def __init__(self, address: str, group: str) -> None:
        self.address = address
        self.group = group
        self._stack = ExitStack()
        self._threads = self._stack.enter_context(ThreadPoolExecutor(16))

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def attach(self, rank: int = 0, **changes: Any) -> Client:
        """Attach one rank and block until its group is whole."""
        arguments: dict[str, Any] = {
            "group": self.group,
            "declare": LAYERS,
            "sizing": SIZING,
            "deadline_ms": DEADLINE_MS,
        }
        client = attach(self.address, rank=rank, **(arguments | changes))
        self._stack.callback(close_quietly, client)
        return client

    def start(self, work: Callable[..., T], *arguments: Any, **named: Any) -> "Future[T]":
        """Run something in a thread, which the context waits for."""
        return self._threads.submit(work, *arguments, **named)

    def attach_all(
        self, tp: int, modes: Sequence[Mode] = (), changes: Sequence[dict[str, Any]] = ()
    ) -> list[Client]:
        """Attach all ranks of a stage at once."""
        started = [
            self.start(
                self.attach,
                rank,
                tp=tp,
                mode=modes[rank] if modes else Mode.MIRRORED,
                **(changes[rank] if changes else {}),
            )
            for rank in range(tp)
        ]
        return [one.result(DEADLINE_MS / 1000) for one in started]

    def each(self, clients: Sequence[Client], work: Callable[[Client], T]) -> list[T]:
        """Run the same on every rank at once; returns what each gave."""
        started = [self.start(work, client) for client in clients]
        return [one.result(DEADLINE_MS / 1000) for one in started]


def close_quietly(client: Client) -> None:
    """Close a client whose session a test may have ended."""
    with suppress(KvdClientError):
        client.close()


def admit(client: Client, ids: Sequence[int], *, tokens: int = 8, take: bool = True) -> None:
    """Admit requests of a few tokens and take the first of them."""
    with client.batch() as batch:
        admitted = batch.admit(
            ids,
            prompt_tokens=[tokens] * len(ids),
            new_tokens_max=[tokens] * len(ids),
            take_tokens=[tokens] * len(ids) if take else None,
        )
    result = admitted()
    assert isinstance(result, Admitted), result
    assert result.verdicts.tolist() == [Verdict.FITS] * len(ids)
