"""An engine with the reference allocator beside it."""

import numpy as np

from kvd.alloc.band import Band
from kvd.alloc.checks import CheckLevel
from kvd.alloc.clearings import UNPLACED
from kvd.engine.stage import StageEngine
from kvd.errors import OperationError
from kvd.testing.stress.oracle import Oracle
from kvd_proto.operations import (
    Admit,
    Advance,
    BatchEnd,
    Insert,
    Launch,
    LoadReserve,
    Operation,
    Released,
    WriteSet,
)
from kvd_proto.outcomes import Outcome
from tests.stateful.ranks import int32s, int64s, stage
from tests.stateful.values import FULL, LONG_WINDOW, held, missing, pages, per_band

VALUE_TOKENS = 32


class Beside:
    """Decides operations on a stage of four bands and tells the oracle; both may object.

    Value 1 holds 8 pages, of which windows lost some; request 2 holds 2 pages and takes tokens.
    """

    def __init__(self, *, spare_bytes: int = 1 << 14) -> None:
        self.engine = StageEngine(
            stage(spare_bytes=spare_bytes),
            level=CheckLevel.OFF,
            idle_moves_max=6,
            batch_moves_max=3,
        )
        self.oracle = Oracle(self.engine)
        self.decide(
            self.admit(1, VALUE_TOKENS),
            Advance(int64s([1]), VALUE_TOKENS),
            Insert(1, 1),
            Admit(int64s([2]), int32s([8]), int32s([40]), int32s([8])),
            BatchEnd(),
        )

    def decide(self, *operations: Operation) -> Outcome:
        """Decide operations in order; return the last outcome. Raises StressFailure."""
        return [self._decide(operation) for operation in operations][-1]

    def _decide(self, operation: Operation) -> Outcome:
        self.oracle.before(operation)
        outcome = self.engine.decide(0, operation)
        self.oracle.after(0, operation, outcome, UNPLACED)
        if isinstance(operation, BatchEnd):
            self.engine.settle()  # as the daemon does behind a batch's reply
        return outcome

    def misuse(self, operation: Operation) -> None:
        """Decide what is wrong use, and tell the oracle of it. Raises StressFailure."""
        self.oracle.before(operation)
        try:
            self.engine.decide(0, operation)
        except OperationError as error:
            self.oracle.wrong(operation, error)
            return
        raise AssertionError("what is wrong use was served")

    def release(self, entry: Released) -> None:
        """Let copies and transfers be over. Raises StressFailure."""
        self.engine.release(entry)
        self.oracle.released(entry)

    # ---- operations -----------------------------------------------------------------------------

    @staticmethod
    def admit(request: int, tokens: int) -> Operation:
        """Return an admission that takes its whole prompt at once."""
        return Admit(int64s([request]), int32s([tokens]), int32s([0]), int32s([tokens]), tokens)

    def launch(self, *requests: int) -> Operation:
        """Return the notice of the next step, which writes what these requests took last."""
        step = self.engine.steps.launched_count + 1
        return Launch(step, 0, WriteSet.REQUESTS, int64s(requests))

    # ---- what is there --------------------------------------------------------------------------

    def band(self, index: int = FULL) -> Band:
        """Return a band of the engine."""
        return self.engine.chain.bands[index]

    def units(self, index: int = FULL, request: int = 2) -> list[int]:
        """Return where a request's names of a band lie."""
        names = np.array(held(self.engine, request, index), dtype=np.int64)
        units: list[int] = self.band(index).physical(names).tolist()
        return units

    def value_names(self) -> tuple[bytes, ...]:
        """Return the pages of value 1 in the owner's band, as operations name them."""
        return per_band(FULL, pages(self.engine, FULL))

    def missing(self) -> list[int]:
        """Return pages of value 1 that the long window lacks."""
        return missing(self.engine, LONG_WINDOW)

    def reserve(self, number: int = 1, count: int = 2) -> Operation:
        """Return the reservation of units of the long window for a load into value 1."""
        return LoadReserve(number, 1, (0, count, 0, 0))
