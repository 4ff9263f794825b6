"""Rules that let the next applier redo what one that died left undone.

A process applies a rearrangement to an arena and dies after its k-th action, for every k, and
another one takes over. Without one of these rules it finds a page that lost its bytes.
"""

from contextlib import redirect_stdout
from io import StringIO
from typing import NamedTuple

from tests.e2e.test_redo import redo_report
from tests.mutation.mutant import Kill, Mutant


class RedoRule(NamedTuple):
    """A rule and the option of the program that does without it."""

    name: str
    removes: str
    option: str

    def attack(self) -> Kill | None:
        """Kill appliers without the rule; returns how that was noticed, None if it was not."""
        with redirect_stdout(StringIO()):
            report = redo_report("0", self.option)
        wrong: dict[str, list[str]] = report["wrong"]
        if not wrong:
            return None
        action_count, problems = min(wrong.items(), key=lambda item: int(item[0]))
        return Kill(f"wrong once redone: {problems[0]}", int(action_count))

    @property
    def mutant(self) -> Mutant:
        """Return the rule's removal."""
        name = f"test_without_one_of_its_rules_some_page_is_lost[{self.option}]"
        return Mutant(
            name=self.name,
            removes=self.removes,
            test=f"../e2e/test_redo.py::{name}",
            attack=self.attack,
        )


RULES: tuple[RedoRule, ...] = (
    RedoRule(
        "one-segment",
        "an operation is cut before an effect that writes where an earlier one read",
        "--one-segment",
    ),
    RedoRule(
        "progress-per-entry",
        "the progress word is written behind every segment that moves",
        "--progress-per-entry",
    ),
    RedoRule("no-redo", "the next applier redoes what is not confirmed", "--no-redo"),
)
