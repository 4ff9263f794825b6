"""Two programs on one arena: what one of them asks between a launch of the other and its notice."""

import numpy as np

from kvd.errors import WorkloadError
from kvd.testing.modelled.ranks import ModelledRank, ModelledStage
from kvd.testing.modelled.world import World
from kvd.testing.passes import StepWork
from kvd_client import Admitted
from kvd_proto.control import Mode
from kvd_proto.operations import Admit, Free, Operation
from kvd_proto.outcomes import Verdict
from kvd_proto.scalars import RequestId
from tests.simulate.test_modelled_ranks import attached
from tests.stateful.ranks import body_of, int32s, int64s

FIRST, SECOND = RequestId(1), RequestId(2)
PROMPT_TOKENS = 8
OTHER_PROGRAM = 1


def free_between_launch_and_notice(world: World) -> None:
    """Free a request of a running forward from elsewhere, before the daemon hears of the launch.

    The first rank launches a step and says so with its next batch. Before that comes the other
    program, and the books know of no step: what the request held is free at once. The batch that
    brings the notice takes it again.
    """
    stage = attached(world, mode=Mode.LEADER, overlap=True)
    leader = stage.ranks[0]
    pages = _admit(leader, FIRST)
    _launch(leader, FIRST)
    _decide_elsewhere(stage, Free(int64s([FIRST])))
    assert np.intersect1d(pages, _admit(leader, SECOND)).size, "no page was used again"
    leader.forward.forget([FIRST])
    _launch(leader, SECOND)
    _finish(stage)


def take_between_launch_and_notice(world: World) -> None:
    """Let the other program take the pages as well, so that its effects precede the notice."""
    stage = attached(world, mode=Mode.LEADER, overlap=True)
    leader = stage.ranks[0]
    _admit(leader, FIRST)
    _launch(leader, FIRST)
    prompt = int32s([PROMPT_TOKENS])
    _decide_elsewhere(
        stage,
        Free(int64s([FIRST])),
        Admit(int64s([SECOND]), prompt, int32s([1]), prompt, PROMPT_TOKENS),
    )
    with leader.client.batch():
        """Brings the notice, and the other program's entries in front of it."""
    _finish(stage)


def _decide_elsewhere(stage: ModelledStage, *operations: Operation) -> None:
    """Have another program's operations decided, as a batch from the second rank's process."""
    incarnation = stage.daemon.incarnation
    incarnation.batch(
        rank=stage.ranks[1].index,
        program=OTHER_PROGRAM,
        index=incarnation.next_index(OTHER_PROGRAM),
        body=body_of(operations),
    )


def _finish(stage: ModelledStage) -> None:
    stage.world.run()
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
