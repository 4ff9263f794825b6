"""What ranks are to do with bytes, worked out once by the model: forwards, and what peers are told."""

from dataclasses import dataclass
from typing import NamedTuple

from kvd.testing.stress.contents import Indices, Tags


class Place(NamedTuple):
    """Units of one band in a forward's plan."""

    band: str
    virtual: Indices
    words_count: int
    """Words of one unit."""


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """What one forward reads, has to find, and writes; the same on every rank."""

    step: int
    table_cells: Indices
    """Places of the int32 entries that it looks up, counted from the start of the memory."""
    table_values: Indices
    page_words: Indices
    """Places of the 8-byte words that it reads."""
    page_tags: Tags
    page_starts: Indices
    """First bytes of the cells that it reads."""
    places: tuple[Place, ...]
    """What the words belong to, in their order, for findings."""
    write_words: Indices
    write_tags: Tags
    write_starts: Indices
    newest_tag: int
    cell_bytes: int

    def place_of(self, word: int) -> str:
        """Return what a word that was read belongs to."""
        for place in self.places:
            count = place.virtual.size * place.words_count
            if word < count:
                unit, offset = divmod(word, place.words_count)
                return f"band {place.band}, id {place.virtual[unit]}, word {offset}"
            word -= count
        return "the sink"


class PeerPlan(NamedTuple):
    """What a peer is told of a transfer; the same on every rank."""

    number: int
    starts: list[tuple[Indices, int]]
    """First bytes of units and their size, for each band that takes part."""
    words: list[Tags]
    """Words that they hold or are to hold, one unit per row, for each such band."""
    writes: bool
