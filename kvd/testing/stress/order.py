"""What is in order in every outcome: names, choices, waits, gates, and how much moves unasked."""

from collections import deque

from kvd.alloc.signals import SignalKind
from kvd.testing.stress.broken import require
from kvd.testing.stress.choice import check_choice
from kvd.testing.stress.contents import Indices, columns_of
from kvd.testing.stress.effect_order import check_effect_order
from kvd.testing.stress.oracle import Oracle
from kvd_proto.operations import BatchEnd, Idle, Launch, Operation, Take
from kvd_proto.outcomes import NO_COLUMN, Move, Outcome, Resolved, TakeResult, Wait, WriteMap

IDLE_MOVES_MAX = 6
BATCH_MOVES_MAX = 3
"""Units that an idle, and the end of a batch, move at most unasked."""


class Order:
    """Looks at every outcome of one incarnation.

    Checks:
        stress.effects: waits stand in front, segments can be redone (`effect_order`), and no more
        moves unasked than may;
        stress.choice: the lowest hole that needs no wait is taken first (`choice`), the name that
        was free longest too, and nothing is waited for where nothing has to be;
        stress.gate: the daemon's own entries stand behind the notices of launches;
        stress.resolved: whoever is told a place is told whether anything moved.
    """

    def __init__(self, oracle: Oracle) -> None:
        """Begin where an engine stands now."""
        self._oracle = oracle
        self._chain = oracle.engine.chain
        self._free_names: dict[int, deque[int]] = {}
        for index, band in enumerate(self._chain.bands):
            if band.free_ids is not None:
                bound = dict.fromkeys(band.bound_ids().tolist())
                names = range(1, band.physical_map().size)
                self._free_names[index] = deque(name for name in names if name not in bound)
        self._moved_count = 0
        self._own_entry = False
        self._batch_ended = False
        self._holes: list[int] = []
        self._may_wait = False

    def note_own(self) -> None:
        """Take in that the daemon logged an entry of its own."""
        self._own_entry = True
        self._batch_ended = False  # it may free more

    def before(self) -> None:
        """Look at the engine before an operation is decided; raises StressFailure."""
        if self._batch_ended:
            self._batch_ended = False
            for band in self._chain.bands:
                require(
                    band.ordered_holes().size == band.hole_units,
                    "choice",
                    f"band {band.geometry.name} has freed units that are no ordered holes, and "
                    "their batch has ended",
                )
        self._holes = [band.hole_units for band in self._chain.bands]
        uses = self._oracle.units.accesses.uses
        self._may_wait = any(signal.kind is SignalKind.STEP for _, signal in uses)

    def check(self, operation: Operation, outcome: Outcome) -> None:
        """Look at what was decided; raises StressFailure."""
        if isinstance(operation, BatchEnd):
            self._own_entry = False
            self._batch_ended = True
        elif isinstance(operation, Launch):
            require(
                not self._own_entry, "gate", "the notice of a launch stands behind an own entry"
            )
        if outcome.segments:
            columns = columns_of(outcome)
            check_effect_order(self._chain.geometry, outcome, columns)
            check_choice(self._oracle, outcome, columns)
            self._check_names(outcome, columns)
            self._check_moves(operation, outcome, columns)
            self._check_waits(operation, outcome, columns)
        if isinstance(outcome.result, Resolved):
            told = outcome.result.move_epoch
            require(
                told == self._moved_count,
                "resolved",
                f"places are told with move epoch {told} behind {self._moved_count} moves",
            )

    def _check_names(self, outcome: Outcome, columns: list[Indices]) -> None:
        for segment in outcome.segments:
            moved = NO_COLUMN
            for effect in segment:
                if isinstance(effect, Move):
                    moved = effect.destinations
                if not isinstance(effect, WriteMap) or effect.band not in self._free_names:
                    continue
                free, names = self._free_names[effect.band], columns[effect.virtual].tolist()
                if effect.physical == NO_COLUMN:
                    free.extend(names)
                elif effect.physical != moved:
                    due = [free.popleft() for _ in names[: len(free)]]
                    require(
                        names == due,
                        "choice",
                        f"band {effect.band} mints names {names}; free longest are {due}",
                    )

    def _check_moves(self, operation: Operation, outcome: Outcome, columns: list[Indices]) -> None:
        moved_count = 0
        for segment in outcome.segments:
            for effect in segment:
                if isinstance(effect, Move):
                    self._moved_count += 1
                    moved_count += columns[effect.sources].size
        if isinstance(operation, Idle | BatchEnd):
            most = IDLE_MOVES_MAX if isinstance(operation, Idle) else BATCH_MOVES_MAX
            require(
                moved_count <= most,
                "effects",
                f"{type(operation).__name__} moves {moved_count} units, at most {most} may be",
            )

    def _check_waits(self, operation: Operation, outcome: Outcome, columns: list[Indices]) -> None:
        """Check that a take that holes suffice for waits for no step where none is in the way."""
        result = outcome.result
        if self._may_wait or not isinstance(operation, Take) or not isinstance(result, TakeResult):
            return
        taken = [0 if it == NO_COLUMN else columns[it].size for it in result.physical]
        if any(count > holes for count, holes in zip(taken, self._holes, strict=False)):
            return
        if result.retracted != NO_COLUMN:
            return
        waits = [
            effect.step
            for segment in outcome.segments
            for effect in segment
            if isinstance(effect, Wait) and effect.step
        ]
        require(not waits, "choice", f"a take for which holes suffice waits for steps {waits}")
