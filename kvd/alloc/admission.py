"""Admission: what one request is told, in the order that matters.

1. FITS, whole: some layout holds what is live, promised and asked.
2. UNSCHEDULABLE: it fits no empty arena in chunks of any length, so waiting is pointless.
3. WAIT: something outstanding will give memory back, and it is named.
4. FITS with a smaller chunk: nothing is outstanding, so the shortage is permanent and a smaller
   transient is the only way. A chunk is never shrunk under pressure that will pass: a long prompt
   let in that way would eat the room of running decodes.
5. UNSCHEDULABLE: nothing outstanding could ever make it fit.
"""

from dataclasses import dataclass, replace

from kvd.alloc.chain import Shortage, UnitCounts
from kvd.alloc.clip import chunk_search, memory_clip
from kvd.alloc.demand import RequestShape, cut_grid_tokens, request_demand
from kvd.alloc.purpose import DemandPurpose
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
        shape = RequestShape(prompt_tokens=prompt_tokens, new_tokens=new_tokens_max)
        shortest_tokens = min(chunk_tokens, cut_grid_tokens(table.shape, MODE))
        new_tokens = self._clip(shape, chunk_tokens)
        if new_tokens is None:
            new_tokens = self._clip(shape, shortest_tokens)
        if new_tokens is None:
            table.names.refuse(request)
            shortage = self._never_fits(shape, shortest_tokens)
            return Admission(Verdict.UNSCHEDULABLE, shortage=shortage)
        shape = RequestShape(prompt_tokens=prompt_tokens, new_tokens=new_tokens)
        chunk = self._chunk_that_fits(shape, chunk_tokens)
        if chunk is not None and len(table.rows.free):
            row = table.open(
                request,
                self._demand(shape, chunk),
                prompt_tokens=prompt_tokens,
                new_tokens=new_tokens,
                chunk_tokens=chunk,
            )
            self._admitted_count += 1
            return Admission(Verdict.FITS, row, new_tokens, chunk)
        shortage = self._why(shape, chunk_tokens)
        if table.live_count == 0:
            table.names.refuse(request)
            return Admission(Verdict.UNSCHEDULABLE, 0, new_tokens, shortage=shortage)
        table.names.wait(request)
        return Admission(Verdict.WAIT, 0, new_tokens, shortage=shortage)

    def _clip(self, shape: RequestShape, chunk_tokens: int) -> int | None:
        """Return the new tokens that an empty arena grants the prompt in such chunks, or None."""
        return memory_clip(
            self._table.shape,
            shape,
            mode=MODE,
            chunk_tokens=chunk_tokens,
            fits_empty=self._table.chain.fits_empty,
        )

    def _chunk_that_fits(self, shape: RequestShape, chunk_tokens: int) -> int | None:
        """Return the chunk asked if the whole demand fits, else a smaller one if nobody leaves."""
        if self._fits(shape, chunk_tokens):
            return chunk_tokens
        if self._table.live_count:
            return None
        return chunk_search(
            self._table.shape,
            shape,
            mode=MODE,
            chunk_tokens=chunk_tokens,
            holds=lambda chunk: self._fits(shape, chunk),
        )

    def _fits(self, shape: RequestShape, chunk_tokens: int) -> bool:
        return self._table.chain.fits(self._asked(shape, chunk_tokens))

    def _asked(self, shape: RequestShape, chunk_tokens: int) -> UnitCounts:
        demand = self._demand(shape, chunk_tokens)
        return tuple([units + growth for units, growth in zip(demand, self._growth, strict=True)])

    def _demand(self, shape: RequestShape, chunk_tokens: int) -> UnitCounts:
        return request_demand(
            self._table.shape,
            shape,
            purpose=DemandPurpose.ADMIT,
            mode=MODE,
            chunk_tokens=chunk_tokens,
        ).units

    def _why(self, shape: RequestShape, chunk_tokens: int) -> Shortage:
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
        shortage = table.chain.explain(self._asked(shape, chunk_tokens))
        if not outstanding:
            return replace(shortage, waiting_helps=False)
        return replace(shortage, remover=" and ".join(outstanding), waiting_helps=True)

    def _never_fits(self, shape: RequestShape, chunk_tokens: int) -> Shortage:
        """Explain a prompt that fits no empty arena."""
        chain = self._table.chain
        bands = [band.geometry for band in chain.bands]
        prompt_alone = RequestShape(prompt_tokens=shape.prompt_tokens)
        demand = request_demand(
            self._table.shape,
            prompt_alone,
            purpose=DemandPurpose.CEILING,
            mode=MODE,
            chunk_tokens=chunk_tokens,
        ).units
        widest = max(range(len(bands)), key=lambda place: demand[place] * bands[place].unit_bytes)
        needed = sum(units * band.unit_bytes for units, band in zip(demand, bands, strict=True))
        usable = chain.geometry.arena_bytes - chain.geometry.sink_bytes
        return Shortage(
            reason=Reason.NO_BYTES,
            band=bands[widest].name,
            short_units=0,
            short_bytes=max(0, needed - usable),
            obstacle=f"{needed} bytes asked of an arena that holds {usable} when empty",
            remover="a larger budget",
            waiting_helps=False,
        )


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
