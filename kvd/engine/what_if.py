"""What-if: would a demand fit, after which rearrangement, and what would that move.

It changes nothing. The same search that decides takes is asked about the same snapshot, so the
answer is what a take of exactly this demand would meet now.
"""

from dataclasses import dataclass

from kvd.alloc.admission import MODE
from kvd.alloc.chain import UnitCounts
from kvd.alloc.clip import memory_clip
from kvd.alloc.demand import DemandShape, RequestShape, request_demand
from kvd.alloc.purpose import DemandPurpose
from kvd.alloc.requests import RequestTable
from kvd.errors import OperationError
from kvd.price.plans import feasible
from kvd.price.refusal import obstacle_text, why_not
from kvd.price.snapshot import ChainSnapshot
from kvd.price.what_if import never_steps, what_if_steps, with_promises
from kvd_proto.control import WhatIf, WhatIfReply


@dataclass(frozen=True, slots=True)
class StagePicture:
    """Everything that an answer depends on: taken from the engine, or from what was published."""

    snapshot: ChainSnapshot
    """The chain as it is, without promises."""
    empty: ChainSnapshot
    promised_units: UnitCounts
    shape: DemandShape
    chunk_tokens: int
    """The longest chunk of a request that names none."""


def what_if(table: RequestTable, question: WhatIf) -> WhatIfReply:
    """Answer a question about one stage; raises OperationError for one that makes no sense."""
    chain = table.chain
    picture = StagePicture(
        snapshot=chain.snapshot(),
        empty=chain.empty,
        promised_units=chain.promised_units,
        shape=table.shape,
        chunk_tokens=table.chunk_tokens,
    )
    return answer(picture, question)


def answer(picture: StagePicture, question: WhatIf) -> WhatIfReply:
    """Answer a question from a picture of a stage; raises OperationError as `what_if` does."""
    demand, new_tokens = _demand(picture, question)
    total_tokens = question.prompt_tokens + question.new_tokens_max
    context_tokens = picture.shape.context_tokens
    if not question.demand_units and total_tokens > context_tokens > 0:
        # Admission refuses it before it looks at memory, so no rearrangement helps.
        return WhatIfReply(
            demand_units=demand,
            fits_empty=False,
            steps=never_steps(),
            obstacle=f"{total_tokens} tokens, the context length is {context_tokens}",
        )
    snapshot, promised = picture.snapshot, picture.promised_units
    obstacle = why_not(snapshot, with_promises(demand, promised))
    return WhatIfReply(
        demand_units=demand,
        fits_empty=feasible(picture.empty, demand),
        new_tokens=new_tokens,
        steps=what_if_steps(snapshot, demand, promised_units=promised),
        obstacle=""
        if obstacle is None
        else obstacle_text(snapshot, obstacle, promised_units=promised),
    )


def _demand(picture: StagePicture, question: WhatIf) -> tuple[UnitCounts, int]:
    """Return the units asked, and the new tokens that memory can ever grant the request."""
    count = len(picture.snapshot.bands)
    if question.demand_units:
        if len(question.demand_units) != count or min(question.demand_units) < 0:
            raise OperationError(
                f"what_if.demand_units is {list(question.demand_units)}; {count} counts of 0 or "
                f"more are needed, one per band"
            )
        return question.demand_units, 0
    if question.prompt_tokens < 1 or question.new_tokens_max < 0 or question.chunk_tokens < 0:
        raise OperationError(
            f"what_if asks about a prompt of {question.prompt_tokens} and "
            f"{question.new_tokens_max} new tokens in chunks of {question.chunk_tokens}; give "
            f"units per band, or a prompt of 1 or more tokens"
        )
    request = RequestShape(prompt_tokens=question.prompt_tokens, new_tokens=question.new_tokens_max)
    chunk_tokens = question.chunk_tokens or picture.chunk_tokens
    demand = request_demand(
        picture.shape, request, purpose=DemandPurpose.ADMIT, mode=MODE, chunk_tokens=chunk_tokens
    )
    granted = memory_clip(
        picture.shape,
        request,
        mode=MODE,
        chunk_tokens=chunk_tokens,
        fits_empty=lambda units: feasible(picture.empty, units),
    )
    return demand.units, granted or 0
