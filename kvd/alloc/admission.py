"""Admission: what one request is told, in the order that matters.

1. FITS, whole: some layout holds what is live, promised and asked.
2. UNSCHEDULABLE: it fits no empty arena in chunks of any length, so waiting is pointless.
3. WAIT: something outstanding will give memory back, and it is named.
4. FITS with a smaller chunk: nothing is outstanding, so the shortage is permanent and a smaller
   transient is the only way. A chunk is never shrunk under pressure that will pass: a long prompt
   let in that way would eat the room of running decodes.
5. UNSCHEDULABLE: nothing outstanding could ever make it fit.

New tokens are clipped before any of it, at the chunk asked: a long chunk may so cost output tokens
that a shorter one would leave, which is the asker's choice and keeps the answer one search. Only a
prompt that fits no empty arena in the chunk asked is clipped at the shortest.
"""

from dataclasses import dataclass, replace

from kvd.alloc.chain import Shortage, UnitCounts
from kvd.alloc.clip import price_request
from kvd.alloc.demand import RequestShape
from kvd.alloc.requests import RequestTable
from kvd.alloc.window import WindowMode
from kvd_proto.outcomes import Reason, Verdict

MODE = WindowMode.STEP
"""Windows slide when computed tokens are stated, before the next take; overlap will change it."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Answer to one request: verdict, row (0 if it does not fit), what is granted, or why not."""

    verdict: Verdict
    row_index: int = 0
    new_tokens: int = 0
    """New tokens that memory can ever grant beside the prompt."""
    chunk_tokens: int = 0
    """Most tokens that may be taken at once."""
    shortage: Shortage | None = None


class AdmissionPass:
    """The admissions of one batch: what lapsed requests may still grow to counts once for all."""

    def __init__(self, table: RequestTable, *, growth_permille: int) -> None:
        self._table = table
        self._growth: UnitCounts = (0,) * len(table.chain.bands)
        self._admitted_count = 0
        if growth_permille:
            self._growth = tuple(
                -(-units * growth_permille // 1000) for units in table.holdings.growth_units()
            )

    def admit(
        self, request: int, *, prompt_tokens: int, new_tokens_max: int, chunk_tokens: int
    ) -> Admission:
        """Promise a request its whole demand, or say why not; one told to wait may ask again.

        The id and the room to wait were checked, and all numbers are positive.
        """
        table = self._table
        chunk_tokens = chunk_tokens or table.chunk_tokens
        total_tokens = prompt_tokens + new_tokens_max
        if total_tokens > table.context_tokens:
            table.names.refuse(request)
            return Admission(
                Verdict.UNSCHEDULABLE, shortage=_too_long(total_tokens, table.context_tokens)
            )
        price = price_request(
            table.shape,
            RequestShape(prompt_tokens=prompt_tokens, new_tokens=new_tokens_max),
            mode=MODE,
            chunk_tokens=chunk_tokens,
            may_shrink=table.live_count == 0,
            fits_empty=table.chain.fits_empty,
            fits_now=lambda units: table.chain.fits(self._grown(units)),
        )
        new_tokens = price.new_tokens
        if new_tokens is None:
            table.names.refuse(request)
            shortage = table.chain.explain_empty(price.units)
            return Admission(Verdict.UNSCHEDULABLE, shortage=shortage)
        if price.fits and len(table.rows.free):
            row = table.open(
                request,
                price.units,
                prompt_tokens=prompt_tokens,
                new_tokens=new_tokens,
                chunk_tokens=price.chunk_tokens,
            )
            self._admitted_count += 1
            return Admission(Verdict.FITS, row, new_tokens, price.chunk_tokens)
        shortage = self._why(price.units)
        if table.live_count == 0:
            table.names.refuse(request)
            return Admission(Verdict.UNSCHEDULABLE, 0, new_tokens, shortage=shortage)
        table.names.wait(request)
        return Admission(Verdict.WAIT, 0, new_tokens, shortage=shortage)

    def _grown(self, units: UnitCounts) -> UnitCounts:
        """Return a demand with what is held back for lapsed requests."""
        return tuple([asked + growth for asked, growth in zip(units, self._growth, strict=True)])

    def _why(self, units: UnitCounts) -> Shortage:
        """Explain a request that does not fit now, naming who will give memory back."""
        table = self._table
        earlier = table.live_count - self._admitted_count
        outstanding = [
            f"1 request {singular}" if count == 1 else f"{count} requests {plural}"
            for count, singular, plural in (
                (self._admitted_count, "admitted in this pass", "admitted in this pass"),
                (earlier, "that holds rows", "that hold rows"),
            )
            if count
        ]
        if not len(table.rows.free):
            return Shortage(
                reason=Reason.NO_ROWS,
                band="",
                short_units=1,
                short_bytes=0,
                obstacle="every request row is in use",
                remover=" and ".join(outstanding),
                waiting_helps=True,
            )
        shortage = table.chain.explain(self._grown(units))
        if not outstanding:
            return replace(shortage, waiting_helps=False)
        return replace(shortage, remover=" and ".join(outstanding), waiting_helps=True)


def _too_long(total_tokens: int, context_tokens: int) -> Shortage:
    return Shortage(
        reason=Reason.TOO_LONG,
        band="",
        short_units=total_tokens - context_tokens,
        short_bytes=0,
        obstacle=f"{total_tokens} tokens, the context length is {context_tokens}",
        remover="a stage sized for a longer context",
        waiting_helps=False,
    )
