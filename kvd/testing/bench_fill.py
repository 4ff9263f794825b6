"""One stage filled with requests as a program without forwards would, and what each costs.

Prompts are taken chunk by chunk, answers a token per step and all requests in one step: behind its
prompt a request is promised what one decode step takes, and no chunks.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from kvd.alloc.checks import CheckLevel
from kvd.build import StageStorage
from kvd.engine.stage import StageEngine
from kvd.errors import WorkloadError
from kvd.testing.packed import packed_counts, packed_ids
from kvd.testing.traces import TraceRequest
from kvd_proto.operations import Admit, Advance, BatchEnd, Free, Standing, Take
from kvd_proto.outcomes import AdmitResult, Outcome, Refusal, Verdict

PROGRAM: Final = 0

Counts = tuple[int, ...]
"""One number per band, chain order."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one request asks for at first, holds when grown, and keeps promised beside that."""

    asked_units: Counts
    held_units: Counts
    promised_units: Counts

    @property
    def kept_units(self) -> Counts:
        """Return what nobody else can have once the request has grown."""
        return tuple(a + b for a, b in zip(self.held_units, self.promised_units, strict=True))


class Filler:
    """One stage's engine, driven as a program without forwards would."""

    def __init__(self, storage: StageStorage) -> None:
        self._engine = StageEngine(storage, level=CheckLevel.WARN)
        self._chunk_tokens = storage.sized.chunk_tokens
        self._granted_tokens = 0
        """The most that the newest request may take at once."""
        self._request = 0
        self._left: list[tuple[int, int]] = []
        """Tokens of their answers, by request, that requests have still to take."""
        self.admitted_count = 0

    def admit(self, request: TraceRequest) -> str:
        """Admit a request with its whole length; return why not, or an empty text."""
        self._request += 1
        outcome = self._engine.decide(
            PROGRAM,
            Admit(
                packed_ids(self._request),
                packed_counts(request.prompt_tokens),
                packed_counts(request.output_tokens),
            ),
        )
        result = outcome.result
        assert isinstance(result, AdmitResult)
        verdict = Verdict(_first_of_column(outcome, result.verdicts))
        self._end_batch()
        if verdict is not Verdict.FITS:
            return f"{verdict.name}: {result.refusals[0].reason.value}"
        granted_tokens = _first_of_column(outcome, result.new_tokens)
        if granted_tokens < request.output_tokens:
            # Memory cuts its answer short, however empty the arena is: not its whole length.
            self.free()
            return f"CUT SHORT: {granted_tokens} of {request.output_tokens} new tokens"
        self._granted_tokens = _first_of_column(outcome, result.chunk_tokens)
        self.admitted_count += 1
        return ""

    def prefill(self, request: TraceRequest) -> None:
        """Take the prompt of the newest request, chunk by chunk, and leave its answer for later."""
        left_tokens = request.prompt_tokens
        while left_tokens:
            tokens = min(self._granted_tokens, left_tokens)
            refused = self._take(tokens)
            if refused:
                raise WorkloadError(
                    f"request {request.line_index} was admitted and refused {tokens} tokens of "
                    f"its prompt: {refused}"
                )
            left_tokens -= tokens
        self._left.append((request.output_tokens, self._request))

    def grow(self, request: TraceRequest) -> None:
        """Take the whole length of the newest request, alone in the arena."""
        self.prefill(request)
        left_tokens, _ = self._left.pop()
        # A promise covers a token per step. Alone there mostly is room beyond it, and where an
        # answer ends does not depend on how it got there.
        while left_tokens:
            tokens = min(self._chunk_tokens, left_tokens)
            refused = self._take(tokens)
            if refused:
                tokens, refused = 1, self._take(1)
            if refused:
                raise WorkloadError(
                    f"request {request.line_index} was admitted and refused a token of its "
                    f"answer: {refused}"
                )
            left_tokens -= tokens

    def decode_all(self) -> None:
        """Have all requests decode to the end of their answers, a token of each per step."""
        left = sorted(one for one in self._left if one[0])
        self._left.clear()
        self._engine.decide(PROGRAM, Standing(add=packed_ids(*(request for _, request in left))))
        ended_count = 0
        for step in range(1, left[-1][0] + 1 if left else 1):
            refused = self._take(1, standing=True)
            if refused:
                raise WorkloadError(
                    f"{len(left) - ended_count} admitted requests were refused token {step} of "
                    f"their answers: {refused}"
                )
            start = ended_count
            while ended_count < len(left) and left[ended_count][0] == step:
                ended_count += 1
            if ended_count > start:
                ended = packed_ids(*(request for _, request in left[start:ended_count]))
                self._engine.decide(PROGRAM, Standing(remove=ended))

    def _take(self, tokens: int, *, standing: bool = False) -> str:
        """Take and compute tokens in one batch; return why not, or an empty text."""
        requests = b"" if standing else packed_ids(self._request)
        taken = self._engine.decide(PROGRAM, Take(requests, tokens)).result
        if isinstance(taken, Refusal):
            self._end_batch()
            return taken.reason.value
        self._engine.decide(PROGRAM, Advance(requests, tokens))
        self._end_batch()
        return ""

    def free(self) -> None:
        """End the newest request."""
        self._engine.decide(PROGRAM, Free(packed_ids(self._request)))
        self._end_batch()

    def counts(self) -> tuple[Counts, Counts]:
        """Return live and promised units per band."""
        statistics = self._engine.chain.statistics()
        return (
            tuple(band.live_units for band in statistics),
            tuple(band.promised_units for band in statistics),
        )

    def _end_batch(self) -> None:
        self._engine.decide(PROGRAM, BatchEnd())
        self._engine.settle()


class Costs:
    """What requests of every length cost, found by having an empty stage admit and grow them."""

    def __init__(self, storage: StageStorage) -> None:
        self._filler = Filler(storage)
        self._known: dict[tuple[int, int], Cost | None] = {}

    def of(self, request: TraceRequest) -> Cost | None:
        """Return a request's cost, None if it fits no empty arena."""
        key = (request.prompt_tokens, request.output_tokens)
        if key not in self._known:
            self._known[key] = self._measure(request)
        return self._known[key]

    def _measure(self, request: TraceRequest) -> Cost | None:
        filler = self._filler
        if filler.admit(request):
            return None
        _, asked = filler.counts()
        filler.grow(request)
        held, promised = filler.counts()
        filler.free()
        return Cost(asked, held, promised)


def _first_of_column(outcome: Outcome, index: int) -> int:
    return int(np.frombuffer(outcome.columns, dtype="<i4")[sum(outcome.lengths[:index])])
