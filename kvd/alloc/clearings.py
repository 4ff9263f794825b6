"""State slots that a launch is still to clear, and which launch cleared the others.

A slot that was handed out holds whatever somebody left there, until the first forward behind it
clears it on its own stream. Which forward that is follows from positions in the log: the first one
launched at the position where the slot was handed out, or behind it. A launch is told of later, so
what was handed out in between waits for the next launch.

The allocator's stream is behind that clearing wherever it has to be, but a peer is not, and before
it nobody finds anything in the slot that is worth copying.

Invariants:
    step.clearings_bound: what is to be cleared, or was, is a bound slot; it was handed out at a
        position that the log has, and cleared by a step that was launched
"""

from kvd.alloc.checks import CheckMonitor
from kvd.alloc.unit_sets import Units


class SlotClearings:
    """The clearing of every bound state slot, by virtual id."""

    def __init__(self) -> None:
        self.deciding_position = 0
        """Where in the log the operation that is being decided will stand; where nobody says, every
        launch clears all that was handed out before its notice."""
        self._due: dict[int, int] = {}
        """Slots that no launch has cleared, as far as is known, and where they were handed out."""
        self._step_of: dict[int, int] = {}
        """The step whose launch cleared a slot."""

    def hand_out(self, slots: Units) -> None:
        """Take in slots that the next launch has to clear."""
        self._due.update(dict.fromkeys(slots.tolist(), self.deciding_position))

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
        early = [slot for slot, position in self._due.items() if position > self.deciding_position]
        ahead = [slot for slot, step in self._step_of.items() if not 0 < step <= launched_count]
        both = self._due.keys() & self._step_of.keys()
        if stray or early or ahead or both:
            monitor.fail(
                "step.clearings_bound",
                f"slots {sorted(stray)} are cleared and not bound, {early} were handed out behind "
                f"position {self.deciding_position}, {ahead} were cleared by no step that was "
                f"launched, {sorted(both)} were cleared and are to be",
            )
