"""What-if: would a demand fit, after which rearrangement, and what would that move.

It changes nothing. A request is priced by what prices it in admission, and the same search that
decides takes is asked about the same snapshot, so the answer is what an admission of the request,
or a take of exactly these units, would meet now.
"""

from dataclasses import dataclass

from msgspec import structs

from kvd.alloc.chain import UnitCounts
from kvd.alloc.clip import RequestPrice, price_request
from kvd.alloc.demand import DemandShape, RequestShape
from kvd.alloc.requests import RequestTable
from kvd.engine.arguments import check_tokens, check_units
from kvd.errors import OperationError
from kvd.price.plans import feasible
from kvd.price.refusal import never_fits, obstacle_text, why_not
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
    holder_count: int
    """Requests that hold a row, and values."""
    free_count: int
    """Rows that nobody holds."""


def what_if(table: RequestTable, question: WhatIf) -> WhatIfReply:
    """Answer a question about one stage; raises OperationError for one that makes no sense."""
    chain = table.chain
    picture = StagePicture(
        snapshot=chain.snapshot(),
        empty=chain.empty,
        promised_units=chain.promised_units,
        shape=table.shape,
        chunk_tokens=table.chunk_tokens,
        holder_count=table.holder_count,
        free_count=len(table.rows.free),
    )
    return answer(picture, question)


def answer(picture: StagePicture, question: WhatIf) -> WhatIfReply:
    """Answer a question from a picture of a stage; raises OperationError as `what_if` does."""
    if question.demand_units:
        bands = [band.geometry for band in picture.snapshot.bands]
        check_units(question.demand_units, bands, what="what_if.demand_units", within_room=False)
        return _reply(picture, question.demand_units)
    price = _price(picture, question)
    new_tokens = price.new_tokens
    total_tokens = question.prompt_tokens + question.new_tokens_max
    context_tokens = picture.shape.context_tokens
    if total_tokens > context_tokens > 0:
        # Admission refuses it before it looks at memory, so no rearrangement helps.
        return _never(price, f"{total_tokens} tokens, the context length is {context_tokens}")
    if new_tokens is None:
        found = never_fits(picture.empty, price.units)
        assert found is not None, "the prompt fits an empty arena"
        return _never(price, found[1])
    if not picture.free_count:
        return WhatIfReply(
            demand_units=price.units,
            fits_empty=True,
            new_tokens=new_tokens,
            steps=never_steps(),
            obstacle="every request row is in use",
            chunk_tokens=price.chunk_tokens,
        )
    reply = _reply(picture, price.units)
    # What was priced is the chunk asked; a shorter one may fit an empty arena where it does not.
    return structs.replace(
        reply, fits_empty=True, new_tokens=new_tokens, chunk_tokens=price.chunk_tokens
    )


def _reply(picture: StagePicture, demand: UnitCounts) -> WhatIfReply:
    """Return the answer about units."""
    snapshot, promised = picture.snapshot, picture.promised_units
    obstacle = why_not(snapshot, with_promises(demand, promised))
    return WhatIfReply(
        demand_units=demand,
        fits_empty=feasible(picture.empty, demand),
        steps=what_if_steps(snapshot, demand, promised_units=promised),
        obstacle=""
        if obstacle is None
        else obstacle_text(snapshot, obstacle, promised_units=promised),
    )


def _never(price: RequestPrice, obstacle: str) -> WhatIfReply:
    """Return the answer about a request that can never run."""
    return WhatIfReply(
        demand_units=price.units, fits_empty=False, steps=never_steps(), obstacle=obstacle
    )


def _price(picture: StagePicture, question: WhatIf) -> RequestPrice:
    """Price a request as admission does; raises OperationError for numbers that make no sense."""
    if question.prompt_tokens == 0:
        raise OperationError(
            "what_if.prompt_tokens is 0; give units per band, or a prompt of 1 or more tokens"
        )
    for name, tokens, tokens_min in (
        ("prompt_tokens", question.prompt_tokens, 1),
        ("new_tokens_max", question.new_tokens_max, 0),
        ("chunk_tokens", question.chunk_tokens, 0),
    ):
        check_tokens(tokens, what=f"what_if.{name}", tokens_min=tokens_min)
    promised = picture.promised_units
    return price_request(
        picture.shape,
        RequestShape(prompt_tokens=question.prompt_tokens, new_tokens=question.new_tokens_max),
        mode=picture.shape.mode,
        chunk_tokens=question.chunk_tokens or picture.chunk_tokens,
        may_shrink=not picture.holder_count,
        fits_empty=lambda units: feasible(picture.empty, units),
        fits_now=lambda units: feasible(picture.snapshot, with_promises(units, promised)),
    )
