"""Values: pages and slots that outlive the request that wrote them.

A value is what a cache keeps: it grows by nothing but loads, promises nothing, and ends by being
evicted. Which value answers which prompt is its program's business.

Invariants:
    value.pages_ordered: a value's pages are distinct, those bound in a window are some of them in
        their order, and its number was used
"""

import numpy as np

from kvd.alloc.band import Freed, Units
from kvd.alloc.chain import ChainAllocator
from kvd.alloc.numbers import Numbers

_NONE: Units = np.zeros(0, dtype=np.int64)


class Value:
    """The virtual ids that a value holds."""

    def __init__(
        self, *, pages: Units, bound: dict[int, Units], slot: int, written_step: int
    ) -> None:
        self.pages = pages
        """Pages in the order of the sequence; the owner has a unit for each."""
        self.bound = bound
        """Per window band: the pages that have a unit there, in the order of the sequence."""
        self.slot = slot
        """State slot; 0 for none."""
        self.written_step = written_step
        """The newest step launched before it came to be, which may write it; a later one may still
        clear its slot (`kvd.alloc.clearings`)."""
        self.position = 0
        """Where in the log the value came to be."""
        self.spoiled = False
        """Whether a load failed to fill some of it."""

    def missing(self, index: int) -> Units:
        """Return the pages that have no unit in a window band, in the order of the sequence."""
        return self.pages[np.isin(self.pages, self.bound[index], invert=True)]


class ValueTable:
    """The values of one chain, by the numbers their programs gave them."""

    def __init__(self, chain: ChainAllocator) -> None:
        self.chain = chain
        self.numbers = Numbers("value")
        self.of_number: dict[int, Value] = {}

    def get(self, number: int) -> Value:
        """Return a value; raises OperationError if there is none of this number."""
        value = self.of_number.get(number)
        if value is None:
            was_one = 0 < number <= self.numbers.highest
            raise self.numbers.unknown(
                number, "was evicted or never inserted" if was_one else "was never inserted"
            )
        return value

    def add(self, number: int, value: Value) -> None:
        """Keep a value under a number that was checked."""
        self.numbers.use(number)
        self.of_number[number] = value

    def ids(self, index: int) -> Units:
        """Return all virtual ids that values hold in a band."""
        return _joined([self.ids_of(value, index) for value in self.of_number.values()])

    def ids_of(self, value: Value, index: int) -> Units:
        """Return the virtual ids that one value holds in a band."""
        if index == self.chain.state_index:
            return np.array([value.slot] if value.slot else [], dtype=np.int64)
        return value.pages if index == self.chain.owner_index else value.bound[index]

    def adopt(self, others: "ValueTable", numbers: tuple[int, ...]) -> None:
        """Take over values of a table whose incarnation has ended, where they lie.

        The chain is as at a start. Numbers go on: what was a value once is never another.
        """
        kept = [(number, others.of_number[number]) for number in numbers]
        self.restore(
            others.numbers.highest,
            # Nothing that could write it is left, so it is sealed for good.
            {
                number: Value(pages=it.pages, bound=it.bound, slot=it.slot, written_step=0)
                for number, it in kept
            },
            [
                band.physical(_joined([others.ids_of(value, index) for _, value in kept]))
                for index, band in enumerate(others.chain.bands)
            ],
        )

    def restore(self, highest: int, values: dict[int, Value], physical: list[Units]) -> None:
        """Hold values where they lie, given by their numbers; ``highest`` is the last one used.

        The chain is as at a start. ``physical`` are the units of `ids`, band by band.
        """
        self.numbers.highest = highest
        self.of_number.update(values)
        for index, band in enumerate(self.chain.bands):
            band.adopt(self.ids(index), physical[index])

    def evict(self, numbers: list[int]) -> list[Freed]:
        """Give up values that are there, each once; return, per band, the ids that came back."""
        values = [self.of_number.pop(number) for number in numbers]
        freed: list[Freed] = []
        for index in range(len(self.chain.bands)):
            freed.append(Freed(index, _joined([self.ids_of(value, index) for value in values])))
        self.chain.release(freed)
        return freed

    def check(self) -> None:
        """Check every value by itself: value.pages_ordered.

        That nobody else holds its units is `Holdings.check`'s.
        """
        for number, value in self.of_number.items():
            is_one = np.unique(value.pages).size == value.pages.size
            in_order = all(
                np.array_equal(bound, value.pages[np.isin(value.pages, bound)])
                for bound in value.bound.values()
            )
            if not (is_one and in_order and 0 < number <= self.numbers.highest):
                self.chain.monitor.fail(
                    "value.pages_ordered",
                    f"value {number} of {value.pages.size} pages is bound in its windows in "
                    f"another order, or elsewhere",
                )


def _joined(parts: list[Units]) -> Units:
    return np.concatenate(parts) if parts else _NONE
