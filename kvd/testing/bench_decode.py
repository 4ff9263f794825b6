"""The workload of the benchmarks: a batch of decoding requests, as an engine would run it.

A model of three bands (full attention, a window of 128, a state) with entries so small that the
effects on memory are real and cheap. Requests have different phases, so at page size 64 about one
in 64 crosses a page in a step, and at page size 1 all do and all windows slide.

Requests end. Their end, the admission of their replacement with its whole prompt and, one step
later, its joining of the standing set are part of the batch in which they happen: with 256 requests
of 2,000 tokens that is every eighth step.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

import numpy as np

from kvd.errors import WorkloadError
from kvd_client import STANDING, Admitted, Client, Handle, Refusal, Taken
from kvd_proto.memory import (
    AttentionPart,
    DeclaredLayers,
    DType,
    LayerDecl,
    SizingInputs,
    StatePart,
    StateTensor,
)
from kvd_proto.outcomes import Verdict

WINDOW_TOKENS: Final = 128
CONTEXT_TOKENS: Final = 4096
PROMPT_TOKENS_MIN: Final = 200
PROMPT_TOKENS_MAX: Final = 400
OUTPUT_TOKENS: Final = 2000
CHUNK_TOKENS: Final = 512
BYTES_PER_REQUEST: Final = 1 << 20
"""Budget per request: about six times what one holds, since a benchmark measures no shortage."""
BUDGET_BYTES_MIN: Final = 16 << 20
DEADLINE_MS: Final = 30_000


def _attention(window_tokens: int | None) -> LayerDecl:
    part = AttentionPart(
        kv_head_count=1,
        key_element_count=16,
        value_element_count=16,
        window_tokens=window_tokens,
    )
    return LayerDecl(parts=(part,))


DECLARATION: Final = DeclaredLayers(
    layers=(
        _attention(None),
        _attention(WINDOW_TOKENS),
        LayerDecl(
            parts=(StatePart(recurrent=StateTensor(shape=(64,), dtype=DType.FLOAT32)),),
        ),
    ),
    context_tokens=CONTEXT_TOKENS,
    name="bench",
)


def decode_sizing(*, requests_count: int, page_tokens: int) -> SizingInputs:
    """Return what the arena of the workload is sized with."""
    return SizingInputs(
        budget_bytes=max(BUDGET_BYTES_MIN, requests_count * BYTES_PER_REQUEST),
        page_tokens=page_tokens,
        context_tokens=CONTEXT_TOKENS,
        running_requests_count=requests_count,
        state_slots=4 * requests_count,
        chunk_tokens=CHUNK_TOKENS,
    )


class DecodeLoop:
    """An engine's loop over a fixed number of running requests."""

    def __init__(self, client: Client, *, requests_count: int, seed_index: int) -> None:
        self._client = client
        self._random = np.random.default_rng(seed_index)
        self._next_request = 1
        self.batch_count = 0
        """Batches sent since the beginning."""
        self._left: dict[int, int] = {}
        """Tokens that each standing request has still to take."""
        self._joining: dict[int, int] = {}
        """Prompts that were taken with the last batch and are computed by the step in flight."""
        self._fill(requests_count)

    def step(self, wait: Callable[[], None]) -> int:
        """Launch a step, wait for it and run its batch; return the batch's nanoseconds.

        ``wait`` is called between the step's end and its batch. The time runs from entering the
        batch's block to leaving it, when the reply is decoded and its effects are enqueued.
        """
        client = self._client
        with client.launch() as step:
            step.reads_done()
        # The engine has the step's tokens, so the step is over before its batch begins.
        client.stream.synchronize(DEADLINE_MS)
        ended = [request for request, left in self._left.items() if not left]
        joining, newcomers = self._joining, self._draw(len(ended))
        joined = list(joining)
        prompts = list(joining.values())
        new_ids, new_prompts = list(newcomers), list(newcomers.values())
        new_tokens = [OUTPUT_TOKENS] * len(new_ids)
        wait()
        started_ns = perf_counter_ns()
        with client.batch() as batch:
            batch.processed(step.number)
            if ended:
                batch.free(ended)
            batch.advance(STANDING)
            if joined:
                batch.advance(joined, prompts)
                batch.standing(add=joined)
            taken = batch.take(STANDING)
            admitted: Handle[Admitted] | None = None
            if new_ids:
                admitted = batch.admit(
                    new_ids,
                    prompt_tokens=new_prompts,
                    new_tokens_max=new_tokens,
                    take_tokens=new_prompts,
                    chunk_tokens=CHUNK_TOKENS,
                )
        elapsed_ns = perf_counter_ns() - started_ns
        self.batch_count += 1
        _check_taken(taken)
        if admitted is not None:
            _check_admitted(admitted, len(new_ids))
        self._count(ended, joined)
        self._joining = newcomers
        return elapsed_ns

    def _fill(self, requests_count: int) -> None:
        """Admit the requests as if each had got to a place of its own in its answer."""
        places = self._random.integers(0, OUTPUT_TOKENS - 1, requests_count).tolist()
        totals: dict[int, int] = {}
        for place in places:
            for request, prompt_tokens in self._draw(1).items():
                totals[request] = prompt_tokens + place
                self._left[request] = OUTPUT_TOKENS - place
        with self._client.batch() as batch:
            admitted = batch.admit(
                list(totals),
                prompt_tokens=list(totals.values()),
                new_tokens_max=list(self._left.values()),
                chunk_tokens=CHUNK_TOKENS,
            )
            batch.standing(add=list(totals))
        _check_admitted(admitted, requests_count)
        while totals:
            chunks = {request: min(CHUNK_TOKENS, tokens) for request, tokens in totals.items()}
            with self._client.batch() as batch:
                taken = batch.take(list(chunks), list(chunks.values()))
                batch.advance(list(chunks), list(chunks.values()))
            _check_taken(taken)
            self.batch_count += 1
            totals = {
                request: tokens - chunks[request]
                for request, tokens in totals.items()
                if tokens > chunks[request]
            }
        with self._client.batch() as batch:
            taken = batch.take(STANDING)
        _check_taken(taken)
        self.batch_count += 2
        self._count([], [])

    def _draw(self, count: int) -> dict[int, int]:
        """Return fresh requests with their prompts."""
        drawn: dict[int, int] = {}
        for _ in range(count):
            drawn[self._next_request] = int(
                self._random.integers(PROMPT_TOKENS_MIN, PROMPT_TOKENS_MAX)
            )
            self._next_request += 1
        return drawn

    def _count(self, ended: list[int], joined: list[int]) -> None:
        """Take in that a batch ended requests, let others join, and gave every one a token."""
        for request in ended:
            del self._left[request]
        self._left.update(dict.fromkeys(joined, OUTPUT_TOKENS))
        for request in self._left:
            self._left[request] -= 1


def _check_taken(handle: Handle[Taken]) -> None:
    answer = handle()
    if isinstance(answer, Refusal):
        raise WorkloadError(f"the benchmark's arena is too small: a take lacks {answer.reason}")


def _check_admitted(handle: Handle[Admitted], count: int) -> None:
    answer = handle()
    fitting = 0
    if isinstance(answer, Admitted):
        fitting = int(np.count_nonzero(answer.verdicts == Verdict.FITS))
    if fitting != count:
        raise WorkloadError(f"the benchmark's arena is too small: {fitting} of {count} fit")


def at_once() -> None:
    """Do not wait: for loops that run as fast as they can."""
