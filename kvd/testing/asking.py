"""A pass of the workload as a batch of a client, and the batch's answers as the workload's."""

from collections.abc import Sequence

from kvd.errors import WorkloadError
from kvd.testing.passes import Answers, Pass, WorkloadLimits
from kvd_client import STANDING, Admitted, Batch, Handle, Taken
from kvd_proto.outcomes import Refusal, Skipped
from kvd_proto.scalars import RequestId


class AskedPass:
    """The handles of a pass; `answers` may be called once the batch is answered."""

    def __init__(
        self,
        *,
        chunked: Handle[Taken],
        decoded: Handle[Taken] | None,
        admitted: Handle[Admitted],
    ) -> None:
        self._chunked = chunked
        self._decoded = decoded
        self._admitted = admitted

    def answers(self) -> Answers:
        """Return what the daemon said; raises WorkloadError for what a workload cannot take."""
        decoded = None if self._decoded is None else self._decoded()
        return _answers(self._chunked(), decoded, self._admitted())


def ask_pass(batch: Batch, asked: Pass, limits: WorkloadLimits) -> AskedPass:
    """Add the operations of a pass to a batch."""
    batch.free(asked.free)
    if asked.advance_decoding:
        batch.advance(STANDING, 1)
    batch.advance(*_columns(asked.advance))
    batch.standing(add=asked.start_decoding)
    chunked = batch.take(*_columns(asked.chunks), victims=asked.chunk_victims)
    decoded = batch.take(STANDING, 1, victims=asked.victims) if asked.decoding else None
    admitted = batch.admit(
        [request.request_id for request in asked.asks],
        prompt_tokens=[request.prompt_tokens for request in asked.asks],
        new_tokens_max=[request.output_tokens for request in asked.asks],
        take_tokens=asked.ask_tokens,
        chunk_tokens=limits.chunk_tokens_max,
        reserve_batches=limits.reserve_batch_count,
        growth_permille=limits.growth_permille,
    )
    if asked.is_idle:
        batch.idle()
    return AskedPass(chunked=chunked, decoded=decoded, admitted=admitted)


def _columns(pairs: Sequence[tuple[RequestId, int]]) -> tuple[list[int], list[int]]:
    """Return ids and counts as two lists."""
    return [request for request, _ in pairs], [count for _, count in pairs]


def _answers(chunked: object, decoded: object, admitted: object) -> Answers:
    """Return what a batch's handles gave, as the workload takes it."""
    if not isinstance(admitted, Admitted):
        raise WorkloadError(f"an admission was answered with {admitted}")
    retracted = [
        RequestId(request)
        for taken in (chunked, decoded)
        if isinstance(taken, Taken)
        for request in taken.retracted.tolist()
    ]
    return Answers(
        chunks=_refused(chunked),
        decoding=_refused(decoded),
        retracted=tuple(retracted),
        verdicts=tuple(admitted.verdicts.tolist()),
        new_tokens=tuple(admitted.new_tokens.tolist()),
        chunk_tokens=tuple(admitted.chunk_tokens.tolist()),
        refusals=admitted.refusals,
    )


def _refused(value: object) -> Refusal | None:
    """Return the refusal of a take, or None if it was granted or not asked for."""
    if isinstance(value, Skipped):
        raise WorkloadError(f"a take was skipped because of request {value.request}")
    return value if isinstance(value, Refusal) else None
