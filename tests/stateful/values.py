"""Stages that hold values, and the operations on them, for tests of copies and transfers."""

from collections.abc import Sequence

from kvd.alloc.checks import CheckLevel
from kvd.engine.stage import StageEngine
from kvd_proto.operations import (
    Admit,
    Advance,
    BackupSubmit,
    Hold,
    Insert,
    Operation,
    Post,
)
from tests.stateful.ranks import int32s, int64s, stage

STATE, LONG_WINDOW, SHORT_WINDOW, FULL = range(4)
"""Bands of `tests.stateful.ranks.stage`, low to high; the windows hold 20 and 8 tokens."""
BANDS = 4


def engine_with_value(*, rows: int = 6, spare_bytes: int = 1 << 16) -> StageEngine:
    """Return an engine with value 1, of 32 tokens in 8 pages, and request 2 of 8 tokens.

    The value's long window has lost its pages 1 to 3, the short one 1 to 6.
    """
    engine = StageEngine(stage(rows=rows, spare_bytes=spare_bytes), level=CheckLevel.STRICT)
    for operation in (
        Admit(int64s([1]), int32s([32]), int32s([0]), int32s([32]), 32),
        Advance(int64s([1]), 32),
        Insert(1, 1),
        Admit(int64s([2]), int32s([8]), int32s([8]), int32s([8])),
    ):
        engine.decide(0, operation)
    return engine


def pages(engine: StageEngine, band: int) -> list[int]:
    """Return the ids that value 1 holds in a band."""
    values = engine.requests.values
    ids: list[int] = values.ids_of(values.get(1), band).tolist()
    return ids


def held(engine: StageEngine, request: int, band: int) -> list[int]:
    """Return the ids that a request holds in a band."""
    requests = engine.requests
    ids: list[int] = requests.holdings.ids(band, requests.names.rows_of([request])).tolist()
    return ids


def missing(engine: StageEngine, band: int) -> list[int]:
    """Return the pages of value 1 that have no unit in a window."""
    ids: list[int] = engine.requests.values.get(1).missing(band).tolist()
    return ids


def per_band(band: int, ids: Sequence[int]) -> tuple[bytes, ...]:
    """Return lists per band of which one names something."""
    return tuple(int64s(ids) if index == band else b"" for index in range(BANDS))


def hosts(band: int, count: int) -> tuple[bytes, ...]:
    """Return places in host pools per band, of which one gives some."""
    return tuple(int32s(range(count)) if index == band else b"" for index in range(BANDS))


def backup(number: int, band: int, ids: Sequence[int]) -> Operation:
    """Return a backup of units of one band."""
    return BackupSubmit(number, per_band(band, ids), hosts(band, len(ids)))


def hold(number: int, band: int, ids: Sequence[int]) -> Operation:
    """Return the announcement of a transfer into units of one band."""
    return Hold(number, per_band(band, ids))


def post(number: int, band: int, ids: Sequence[int]) -> Operation:
    """Return a transfer out of units of one band."""
    return Post(number, per_band(band, ids))
