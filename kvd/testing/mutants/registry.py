"""All faults, in the order in which they are listed, and the stress profiles that suit them."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from kvd.testing.mutants import books, choices, engine, layouts, ranks, requests, values
from kvd.testing.mutants.cells import CELL_FAULTS
from kvd.testing.mutants.fault import Fault, by_name


class Group(NamedTuple):
    """Faults of one kind."""

    name: str
    faults: tuple[Fault, ...]
    profiles: tuple[str, ...] = ()
    """Profiles of stress programs in which they show most; none: all alike."""


GROUPS: Final[tuple[Group, ...]] = (
    Group(
        "Cells of the clearance tables",
        CELL_FAULTS,
        ("copies", "transfers", "rearranging", "tangled"),
    ),
    Group("What pends", books.PENDING_FAULTS, ("tangled", "crowded", "sliding")),
    Group("Fences and vacated units", books.FENCE_FAULTS, ("rearranging", "transfers", "stuck")),
    Group("The ledger", books.LEDGER_FAULTS, ("transfers", "copies", "rearranging", "stuck")),
    Group("Alignment", layouts.ALIGNMENT_FAULTS, ("rearranging", "crowded")),
    Group("Answers", layouts.ANSWER_FAULTS, ("crowded", "stuck", "rearranging")),
    Group("Ties and order", choices.CHOICE_FAULTS, ("rearranging", "crowded", "copies")),
    Group("Units, names and rows", choices.CONTAINER_FAULTS),
    Group("Epochs", choices.EPOCH_FAULTS, ("crowded", "stuck", "transfers")),
    Group("Windows", requests.WINDOW_FAULTS, ("sliding", "even")),
    Group("Promises", requests.PROMISE_FAULTS, ("crowded", "sliding")),
    Group("Prices", requests.PRICE_FAULTS, ("crowded", "sliding")),
    Group("Refusals", values.REFUSAL_FAULTS, ("crowded", "tangled", "stuck")),
    Group("Values", values.VALUE_FAULTS, ("cache", "death", "copies", "transfers")),
    Group("Effects", engine.EFFECT_FAULTS, ("rearranging", "crowded", "even")),
    Group("The log", engine.LOG_FAULTS, ("tangled", "crowded", "death")),
    Group("Order on a rank", ranks.ORDER_FAULTS, ("tangled", "crowded", "rearranging")),
    Group("Copies on a rank", ranks.COPY_FAULTS, ("copies",)),
    Group("Memory of a rank", ranks.MEMORY_FAULTS, ("death", "rearranging", "transfers")),
)
FAULTS: Final[Mapping[str, Fault]] = by_name([fault for group in GROUPS for fault in group.faults])
PROFILES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    fault.name: group.profiles for group in GROUPS for fault in group.faults
}
"""By fault."""
