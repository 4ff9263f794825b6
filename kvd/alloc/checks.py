"""The registry of invariants: name, level, whether breaking it is fatal, and what it protects.

It names those of the client too, which raises them in its own words: the name stands in front of
the message on both sides. Every name has a test that breaks the state by hand and expects it:
`tests/unit/test_invariants.py` and `tests/client/test_registered_invariants.py`, which also fail
for a name without one.

The design's list (`semantics.md` 11.2) has names that are no checks here, because something else
makes the mistake impossible or is asked instead:

    chain.stage_capacity_agreement  each stage of a pipeline is decided on its own log and carries
                                    no counts of another; what stages must share is planned once
                                    (`kvd.plan.stage`), and a stage without a band is refused there
    chain.host_read_after_wait      the books are on the host: no decision reads a device at all
    tree.window_unbound_live        values are what a cache keeps: request.rows_match_bands counts
                                    their window pages, value.pages_ordered says which they are
    the sink and the clamp          no check but data: an unbound id reads as the sink at any level

At level off an operation costs what the checks marked so cost, which is nothing but comparisons on
the way; BENCHMARKS.md has the measured price of the others.
"""

from collections.abc import Container
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Literal, NoReturn

from kvd.errors import InvariantError


class CheckLevel(IntEnum):
    """How much is checked, and what a broken check does."""

    OFF = 0
    """Only checks marked as always on."""
    WARN = 1
    """Cheap checks too, and all of them once while idle; a fatal one raises, the others count."""
    STRICT = 2
    """Everything, after every operation; everything raises."""

    @property
    def word(self) -> Literal["off", "warn", "strict"]:
        """Return the level as settings and messages write it."""
        return _WORDS[self]


_WORDS: dict[CheckLevel, Literal["off", "warn", "strict"]] = {
    CheckLevel.OFF: "off",
    CheckLevel.WARN: "warn",
    CheckLevel.STRICT: "strict",
}


class Side(StrEnum):
    """Who finds an invariant broken."""

    DAEMON = "daemon"
    CLIENT = "client"
    """At every level unless another one is named; it always raises."""


@dataclass(frozen=True, slots=True)
class Check:
    """One named invariant."""

    name: str
    protects: str
    level: CheckLevel = CheckLevel.OFF
    fatal: bool = True
    side: Side = Side.DAEMON


CHECKS: tuple[Check, ...] = (
    Check(
        name="band.span_in_bounds",
        level=CheckLevel.WARN,
        protects="a span lies on its band's own grid, and an end stays at its anchor",
    ),
    Check(
        name="band.conservation",
        level=CheckLevel.WARN,
        protects="every unit of a span is live, a hole or pending, and is counted once",
    ),
    Check(
        name="band.free_of_bound_page",
        level=CheckLevel.WARN,
        protects="only bound units are freed, so no page is handed out twice",
    ),
    Check(
        name="band.take_unbound",
        level=CheckLevel.WARN,
        protects="units and names handed out belong to nobody",
    ),
    Check(
        name="band.maps_inverse",
        level=CheckLevel.STRICT,
        protects="a virtual page and its physical page name each other",
    ),
    Check(
        name="band.ids_partition",
        level=CheckLevel.STRICT,
        protects="every virtual id is either free or bound, never both, never neither",
    ),
    Check(
        name="band.holes_ordered",
        level=CheckLevel.STRICT,
        protects="the hole container agrees with the unit map and hands out the lowest place",
    ),
    Check(
        name="band.take_cleared",
        level=CheckLevel.WARN,
        protects="nothing is written that a step, copy or peer may still touch without a wait",
    ),
    Check(
        name="band.move_cleared",
        level=CheckLevel.WARN,
        protects="a move copies finished bytes and leaves units where others know them to be",
    ),
    Check(
        name="band.move_source_bound",
        level=CheckLevel.WARN,
        protects="a move takes what a name means and puts it where nothing is",
    ),
    Check(
        name="band.move_disjoint",
        level=CheckLevel.WARN,
        protects="the copies of one rearrangement may run in any order",
    ),
    Check(
        name="window.segment_bound",
        level=CheckLevel.WARN,
        protects="what slides out of a window, or ends, was bound in it",
    ),
    Check(
        name="window.segment_released",
        level=CheckLevel.WARN,
        protects="a page that its owner gives up is bound in no window any more",
    ),
    Check(
        name="state.slot_sentinel",
        level=CheckLevel.WARN,
        protects="no slot that stands for none is ever freed",
    ),
    Check(
        name="ledger.release_once",
        level=CheckLevel.WARN,
        fatal=False,
        protects="every use of a page ends exactly once",
    ),
    Check(
        name="ledger.no_orphan",
        level=CheckLevel.WARN,
        protects="bytes that leave a band take their open uses along, and fixed units stay",
    ),
    Check(
        name="ledger.records_exact",
        level=CheckLevel.STRICT,
        protects="the ledger names each unit once, and only for work that is not over",
    ),
    Check(
        name="ledger.uses_owned",
        level=CheckLevel.STRICT,
        protects="what a copy or a transfer uses comes back: its end is still to come",
    ),
    Check(
        name="chain.spans_ordered",
        level=CheckLevel.WARN,
        protects="spans lie between sink and arena end and never overlap in bytes",
    ),
    Check(
        name="chain.promises_covered",
        level=CheckLevel.WARN,
        protects="some layout holds what is live and promised, so a promised take succeeds",
    ),
    Check(
        name="chain.windows_on_owner",
        level=CheckLevel.STRICT,
        protects="a window page is bound only to a virtual page that the owner has bound",
    ),
    Check(
        name="chain.take_matches_answer",
        protects="a yes is a take that succeeds, unless a transfer gets in its way",
    ),
    Check(
        name="chain.snapshot_fresh",
        level=CheckLevel.WARN,
        protects="answers come from the bands as they are, not from what was remembered of them",
    ),
    Check(
        name="chain.estimate_in_decision",
        level=CheckLevel.WARN,
        fatal=False,
        protects="decisions rest on exact counts, never on approximations made for people",
    ),
    Check(
        name="chain.refuse_is_pure",
        level=CheckLevel.STRICT,
        fatal=False,
        protects="an operation that was refused or wrong changed nothing that anybody holds",
    ),
    Check(
        name="request.rows_match_bands",
        level=CheckLevel.STRICT,
        protects="requests and values hold exactly the bound units: nothing leaks or is shared",
    ),
    Check(
        name="request.promises_add_up",
        level=CheckLevel.STRICT,
        protects="the chain's promises are the sum of what its requests may still take",
    ),
    Check(
        name="request.rows_over_price",
        level=CheckLevel.WARN,
        fatal=False,
        protects="a row that kept to its price holds no more than it was priced to",
    ),
    Check(
        name="request.names_match_rows",
        level=CheckLevel.STRICT,
        protects="a live request has one row, and a waiting one has none",
    ),
    Check(
        name="request.rows_partition",
        level=CheckLevel.STRICT,
        protects="every row is free and clean, or some request's",
    ),
    Check(
        name="request.columns_exact",
        level=CheckLevel.STRICT,
        protects="lengths, pages and counts of a row say the same",
    ),
    Check(
        name="value.pages_ordered",
        level=CheckLevel.STRICT,
        protects="a value's window pages are pages of it, in the order of the sequence",
    ),
    Check(
        name="copy.records_match",
        level=CheckLevel.STRICT,
        protects="a load's units are reserved until they have names, and nobody else's are",
    ),
    Check(
        name="transfer.hold_matches",
        level=CheckLevel.STRICT,
        protects="what a peer is about to write is pinned where it is going to be",
    ),
    Check(name="step.order", protects="steps are launched and processed in order, each once"),
    Check(
        name="step.counters_ordered",
        level=CheckLevel.WARN,
        protects="a step is over for the allocator before it is launched for nobody",
    ),
    Check(
        name="step.clearings_bound",
        level=CheckLevel.STRICT,
        protects="nobody is told of a state slot before the launch that clears it is over",
    ),
    Check(
        name="step.pending_keyed",
        level=CheckLevel.WARN,
        protects="a freed unit that pends does so under a step in flight, whose end frees it",
    ),
    Check(
        name="order.waits_emitted",
        level=CheckLevel.STRICT,
        protects="what a decision has to run behind is part of its effects",
    ),
    Check(
        name="lapse.dues_match",
        level=CheckLevel.STRICT,
        protects="a promise ends once, with the batch that was agreed",
    ),
    Check(
        name="standing.rows_live",
        level=CheckLevel.STRICT,
        protects="a step that names nobody means each running request once",
    ),
    Check(
        name="log.positions_gapless",
        protects="every entry of the log follows the one before it",
    ),
    Check(
        name="log.bytes_exact",
        level=CheckLevel.WARN,
        fatal=False,
        protects="what the log is said to keep is what it keeps",
    ),
    Check(
        name="rank.positions_ordered",
        level=CheckLevel.STRICT,
        protects="nothing counts as run that was not given, or as given that was not decided",
    ),
    Check(
        name="ending.due_complete",
        level=CheckLevel.STRICT,
        protects="a copy or transfer is over when all ranks have said so, and not before",
    ),
    Check(
        name="idle.rows_free",
        level=CheckLevel.WARN,
        protects="without requests every row is free and no promise stands",
    ),
    Check(
        name="idle.nothing_open",
        level=CheckLevel.WARN,
        protects="without work nothing pends, is used, fenced or waited for, quarantine aside",
    ),
    Check(
        name="idle.units_held",
        level=CheckLevel.WARN,
        protects="without requests every live unit and every name belongs to a value: no leak",
    ),
    Check(
        name="idle.waiters_fit",
        level=CheckLevel.WARN,
        protects="nobody is told to wait for memory that an idle arena does not have",
    ),
    Check(
        name="idle.no_waiters",
        level=CheckLevel.WARN,
        fatal=False,
        protects="nobody is forgotten: a stage is not idle while a request waits for it",
    ),
    Check(
        name="book.rows_match",
        protects="the client means the row that the daemon means",
        side=Side.CLIENT,
    ),
    Check(
        name="book.standing_known",
        protects="the client's standing set has rows",
        side=Side.CLIENT,
    ),
    Check(
        name="steps.in_order",
        protects="a rank's steps are launched, recorded and processed in order",
        side=Side.CLIENT,
    ),
    Check(
        name="step.queue_until_recorded",
        protects="no effect gets between a step's launch and its end",
        side=Side.CLIENT,
    ),
    Check(
        name="step.event_fresh",
        protects="a wait for a step means that step's end and no earlier one",
        side=Side.CLIENT,
    ),
    Check(
        name="session.cursor",
        protects="entries reach a rank in order, none missing",
        side=Side.CLIENT,
    ),
    Check(
        name="session.one_outstanding",
        protects="an answer belongs to the one message that waits for it",
        side=Side.CLIENT,
    ),
    Check(
        name="stub.cursor_gapless",
        protects="effects are applied in position order, none missing",
        side=Side.CLIENT,
    ),
    Check(
        name="stub.redo_gapless",
        protects="a redo starts where the memory of the applier before ends",
        side=Side.CLIENT,
    ),
    Check(
        name="ids.resolved_once",
        protects="ids of a step are looked up once, before rows may change",
        side=Side.CLIENT,
    ),
    Check(
        name="ids.maps_span",
        protects="a virtual page is looked up inside its map",
        side=Side.CLIENT,
    ),
    Check(name="tables.write_bound", protects="no token is written to the sink", side=Side.CLIENT),
    Check(
        name="fence.submitted",
        protects="a stream waits only for work that was enqueued",
        side=Side.CLIENT,
    ),
    Check(
        name="tables.match_books",
        level=CheckLevel.STRICT,
        protects="kernels find through a rank's tables what the books say, and nothing else",
        side=Side.CLIENT,
    ),
)
"""``level`` is the lowest level at which the check runs, once while idle if nothing cheaper."""

_BY_NAME = {check.name: check for check in CHECKS}

IDLE_LEAKS: tuple[str, ...] = ("idle.rows_free", "idle.nothing_open", "idle.units_held")
"""What is found at idle and harms nobody at once: a setting may have these counted."""

NEWS_MAX = 64


class CheckMonitor:
    """The level in force and what was counted below it."""

    def __init__(self, level: CheckLevel, *, counted: Container[str] = ()) -> None:
        """Start with nothing broken; ``counted`` names fatal checks that only count at warn."""
        self.level = level
        self.deciding = False
        """Whether an operation is being decided; set and reset by whoever decides."""
        self.broken_count: dict[str, int] = {}
        self.counted = counted
        self.news: list[str] = []
        """What was counted and is worth a line in a log: the 1st, 2nd, 4th, 8th of a name."""

    def goes_deep(self, deep: bool | None) -> bool:
        """Return whether a check looks at every map: as it was asked to, or else in strict mode."""
        return self.level is CheckLevel.STRICT if deep is None else deep

    def stop(self, name: str, message: str) -> NoReturn:
        """Report a broken invariant behind which nothing can go on: raise InvariantError."""
        raise InvariantError(_BY_NAME[name].name, message)

    def fail(self, name: str, message: str) -> None:
        """Report a broken invariant: raise InvariantError, or count it where it is not fatal."""
        check = _BY_NAME[name]
        is_fatal = check.fatal and name not in self.counted
        if is_fatal or self.level is CheckLevel.STRICT:
            raise InvariantError(name, message)
        count = self.broken_count[name] = self.broken_count.get(name, 0) + 1
        if count & (count - 1) == 0 and len(self.news) < NEWS_MAX:
            self.news.append(f"{name}: {message}; broken {count} times")
