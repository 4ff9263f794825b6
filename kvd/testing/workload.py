"""The scheduler of a replay: which requests run, in whole steps, as an inference engine would.

`Workload.next_pass` says what the next batch asks for, `Workload.settle` takes the answers and says
what the forward after it writes. Requests are admitted in arrival order and hold their place until
they fit; prompts are read in chunks; then every running request decodes one token per step. The
first token of an answer comes out of the last chunk, so the key and value of the last token are
never written: a request writes ``prompt + output - 1`` tokens.

Where promises lapse, memory is oversubscribed, and takes name victims: those with the fewest
generated tokens first, the longest prompt first among equals, and never the last of all, so that
somebody always gets on. A victim that was retracted goes back to the head of the queue and is
admitted again under its id. What it had generated is then part of its prompt and is computed again.

Nothing here reads a clock or a device, so every rank of a stage decides the same.

Invariants:
- a request is waiting, reading its prompt, decoding, or over; each in exactly one place
- ``written_tokens`` of a request is what all forwards since its admission have written
"""

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kvd.errors import WorkloadError
from kvd.testing.passes import (
    Answers,
    Pass,
    StepWork,
    WorkloadLimits,
    WorkloadRequest,
    WorkloadStatistics,
)
from kvd_proto.outcomes import Refusal, Verdict
from kvd_proto.scalars import RequestId

STALLED_PASSES_MAX: Final = 1_000
"""Passes in a row without progress after which the replay gives up. Memory only comes back through
this workload's own frees, and what pends counts as free, so even one such pass with nothing running
is final; the bound leaves room for a daemon that answers WAIT while older ranks' memory turns
quiet."""


class _Running:
    """A request that holds memory."""

    __slots__ = ("chunk_tokens", "request", "written_tokens")

    def __init__(self, request: WorkloadRequest, *, chunk_tokens: int) -> None:
        self.request = request
        self.chunk_tokens = chunk_tokens
        """The most prompt tokens to take at once."""
        self.written_tokens = 0

    @property
    def generated_tokens(self) -> int:
        """Return the tokens of its answer so far; the last of them is not written yet."""
        return self.request.generated_tokens + self._fresh_tokens

    def retracted(self) -> WorkloadRequest:
        """Return the request as it is asked for again."""
        request, fresh_tokens = self.request, self._fresh_tokens
        return replace(
            request,
            prompt_tokens=request.prompt_tokens + fresh_tokens,
            output_tokens=request.output_tokens - fresh_tokens,
            generated_tokens=request.generated_tokens + fresh_tokens,
        )

    @property
    def _fresh_tokens(self) -> int:
        return max(0, self.written_tokens - self.request.prompt_tokens + 1)


class Workload:
    """Decides passes and steps; state changes only in `settle`."""

    def __init__(self, requests: Sequence[WorkloadRequest], limits: WorkloadLimits) -> None:
        assert [request.request_id for request in requests] == sorted(
            {request.request_id for request in requests}
        )
        self._limits = limits
        self._waiting = deque(requests)
        self._reading: dict[RequestId, _Running] = {}
        self._decoding: dict[RequestId, _Running] = {}
        self._finished: tuple[RequestId, ...] = ()
        self._last_work = StepWork((), (), (), (), ())
        self._random = random.Random(limits.seed_index)
        self._stalled_passes = 0
        self._head_waits = False
        self._served_count = 0
        self._served_tokens = 0
        self._written_tokens = 0
        self._pass_count = 0
        self._step_count = 0
        self._running_count_max = 0
        self._waiting_pass_count = 0
        self._idle_due = False
        self._idle_pass_count = 0
        self._refused_take_count = 0
        self._retracted_count = 0
        self._recomputed_tokens = 0
        self._clipped_count = 0
        self._unschedulable: list[RequestId] = []
        self._verdicts: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        """Return whether every request was served or given up, and freed."""
        return not (self._waiting or self._reading or self._decoding or self._finished)

    def statistics(self) -> WorkloadStatistics:
        """Return the counts so far."""
        return WorkloadStatistics(
            served_count=self._served_count,
            served_tokens=self._served_tokens,
            written_tokens=self._written_tokens,
            pass_count=self._pass_count,
            step_count=self._step_count,
            running_count_max=self._running_count_max,
            waiting_pass_count=self._waiting_pass_count,
            idle_pass_count=self._idle_pass_count,
            refused_take_count=self._refused_take_count,
            retracted_count=self._retracted_count,
            recomputed_tokens=self._recomputed_tokens,
            clipped_count=self._clipped_count,
            unschedulable=tuple(self._unschedulable),
            verdicts=dict(self._verdicts),
            refusals=dict(self._refusals),
        )

    @property
    def live_tokens(self) -> Mapping[RequestId, int]:
        """Return the written tokens of every request that holds memory."""
        both = (*self._reading.values(), *self._decoding.values())
        return {item.request.request_id: item.written_tokens for item in both}

    def next_pass(self) -> Pass:
        """Return what the next batch asks for, given that the last step is over."""
        work = self._last_work
        finished = set(self._finished)
        stepped = list(zip(work.requests, work.counts_tokens, strict=True))
        read_whole = tuple(
            key
            for key, item in self._reading.items()
            if item.written_tokens >= item.request.prompt_tokens
        )
        reading = [item for key, item in self._reading.items() if key not in read_whole]
        decoding = (*self._decoding, *read_whole)
        chunks, left_tokens = self._next_chunks(reading)
        running_count = len(self._reading) + len(self._decoding)
        asks, ask_tokens = self._next_asks(left_tokens, running_count)
        victims = self._victims() if self._limits.oversubscribes else ()
        if self._idle_due:
            decoding = chunks = asks = ask_tokens = victims = ()
        return Pass(
            free=self._finished,
            advance_decoding=any(key in self._decoding for key, _ in stepped),
            advance=tuple(
                (key, count)
                for key, count in stepped
                if key not in self._decoding and key not in finished
            ),
            start_decoding=read_whole,
            chunks=chunks,
            chunk_victims=() if decoding else victims,
            decoding=decoding,
            victims=victims if decoding else (),
            asks=asks,
            ask_tokens=ask_tokens,
        )

    def settle(self, asked: Pass, answers: Answers) -> StepWork:
        """Take the answers to a pass and return what the forward writes.

        Raises WorkloadError when nothing has moved for too long, or an answer makes no sense.
        """
        self._pass_count += 1
        self._finished = ()
        for key in asked.start_decoding:
            self._decoding[key] = self._reading.pop(key)
        writes: list[tuple[_Running, int]] = []
        gone = frozenset(answers.retracted)
        if answers.decoding is None:
            writes += [(self._decoding[key], 1) for key in asked.decoding if key not in gone]
        else:
            self._refused_take_count += 1
            self._count_refusal(answers.decoding)
        if answers.chunks is None:
            writes += [
                (self._reading[key], count) for key, count in asked.chunks if key not in gone
            ]
        else:
            self._refused_take_count += 1
            self._count_refusal(answers.chunks)
        writes += self._admit(asked, answers)
        self._retract(answers.retracted)
        if asked.is_idle:
            self._idle_pass_count += 1
        self._idle_due = False
        self._check_progress(asked, writes)
        self._last_work = self._work(writes)
        return self._last_work

    def _next_chunks(
        self, reading: Sequence[_Running]
    ) -> tuple[tuple[tuple[RequestId, int], ...], int]:
        """Return the next chunk of requests amid their prompts, and the prompt tokens left over."""
        left_tokens = self._limits.prompt_tokens_max
        chunks: list[tuple[RequestId, int]] = []
        for item in reading:
            count = min(
                item.request.prompt_tokens - item.written_tokens, item.chunk_tokens, left_tokens
            )
            if count > 0:
                chunks.append((item.request.request_id, count))
                left_tokens -= count
        return tuple(chunks), left_tokens

    def _next_asks(
        self, left_tokens: int, running_count: int
    ) -> tuple[tuple[WorkloadRequest, ...], tuple[int, ...]]:
        """Return the waiting requests to ask for, and their first chunks."""
        asks: list[WorkloadRequest] = []
        tokens: list[int] = []
        # Behind one that waits nobody is asked for, or small requests would overtake it for ever.
        wanted = 1 if self._head_waits else self._limits.asked_count_max
        places = min(wanted, self._limits.running_count_max - running_count)
        for request in self._waiting:
            if len(asks) >= places or left_tokens <= 0:
                break
            count = min(request.prompt_tokens, self._limits.chunk_tokens_max, left_tokens)
            asks.append(request)
            tokens.append(count)
            left_tokens -= count
        return tuple(asks), tuple(tokens)

    def _admit(self, asked: Pass, answers: Answers) -> list[tuple[_Running, int]]:
        """Move requests by their verdicts and return the chunks of those that fit."""
        counts = {len(answers.verdicts), len(answers.new_tokens), len(answers.chunk_tokens)}
        if counts != {len(asked.asks)}:
            raise WorkloadError(
                f"{len(asked.asks)} requests were asked for, {len(answers.verdicts)} verdicts came "
                f"with {len(answers.new_tokens)} answers' lengths and {len(answers.chunk_tokens)} "
                "chunk lengths"
            )
        writes: list[tuple[_Running, int]] = []
        still_waiting: list[WorkloadRequest] = []
        for request, count, value, new_tokens, chunk_tokens in zip(
            asked.asks,
            asked.ask_tokens,
            answers.verdicts,
            answers.new_tokens,
            answers.chunk_tokens,
            strict=True,
        ):
            assert self._waiting.popleft() is request
            verdict = Verdict(value)
            self._verdicts[verdict.name] += 1
            if verdict is Verdict.FITS:
                admitted = _Running(self._clipped(request, new_tokens), chunk_tokens=chunk_tokens)
                self._reading[request.request_id] = admitted
                writes.append((admitted, min(count, chunk_tokens)))
            elif verdict is Verdict.WAIT:
                still_waiting.append(request)
            else:
                self._unschedulable.append(request.request_id)
        self._waiting.extendleft(reversed(still_waiting))
        if asked.asks:
            self._head_waits = asked.asks[0] in still_waiting
            self._waiting_pass_count += self._head_waits
        for refusal in answers.refusals:
            self._count_refusal(refusal)
        return writes

    def _clipped(self, request: WorkloadRequest, new_tokens: int) -> WorkloadRequest:
        """Return a request with its answer cut to what memory can ever hold of it.

        The first token of an answer comes out of the prompt and needs no memory.
        """
        output_tokens = min(request.output_tokens, max(1, new_tokens))
        if output_tokens == request.output_tokens:
            return request
        self._clipped_count += 1
        return replace(request, output_tokens=output_tokens)

    # ---- retraction -------------------------------------------------------------------------

    def _victims(self) -> tuple[RequestId, ...]:
        """Return whom takes may retract, in order: everybody who runs but the last."""
        items = [*self._reading.values(), *self._decoding.values()]
        items.sort(
            key=lambda item: (
                item.generated_tokens,
                -item.request.prompt_tokens,
                -item.request.request_id,
            )
        )
        return tuple(item.request.request_id for item in items[:-1])

    def _retract(self, retracted: Sequence[RequestId]) -> None:
        """Put requests that ended to make room back to the head of the queue.

        The queue stays in the order of arrival, in which they are before all that never ran.
        """
        again: list[WorkloadRequest] = []
        for key in retracted:
            item = self._reading.pop(key, None) or self._decoding.pop(key)
            self._recomputed_tokens += item.written_tokens
            again.append(item.retracted())
        if again:
            queue = [*again, *self._waiting]
            self._waiting = deque(sorted(queue, key=lambda request: request.request_id))
            self._retracted_count += len(again)
            self._head_waits = True

    # ---- steps ------------------------------------------------------------------------------

    def _work(self, writes: Sequence[tuple[_Running, int]]) -> StepWork:
        """Account for the tokens that a forward writes, and choose what is checked behind it."""
        starts = tuple(item.written_tokens for item, _ in writes)
        for item, count in writes:
            item.written_tokens += count
            self._written_tokens += count
        finished = [
            item.request
            for item, _ in writes
            if item.written_tokens >= item.request.written_tokens_max
        ]
        live = self.live_tokens
        self._running_count_max = max(self._running_count_max, len(live))
        if writes:
            self._step_count += 1
            idle_step_count = self._limits.idle_step_count
            self._idle_due = idle_step_count > 0 and self._step_count % idle_step_count == 0
        self._finished = tuple(request.request_id for request in finished)
        for request in finished:
            # A request with a one-token answer is over without ever decoding.
            self._decoding.pop(request.request_id, None)
            self._reading.pop(request.request_id, None)
            self._served_count += 1
            self._served_tokens += request.prompt_tokens + request.output_tokens
        return StepWork(
            requests=tuple(item.request.request_id for item, _ in writes),
            starts_tokens=starts,
            counts_tokens=tuple(count for _, count in writes),
            finished=self._finished,
            sample=self._sample(),
        )

    def _sample(self) -> tuple[RequestId, ...]:
        if self._step_count % self._limits.sample_step_count:
            return ()
        live = list(self.live_tokens)
        drawn = self._random.sample(live, min(self._limits.sample_request_count, len(live)))
        if self._limits.oversubscribes:
            drawn = [*self._victims()[:1], *drawn]
        return tuple(dict.fromkeys(drawn))

    def _check_progress(self, asked: Pass, writes: Sequence[tuple[_Running, int]]) -> None:
        moved = writes or asked.free or asked.start_decoding or self.is_over
        self._stalled_passes = 0 if moved else self._stalled_passes + 1
        if self._stalled_passes >= STALLED_PASSES_MAX:
            seen = ", ".join(f"{name} {count}" for name, count in self._refusals.items())
            raise WorkloadError(
                f"nothing moved in {STALLED_PASSES_MAX} batches: {len(self._waiting)} requests "
                f"wait, {len(self._reading) + len(self._decoding)} run; refusals so far: {seen}"
            )

    def _count_refusal(self, refusal: Refusal) -> None:
        self._refusals[str(refusal.reason)] += 1
