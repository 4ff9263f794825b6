"""Two programs on one arena: what one of them asks between a launch of the other and its notice."""

import numpy as np

from kvd.errors import WorkloadError
from kvd.testing.modelled.ranks import ModelledRank
from kvd.testing.modelled.world import World
from kvd.testing.passes import StepWork
from kvd_client import Admitted
from kvd_proto.codec import encode, join_batch
from kvd_proto.control import Mode
from kvd_proto.operations import BatchEnd, Free
from kvd_proto.outcomes import Verdict
from kvd_proto.scalars import RequestId
from tests.simulate.test_modelled_ranks import attached

PROMPT_TOKENS = 8
OTHER_PROGRAM = 1


def serve_two_programs(world: World) -> None:
    """Free a request of a running forward from elsewhere, before the daemon hears of the launch.

    The first rank launches a step and says so with its next batch. Before that comes the other
    program, and the books know of no step: what the request held is free at once. The batch that
    brings the notice takes it again.
    """
    stage = attached(world, mode=Mode.LEADER, overlap=True)
    leader, follower = stage.ranks
    first, second = RequestId(1), RequestId(2)
    pages = _admit(leader, first)
    _launch(leader, first)
    body = join_batch([encode(Free(np.array([first], dtype="<i8").tobytes())), encode(BatchEnd())])
    stage.daemon.incarnation.batch(rank=follower.index, program=OTHER_PROGRAM, index=0, body=body)
    assert np.intersect1d(pages, _admit(leader, second)).size, "no page was used again"
    leader.forward.forget([first])
    _launch(leader, second)
    world.run()
    if stage.findings:
        raise WorkloadError("; ".join(stage.findings))


def _admit(rank: ModelledRank, request: RequestId) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Admit a request and take its prompt; returns its pages of the last band."""
    with rank.client.batch() as batch:
        handle = batch.admit(
            [request],
            prompt_tokens=[PROMPT_TOKENS],
            new_tokens_max=[1],
            take_tokens=[PROMPT_TOKENS],
            chunk_tokens=PROMPT_TOKENS,
        )
    admitted = handle()
    assert isinstance(admitted, Admitted)
    assert admitted.verdicts.tolist() == [Verdict.FITS]
    return np.array(admitted.taken.physical[rank.client.plan.bands[-1].name], dtype=np.int64)


def _launch(rank: ModelledRank, request: RequestId) -> None:
    """Launch the forward of a request's prompt; what it writes is not stated."""
    work = StepWork(
        requests=(request,),
        starts_tokens=(0,),
        counts_tokens=(PROMPT_TOKENS,),
        finished=(),
        sample=(),
    )
    with rank.client.launch() as step:
        rank.forward.launch(step, work)
