"""What a mutant is: one rule of the product left out, and the test that has to notice."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest

Patch = pytest.MonkeyPatch


def do_nothing(*arguments: object, **named: object) -> None:
    """Stand in for what a mutant leaves out."""


class Kill(NamedTuple):
    """How the removal of a rule was noticed."""

    check: str
    """What the check said."""
    action_count: int
    """How many actions the devices had run by then, or how many cases were tried."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule left out."""

    name: str
    removes: str
    test: str
    """The test that fails for it, by its file in this folder."""
    attack: Callable[[], Kill | None]
    """Leaves the rule out and returns how that was noticed, None if it was not."""
    beside: str = ""
    """Another rule that covers the same and was left out as well."""
