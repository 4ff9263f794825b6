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

Where victims are named, a request that does not fit now ends the fewest of them whose end makes
room for its whole demand, and then fits. A request that fits, but whose first chunk is in the way
of transfers, waits for those.
"""

from dataclasses import dataclass, replace

import numpy as np

from kvd.alloc.band import Freed, Units
from kvd.alloc.chain import Shortage, UnitCounts
from kvd.alloc.clip import price_request
from kvd.alloc.demand import RequestShape
from kvd.alloc.names import Asked
from kvd.alloc.requests import Ask, RequestTable
from kvd_proto.outcomes import Reason, Verdict

_NONE: Units = np.zeros(0, dtype=np.int64)


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

    def __init__(
        self, table: RequestTable, *, growth_permille: int, victims: Units = _NONE
    ) -> None:
        """Start a pass; ``victims`` are the rows that may end for it, first one first."""
        self.retracted: Units = _NONE
        """Rows that ended to make room, in the order of the victims."""
        self.freed: list[Freed] = []
        """What those rows gave back."""
        self._table = table
        self._victims = victims
        self._growth_permille = growth_permille
        self._growth = self._growth_without(_NONE)
        self._admitted_count = 0
        self._first_takes: UnitCounts = (0,) * len(table.chain.bands)

    def admit(
        self,
        request: int,
        *,
        prompt_tokens: int,
        new_tokens_max: int,
        chunk_tokens: int,
        take_tokens: int = 0,
    ) -> Admission:
        """Promise a request its whole demand, or say why not; one told to wait may ask again.

        ``take_tokens`` are what it takes at the end of the pass, 0 for nothing. The id and the room
        to wait were checked, and all numbers are positive.
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
            mode=table.shape.mode,
            chunk_tokens=chunk_tokens,
            may_shrink=not table.holder_count,
            fits_empty=table.chain.fits_empty,
            fits_now=lambda units: table.chain.fits(self._grown(units)),
        )
        new_tokens = price.new_tokens
        if new_tokens is None:
            table.names.refuse(request)
            shortage = table.chain.explain_empty(price.units)
            return Admission(Verdict.UNSCHEDULABLE, shortage=shortage)
        may_open = price.fits and len(table.rows.free) > 0
        takes = self._takes_with(min(take_tokens, price.chunk_tokens))
        asked = Asked(prompt_tokens, new_tokens_max, chunk_tokens)
        if may_open and not table.chain.has_room_now(takes):
            table.names.wait(request, asked)
            shortage = table.chain.explain(self._grown(price.units))
            return Admission(Verdict.WAIT, 0, new_tokens, shortage=shortage)
        if may_open or self._retract_for(price.units, takes):
            self._first_takes = takes
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
        if not table.holder_count:
            table.names.refuse(request)
            return Admission(Verdict.UNSCHEDULABLE, 0, new_tokens, shortage=shortage)
        table.names.wait(request, asked)
        return Admission(Verdict.WAIT, 0, new_tokens, shortage=shortage)

    def _retract_for(self, demand: UnitCounts, takes: UnitCounts) -> bool:
        """End the fewest victims whose end makes room for a whole demand; nobody if none does."""
        if not self._victims.size:
            return False

        def ask(ending: Units) -> Ask:
            growth = self._growth_without(ending)
            excess = tuple([units + more for units, more in zip(demand, growth, strict=True)])
            return Ask(excess, takes)

        ending = self._table.fewest_ending(self._victims, ask)
        if ending is None:
            return False
        self.freed += self._table.retract(ending)
        self.retracted = np.concatenate((self.retracted, ending))
        self._victims = self._victims[ending.size :]
        self._growth = self._growth_without(_NONE)
        return True

    def _takes_with(self, take_tokens: int) -> UnitCounts:
        """Return what the pass takes at its end with one more request's first chunk."""
        pages = -(-take_tokens // self._table.shape.page_tokens)
        wanted = self._table.wanted_units(pages, min(1, take_tokens))
        return tuple([a + b for a, b in zip(self._first_takes, wanted, strict=True)])

    def _growth_without(self, ending: Units) -> UnitCounts:
        """Return the share kept free for lapsed requests, those about to end left out."""
        permille = self._growth_permille
        if not permille:
            return (0,) * len(self._table.chain.bands)
        growth = self._table.holdings.growth_units(without=ending)
        return tuple([-(-units * permille // 1000) for units in growth])

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
        values_count = len(table.values.of_number)
        if values_count:
            values = "1 value" if values_count == 1 else f"{values_count} values"
            outstanding.append(f"{values} that can be evicted")
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
