"""The registry of invariants: name, level, whether breaking it is fatal, and what it protects."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from kvd.errors import InvariantError


class CheckLevel(IntEnum):
    """How much is checked, and what a broken check does."""

    OFF = 0
    """Only checks marked as always on."""
    WARN = 1
    """Cheap checks too; a fatal one raises, the others count."""
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


@dataclass(frozen=True, slots=True)
class Check:
    """One named invariant."""

    name: str
    level: CheckLevel
    fatal: bool
    protects: str


CHECKS: tuple[Check, ...] = (
    Check(
        name="band.conservation",
        level=CheckLevel.STRICT,
        fatal=True,
        protects="every unit of a span is live, a hole or pending, and is counted once",
    ),
    Check(
        name="band.free_of_bound_page",
        level=CheckLevel.WARN,
        fatal=True,
        protects="only bound units are freed, so no page is handed out twice",
    ),
    Check(
        name="band.take_unbound",
        level=CheckLevel.WARN,
        fatal=True,
        protects="units and names handed out belong to nobody",
    ),
    Check(
        name="band.maps_inverse",
        level=CheckLevel.STRICT,
        fatal=True,
        protects="a virtual page and its physical page name each other",
    ),
    Check(
        name="band.ids_partition",
        level=CheckLevel.STRICT,
        fatal=True,
        protects="every virtual id is either free or bound, never both, never neither",
    ),
    Check(
        name="band.holes_ordered",
        level=CheckLevel.STRICT,
        fatal=True,
        protects="the hole container agrees with the unit map and hands out the lowest place",
    ),
    Check(
        name="band.take_cleared",
        level=CheckLevel.WARN,
        fatal=True,
        protects="nothing is written that a step, copy or peer may still touch without a wait",
    ),
    Check(
        name="band.move_cleared",
        level=CheckLevel.WARN,
        fatal=True,
        protects="a move copies finished bytes and leaves units where others know them to be",
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
        fatal=True,
        protects="bytes that leave a band take their open uses along, and fixed units stay",
    ),
    Check(
        name="ledger.records_exact",
        level=CheckLevel.STRICT,
        fatal=True,
        protects="the ledger names each unit once, and only for work that is not over",
    ),
    Check(
        name="chain.spans_ordered",
        level=CheckLevel.WARN,
        fatal=True,
        protects="spans lie between sink and arena end and never overlap in bytes",
    ),
    Check(
        name="chain.promises_covered",
        level=CheckLevel.WARN,
        fatal=True,
        protects="some layout holds what is live and promised, so a promised take succeeds",
    ),
    Check(
        name="chain.windows_on_owner",
        level=CheckLevel.STRICT,
        fatal=True,
        protects="a window page is bound only to a virtual page that the owner has bound",
    ),
    Check(
        name="chain.snapshot_fresh",
        level=CheckLevel.STRICT,
        fatal=True,
        protects="answers come from the bands as they are, not from what was remembered of them",
    ),
    Check(
        name="chain.estimate_in_decision",
        level=CheckLevel.WARN,
        fatal=False,
        protects="decisions rest on exact counts, never on approximations made for people",
    ),
    Check(
        name="request.rows_match_bands",
        level=CheckLevel.STRICT,
        fatal=True,
        protects="requests and values hold exactly the bound units: nothing leaks or is shared",
    ),
    Check(
        name="request.promises_add_up",
        level=CheckLevel.STRICT,
        fatal=True,
        protects="the chain's promises are the sum of what its requests may still take",
    ),
    Check(
        name="step.order",
        level=CheckLevel.OFF,
        fatal=True,
        protects="steps are launched and processed in order, each once",
    ),
    Check(
        name="step.pending_keyed",
        level=CheckLevel.STRICT,
        fatal=True,
        protects="a freed unit that pends does so under a step in flight, whose end frees it",
    ),
    Check(
        name="log.positions_gapless",
        level=CheckLevel.OFF,
        fatal=True,
        protects="every entry of the log follows the one before it",
    ),
    Check(
        name="tables.match_books",
        level=CheckLevel.STRICT,
        fatal=True,
        protects="kernels find through a rank's tables what the books say, and nothing else",
    ),
)
"""``level`` is the lowest level at which the check runs."""

_BY_NAME = {check.name: check for check in CHECKS}


class CheckMonitor:
    """The level in force and what was counted below it."""

    def __init__(self, level: CheckLevel) -> None:
        self.level = level
        self.deciding = False
        """Whether an operation is being decided; set and reset by whoever decides."""
        self.broken_count: dict[str, int] = {}

    def fail(self, name: str, message: str) -> None:
        """Report a broken invariant: raise InvariantError, or count it where it is not fatal."""
        check = _BY_NAME[name]
        if check.fatal or self.level is CheckLevel.STRICT:
            raise InvariantError(name, message)
        self.broken_count[name] = self.broken_count.get(name, 0) + 1
