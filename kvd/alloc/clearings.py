"""State slots that a launch is still to clear, and which launch cleared the others.

A slot that was handed out holds whatever somebody left there, until the first forward behind it
clears it on its own stream. Which forward that is follows from positions in the log: the first one
launched at the position where the slot was handed out, or behind it. A launch is told of later, so
what was handed out in between waits for the next launch.

The allocator's stream is behind that clearing wherever it has to be, but a peer is not, and before
it nobody finds anything in the slot that is worth copying.

Invariants:
    step.clearings_bound: what is to be cleared, or was, is a bound slot; positions rise in the
        order in which slots were handed out; a step that cleared one was launched
"""

from math import inf
from typing import Final

from kvd.alloc.checks import CheckMonitor
from kvd.alloc.unit_sets import Units

UNPLACED: Final = 0
"""Where the operation stands that is being decided, or any where nobody says."""


class SlotClearings:
    """The clearing of every bound state slot, by virtual id."""

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        """Slots that no launch has cleared, as far as is known, in the order in which they were
        handed out, and the position of the operation that did."""
        self._step_of: dict[int, int] = {}
        """The step whose launch cleared a slot."""

    def hand_out(self, slots: Units) -> None:
        """Take in slots that the next launch has to clear."""
        self._due.update(dict.fromkeys(slots.tolist(), UNPLACED))

    def place(self, position: int) -> None:
        """Take in where in the log the operation stands that was decided last.

        Where nobody says, every launch clears all that was handed out before its notice.
        """
        for slot, handed_out in reversed(self._due.items()):
            if handed_out != UNPLACED:
                break
            self._due[slot] = position

    def launch(self, step: int, position: int) -> None:
        """Take in a launch behind the effects up to a position."""
        for slot, handed_out in list(self._due.items()):
            if handed_out <= position:
                del self._due[slot]
                self._step_of[slot] = step

    def zero(self, slots: Units) -> None:
        """Take in slots that are zeroed before any launch could clear them, which none will."""
        for slot in slots.tolist():
            self._due.pop(slot, None)

    def forget(self, slots: Units) -> None:
        """Take in slots that are freed."""
        for slot in slots.tolist():
            self._due.pop(slot, None)
            self._step_of.pop(slot, None)

    def is_due(self, slot: int) -> bool:
        """Return whether a launch that is yet to come clears a slot."""
        return slot in self._due

    def step_of(self, slot: int) -> int:
        """Return the step whose launch cleared a slot; 0 if none did."""
        return self._step_of.get(slot, 0)

    def told(self) -> list[int]:
        """Return all that is known, as numbers: for comparison."""
        due = [number for pair in self._due.items() for number in pair]
        return [len(due), *due, *[number for pair in self._step_of.items() for number in pair]]

    def check(self, bound: Units, launched_count: int, monitor: CheckMonitor) -> None:
        """Check against the slots that are bound: step.clearings_bound."""
        known = {*self._due, *self._step_of}
        stray = known.difference(bound.tolist())
        positions = [position or inf for position in self._due.values()]
        ahead = [slot for slot, step in self._step_of.items() if not 0 < step <= launched_count]
        both = self._due.keys() & self._step_of.keys()
        if stray or positions != sorted(positions) or ahead or both:
            monitor.fail(
                "step.clearings_bound",
                f"slots {sorted(stray)} are cleared and not bound, {self._due} were handed out in "
                f"this order, {ahead} were cleared by no step that was launched, {sorted(both)} "
                f"were cleared and are to be",
            )
