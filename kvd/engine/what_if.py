"""What-if: would a demand fit, after which rearrangement, and what would that move.

It changes nothing. The same search that decides takes is asked about the same snapshot, so the
answer is what a take of exactly this demand would meet now.
"""

from kvd.alloc.admission import MODE
from kvd.alloc.chain import UnitCounts
from kvd.alloc.clip import memory_clip
from kvd.alloc.demand import RequestShape, request_demand
from kvd.alloc.purpose import DemandPurpose
from kvd.alloc.requests import RequestTable
from kvd.errors import OperationError
from kvd.price.layout import Step, moved_units_max
from kvd.price.plans import first_plan, plan
from kvd.price.snapshot import ChainSnapshot, Tier
from kvd_proto.control import WhatIf, WhatIfReply, WhatIfStep


def what_if(table: RequestTable, question: WhatIf) -> WhatIfReply:
    """Answer a question about one stage; raises OperationError for one that makes no sense."""
    demand, new_tokens = _demand(table, question)
    chain = table.chain
    fits = chain.fits(demand)
    return WhatIfReply(
        demand_units=demand,
        fits_empty=chain.fits_empty(demand),
        new_tokens=new_tokens,
        steps=(
            # Nothing is pending without overlap, and nothing is cached yet: settling and eviction
            # cannot give anything back, so their answers are those of the step before.
            _in_place("now", chain.snapshot(), demand, allowed=fits),
            _in_place("settled", chain.snapshot(), demand, allowed=fits),
            _rearranged("relief", chain.snapshot(), demand, allowed=fits),
            _rearranged("eviction", chain.snapshot(), demand, allowed=fits),
        ),
        obstacle="" if fits else chain.explain(demand).obstacle,
    )


def _demand(table: RequestTable, question: WhatIf) -> tuple[UnitCounts, int]:
    """Return the units asked, and the new tokens that memory can ever grant the request."""
    count = len(table.chain.bands)
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
    chunk_tokens = question.chunk_tokens or table.chunk_tokens
    demand = request_demand(
        table.shape, request, purpose=DemandPurpose.ADMIT, mode=MODE, chunk_tokens=chunk_tokens
    )
    granted = memory_clip(
        table.shape,
        request,
        mode=MODE,
        chunk_tokens=chunk_tokens,
        fits_empty=table.chain.fits_empty,
    )
    return demand.units, granted or 0


def _in_place(
    name: str, snapshot: ChainSnapshot, demand: UnitCounts, *, allowed: bool
) -> WhatIfStep:
    layout = plan(snapshot, demand, Step.NO_MOVE, Tier.STREAM) if allowed else None
    if layout is None:
        return WhatIfStep(name=name, fits=False)
    return WhatIfStep(name=name, fits=True, layout=layout.step.value)


def _rearranged(
    name: str, snapshot: ChainSnapshot, demand: UnitCounts, *, allowed: bool
) -> WhatIfStep:
    layout = first_plan(snapshot, demand) if allowed else None
    if layout is None:
        return WhatIfStep(name=name, fits=False)
    moved = moved_units_max(snapshot, layout)
    return WhatIfStep(
        name=name,
        fits=True,
        layout=layout.step.value,
        moved_units=moved,
        moved_bytes=sum(
            units * band.geometry.unit_bytes
            for units, band in zip(moved, snapshot.bands, strict=True)
        ),
    )
