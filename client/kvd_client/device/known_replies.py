"""Replies of a shape that came before: their effects are one recipe, found by their entries.

A decode step brings the same few entries again and again: it waits for steps that are over, or
nearly, and what else it does is the same but for the numbers. Such a reply is checked, and added,
as a whole.
"""

from collections.abc import Sequence
from typing import Protocol

from kvd_client.device.assembly import WaitFor
from kvd_client.device.columns import Columns
from kvd_client.device.port import Event
from kvd_client.device.recipes import EntryShape, Recipe, Recipes
from kvd_proto.outcomes import Outcome, Wait


class TakesWaits(Protocol):
    """What is assembled, as far as waits go."""

    def add_wait(self, event: Event) -> None:
        """Add a wait for an event: what is added later runs behind it."""
        ...


class Waits:
    """Waits in front of everything else of a reply."""

    def __init__(self) -> None:
        """Start without any."""
        self.pieces: list[WaitFor] = []

    def add_wait(self, event: Event) -> None:
        """Add a wait for an event."""
        self.pieces.append(WaitFor(event))


def known_reply(
    outcomes: Sequence[Outcome], columns: Sequence[Columns], recipes: Recipes, *, newest_step: int
) -> tuple[Recipe, Columns, int] | None:
    """Return a reply's recipe, the columns of all its entries together, and the step it waits for.

    That is the last it waits for, which is behind all others; 0 for none. None unless every number
    fits, and nothing waits for anything but steps up to ``newest_step``.
    """
    shape: list[EntryShape] = []
    whole: Columns | None = None
    waited_step = 0
    for outcome, own in zip(outcomes, columns, strict=True):
        segments = outcome.segments
        if not segments:
            continue
        if len(segments) == 1 and len(segments[0]) == 1:
            (effect,) = segments[0]
            if type(effect) is Wait:
                if effect.copy or effect.step > newest_step:
                    return None
                waited_step = max(waited_step, effect.step)
                continue
        whole = own.whole
        shape.append((segments, own.first_list, len(own)))
    if whole is None:
        return None
    recipe = recipes.of_reply(tuple(shape))
    if recipe is None or not whole.fit(recipe):
        return None
    return recipe, whole, waited_step
