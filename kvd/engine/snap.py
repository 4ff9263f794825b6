"""A stage at one position of its log, for comparison: counts per band, and a digest of the rest.

Taken behind a batch, with everything settled, so it depends on the operations alone. The digest
covers what later decisions are made of: the units of every span, the ids that are handed out next,
the rows of live requests, values, steps, and open uses. Every number goes in as a little-endian
64-bit integer, so machines agree (semantics 11.5, ``snap``).
"""

import msgspec
import numpy as np
import xxhash

from kvd.alloc.band import Band, Units
from kvd.engine.stage import StageEngine

NEXT_IDS_COUNT = 4096
"""Free ids that the digest covers, those handed out first: all of them would be megabytes."""

_INT64 = np.dtype("<i8")


class BandSnap(msgspec.Struct, frozen=True, kw_only=True):
    """One band's counts; the span is half open."""

    name: str
    span: tuple[int, int]
    live_units: int
    hole_units: int
    pending_units: int
    promised_units: int
    free_id_count: int
    """0 for a band that mints none."""


class StageSnap(msgspec.Struct, frozen=True, kw_only=True):
    """A whole stage."""

    request_count: int
    value_count: int
    launched_count: int
    processed_count: int
    bands: tuple[BandSnap, ...]
    digest: str
    """16 hexadecimal digits."""


def take_snap(engine: StageEngine) -> StageSnap:
    """Return where an engine stands; a batch's end is settled first, which changes no decision."""
    engine.settle()
    chain, steps = engine.chain, engine.steps
    return StageSnap(
        request_count=engine.requests.live_count,
        value_count=len(engine.requests.values.of_number),
        launched_count=steps.launched_count,
        processed_count=steps.processed_count,
        bands=tuple(_band(band) for band in chain.bands),
        digest=f"{state_digest(engine):016x}",
    )


def state_digest(engine: StageEngine) -> int:
    """Return the digest of what an engine's later decisions are made of."""
    digest = xxhash.xxh3_64()

    def add(numbers: Units | list[int]) -> None:
        array = np.ascontiguousarray(numbers, dtype=_INT64)
        digest.update(array.size.to_bytes(8, "little"))
        digest.update(array.tobytes())

    chain, steps, requests = engine.chain, engine.steps, engine.requests
    add([steps.launched_count, steps.processed_count, steps.retired_count])
    for band in chain.bands:
        start, end = band.span
        add([start, end, band.live_units, band.hole_units, band.pending_units])
        add([band.promised_units, band.vacated_units])
        add(band.states())
        if band.free_ids is not None:
            add([len(band.free_ids)])
            add(band.free_ids.ids(NEXT_IDS_COUNT))
        for kind, signal, unit_count in band.usage.records():
            digest.update(f"{kind}/{signal.kind}".encode())
            add([signal.number, -1 if unit_count is None else unit_count])
    rows = requests.rows
    held = rows.opened_count.nonzero()[0]
    add(held)
    for column in (rows.request_id, rows.tokens, rows.computed_tokens, rows.capacity_tokens):
        add(column[held])
    for column in (rows.limit_tokens, rows.reach_tokens, rows.promised, rows.slot):
        add(column[held])
    for row, count in zip(held.tolist(), rows.page_count[held].tolist(), strict=True):
        add(rows.pages[row, :count])
    add(steps.clearings.told())
    add([requests.names.highest_id, requests.values.numbers.highest])
    for number, value in requests.values.of_number.items():
        add([number, value.slot, value.written_step])
        add(value.pages)
    return digest.intdigest()


def _band(band: Band) -> BandSnap:
    return BandSnap(
        name=band.geometry.name,
        span=band.span,
        live_units=band.live_units,
        hole_units=band.hole_units,
        pending_units=band.pending_units,
        promised_units=band.promised_units,
        free_id_count=0 if band.free_ids is None else len(band.free_ids),
    )
