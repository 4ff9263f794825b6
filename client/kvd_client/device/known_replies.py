"""Replies of a shape that came before: their effects are one recipe, found by their entries.

A decode step brings the same few entries again and again: its waits are for nothing any more, and
what else it does is the same but for the numbers. Such a reply is checked and added as a whole.
"""

from collections.abc import Sequence

from kvd_client.device.columns import Columns
from kvd_client.device.recipes import EntryShape, Recipe, Recipes
from kvd_proto.outcomes import Outcome, Wait


def known_reply(
    outcomes: Sequence[Outcome], columns: Sequence[Columns], recipes: Recipes, *, newest_step: int
) -> tuple[Recipe, Columns] | None:
    """Return the recipe of a reply and the columns of all its entries together.

    None unless every number fits, and nothing waits for anything but steps up to ``newest_step``,
    all of which the caller knows to be waited for already.
    """
    shape: list[EntryShape] = []
    whole: Columns | None = None
    for outcome, own in zip(outcomes, columns, strict=True):
        segments = outcome.segments
        if not segments:
            continue
        if len(segments) == 1 and len(segments[0]) == 1:
            (effect,) = segments[0]
            if type(effect) is Wait:
                if effect.copy or effect.step > newest_step:
                    return None
                continue
        whole = own.whole
        shape.append((segments, own.first_list, len(own)))
    if whole is None:
        return None
    recipe = recipes.of_reply(tuple(shape))
    if recipe is None or not whole.fit(recipe):
        return None
    return recipe, whole
