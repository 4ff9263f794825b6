"""The engine of one stage: one method per operation, results and effects out.

Pure: it reads no clock, no fence and no environment, so the same operations give the same outcomes
on every run. Wrong use raises OperationError before anything is changed; an expected no is a
Refusal in the outcome.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from kvd.alloc.band import Units
from kvd.alloc.chain import ChainAllocator, Shortage
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.demand import DemandShape
from kvd.alloc.requests import Grant, RequestTable
from kvd.build import StageStorage
from kvd.engine.columns import ColumnBuilder, read_request_ids, read_tokens
from kvd.engine.standing import StandingSet
from kvd.engine.step import StepOrder
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import (
    Admit,
    Advance,
    BatchEnd,
    Free,
    Idle,
    Launch,
    Operation,
    Processed,
    Relief,
    Standing,
    Take,
)
from kvd_proto.outcomes import (
    NO_COLUMN,
    AdmitResult,
    AnyEffect,
    ClearSlots,
    Done,
    Freed,
    Outcome,
    Refusal,
    ResetRows,
    Skipped,
    TakeResult,
    Verdict,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DONE = Outcome(Done())
NOTHING_TAKEN = Outcome(TakeResult())
OPERATION_REQUESTS_MAX = 65536
"""Requests that one operation may name; it bounds how long one operation keeps the daemon busy."""
TOKENS_MAX = (1 << 31) - 1
"""Token counts travel as 32-bit numbers, a single one included."""


class StageEngine:
    """Allocator, requests and steps of one stage in one incarnation."""

    def __init__(self, storage: StageStorage, *, level: CheckLevel) -> None:
        sized = storage.sized
        lifetimes = tuple(band.lifetime for band in storage.storage.bands)
        self.stage_index = storage.storage.stage_index
        self.monitor = CheckMonitor(level)
        self.chain = ChainAllocator(
            sized.geometry,
            lifetimes=lifetimes,
            virtual_page_count=storage.storage.virtual_page_count,
            virtual_slot_count=storage.storage.virtual_slot_count,
            monitor=self.monitor,
        )
        self.requests = RequestTable(
            self.chain,
            row_count=storage.storage.row_count,
            row_pages=storage.storage.row_pages,
            context_tokens=storage.storage.context_tokens,
            shape=DemandShape(
                lifetimes=lifetimes,
                window_tokens=tuple(band.window_tokens for band in storage.storage.bands),
                page_tokens=storage.storage.page_tokens,
                slots_per_request_slots=1,
            ),
            chunk_tokens=sized.chunk_tokens,
        )
        self.steps = StepOrder()
        self.counters = {"admitted": 0, "waited": 0, "unschedulable": 0, "taken_pages": 0}
        self.refusal_counts: dict[str, int] = {}
        self._standing: dict[int, StandingSet] = {}
        self._refused_now: dict[int, None] = {}
        self._settle_due = False
        self._memo: tuple[bytes, int, Units] = (b"", -1, np.zeros(0, dtype=np.int64))
        self._decide: dict[type[Operation], Callable[[int, Any], Outcome]] = {
            Admit: self._admit,
            Standing: self._change_standing,
            Take: self._take,
            Advance: self._advance,
            Free: self._free,
            Relief: self._relief,
            Launch: self._launch,
            Processed: self._processed,
            Idle: self._idle,
            BatchEnd: self._batch_end,
        }

    def decide(self, program: int, operation: Operation) -> Outcome:
        """Decide one operation; raises OperationError for wrong use, with nothing changed."""
        if self._settle_due:
            self.settle()
        outcome = self._decide[type(operation)](program, operation)
        if self.monitor.level is CheckLevel.STRICT:
            self.requests.check()
        return outcome

    def settle(self) -> None:
        """Do what a batch's end owes: merge freed units and draw frontiers back.

        It belongs to the batch's last operation. The daemon runs it after the reply is sent; the
        next operation runs it first if that did not happen, so decisions never depend on when.
        """
        if self._settle_due:
            self._settle_due = False
            self.chain.settle_freed()
            if self.monitor.level is CheckLevel.WARN:
                self.chain.check()

    # ---- requests -------------------------------------------------------------------------------

    def _admit(self, program: int, operation: Admit) -> Outcome:
        self.steps.require_none_in_flight("admit")
        ids, prompts, news, takes = self._read_admit(operation)
        columns = ColumnBuilder()
        verdicts, rows = np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids), dtype=np.int64)
        refusals: list[Refusal] = []
        for place, request in enumerate(ids):
            answer = self.requests.admit(
                request,
                prompt_tokens=prompts[place],
                new_tokens_max=news[place],
                chunk_tokens=operation.chunk_tokens,
            )
            verdicts[place], rows[place] = answer.verdict, answer.row_index
            if answer.shortage is not None:
                self._refused_now[request] = None
                refusals.append(self._refusal(answer.shortage, request))
            else:
                self._refused_now.pop(request, None)
        self._count_verdicts(verdicts)
        fitting = (verdicts == Verdict.FITS).nonzero()[0]
        verdict_column, row_column = columns.add(verdicts), columns.add(rows)
        effects: list[AnyEffect] = []
        taken = TakeResult()
        if fitting.size:
            new_rows = rows[fitting]
            effects.append(ResetRows(columns.add(new_rows)))
            if takes is not None:
                grant = self.requests.take(new_rows, takes[fitting])
                assert isinstance(grant, Grant), "a promised take found no room"
                taken = self._grant(grant, columns, effects)
        result = AdmitResult(
            verdicts=verdict_column,
            rows=row_column,
            refusals=tuple(refusals),
            page_rows=taken.page_rows,
            page_places=taken.page_places,
            virtual=taken.virtual,
            physical=taken.physical,
        )
        return _outcome(result, columns, effects)

    def _read_admit(self, operation: Admit) -> tuple[list[int], list[int], list[int], Units | None]:
        """Check every value of an admit before anything is changed."""
        ids = self._read_ids(operation.requests, "admit.requests")
        prompts = read_tokens(
            operation.prompt_tokens, count=len(ids), what="admit.prompt_tokens", tokens_min=1
        )
        news = read_tokens(
            operation.new_tokens_max, count=len(ids), what="admit.new_tokens_max", tokens_min=0
        )
        chunk = operation.chunk_tokens
        if not 0 <= chunk <= TOKENS_MAX:
            raise OperationError(f"admit.chunk_tokens is {chunk}; 0 to {TOKENS_MAX} is allowed")
        previous = 0
        for request in ids:
            self.requests.check_new_id(request)
            if request <= previous:
                raise OperationError(
                    f"admit.requests has {request} after {previous}; ids ascend",
                    code=ErrorCode.BAD_REQUEST_ID,
                )
            previous = request
        self.requests.check_waiting_room(ids)
        takes = None
        if operation.take_tokens:
            takes = read_tokens(
                operation.take_tokens, count=len(ids), what="admit.take_tokens", tokens_min=1
            )
            limit = np.minimum(prompts + news, chunk or self.requests.chunk_tokens)
            over = (takes > limit).nonzero()[0]
            if over.size:
                place = int(over[0])
                raise OperationError(
                    f"admit.take_tokens asks {takes[place]} tokens for request {ids[place]}; at "
                    f"most {limit[place]} are promised at once"
                )
        return ids, prompts.tolist(), news.tolist(), takes

    def _change_standing(self, program: int, operation: Standing) -> Outcome:
        add = self._read_ids(operation.add, "standing.add") if operation.add else []
        remove = self._read_ids(operation.remove, "standing.remove") if operation.remove else []
        skipped = self._names_refused(add)
        if skipped is not None:
            return skipped
        self._standing_of(program).change(self.requests, add=add, remove=remove)
        return DONE

    def _take(self, program: int, operation: Take) -> Outcome:
        self.steps.require_none_in_flight("take")
        found = self._named(program, operation, "take")
        if isinstance(found, Outcome):
            return found
        rows, tokens = found
        grant = self.requests.take(rows, tokens)
        if not isinstance(grant, Grant):
            shortage, request = grant
            self._count_refusal(shortage)
            return Outcome(self._refusal(shortage, request))
        if not grant.physical and not grant.slot_rows.size:
            return NOTHING_TAKEN
        columns, effects = ColumnBuilder(), list[AnyEffect]()
        result = self._grant(grant, columns, effects)
        return _outcome(result, columns, effects)

    def _advance(self, program: int, operation: Advance) -> Outcome:
        self.steps.require_none_in_flight("advance")
        found = self._named(program, operation, "advance")
        if isinstance(found, Outcome):
            return found
        rows, tokens = found
        slides = self.requests.advance(rows, tokens)
        if not slides:
            return DONE
        columns = ColumnBuilder()
        counts = [0] * len(self.chain.bands)
        effects: list[AnyEffect] = []
        for slide in slides:
            counts[slide.band_index] = slide.virtual.size
            effects.append(WriteMap(slide.band_index, columns.add(slide.virtual)))
        return _outcome(Freed(tuple(counts)), columns, effects)

    def _free(self, program: int, operation: Free) -> Outcome:
        self.steps.require_none_in_flight("free")
        ids = self._read_ids(operation.requests, "free.requests")
        skipped = self._names_refused(ids)
        if skipped is not None:
            return skipped
        rows = self.requests.rows_of(ids)
        columns = ColumnBuilder()
        counts = [0] * len(self.chain.bands)
        effects: list[AnyEffect] = []
        for index, virtual in self.requests.free(rows):
            counts[index] = virtual.size
            if virtual.size:
                effects.append(WriteMap(index, columns.add(virtual)))
        if self.chain.state_index is not None:
            zeros = np.zeros(rows.size, dtype=np.int64)
            effects.append(WriteSlots(columns.add(rows), columns.add(zeros)))
        return _outcome(Freed(tuple(counts)), columns, effects)

    def _relief(self, program: int, operation: Relief) -> Outcome:
        self.steps.require_none_in_flight("relief")
        demand = operation.demand_units
        if len(demand) != len(self.chain.bands) or min(demand, default=0) < 0:
            raise OperationError(
                f"relief.demand_units is {list(demand)}; {len(self.chain.bands)} counts of 0 or "
                f"more are needed, one per band"
            )
        shortage = self.chain.make_room(demand)
        if shortage is None:
            return DONE
        self._count_refusal(shortage)
        return Outcome(self._refusal(shortage, 0))

    # ---- steps ----------------------------------------------------------------------------------

    def _launch(self, program: int, operation: Launch) -> Outcome:
        self.steps.launch(operation.step, operation.position)
        return DONE

    def _processed(self, program: int, operation: Processed) -> Outcome:
        self.steps.process(operation.step)
        return DONE

    def _idle(self, program: int, operation: Idle) -> Outcome:
        self.steps.require_none_in_flight("idle")
        return DONE

    def _batch_end(self, program: int, operation: BatchEnd) -> Outcome:
        self._settle_due = True
        self._refused_now.clear()
        return DONE

    # ---- inside ---------------------------------------------------------------------------------

    def _standing_of(self, program: int) -> StandingSet:
        standing = self._standing.get(program)
        if standing is None:
            standing = self._standing[program] = StandingSet()
        return standing

    def _read_ids(self, encoded: bytes, what: str) -> list[int]:
        ids = read_request_ids(encoded, what=what)
        if len(ids) > OPERATION_REQUESTS_MAX:
            raise OperationError(
                f"{what} names {len(ids)} requests; at most {OPERATION_REQUESTS_MAX} are allowed"
            )
        return ids

    def _names_refused(self, ids: list[int]) -> Outcome | None:
        """Return the outcome of an operation that names a request refused in this batch."""
        if self._refused_now:
            for request in ids:
                if request in self._refused_now:
                    return Outcome(Skipped(request))
        return None

    def _named(
        self, program: int, operation: Take | Advance, what: str
    ) -> tuple[Units, int | Units] | Outcome:
        """Return the rows that a take or an advance names, and their tokens."""
        encoded = operation.requests
        if not encoded:
            rows = self._standing_of(program).rows(self.requests)
        else:
            memo_bytes, memo_epoch, rows = self._memo
            if encoded != memo_bytes or memo_epoch != self.requests.epoch_count:
                ids = self._read_ids(encoded, f"{what}.requests")
                skipped = self._names_refused(ids)
                if skipped is not None:
                    return skipped
                rows = self.requests.rows_of(ids)
                self._memo = (encoded, self.requests.epoch_count, rows)
        if operation.tokens_each:
            return rows, read_tokens(
                operation.tokens_each, count=rows.size, what=f"{what}.tokens_each", tokens_min=1
            )
        tokens = operation.tokens
        if not 1 <= tokens <= self.requests.context_tokens:
            raise OperationError(
                f"{what}.tokens is {tokens}; 1 to {self.requests.context_tokens} is allowed"
            )
        return rows, tokens

    def _grant(self, grant: Grant, columns: ColumnBuilder, effects: list[AnyEffect]) -> TakeResult:
        """Add a grant's columns and effects: zero the pages, then let the tables name them."""
        physical = [NO_COLUMN] * len(self.chain.bands)
        page_rows = places = virtual = NO_COLUMN
        if grant.physical:
            page_rows = columns.add(grant.page_rows)
            places = columns.add(grant.page_places)
            virtual = columns.add(grant.virtual)
            self.counters["taken_pages"] += grant.virtual.size
            for index, units in zip(self.chain.token_indices, grant.physical, strict=True):
                physical[index] = columns.add(units)
                effects.append(Zero(index, physical[index]))
                effects.append(WriteMap(index, virtual, physical[index]))
            effects.append(WriteRows(page_rows, places, virtual))
        if grant.slot_rows.size and self.chain.state_index is not None:
            index = self.chain.state_index
            slots = columns.add(grant.slot_virtual)
            physical[index] = columns.add(grant.slot_physical)
            effects.append(WriteMap(index, slots, physical[index]))
            effects.append(WriteSlots(columns.add(grant.slot_rows), slots))
            effects.append(ClearSlots(physical[index]))
        return TakeResult(page_rows, places, virtual, tuple(physical))

    def _refusal(self, shortage: Shortage, request: int) -> Refusal:
        return Refusal(
            reason=shortage.reason,
            stage=self.stage_index,
            band=shortage.band,
            request=request,
            units_short=shortage.units_short_units,
            bytes_short=shortage.bytes_short_bytes,
            obstacle=shortage.obstacle,
            remover=shortage.remover,
            waiting_helps=shortage.waiting_helps,
        )

    def _count_refusal(self, shortage: Shortage) -> None:
        reason = shortage.reason.value
        self.refusal_counts[reason] = self.refusal_counts.get(reason, 0) + 1

    def _count_verdicts(self, verdicts: Units) -> None:
        self.counters["admitted"] += int(np.count_nonzero(verdicts == Verdict.FITS))
        self.counters["waited"] += int(np.count_nonzero(verdicts == Verdict.WAIT))
        self.counters["unschedulable"] += int(np.count_nonzero(verdicts == Verdict.UNSCHEDULABLE))


def _outcome(result: Any, columns: ColumnBuilder, effects: list[AnyEffect]) -> Outcome:
    segments = (tuple(effects),) if effects else ()
    return Outcome(result, segments, columns.lengths, columns.encode())
