"""All mutants, in the order in which they are listed."""

from tests.mutation import (
    book_rules,
    cells,
    copy_rules,
    operation_rules,
    rank_rules,
    redo_rules,
)
from tests.mutation.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *(case.mutant for case in cells.CASES),
    *(rule.mutant for rule in book_rules.RULES),
    *(rule.mutant for rule in operation_rules.RULES),
    *(rule.mutant for rule in rank_rules.RULES),
    *(rule.mutant for rule in copy_rules.RULES),
    *(rule.mutant for rule in redo_rules.RULES),
)

NOT_COUNTED: dict[str, str] = {
    "r4-receive": "no code asks before a forward reads; whoever runs a request has seen all of it "
    "arrive, and until then the daemon refuses to advance or free it",
    "c1 and c6 through operations": "slots are handed out by the row of zeroing, which asks for no "
    "less; test_cells.py compares the rows",
    "c5-h1, c5-h2 and c5-h7 through operations": "what a peer is to write is live, so it neither "
    "pends nor is vacated, and a second receive of a place that is held is refused",
    "PEER_WRITE behind A, in kvd": "places are resolved at once, and the engine waits until every "
    "rank ran the entry before it tells a peer; the benches play that engine",
    "r4-load": "F waits A, and a load's pages are a value's, which no forward reads yet",
    "the order of Move and WriteMap in a segment": "equivalent: A runs both before any forward "
    "that is launched behind them, and redo begins at the head of the segment",
    "the host waits for a step that it reports as processed": "no page is less safe, because A "
    "waits the step on every rank all the same (processed-wait); which values survive a rank's "
    "death rests on it, and `processed-unwaited` of `kvd stress --mutants` shows that",
    "pending-back-at-launch, on ranks": "the reads of the next step end behind the whole step "
    "before it, so read-end-barrier covers it there",
}
"""What is not left out, or would not be noticed there, and why."""
