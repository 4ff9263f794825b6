"""Operations on requests, values, steps and the arena: what the reference says to each outcome."""

from collections.abc import Callable, Sequence
from typing import Any

from kvd.alloc.signals import SignalKind
from kvd.testing.packed import int32s, int64s, packed_ids
from kvd.testing.stress.answers import AdmitQuestion
from kvd.testing.stress.broken import require
from kvd.testing.stress.judge import Judge
from kvd.testing.stress.request_books import Held
from kvd.testing.stress.told import Told
from kvd_proto.operations import (
    Admit,
    Advance,
    BatchEnd,
    Evict,
    Free,
    Idle,
    Insert,
    Launch,
    Operation,
    Processed,
    Relief,
    ResetSink,
    Standing,
    Take,
    WriteSet,
)
from kvd_proto.outcomes import AdmitResult, Done, Freed, TakeResult, Verdict

Apply = Callable[[int, Any, Any, Told], None]


class RequestOperations:
    """Takes in what was served of an operation that touches no copy and no transfer."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.books = judge.books
        self.units = judge.units

    def operations(self) -> dict[type[Operation], Apply]:
        """Return the method of each operation."""
        return {
            Admit: self._admit,
            Standing: self._standing,
            Take: self._take,
            Advance: self._advance,
            Free: self._free,
            Insert: self._insert,
            Evict: self._evict,
            Relief: self._relief,
            Idle: self._idle,
            BatchEnd: self._batch_end,
            ResetSink: self._reset_sink,
            Launch: self._launch,
            Processed: self._processed,
        }

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
            self.judge.victims(program, operation.victims),
        )
        columns = (result.verdicts, result.rows, result.new_tokens, result.chunk_tokens)
        answers = list(zip(*[told.column(column) for column in columns], strict=True))
        gone = self._gone(told.column(result.retracted), question.victims)
        if self.judge.judges:
            self._judge_admit(question, answers, gone)
        self.judge.end(gone, told)
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
            lapses_at = self.books.due_in(program, operation.reserve_batches)
            held = self.books.admit(request, row, prompt, new_tokens, chunk, lapses_at=lapses_at)
            taking.append((held, min(take, chunk)))
        require(
            [refusal.request for refusal in result.refusals] == refused
            and told.reset_rows == [held.row_index for held, _ in taking],
            "outcome",
            f"requests {refused} were refused, rows {told.reset_rows} are reset",
        )
        self.judge.make_room(told)
        granted = TakeResult(result.page_rows, result.page_places, result.virtual, result.physical)
        self.books.grant([(held, take) for held, take in taking if take], granted, told)

    def _judge_admit(
        self,
        question: AdmitQuestion,
        answers: Sequence[tuple[int, ...]],
        gone: Sequence[Held],
    ) -> None:
        rows_free = self.books.row_count - 1 - len(self.books.held)
        expected, ending = self.judge.answers.admissions(self.judge.snapshot(), question, rows_free)
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

    def _gone(self, rows: Sequence[int], victims: Sequence[Held]) -> list[Held]:
        """Return the requests that were retracted, which are the first victims."""
        gone = [self.books.row(row) for row in rows]
        require(
            gone == list(victims[: len(gone)]),
            "answers",
            f"victims {[held.request for held in gone]} ended, out of order",
        )
        return gone

    def _standing(self, program: int, operation: Standing, _result: Done, told: Told) -> None:
        members = self.books.of_program(program)
        leaving = self.judge.victims(program, operation.remove)
        joining = self.judge.victims(program, operation.add)
        kept = [held for held in members if held not in leaving]
        self.books.standing[program] = [*kept, *joining]
        self.judge.nothing_else(told)

    def _take(self, program: int, operation: Take, result: TakeResult, told: Told) -> None:
        taking = self.judge.grows(program, operation)
        victims = self.judge.victims(program, operation.victims)
        gone = self._gone(told.column(result.retracted), victims)
        if self.judge.judges:
            expected = self.judge.answers.take(self.judge.snapshot(), taking, victims)
            self.judge.verdict(expected, "granted", len(gone))
        self.judge.end(gone, told)
        self.judge.make_room(told)
        staying = [(held, tokens) for held, tokens in taking if held not in gone]
        self.books.grant(staying, result, told)

    def _advance(self, program: int, operation: Advance, result: Freed | Done, told: Told) -> None:
        self.judge.nothing_else(told, unnames=True)
        counts = self.books.advance(self.judge.grows(program, operation), told)
        if isinstance(result, Freed):
            self.judge.counted(result, counts)
        else:
            require(not any(counts), "outcome", f"{counts} came back, and nothing is told")

    def _free(self, program: int, operation: Free, result: Freed, told: Told) -> None:
        ids = int64s(operation.requests)
        those = [self.books.held[request] for request in ids if request in self.books.held]
        lost = [it for it in ids if it not in self.books.held and it not in self.books.waiting]
        require(not lost, "answers", f"requests {lost} are not there and were freed")
        self.books.waiting -= set(ids)
        self.judge.nothing_else(told, unnames=True, slots=True)
        self.judge.counted(result, self.books.end(those, told))

    # ---- values ---------------------------------------------------------------------------------

    def _insert(self, program: int, operation: Insert, _result: Done, told: Told) -> None:
        require(
            operation.value_id > self.books.highest_value,
            "answers",
            f"value {operation.value_id} was there before",
        )
        (held,) = self.judge.named(program, packed_ids(operation.request))
        self.judge.nothing_else(told, slots=True)
        self.books.insert(operation.value_id, held, told)

    def _evict(self, program: int, operation: Evict, result: Freed, told: Told) -> None:
        numbers = int64s(operation.values)
        lost = [number for number in numbers if number not in self.books.values]
        require(not lost, "answers", f"values {lost} are not there and were evicted")
        self.judge.nothing_else(told, unnames=True)
        self.judge.counted(result, self.books.evict(numbers, told))

    # ---- the arena as a whole -------------------------------------------------------------------

    def _relief(self, program: int, operation: Relief, _result: Done, told: Told) -> None:
        self.judge.room(operation.demand_units, "granted")
        self.judge.make_room(told)

    def _idle(self, program: int, operation: Idle, _result: Done, told: Told) -> None:
        self.judge.compact(told)

    def _batch_end(self, program: int, operation: BatchEnd, result: Done, told: Told) -> None:
        self.books.end_batch(program)
        self.judge.compact(told)

    def _reset_sink(self, program: int, operation: ResetSink, _result: Done, told: Told) -> None:
        self.judge.wait(told)
        accesses = self.units.accesses
        require(
            told.zeroes_sink and accesses.retired == accesses.launched,
            "clearance",
            "the sink is to be zeroed under a step that may still write it",
        )

    # ---- steps ----------------------------------------------------------------------------------

    def _launch(self, program: int, operation: Launch, _result: Done, told: Told) -> None:
        self.judge.nothing_else(told)
        writes = None
        if operation.writes is WriteSet.REQUESTS:
            ids = int64s(operation.requests)
            if all(request in self.books.held for request in ids):
                writes = set[int]()
                written = self.books.written_names(self.judge.named(program, operation.requests))
                for band, names in enumerate(written):
                    writes |= self.units.grains_of_names(band, names)
        self.units.accesses.launch(operation.step, writes)
        self.books.clear_slots(operation.step, operation.position)

    def _processed(self, program: int, operation: Processed, _result: Done, told: Told) -> None:
        is_news = self.units.process(operation.step)
        waits = [signal.number for signal in told.waits if signal.kind is SignalKind.STEP]
        expected = [operation.step] if is_news else []
        require(
            waits == expected and len(told.waits) == len(waits),
            "clearance",
            f"step {operation.step} was processed by one rank, the others wait for {told.waits}",
        )
