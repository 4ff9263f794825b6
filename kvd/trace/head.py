"""What a trace or a scenario may start from: a stage that some daemon could have served.

The engine is built from these numbers as they are, because a daemon computed them. A file may say
anything, so each is looked at before: what is wrong is named with what would be right.
"""

from collections.abc import Sequence
from typing import Final

from kvd.engine.shape import BandShape, StageShape
from kvd.engine.start import IncarnationStart, SurvivingValue, Survivors
from kvd.errors import FileError
from kvd.limits import (
    BUDGET_BYTES_MAX,
    CHUNK_TOKENS_MAX,
    CONTEXT_TOKENS_MAX,
    DRAFT_TOKENS_MAX,
    PAGE_TOKENS_MAX,
    RUNNING_REQUESTS_COUNT_MAX,
)
from kvd.price.geometry import BandKind
from kvd.units import ceil_div
from kvd_proto.memory import Lifetime

IDS_COUNT_MAX: Final = 1 << 31
"""Units and ids are 32-bit numbers in every table."""
NUMBER_MAX: Final = (1 << 63) - 1
_KINDS_WANTED: Final = (
    "the first band grows up, the last one grows down, those between them float, and a band alone "
    "grows down"
)


def validate_start(start: IncarnationStart) -> None:
    """Raise FileError for what no incarnation can start from."""
    ranks = start.ranks
    if not ranks or len(set(ranks)) != len(ranks) or min(ranks) < 0:
        raise FileError(
            f"ranks is {list(ranks)!r:.80}; it has to name one rank or more, each once, from 0 on"
        )
    _check("incarnation", start.incarnation, 1, NUMBER_MAX)
    _check("position", start.position, 0, NUMBER_MAX)
    _check("idle_moves_max", start.idle_moves_max, 0, NUMBER_MAX)
    _check("batch_moves_max", start.batch_moves_max, 0, NUMBER_MAX)
    validate_shape(start.shape)
    if start.survivors is not None:
        _validate_survivors(start.survivors, start.shape)


def validate_shape(shape: StageShape) -> None:
    """Raise FileError for what is no stage."""
    _check("stage_index", shape.stage_index, 0, NUMBER_MAX)
    _check("arena_bytes", shape.arena_bytes, 1, BUDGET_BYTES_MAX)
    _check("sink_bytes", shape.sink_bytes, 0, shape.arena_bytes)
    _check("page_tokens", shape.page_tokens, 1, PAGE_TOKENS_MAX)
    _check("context_tokens", shape.context_tokens, 1, CONTEXT_TOKENS_MAX)
    _check("chunk_tokens", shape.chunk_tokens, 1, CHUNK_TOKENS_MAX)
    _check("step_tokens", shape.step_tokens, 1, DRAFT_TOKENS_MAX)
    # One more than requests, for padding.
    _check("row_count", shape.row_count, 2, RUNNING_REQUESTS_COUNT_MAX + 1)
    context_pages = ceil_div(shape.context_tokens, shape.page_tokens)
    _check("row_pages", shape.row_pages, context_pages, IDS_COUNT_MAX)
    _check("places of all rows", shape.row_count * shape.row_pages, 1, IDS_COUNT_MAX)
    _check("virtual_page_count", shape.virtual_page_count, 1, IDS_COUNT_MAX)
    _check("virtual_slot_count", shape.virtual_slot_count, 0, IDS_COUNT_MAX)
    _validate_order(shape.bands)
    for band in shape.bands:
        _validate_band(band, shape)


def _validate_order(bands: tuple[BandShape, ...]) -> None:
    names = [band.name for band in bands]
    if not names or len(set(names)) != len(names):
        raise FileError(f"bands is {names!r:.80}; there has to be one or more, of different names")
    lifetimes = [band.lifetime for band in bands]
    windows = [Lifetime.WINDOW] * lifetimes.count(Lifetime.WINDOW)
    state = [Lifetime.STATE] * (Lifetime.STATE in lifetimes)
    if lifetimes != [*state, *windows, Lifetime.FULL]:
        raise FileError(
            f"bands have lifetimes {', '.join(lifetimes):.80}; at most one state comes first, then "
            "windows, then one full, which owns the pages"
        )
    kinds = [band.kind for band in bands]
    right = [BandKind.GROW_UP, *[BandKind.FLOAT] * (len(bands) - 2), BandKind.GROW_DOWN]
    if kinds != right[-len(bands) :]:
        raise FileError(f"bands have kinds {', '.join(kinds):.80}; {_KINDS_WANTED}")


def _validate_band(band: BandShape, shape: StageShape) -> None:
    where = f"band {band.name!r:.80}: "
    _check(f"{where}unit_bytes", band.unit_bytes, 1, BUDGET_BYTES_MAX)
    low = ceil_div(shape.sink_bytes, band.unit_bytes)
    high = min(shape.arena_bytes // band.unit_bytes, IDS_COUNT_MAX)
    _check(f"{where}unit_index_end_count", band.unit_index_end_count, 0, high)
    # Units below the first overlap the sink.
    _check(f"{where}unit_index_min", band.unit_index_min, low, band.unit_index_end_count)
    if band.lifetime is Lifetime.WINDOW:
        _check(f"{where}window_tokens", band.window_tokens, 1, CONTEXT_TOKENS_MAX)
    else:
        _check(f"{where}window_tokens", band.window_tokens, 0, 0)


def _validate_survivors(survivors: Survivors, shape: StageShape) -> None:
    """Raise FileError unless each band's physical units are those of the values' ids, once each."""
    bands = shape.bands
    _check("highest_value_id", survivors.highest_value_id, 0, NUMBER_MAX)
    if len(survivors.physical) != len(bands):
        raise FileError(
            f"physical has {len(survivors.physical)} lists; there has to be one for each of "
            f"{len(bands)} bands"
        )
    numbers = [value.value_id for value in survivors.values]
    _check_distinct("value_id", numbers, 1, survivors.highest_value_id)
    for value in survivors.values:
        _validate_value(value, bands)
    for index, band in enumerate(bands):
        ids = [number for value in survivors.values for number in _ids_of(value, index, band)]
        is_state = band.lifetime is Lifetime.STATE
        end = shape.virtual_slot_count if is_state else shape.virtual_page_count
        where = f"values in band {band.name!r:.80}"
        _check_distinct(f"{where}: id", ids, 1, end - 1)
        units = survivors.physical[index]
        if len(units) != len(ids):
            raise FileError(f"{where} have {len(ids)} ids and {len(units)} units; each has one")
        _check_distinct(f"{where}: unit", units, band.unit_index_min, band.unit_index_end_count - 1)


def _validate_value(value: SurvivingValue, bands: tuple[BandShape, ...]) -> None:
    where = f"value {value.value_id}"
    if len(value.bound) != len(bands):
        raise FileError(
            f"{where}: bound has {len(value.bound)} lists; there has to be one for each of "
            f"{len(bands)} bands"
        )
    for band, bound in zip(bands, value.bound, strict=True):
        members = set(bound)
        wanted = band.lifetime is Lifetime.WINDOW
        if list(bound) != [page for page in value.pages if wanted and page in members]:
            raise FileError(
                f"{where}: bound in {band.name!r:.80} is {list(bound)!r:.80}; it has to be "
                + (f"some of the pages {list(value.pages)!r:.80}" if wanted else "empty")
            )
    if value.slot_index and bands[0].lifetime is not Lifetime.STATE:
        raise FileError(f"{where}: slot_index is {value.slot_index}; without a state it is 0")


def _ids_of(value: SurvivingValue, index: int, band: BandShape) -> tuple[int, ...]:
    """Return the ids of a value in a band."""
    if band.lifetime is Lifetime.STATE:
        return (value.slot_index,) if value.slot_index else ()
    return value.pages if band.lifetime is Lifetime.FULL else value.bound[index]


def _check(name: str, value: int, low: int, high: int) -> None:
    """Raise FileError unless a number lies between two, both included."""
    if not low <= value <= high:
        wanted = f"{low} to {high}" if low < high else f"{low}"
        raise FileError(f"{name} is {value}; it has to be {wanted}")


def _check_distinct(name: str, numbers: Sequence[int], low: int, high: int) -> None:
    """Raise FileError unless all numbers lie between two, and none is there twice."""
    seen: set[int] = set()
    for number in numbers:
        _check(name, number, low, high)
        if number in seen:
            raise FileError(f"{name} {number} is there twice; it has to be there once")
        seen.add(number)
