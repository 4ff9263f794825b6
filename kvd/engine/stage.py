"""The engine of one stage: one method per operation, results and effects out.

Pure: it reads no clock, no fence and no environment, so the same operations give the same outcomes
on every run. Wrong use raises OperationError before anything is changed; an expected no is a
Refusal in the outcome.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from kvd.alloc.admission import Admission, AdmissionPass
from kvd.alloc.band import Units
from kvd.alloc.chain import ChainAllocator, Shortage
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.demand import DemandShape
from kvd.alloc.requests import Grant, RequestTable
from kvd.build import StageStorage
from kvd.engine.arguments import (
    AdmitArguments,
    check_units,
    read_admit,
    read_request_ids,
    read_tokens,
)
from kvd.engine.lapse import Lapses
from kvd.engine.outcome import OutcomeBuilder, refusal_of
from kvd.engine.page_uses import PageUses
from kvd.engine.shape import StageShape, shape_of
from kvd.engine.standing import StandingSet
from kvd.errors import OperationError
from kvd_proto.operations import (
    Admit,
    Advance,
    BatchEnd,
    Free,
    Idle,
    Insert,
    Launch,
    Operation,
    Processed,
    Released,
    Relief,
    Standing,
    Take,
    WriteSet,
)
from kvd_proto.outcomes import (
    NO_COLUMN,
    AdmitResult,
    Done,
    Outcome,
    Pump,
    Reason,
    Refusal,
    Skipped,
    TakeResult,
    Verdict,
    Wait,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DONE = Outcome(Done())
NOTHING_TAKEN = Outcome(TakeResult())
_NO_ROWS: Units = np.zeros(0, dtype=np.int64)


class StageEngine:
    """Allocator, requests and steps of one stage in one incarnation."""

    def __init__(
        self,
        stage: StageStorage | StageShape,
        *,
        level: CheckLevel,
        idle_moves_max: int = 0,
        batch_moves_max: int = 0,
    ) -> None:
        """Build an empty stage.

        ``idle_moves_max`` and ``batch_moves_max`` bound the units that an ``idle`` and a
        ``batch_end`` move in order to draw frontiers back; 0 moves nothing unasked.
        """
        self.shape = shape = shape_of(stage)
        lifetimes = tuple(band.lifetime for band in shape.bands)
        self.stage_index = shape.stage_index
        self.monitor = CheckMonitor(level)
        self.chain = ChainAllocator(
            shape.geometry,
            lifetimes=lifetimes,
            virtual_page_count=shape.virtual_page_count,
            virtual_slot_count=shape.virtual_slot_count,
            monitor=self.monitor,
        )
        self.requests = RequestTable(
            self.chain,
            row_count=shape.row_count,
            row_pages=shape.row_pages,
            context_tokens=shape.context_tokens,
            shape=DemandShape(
                lifetimes=lifetimes,
                window_tokens=tuple(band.window_tokens for band in shape.bands),
                page_tokens=shape.page_tokens,
                slots_per_request_slots=1,
                step_tokens=shape.step_tokens,
                overlap=shape.overlap,
                context_tokens=shape.context_tokens,
            ),
            chunk_tokens=shape.chunk_tokens,
        )
        self.steps = self.chain.steps
        self.counters = dict.fromkeys(
            ("admitted", "waited", "unschedulable", "taken_pages", "retracted", "lapsed"), 0
        )
        self.refusal_counts: dict[str, int] = {}
        self.idle_moves_max = idle_moves_max
        self.batch_moves_max = batch_moves_max
        self._lapses = Lapses()
        self._standing: dict[int, StandingSet] = {}
        self._refused_now: dict[int, None] = {}
        self._settle_due = False
        self._checked_epoch_count = 0
        self._memo: tuple[bytes, int, Units] = (b"", -1, _NO_ROWS)
        self.uses = PageUses(self.requests, refused=self._refused)
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
            **self.uses.operations(),
            Insert: self._insert,
        }

    def decide(self, program: int, operation: Operation) -> Outcome:
        """Decide one operation; raises OperationError for wrong use, with nothing changed."""
        if self._settle_due:
            self.settle()
        self.monitor.deciding = True
        try:
            outcome = self._decide[type(operation)](program, operation)
        finally:
            self.monitor.deciding = False
        if self.monitor.level is CheckLevel.STRICT:
            self.check()
        return outcome

    def check(self, *, deep: bool | None = None) -> None:
        """Check the books, and if ``deep``, as always in strict mode, everything from its maps.

        Raises InvariantError, or counts what is not fatal; see `kvd.alloc.checks`.
        """
        self.requests.check(deep=deep)
        self.chain.order.check_emitted()
        if self.monitor.goes_deep(deep):
            self.uses.check()
            self._lapses.check(self.monitor)
            for standing in self._standing.values():
                standing.check(self.requests)

    def settle(self) -> None:
        """Do what a batch's end owes: merge freed units into the ordered holes.

        It belongs to the batch's last operation. The daemon runs it after the reply is sent; the
        next operation runs it first if that did not happen, so decisions never depend on when.
        """
        if self._settle_due:
            self._settle_due = False
            self.chain.merge_freed()
            # Promises change when requests come and go; a steady decode step only uses them up.
            epoch_count = self.requests.names.epoch_count
            if self.monitor.level is CheckLevel.WARN and self._checked_epoch_count != epoch_count:
                self._checked_epoch_count = epoch_count
                self.check()

    # ---- between incarnations -------------------------------------------------------------------

    def survivor(self, confirmed_position: int) -> "StageEngine | None":
        """Return an engine with what survives the end of the incarnation; None if nothing does.

        It is as at a start but for the values in it: without requests, promises and steps. Those
        values survive that are sealed on every rank, on which effects have run up to a position at
        least. What a peer may still touch is no concern: its access ends with the rank's processes.
        """
        numbers = self.uses.sealed_values(confirmed_position)
        if not numbers:
            return None
        survivor = StageEngine(
            self.shape,
            level=self.monitor.level,
            idle_moves_max=self.idle_moves_max,
            batch_moves_max=self.batch_moves_max,
        )
        survivor.requests.values.adopt(self.requests.values, numbers)
        return survivor

    def bindings(self) -> Outcome:
        """Return effects that write every live binding into tables that were cleared."""
        builder = OutcomeBuilder(self.chain)
        for index, band in enumerate(self.chain.bands):
            virtual = band.bound_ids()
            if virtual.size:
                builder.bound(index, virtual, band.physical(virtual))
        return builder.build(Done())

    def release(self, entry: Released) -> Outcome:
        """Take in what is over on every rank; it enters where the daemon's own entries may."""
        self.settle()  # what a batch's end owes comes first, as before every operation
        outcome = self.uses.release(entry)
        if self.monitor.level is CheckLevel.STRICT:
            self.check()
        return outcome

    def abort_step(self, step: int) -> None:
        """Take in one rank's word that it left a launch: what that step writes is unknown."""
        self.chain.abort_step(step)
        self.uses.unknown_step = max(self.uses.unknown_step, step)

    # ---- requests -------------------------------------------------------------------------------

    def _admit(self, program: int, operation: Admit) -> Outcome:
        if operation.victims:
            ids = read_request_ids(operation.victims, what="admit.victims")
            skipped = self._names_refused(ids)
            if skipped is not None:
                return skipped
        asked = read_admit(operation, self.requests)
        self.uses.check_may_retract(asked.victims)
        admissions = AdmissionPass(
            self.requests, growth_permille=operation.growth_permille, victims=asked.victims
        )
        answers = self._admissions(admissions, asked, chunk_tokens=operation.chunk_tokens)
        refusals: list[Refusal] = []
        for request, answer in zip(asked.ids, answers, strict=True):
            if answer.shortage is not None:
                self._refused_now[request] = None
                refusals.append(self._refusal(answer.shortage, request))
            else:
                self._refused_now.pop(request, None)
        verdicts = np.array([answer.verdict for answer in answers], dtype=np.int64)
        rows = np.array([answer.row_index for answer in answers], dtype=np.int64)
        chunks = np.array([answer.chunk_tokens for answer in answers], dtype=np.int64)
        self._count_verdicts(verdicts)
        builder = OutcomeBuilder(self.chain)
        add = builder.columns.add
        columns = (
            add(verdicts),
            add(rows),
            add(np.array([answer.new_tokens for answer in answers], dtype=np.int64)),
            add(chunks),
        )
        retracted = NO_COLUMN
        if admissions.retracted.size:
            retracted = builder.retracted(admissions.retracted, admissions.freed)
            self.counters["retracted"] += admissions.retracted.size
        fitting = (verdicts == Verdict.FITS).nonzero()[0]
        taken = TakeResult()
        if fitting.size:
            new_rows = rows[fitting]
            builder.reset_rows(new_rows)
            ids = self.requests.rows.request_id[new_rows].tolist()
            self._lapses.add(program, ids, batches=operation.reserve_batches)
            if asked.take_tokens is not None:
                tokens = np.minimum(asked.take_tokens[fitting], chunks[fitting])
                taken = self._granted(self.requests.take(new_rows, tokens), builder)
        result = AdmitResult(
            *columns,
            refusals=tuple(refusals),
            page_rows=taken.page_rows,
            page_places=taken.page_places,
            virtual=taken.virtual,
            physical=taken.physical,
            retracted=retracted,
        )
        return builder.build(result)

    def _admissions(
        self, admissions: AdmissionPass, asked: AdmitArguments, *, chunk_tokens: int
    ) -> list[Admission]:
        takes = [0] * len(asked.ids) if asked.take_tokens is None else asked.take_tokens.tolist()
        return [
            admissions.admit(
                request,
                prompt_tokens=prompt_tokens,
                new_tokens_max=new_tokens_max,
                chunk_tokens=chunk_tokens,
                take_tokens=take_tokens,
            )
            for request, prompt_tokens, new_tokens_max, take_tokens in zip(
                asked.ids, asked.prompt_tokens, asked.new_tokens_max, takes, strict=True
            )
        ]

    def _change_standing(self, program: int, operation: Standing) -> Outcome:
        add = read_request_ids(operation.add, what="standing.add") if operation.add else []
        remove = (
            read_request_ids(operation.remove, what="standing.remove") if operation.remove else []
        )
        skipped = self._names_refused(add)
        if skipped is not None:
            return skipped
        self._standing_of(program).change(self.requests, add=add, remove=remove)
        return DONE

    def _take(self, program: int, operation: Take) -> Outcome:
        found = self._named(program, operation, "take")
        if isinstance(found, Outcome):
            return found
        rows, tokens = found
        victims = _NO_ROWS
        if operation.victims:
            ids = read_request_ids(operation.victims, what="take.victims")
            skipped = self._names_refused(ids)
            if skipped is not None:
                return skipped
            victims = self.requests.names.rows_of(ids)
            self.uses.check_may_retract(victims)
        grant = self.requests.take(rows, tokens, victims)
        if not isinstance(grant, Grant):
            return self._refused(*grant)
        if grant.is_nothing:
            return NOTHING_TAKEN
        builder = OutcomeBuilder(self.chain)
        return builder.build(self._granted(grant, builder))

    def _advance(self, program: int, operation: Advance) -> Outcome:
        found = self._named(program, operation, "advance")
        if isinstance(found, Outcome):
            return found
        if self.uses.transfers.open:
            self.uses.check_received(found[0])
        slides = self.requests.advance(*found)
        if not slides:
            return DONE
        builder = OutcomeBuilder(self.chain)
        return builder.build(builder.freed(slides))

    def _free(self, program: int, operation: Free) -> Outcome:
        ids = read_request_ids(operation.requests, what="free.requests")
        skipped = self._names_refused(ids)
        if skipped is not None:
            return skipped
        names = self.requests.names
        rows = names.rows_of([request for request in ids if not names.waits(request)])
        self.uses.check_received(rows)
        names.drop_waiting(ids)
        builder = OutcomeBuilder(self.chain)
        return builder.build(builder.ended(rows, self.requests.free(rows)))

    def _insert(self, program: int, operation: Insert) -> Outcome:
        skipped = self._names_refused([operation.request])
        return self.uses.insert(operation) if skipped is None else skipped

    def _relief(self, program: int, operation: Relief) -> Outcome:
        demand = operation.demand_units
        bands = self.chain.geometry.bands
        check_units(demand, bands, what="relief.demand_units", within_room=True)
        if not self.chain.fits(demand):
            return self._refused(self.chain.explain(demand), 0)
        moved = self.chain.make_room(demand)
        if isinstance(moved, Shortage):
            return self._refused(self.chain.excused(moved), 0)
        builder = OutcomeBuilder(self.chain)
        builder.moves(moved)
        return builder.build(Done())

    # ---- steps ----------------------------------------------------------------------------------

    def _launch(self, program: int, operation: Launch) -> Outcome:
        """Take in a notice of a launch, which has happened already.

        A request that ended meanwhile, by another program's word, is no reason to refuse it; but
        what the step writes is then unknown.
        """
        self.steps.check_launch(operation.step, operation.position)
        writes = None
        if operation.writes is WriteSet.REQUESTS:
            row_of = self.requests.names.row_of
            if not operation.requests:
                rows = self._standing_of(program).rows(self.requests)
                writes = self.requests.written_ids(rows)
            else:
                ids = read_request_ids(operation.requests, what="launch.requests")
                if all(request in row_of for request in ids):
                    writes = self.requests.written_ids(self.requests.names.rows_of(ids))
        self.chain.launch_step(operation.step, operation.position, writes)
        if writes is None:
            self.uses.unknown_step = operation.step
        return DONE

    def _processed(self, program: int, operation: Processed) -> Outcome:
        """Release what pends under the step; it is one rank's word, so every rank waits its own."""
        step = operation.step
        return Outcome(Done(), ((Wait(step),),)) if self.chain.process_step(step) else DONE

    def _idle(self, program: int, operation: Idle) -> Outcome:
        return self._compact(self.idle_moves_max)

    def _batch_end(self, program: int, operation: BatchEnd) -> Outcome:
        self._settle_due = True
        self._refused_now.clear()
        lapsed = self._lapses.end_batch(program)
        if lapsed:
            row_of = self.requests.names.row_of
            rows = np.array([row_of[item] for item in lapsed if item in row_of], dtype=np.int64)
            self.requests.holdings.lapse(rows)
            self.counters["lapsed"] += rows.size
        return self._compact(self.batch_moves_max)

    # ---- inside ---------------------------------------------------------------------------------

    def _compact(self, moves_max: int) -> Outcome:
        moved = self.chain.compact(moves_max) if moves_max else []
        if not moved:
            return DONE
        builder = OutcomeBuilder(self.chain)
        builder.moves(moved)
        return builder.build(Done())

    def _granted(self, grant: Grant | tuple[Shortage, int], builder: OutcomeBuilder) -> TakeResult:
        if not isinstance(grant, Grant):
            self.monitor.stop(
                "chain.take_matches_answer", "the first take of an admitted request found no room"
            )
        self.counters["taken_pages"] += grant.virtual.size
        self.counters["retracted"] += grant.retracted.size
        return builder.grant(grant)

    def _standing_of(self, program: int) -> StandingSet:
        standing = self._standing.get(program)
        if standing is None:
            standing = self._standing[program] = StandingSet()
        return standing

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
            epoch = self.requests.names.epoch_count
            if encoded != memo_bytes or memo_epoch != epoch:
                ids = read_request_ids(encoded, what=f"{what}.requests")
                skipped = self._names_refused(ids)
                if skipped is not None:
                    return skipped
                rows = self.requests.names.rows_of(ids)
                self._memo = (encoded, epoch, rows)
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

    def _refused(self, shortage: Shortage, request: int) -> Outcome:
        """Return the outcome of a shortage; one of transfers alone names those to wait for."""
        self._count_refusal(shortage)
        if shortage.reason is Reason.TRANSFERS:
            return Outcome(Pump(self.uses.transfers.awaited))
        return Outcome(self._refusal(shortage, request))

    def _refusal(self, shortage: Shortage, request: int) -> Refusal:
        return refusal_of(shortage, stage_index=self.stage_index, request=request)

    def _count_refusal(self, shortage: Shortage) -> None:
        reason = shortage.reason.value
        self.refusal_counts[reason] = self.refusal_counts.get(reason, 0) + 1

    def _count_verdicts(self, verdicts: Units) -> None:
        self.counters["admitted"] += int(np.count_nonzero(verdicts == Verdict.FITS))
        self.counters["waited"] += int(np.count_nonzero(verdicts == Verdict.WAIT))
        self.counters["unschedulable"] += int(np.count_nonzero(verdicts == Verdict.UNSCHEDULABLE))
