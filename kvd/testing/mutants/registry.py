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
        ("meetings", "copies", "transfers", "rearranging", "meetings"),
    ),
    Group("What pends", books.PENDING_FAULTS, ("tangled", "meetings", "crowded")),
    Group(
        "Fences and vacated units",
        books.FENCE_FAULTS,
        ("meetings", "rearranging", "transfers", "stuck"),
    ),
    Group("The ledger", books.LEDGER_FAULTS, ("meetings", "transfers", "copies", "stuck")),
    Group("Alignment", layouts.ALIGNMENT_FAULTS, ("rearranging", "crowded")),
    Group("Answers", layouts.ANSWER_FAULTS, ("crowded", "stuck", "rearranging")),
    Group("Ties and order", choices.CHOICE_FAULTS, ("rearranging", "meetings", "crowded")),
    Group("Units, names and rows", choices.CONTAINER_FAULTS),
    Group("Epochs", choices.EPOCH_FAULTS, ("crowded", "meetings", "transfers")),
    Group("Windows", requests.WINDOW_FAULTS, ("sliding", "even")),
    Group("Promises", requests.PROMISE_FAULTS, ("crowded", "sliding")),
    Group("Prices", requests.PRICE_FAULTS, ("crowded", "sliding")),
    Group("Refusals", values.REFUSAL_FAULTS, ("meetings", "crowded", "tangled")),
    Group("Values", values.VALUE_FAULTS, ("death", "copies", "meetings", "cache")),
    Group("Effects", engine.EFFECT_FAULTS, ("rearranging", "meetings", "copies")),
    Group("The log", engine.LOG_FAULTS, ("tangled", "meetings", "death")),
    Group("Order on a rank", ranks.ORDER_FAULTS, ("tangled", "meetings", "crowded")),
    Group("Copies on a rank", ranks.COPY_FAULTS, ("copies", "meetings")),
    Group("Memory of a rank", ranks.MEMORY_FAULTS, ("death", "meetings")),
)
FAULTS: Final[Mapping[str, Fault]] = by_name([fault for group in GROUPS for fault in group.faults])
PROFILES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    fault.name: group.profiles for group in GROUPS for fault in group.faults
}
"""By fault."""
