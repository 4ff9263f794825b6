"""What the reference says about the parts of an outcome that many operations have in common."""

from collections.abc import Sequence
from random import Random

from kvd.alloc.chain import ChainAllocator
from kvd.price.snapshot import ChainSnapshot, Tier
from kvd.testing.packed import int32s, int64s
from kvd.testing.stress.answers import Answers, Expected
from kvd.testing.stress.broken import require
from kvd.testing.stress.layouts import any_layout, in_grains
from kvd.testing.stress.request_books import Held, RequestBooks, UnitCounts
from kvd.testing.stress.told import Told
from kvd_proto.operations import Advance, Take
from kvd_proto.outcomes import AnyResult, Freed

PERMILLE = 1000
ASKED_UNITS = (0, 0, 0, 1, 2, 3, 5, 9)
"""What a question out of nowhere asks of a band."""


class Judge:
    """Judges answers, waits, moves and requests that are named; raises StressFailure."""

    def __init__(
        self,
        chain: ChainAllocator,
        books: RequestBooks,
        answers: Answers,
        *,
        seed: int,
        share_permille: int,
    ) -> None:
        self.chain = chain
        self.books = books
        self.units = books.units
        self.answers = answers
        self.judged_count = 0
        """Operations whose answers were found again by trying every layout."""
        self.judges = False
        """Whether the answer of the running operation is one of them."""
        self._random = Random(seed)
        self._share_permille = share_permille
        self._spans = chain.spans

    def draw(self) -> None:
        """Decide whether the next operation's answer is found again."""
        self.judges = self._random.randrange(PERMILLE) < self._share_permille
        self.judged_count += self.judges
        self._spans = self.chain.spans

    def snapshot(self) -> ChainSnapshot:
        """Return the recount of what an answer depends on, as of before the operation."""
        return self.answers.snapshot(self._spans)

    # ---- answers --------------------------------------------------------------------------------

    def verdict(self, expected: Expected, told: str, retracted_count: int = 0) -> None:
        """Check an answer against what trying every layout says."""
        require(
            expected == (told, retracted_count),
            "answers",
            f"the answer was {told} with {retracted_count} victims; trying every layout says "
            f"{expected.kind} with {expected.retracted_count}",
        )

    def room(self, demand: UnitCounts, told: str) -> None:
        """Check the answer about units that are to be had beyond all promises."""
        if self.judges:
            self.verdict(self.answers.room(self.snapshot(), demand), told)

    def after(self) -> None:
        """Check what has to hold behind an operation that is judged, and ask out of nowhere."""
        if not self.judges:
            return
        self.judges = False
        self._spans = self.chain.spans
        snapshot = self.snapshot()
        self._check_promises(snapshot)
        demand = tuple([self._random.choice(ASKED_UNITS) for _ in self.chain.bands])
        owed = self.books.owed()
        wanted = tuple([units + more for units, more in zip(demand, owed, strict=True)])
        fits = self.answers.fits(snapshot, wanted)
        told = [self.chain.fits(demand), self.chain.fits_empty(demand)]
        expected = [fits, self.answers.fits_empty(demand)]
        if fits:
            told.append(self.chain.has_room_now(demand))
            expected.append(self.answers.has_room_now(snapshot, demand))
        require(
            told == expected,
            "answers",
            f"{demand}, {owed} promised, fit, fit an empty arena, and now: {told}; trying every "
            f"layout says {expected}",
        )

    def _check_promises(self, snapshot: ChainSnapshot) -> None:
        """Check that some layout holds what is live and promised, while nothing is fixed."""
        if snapshot.quarantined or any(band.hard_fixed for band in snapshot.bands):
            return
        owed = self.books.owed()
        require(
            any_layout(in_grains(snapshot), owed, Tier.TRANSFERS),
            "answers",
            f"{owed} units are promised, and no layout holds them",
        )

    # ---- who is named ---------------------------------------------------------------------------

    def named(self, program: int, encoded: bytes) -> list[Held]:
        """Return the requests that an operation names; all have to be there."""
        if not encoded:
            return self.books.of_program(program)
        found = [(request, self.books.held.get(request)) for request in int64s(encoded)]
        missing = [request for request, held in found if held is None]
        require(not missing, "answers", f"requests {missing} are not there and were served")
        return [held for _, held in found if held is not None]

    def victims(self, program: int, encoded: bytes) -> list[Held]:
        """Return the requests that may be retracted, in this order."""
        return self.named(program, encoded) if encoded else []

    def grows(self, program: int, operation: Take | Advance) -> list[tuple[Held, int]]:
        """Return the requests of a take or an advance, each with its tokens."""
        those = self.named(program, operation.requests)
        each = int32s(operation.tokens_each) or [operation.tokens] * len(those)
        return list(zip(those, each, strict=True))

    # ---- effects --------------------------------------------------------------------------------

    def end(self, those: Sequence[Held], told: Told) -> None:
        """Take in that requests were retracted."""
        if those:
            self.books.end(those, told, retracted=True)
        else:
            require(not told.unnamed, "outcome", "names are freed, and nobody has ended")

    def wait(self, told: Told) -> None:
        """Take in what the allocator's stream was put behind."""
        for signal in told.waits:
            self.units.accesses.wait(signal)

    def make_room(self, told: Told) -> None:
        """Take in waits and moves of an operation that takes units."""
        self.wait(told)
        for moved in told.moves:
            self.units.move(moved, unasked=False)

    def compact(self, told: Told) -> None:
        """Take in moves that nobody asked for, which wait for nothing."""
        require(not told.waits, "clearance", f"what nobody asked for waits for {told.waits}")
        for moved in told.moves:
            self.units.move(moved, unasked=True)

    def nothing_else(self, told: Told, *, unnames: bool = False, slots: bool = False) -> None:
        """Check that an outcome has no effects but those that were to be expected."""
        require(
            not (told.waits or told.moves or told.named or told.zeroed or told.copies)
            and not (told.rows or told.cleared_slots or told.reset_rows or told.zeroes_sink)
            and (unnames or not told.unnamed)
            and (slots or not told.slots),
            "outcome",
            "there are effects that do not belong to the operation",
        )

    def counted(self, result: AnyResult, counts: UnitCounts) -> None:
        """Check how many units are said to have come back."""
        told = result.units if isinstance(result, Freed) else None
        require(told == counts, "outcome", f"{counts} came back, told are {told}")
