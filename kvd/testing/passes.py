"""What the scheduler of a replay is given, asks for, is told, and has done."""

from dataclasses import dataclass
from typing import NewType

import msgspec

from kvd_proto.outcomes import Refusal
from kvd_proto.scalars import RequestId

Permille = NewType("Permille", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """One request as the scheduler knows it; ids ascend in arrival order."""

    request_id: RequestId
    prompt_tokens: int
    output_tokens: int
    generated_tokens: int = 0
    """Tokens at the end of the prompt that it generated itself before it was retracted."""

    @property
    def written_tokens_max(self) -> int:
        """Return how many tokens it writes in all."""
        return self.prompt_tokens + self.output_tokens - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadLimits:
    """How a scheduler fills its steps."""

    running_count_max: int
    """Requests that hold memory at a time."""
    chunk_tokens_max: int
    """Prompt tokens of one request per step."""
    prompt_tokens_max: int
    """Prompt tokens of all requests per step."""
    asked_count_max: int
    """Waiting requests that one batch asks for."""
    sample_step_count: int
    """A sample of live requests is checked every so many steps."""
    sample_request_count: int
    """Live requests in a sample."""
    seed_index: int
    """Chooses the samples."""
    reserve_batch_count: int = 0
    """Batches after which a promise lapses; 0: with its request."""
    growth_permille: Permille = Permille(0)
    """What of the growth of lapsed requests an admission leaves room for."""
    idle_step_count: int = 0
    """After every so many steps the engine has nothing to launch for one pass; 0: never."""

    @property
    def oversubscribes(self) -> bool:
        """Return whether a take may find no room, and must name victims."""
        return self.reserve_batch_count > 0


class Pass(msgspec.Struct, frozen=True):
    """What one batch asks for, in the order in which it is asked."""

    free: tuple[RequestId, ...]
    advance_decoding: bool
    """The standing set as it is after the frees has computed one more token each."""
    advance: tuple[tuple[RequestId, int], ...]
    """Other requests and the tokens they computed."""
    start_decoding: tuple[RequestId, ...]
    """Requests that join the standing set."""
    chunks: tuple[tuple[RequestId, int], ...]
    """Requests in the middle of their prompts, and the next chunk's tokens."""
    chunk_victims: tuple[RequestId, ...]
    """Whom the chunks may retract: nobody while others decode, who give memory back."""
    decoding: tuple[RequestId, ...]
    """The standing set: takes one token each. It comes behind the chunks, because its victims may
    be among their requests."""
    victims: tuple[RequestId, ...]
    """Whom decoding may retract."""
    asks: tuple[WorkloadRequest, ...]
    """Waiting requests, in arrival order."""
    ask_tokens: tuple[int, ...]
    """The first chunk of each, granted with the verdict."""

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is asked for that a forward could write to."""
        return not (self.decoding or self.chunks or self.asks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the daemon said to a pass. A refusal stands where the whole take was refused."""

    decoding: Refusal | None = None
    chunks: Refusal | None = None
    retracted: tuple[RequestId, ...] = ()
    """Victims that ended, of both takes."""
    verdicts: tuple[int, ...] = ()
    new_tokens: tuple[int, ...] = ()
    """For each verdict: the most that memory can ever hold behind the prompt."""
    chunk_tokens: tuple[int, ...] = ()
    """For each verdict: the most tokens to take at once."""
    refusals: tuple[Refusal, ...] = ()
    """One for each verdict that is not FITS."""


class StepWork(msgspec.Struct, frozen=True):
    """What a forward writes and what is checked behind it; the same on every rank."""

    requests: tuple[RequestId, ...]
    """Requests that get tokens."""
    starts_tokens: tuple[int, ...]
    """Tokens each had before."""
    counts_tokens: tuple[int, ...]
    """Tokens each gets."""
    finished: tuple[RequestId, ...]
    """Requests that are over after this step: checked wholly before they are freed."""
    sample: tuple[RequestId, ...]
    """Other live requests to check wholly. What a retracted request held cannot be checked before
    it is gone, so where victims are named, the first of them is in every sample."""

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to launch."""
        return not self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadStatistics:
    """Counts of a workload so far."""

    served_count: int
    """Requests that are over."""
    served_tokens: int
    """Their prompts and outputs."""
    written_tokens: int
    pass_count: int
    step_count: int
    running_count_max: int
    """Most requests that held memory at a time."""
    waiting_pass_count: int
    """Passes in which the oldest waiting request was asked for and had to wait."""
    idle_pass_count: int
    """Passes that asked for nothing and launched nothing."""
    refused_take_count: int
    """Takes of decoding requests or of chunks that found no room and took nothing."""
    retracted_count: int
    recomputed_tokens: int
    """Tokens that retracted requests had written and must write again."""
    clipped_count: int
    """Requests whose answers were cut to what memory can ever hold."""
    unschedulable: tuple[RequestId, ...]
    verdicts: dict[str, int]
    refusals: dict[str, int]
    """Refused admissions and takes by reason."""
