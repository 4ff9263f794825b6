"""What a forward reads, has to find, and writes: worked out once, at its launch, for all ranks.

A forward over requests looks up all tables that name their pages and slots, reads every page and
slot that they have, and writes the tokens that they took and that were not written yet, and their
slots. Tags are those of the log at the launch; what it writes is in the model from then on.
"""

import numpy as np

from kvd.testing.stress.contents import BandContents, Contents, Indices, Tags
from kvd.testing.stress.model import Model, Request
from kvd.testing.stress.plans import ForwardPlan, Place, Tag

_INT32_BYTES = 4
_NONE: Indices = np.zeros(0, dtype=np.int64)


def plan_forward(
    contents: Contents, model: Model, *, step: int, runners: tuple[int, ...], dirties_sink: bool
) -> ForwardPlan:
    """Return the plan of a step's forward, and take what it writes into the model."""
    requests = [model.requests[number] for number in runners]
    newest_tag = Tag(contents.newest_tag)
    contents.clear_slots(step)
    cells, values = _lookups(contents, model, requests)
    words, tags, starts, places = _reads(contents, model, requests)
    if contents.sink_is_zero:
        words.append(contents.sink_words)
        tags.append(np.zeros(contents.sink_words.size, dtype=np.int64))
    starts.append(contents.sink_starts)
    writes = _Writes(contents)
    for request in requests:
        writes.tokens(request, model.pages_of(request))
        writes.slot(model.slot_of(request))
        request.written_tokens = request.tokens
        request.step = step
    if dirties_sink:
        writes.sink()
    return ForwardPlan(
        step=step,
        table_cells=_joined(cells),
        table_values=_joined(values),
        page_words=_joined(words),
        page_tags=_joined(tags),
        page_starts=_joined(starts),
        places=tuple(places),
        write_words=_joined(writes.words),
        write_tags=_joined(writes.tags),
        write_starts=_joined(writes.starts),
        newest_tag=newest_tag,
        cell_bytes=contents.cell_bytes,
    )


def _lookups(
    contents: Contents, model: Model, requests: list[Request]
) -> tuple[list[Indices], list[Indices]]:
    """Return the table entries that a forward looks up, and what they say."""
    plan, region = contents.plan, contents.plan.region
    cells: list[Indices] = []
    values: list[Indices] = []

    def look_up(offset_bytes: int, indices: Indices, found: Indices) -> None:
        cells.append(indices + offset_bytes // _INT32_BYTES)
        values.append(found)

    rows = np.array([request.row_index for request in requests], dtype=np.int64)
    look_up(region.row_lengths.offset_bytes, rows, contents.row_reaches[rows])
    for request in requests:
        pages = model.pages_of(request)
        at = request.row_index * plan.row_pages + np.arange(pages.size, dtype=np.int64)
        look_up(region.request_table.offset_bytes, at, pages)
        for band in contents.tokens:
            offset_bytes = region.band_maps[band.index].offset_bytes
            look_up(offset_bytes, pages, band.places[pages])
    table, state = region.state_table, contents.state
    if table is not None and state is not None:
        slots = contents.row_slots[rows]
        look_up(table.offset_bytes, rows * table.column_count, slots)
        look_up(region.band_maps[state.index].offset_bytes, slots, state.places[slots])
    return cells, values


def _reads(
    contents: Contents, model: Model, requests: list[Request]
) -> tuple[list[Indices], list[Tags], list[Indices], list[Place]]:
    """Return the words of all units of requests, what they hold, and their cells."""
    words: list[Indices] = []
    tags: list[Tags] = []
    starts: list[Indices] = []
    places: list[Place] = []
    ids = [model.ids_of(request) for request in requests]
    for band in contents.bands:
        virtual = _joined([of_request[band.index] for of_request in ids])
        if virtual.size:
            units = band.places[virtual]
            words.append(band.words_of(units))
            tags.append(band.expected_words(virtual))
            starts.append(band.cells_of(units) * contents.cell_bytes)
            places.append(Place(band.name, virtual, band.words.size))
    return words, tags, starts, places


class _Writes:
    """What a forward writes; the model has it as soon as it is noted here."""

    def __init__(self, contents: Contents) -> None:
        self.words: list[Indices] = []
        self.tags: list[Tags] = []
        self.starts: list[Indices] = []
        self._contents = contents

    def tokens(self, request: Request, pages: Indices) -> None:
        """Write the tokens of a request that were not written yet, where it has a unit for them."""
        contents = self._contents
        tokens = np.arange(request.written_tokens, request.tokens, dtype=np.int64)
        if not tokens.size:
            return
        at, entries = np.divmod(tokens, contents.plan.page_tokens)
        for band in contents.tokens:
            virtual = pages[at]
            bound = band.places[virtual] > 0
            self._entries(band, virtual[bound], entries[bound])

    def slot(self, virtual: int) -> None:
        """Write a request's state; nothing for one that has no slot."""
        state = self._contents.state
        if virtual and state is not None:
            self._entries(state, np.array([virtual], dtype=np.int64), np.zeros(1, dtype=np.int64))

    def sink(self) -> None:
        """Leave something in the sink."""
        contents = self._contents
        self.words.append(contents.sink_words)
        self.tags.append(contents.new_tags(contents.sink_words.size))
        self.starts.append(contents.sink_starts)
        contents.sink_is_zero = False

    def _entries(self, band: BandContents, virtual: Indices, entries: Indices) -> None:
        contents = self._contents
        tags = contents.new_tags(virtual.size)
        band.tags[virtual, entries] = tags
        first = band.places[virtual] * band.words.size + entries * band.entry_words_count
        steps = np.arange(band.entry_words_count, dtype=np.int64)
        self.words.append((first[:, None] + steps).reshape(-1))
        self.tags.append(np.repeat(tags, band.entry_words_count))
        entry_cells_count = band.unit_cells_count // band.entries_count
        first = band.places[virtual] * band.unit_cells_count + entries * entry_cells_count
        cells = np.arange(entry_cells_count, dtype=np.int64)
        self.starts.append((first[:, None] + cells).reshape(-1) * contents.cell_bytes)


def _joined(parts: list[Indices]) -> Indices:
    return np.concatenate(parts) if parts else _NONE
