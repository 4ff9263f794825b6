"""The reference allocator: told every operation and its outcome, it says what must hold.

It keeps books of its own, from operations and outcomes alone, in plain sets and dictionaries: units
(`unit_model`), accesses (`open_accesses`), requests and values (`request_books`), copies and
transfers (`use_books`). What kvd is free to choose, which free unit it takes and what it moves, is
taken over after asking whether it may. Then everything kvd has is compared (`comparison`), and on a
seeded share of the operations its answers are found again by trying every layout (`answers`).

Checks:
    stress.answers: a yes is a take that succeeds, a no means that no layout exists;
    stress.outcome: an outcome's columns and effects say what the operation did, and nothing else;
    stress.clearance: no unit is written, read or told a peer without the waits of table 8.3;
    stress.pinned: units that a load or a peer knows by their place do not move;
    those of `kvd.testing.stress.comparison`.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from kvd.alloc.signals import SignalKind
from kvd.engine.stage import StageEngine
from kvd.price.snapshot import Tier
from kvd.testing.stress.answers import AdmitQuestion, Answers, Expected
from kvd.testing.stress.broken import require
from kvd.testing.stress.comparison import Comparison
from kvd.testing.stress.layouts import any_layout, in_grains
from kvd.testing.stress.refusals import check_error, check_refusal, check_skipped
from kvd.testing.stress.request_books import Held, RequestBooks
from kvd.testing.stress.told import Told, told_by
from kvd.testing.stress.unit_model import UnitModel
from kvd.testing.stress.use_books import UseBooks
from kvd_proto.operations import (
    Admit,
    Advance,
    BackupSubmit,
    BatchEnd,
    CancelHold,
    Evict,
    Free,
    Hold,
    Idle,
    Insert,
    Launch,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Operation,
    Post,
    Processed,
    Publish,
    Released,
    Relief,
    ResetSink,
    Standing,
    Take,
    WriteSet,
)
from kvd_proto.outcomes import (
    AdmitResult,
    AnyResult,
    Done,
    Freed,
    Outcome,
    Pump,
    Refusal,
    Resolved,
    Skipped,
    TakeResult,
    Verdict,
)

Apply = Callable[[int, Any, Any, Told], None]

PERMILLE = 1000


class Oracle:
    """The reference beside one engine, from its start on."""

    def __init__(self, engine: StageEngine, *, seed: int = 0, share_permille: int = 1000) -> None:
        """Stand beside an engine that has decided nothing yet.

        ``share_permille`` of the operations have their answers found by trying every layout; which
        ones, ``seed`` decides.
        """
        self.engine = engine
        table, chain = engine.requests, engine.chain
        self.units = UnitModel(chain.geometry)
        self.books = RequestBooks(
            self.units,
            table.shape,
            chunk_tokens=table.chunk_tokens,
            row_count=table.rows.request_id.size,
        )
        self.uses = UseBooks(self.books)
        id_counts = [
            None if band.free_ids is None else band.physical_map().size - 1 for band in chain.bands
        ]
        self.answers = Answers(self.units, self.books, id_counts)
        self.comparison = Comparison(engine, self.books, self.uses, self.answers)
        self.judged_count = 0
        """Operations whose answers were found again."""
        self._random = Random(seed)
        self._share_permille = share_permille
        self._spans = chain.spans
        self._judges = False
        self._apply: dict[type[Operation], Apply] = {
            Admit: self._admit,
            Standing: self._standing,
            Take: self._take,
            Advance: self._advance,
            Free: self._free,
            Relief: self._relief,
            Launch: self._launch,
            Processed: self._processed,
            Idle: self._compacted,
            BatchEnd: self._batch_end,
            ResetSink: self._reset_sink,
            Insert: self._insert,
            Evict: self._evict,
            LoadReserve: self._load_reserve,
            LoadName: self._load_name,
            LoadSubmit: self._load_submit,
            LoadCancel: self._load_cancel,
            BackupSubmit: self._backup,
            Hold: self._hold,
            Publish: self._publish,
            Post: self._post,
            CancelHold: self._cancel_hold,
        }

    # ---- what happened --------------------------------------------------------------------------

    def after(self, program: int, operation: Operation, outcome: Outcome) -> None:
        """Take in an operation that was decided; raises InvariantError, naming the check."""
        self._judges = self._random.randrange(PERMILLE) < self._share_permille
        self.judged_count += self._judges
        result = outcome.result
        told = told_by(outcome)
        if isinstance(result, Skipped):
            check_skipped(self.books, operation, result)
        elif isinstance(result, Refusal | Pump):
            require(not outcome.segments, "outcome", f"a {type(result).__name__} has effects")
            self._refused(program, operation, result)
        else:
            self._apply[type(operation)](program, operation, result, told)
        self._compare()

    def after_error(self, program: int, operation: Operation, error: Exception) -> None:
        """Take in that an operation was called wrong use; nothing may have changed."""
        check_error(self, program, operation, error)
        self._compare()

    def after_release(self, entry: Released) -> None:
        """Take in what the last rank has said is over."""
        self.uses.release(entry)
        self._compare()

    def after_abort(self, step: int) -> None:
        """Take in one rank's word that it left a launch."""
        self.units.accesses.abort(step)
        self._compare()

    def named(self, program: int, encoded: bytes) -> list[Held]:
        """Return the requests that an operation names; all have to be there."""
        if not encoded:
            return self.books.of_program(program)
        found = [(request, self.books.held.get(request)) for request in int64s(encoded)]
        missing = [request for request, held in found if held is None]
        require(not missing, "answers", f"requests {missing} are not there and were served")
        return [held for _, held in found if held is not None]

    def grows(self, program: int, operation: Take | Advance) -> list[tuple[Held, int]]:
        """Return the requests of a take or an advance, each with its tokens."""
        those = self.named(program, operation.requests)
        each = int32s(operation.tokens_each) or [operation.tokens] * len(those)
        return list(zip(those, each, strict=True))

    # ---- requests -------------------------------------------------------------------------------

    def _admit(self, program: int, operation: Admit, result: AdmitResult, told: Told) -> None:
        requests = int64s(operation.requests)
        question = AdmitQuestion(
            requests,
            int32s(operation.prompt_tokens),
            int32s(operation.new_tokens_max),
            int32s(operation.take_tokens) or [0] * len(requests),
            operation.chunk_tokens or self.books.chunk_tokens,
            operation.growth_permille,
            self.named(program, operation.victims) if operation.victims else [],
        )
        columns = (result.verdicts, result.rows, result.new_tokens, result.chunk_tokens)
        answers = list(zip(*[told.column(column) for column in columns], strict=True))
        gone = [self.books.row(row) for row in told.column(result.retracted)]
        require(
            gone == question.victims[: len(gone)],
            "answers",
            f"victims {[held.request for held in gone]} ended, out of order",
        )
        if self._judges:
            self._judge_admit(question, answers, gone)
        self._end(gone, told, retracted=True)
        taking: list[tuple[Held, int]] = []
        refused: list[int] = []
        for request, prompt, take, answer in zip(
            requests, question.prompts, question.takes, answers, strict=True
        ):
            verdict, row, new_tokens, chunk = answer
            if verdict != Verdict.FITS:
                self.books.refuse(request, may_ask_again=verdict == Verdict.WAIT)
                refused.append(request)
                continue
            held = self.books.admit(
                request,
                row,
                prompt,
                new_tokens,
                chunk,
                lapses_at=self.books.due_in(program, operation.reserve_batches),
            )
            taking.append((held, min(take, chunk)))
        require(
            [refusal.request for refusal in result.refusals] == refused
            and told.reset_rows == [held.row_index for held, _ in taking],
            "outcome",
            f"requests {refused} were refused, rows {told.reset_rows} are reset",
        )
        self._wait(told)
        self._move(told, unasked=False)
        granted = TakeResult(result.page_rows, result.page_places, result.virtual, result.physical)
        self.books.grant([(held, take) for held, take in taking if take], granted, told)

    def _judge_admit(
        self,
        question: AdmitQuestion,
        answers: Sequence[tuple[int, ...]],
        gone: Sequence[Held],
    ) -> None:
        rows_free = self.books.row_count - 1 - len(self.books.held)
        snapshot = self.answers.snapshot(self._spans)
        expected, ending = self.answers.admissions(snapshot, question, rows_free)
        for request, (verdict, _, new_tokens, chunk), right in zip(
            question.requests, answers, expected, strict=True
        ):
            require(
                (verdict, new_tokens, chunk) == right,
                "answers",
                f"request {request} was told verdict {verdict}, {new_tokens} new tokens, chunk "
                f"{chunk}; trying every layout says {right}",
            )
        require(
            list(gone) == ending,
            "answers",
            f"{len(gone)} victims ended, trying every layout ends {len(ending)}",
        )

    def _standing(self, program: int, operation: Standing, _result: Done, told: Told) -> None:
        members = self.books.of_program(program)
        leaving = self.named(program, operation.remove) if operation.remove else []
        joining = self.named(program, operation.add) if operation.add else []
        kept = [held for held in members if held not in leaving]
        self.books.standing[program] = [*kept, *joining]
        self._nothing_else(told)

    def _take(self, program: int, operation: Take, result: TakeResult, told: Told) -> None:
        taking = self.grows(program, operation)
        victims = self.named(program, operation.victims) if operation.victims else []
        gone = [self.books.row(row) for row in told.column(result.retracted)]
        require(gone == victims[: len(gone)], "answers", "victims ended out of order")
        if self._judges:
            snapshot = self.answers.snapshot(self._spans)
            self._judge(self.answers.take(snapshot, taking, victims), "granted", len(gone))
        self._end(gone, told, retracted=True)
        self._wait(told)
        self._move(told, unasked=False)
        staying = [(held, tokens) for held, tokens in taking if held not in gone]
        self.books.grant(staying, result, told)

    def _advance(self, program: int, operation: Advance, result: Freed | Done, told: Told) -> None:
        self._nothing_else(told, unnames=True)
        self.books.advance(self.grows(program, operation), told)
        if isinstance(result, Freed):
            self._counted(result, told)

    def _free(self, program: int, operation: Free, result: Freed, told: Told) -> None:
        ids = int64s(operation.requests)
        those = [self.books.held[request] for request in ids if request in self.books.held]
        lost = [it for it in ids if it not in self.books.held and it not in self.books.waiting]
        require(not lost, "answers", f"requests {lost} are not there and were freed")
        self.books.waiting -= set(ids)
        self._nothing_else(told, unnames=True, slots=True)
        counts = self.books.end(those, told)
        require(result.units == counts, "outcome", f"{counts} came back, told are {result.units}")

    def _insert(self, program: int, operation: Insert, _result: Done, told: Told) -> None:
        require(
            operation.value_id > self.books.highest_value,
            "answers",
            f"value {operation.value_id} was there before",
        )
        (held,) = self.named(program, np.array([operation.request], dtype="<i8").tobytes())
        self._nothing_else(told, slots=True)
        self.books.insert(operation.value_id, held, told)

    def _evict(self, program: int, operation: Evict, result: Freed, told: Told) -> None:
        numbers = int64s(operation.values)
        lost = [number for number in numbers if number not in self.books.values]
        require(not lost, "answers", f"values {lost} are not there and were evicted")
        self._nothing_else(told, unnames=True)
        counts = self.books.evict(numbers, told)
        require(result.units == counts, "outcome", f"{counts} came back, told are {result.units}")

    # ---- the arena as a whole -------------------------------------------------------------------

    def _relief(self, program: int, operation: Relief, _result: Done, told: Told) -> None:
        if self._judges:
            snapshot = self.answers.snapshot(self._spans)
            self._judge(self.answers.room(snapshot, operation.demand_units), "granted")
        self._wait(told)
        self._move(told, unasked=False)

    def _compacted(self, program: int, operation: Operation, _result: Done, told: Told) -> None:
        require(not told.waits, "clearance", f"what nobody asked for waits for {told.waits}")
        self._move(told, unasked=True)

    def _batch_end(self, program: int, operation: BatchEnd, result: Done, told: Told) -> None:
        self.books.end_batch(program)
        self._compacted(program, operation, result, told)

    def _reset_sink(self, program: int, operation: ResetSink, _result: Done, told: Told) -> None:
        self._wait(told)
        accesses = self.units.accesses
        require(
            told.zeroes_sink and accesses.retired == accesses.launched,
            "clearance",
            "the sink is to be zeroed under a step that may still write it",
        )

    # ---- steps ----------------------------------------------------------------------------------

    def _launch(self, program: int, operation: Launch, _result: Done, told: Told) -> None:
        self._nothing_else(told)
        writes = None
        if operation.writes is WriteSet.REQUESTS:
            ids = int64s(operation.requests)
            if all(request in self.books.held for request in ids):
                writes = set[int]()
                for band, names in enumerate(
                    self.books.written_names(self.named(program, operation.requests))
                ):
                    writes |= self.units.grains_of_names(band, names)
        self.units.accesses.launch(operation.step, writes)

    def _processed(self, program: int, operation: Processed, _result: Done, told: Told) -> None:
        is_news = self.units.process(operation.step)
        waits = [signal.number for signal in told.waits if signal.kind is SignalKind.STEP]
        expected = [operation.step] if is_news else []
        require(
            waits == expected and len(told.waits) == len(waits),
            "clearance",
            f"step {operation.step} was processed by one rank, the others wait for {told.waits}",
        )

    # ---- copies and transfers -------------------------------------------------------------------

    def _load_reserve(
        self, program: int, operation: LoadReserve, _result: Done, told: Told
    ) -> None:
        if self._judges:
            snapshot = self.answers.snapshot(self._spans)
            self._judge(self.answers.room(snapshot, operation.units), "granted")
        self._wait(told)
        self._move(told, unasked=False)
        chosen = {
            band: units.tolist()
            for band, units in self.engine.uses.copies.loads[operation.load].reserved.items()
        }
        counts = tuple(len(chosen.get(band, ())) for band in range(self.books.band_count))
        require(
            counts == operation.units,
            "reservations",
            f"load {operation.load} asked {operation.units} units and got {counts}",
        )
        self.uses.reserve(operation.load, operation.value_id, chosen)

    def _load_name(self, program: int, operation: LoadName, _result: Done, told: Told) -> None:
        self.uses.name(operation.load, operation.band, int64s(operation.virtual), told)

    def _load_submit(self, program: int, operation: LoadSubmit, _result: Done, told: Told) -> None:
        self.uses.submit(operation.load, told)

    def _load_cancel(self, program: int, operation: LoadCancel, result: Freed, told: Told) -> None:
        self._nothing_else(told, unnames=True)
        counts = self.uses.cancel_load(operation.load, told)
        require(result.units == counts, "outcome", f"{counts} came back, told are {result.units}")

    def _backup(self, program: int, operation: BackupSubmit, _result: Done, told: Told) -> None:
        self._wait(told)
        names = [int64s(part) for part in operation.virtual]
        self.uses.back_up(operation.backup, names, told)

    def _hold(self, program: int, operation: Hold, _result: Done, told: Told) -> None:
        self.uses.hold(operation.transfer, [int64s(part) for part in operation.virtual])

    def _publish(self, program: int, operation: Publish, result: Resolved, told: Told) -> None:
        self._wait(told)
        self.uses.publish(operation.transfer, result, told)

    def _post(self, program: int, operation: Post, result: Resolved, told: Told) -> None:
        names = [int64s(part) for part in operation.virtual]
        self.uses.post(operation.transfer, names, result, told)

    def _cancel_hold(self, program: int, operation: CancelHold, _result: Done, told: Told) -> None:
        self.uses.cancel_hold(operation.transfer)

    # ---- inside ---------------------------------------------------------------------------------

    def _compare(self) -> None:
        self.comparison.check()
        self._spans = self.engine.chain.spans
        if self._judges:
            self._judges = False
            self._check_promises()

    def _check_promises(self) -> None:
        """Check that some layout holds what is live and promised, while nothing is fixed."""
        snapshot = self.answers.snapshot(self._spans)
        if snapshot.quarantined or any(band.hard_fixed for band in snapshot.bands):
            return
        owed = self.books.owed()
        require(
            any_layout(in_grains(snapshot), owed, Tier.TRANSFERS),
            "answers",
            f"{owed} units are promised, and no layout holds them",
        )

    def _refused(self, program: int, operation: Operation, result: Refusal | Pump) -> None:
        if isinstance(operation, Publish):
            assert isinstance(result, Pump)
            others = self.uses.in_the_way(operation.transfer)
            require(
                others == result.transfers,
                "answers",
                f"transfer {operation.transfer} waits for {result.transfers}, in its way are "
                f"{others}",
            )
            return
        check_refusal(self.books, self.uses, result)
        if not self._judges:
            return
        snapshot = self.answers.snapshot(self._spans)
        told = "pump" if isinstance(result, Pump) else "refusal"
        if isinstance(operation, Take):
            victims = self.named(program, operation.victims) if operation.victims else []
            taking = self.grows(program, operation)
            self._judge(self.answers.take(snapshot, taking, victims), told)
        elif isinstance(operation, Relief):
            self._judge(self.answers.room(snapshot, operation.demand_units), told)
        else:
            assert isinstance(operation, LoadReserve)
            self._judge(self.answers.room(snapshot, operation.units), told)

    def _judge(self, expected: Expected, told: str, retracted_count: int = 0) -> None:
        require(
            expected == (told, retracted_count),
            "answers",
            f"the answer was {told} with {retracted_count} victims; trying every layout says "
            f"{expected.kind} with {expected.retracted_count}",
        )

    def _end(self, those: Sequence[Held], told: Told, *, retracted: bool) -> None:
        if those:
            self.books.end(those, told, retracted=retracted)
        else:
            require(not told.unnamed, "outcome", "names are freed, and nobody has ended")

    def _wait(self, told: Told) -> None:
        for signal in told.waits:
            self.units.accesses.wait(signal)

    def _move(self, told: Told, *, unasked: bool) -> None:
        for moved in told.moves:
            self.units.move(moved, unasked=unasked)

    def _nothing_else(self, told: Told, *, unnames: bool = False, slots: bool = False) -> None:
        """Check that an outcome has no effects but those that were to be expected."""
        require(
            not (told.waits or told.moves or told.named or told.zeroed or told.copies)
            and (unnames or not told.unnamed)
            and (slots or not told.slots),
            "outcome",
            "there are effects that do not belong to the operation",
        )

    def _counted(self, result: AnyResult, told: Told) -> None:
        assert isinstance(result, Freed)
        counts = tuple(len(told.unnamed_of(band)) for band in range(self.books.band_count))
        require(result.units == counts, "outcome", f"{counts} came back, told are {result.units}")


def int64s(encoded: bytes) -> list[int]:
    """Return ids as they travel."""
    return list(np.frombuffer(encoded, dtype="<i8").tolist())


def int32s(encoded: bytes) -> list[int]:
    """Return token counts as they travel."""
    return list(np.frombuffer(encoded, dtype="<i4").tolist())
