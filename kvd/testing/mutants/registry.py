"""All faults, in the order in which they are listed."""

from collections.abc import Mapping
from typing import Final

from kvd.testing.mutants import books, choices, engine, layouts, ranks, requests, values
from kvd.testing.mutants.cells import CELL_FAULTS
from kvd.testing.mutants.fault import Fault, by_name

GROUPS: Final[Mapping[str, tuple[Fault, ...]]] = {
    "cells of the clearance tables": CELL_FAULTS,
    "what pends": books.PENDING_FAULTS,
    "fences and vacated units": books.FENCE_FAULTS,
    "the ledger": books.LEDGER_FAULTS,
    "alignment": layouts.ALIGNMENT_FAULTS,
    "answers": layouts.ANSWER_FAULTS,
    "ties and order": choices.CHOICE_FAULTS,
    "units, names and rows": choices.CONTAINER_FAULTS,
    "epochs": choices.EPOCH_FAULTS,
    "windows": requests.WINDOW_FAULTS,
    "promises": requests.PROMISE_FAULTS,
    "prices": requests.PRICE_FAULTS,
    "refusals": values.REFUSAL_FAULTS,
    "values": values.VALUE_FAULTS,
    "effects": engine.EFFECT_FAULTS,
    "the log": engine.LOG_FAULTS,
    "order on a rank": ranks.ORDER_FAULTS,
    "copies on a rank": ranks.COPY_FAULTS,
    "memory of a rank": ranks.MEMORY_FAULTS,
}
FAULTS: Final[Mapping[str, Fault]] = by_name(
    [fault for group in GROUPS.values() for fault in group]
)
