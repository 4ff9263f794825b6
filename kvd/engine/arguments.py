"""What operations say: arrays and numbers read and checked before anything is changed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvd.alloc.band import Units
from kvd.alloc.requests import RequestTable
from kvd.errors import OperationError
from kvd.price.geometry import BandGeometry
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import Admit

REQUEST_BYTES = 8
TOKEN_BYTES = 4
OPERATION_REQUESTS_MAX = 65536
"""Requests that one operation may name; it bounds how long one operation keeps the daemon busy."""
OPERATION_PAGES_MAX = 1 << 20
"""Pages that one list of an operation may name, for the same reason; a frame holds no more."""
HOST_UNIT_BYTES = 4
TOKENS_MAX = (1 << 31) - 1
UNITS_MAX = (1 << 31) - 1
"""Ids of units are 32-bit numbers, so no band holds more."""
RESERVE_BATCHES_MAX = 1 << 20
PERMILLE = 1000


class AdmitArguments(NamedTuple):
    """A checked admit, request by request."""

    ids: list[int]
    prompt_tokens: list[int]
    new_tokens_max: list[int]
    take_tokens: NDArray[np.int64] | None
    victims: Units
    """Rows that may end to make room, first one first."""


def read_admit(operation: Admit, table: RequestTable) -> AdmitArguments:
    """Check every value of an admit; raises OperationError naming the first wrong one."""
    ids = read_request_ids(operation.requests, what="admit.requests")
    prompts = read_tokens(
        operation.prompt_tokens, count=len(ids), what="admit.prompt_tokens", tokens_min=1
    )
    news = read_tokens(
        operation.new_tokens_max, count=len(ids), what="admit.new_tokens_max", tokens_min=0
    )
    chunk = operation.chunk_tokens
    for what, value, value_max in (
        ("chunk_tokens", chunk, TOKENS_MAX),
        ("reserve_batches", operation.reserve_batches, RESERVE_BATCHES_MAX),
        ("growth_permille", operation.growth_permille, PERMILLE),
    ):
        if not 0 <= value <= value_max:
            raise OperationError(f"admit.{what} is {value}; 0 to {value_max} is allowed")
    highest = table.names.highest_id
    seen: dict[int, None] = {}
    for request in ids:
        table.names.check_new(request)
        is_new = not table.names.waits(request)
        if request in seen or (is_new and request < highest):
            raise OperationError(
                f"admit.requests has {request} after {max(seen)}; new ids ascend, none is named "
                f"twice",
                code=ErrorCode.BAD_REQUEST_ID,
            )
        seen[request] = None
        highest = max(highest, request)
    victims = _read_victims(operation, table, seen)
    takes = None
    if operation.take_tokens:
        takes = read_tokens(
            operation.take_tokens, count=len(ids), what="admit.take_tokens", tokens_min=1
        )
        limit = np.minimum(prompts, chunk or table.chunk_tokens)
        over = (takes > limit).nonzero()[0]
        if over.size:
            place = int(over[0])
            raise OperationError(
                f"admit.take_tokens asks {takes[place]} tokens for request {ids[place]}; at "
                f"most {limit[place]} of its prompt can be taken at once"
            )
    return AdmitArguments(ids, prompts.tolist(), news.tolist(), takes, victims)


def _read_victims(operation: Admit, table: RequestTable, admitted: dict[int, None]) -> Units:
    """Return the rows of an admit's victims, who may have to wait as the admitted ones may."""
    ids = read_request_ids(operation.victims, what="admit.victims") if operation.victims else []
    for request in ids:
        if request in admitted:
            raise OperationError(
                f"admit.victims has {request}, which the same admit introduces; a victim is a "
                f"request that was admitted before",
                code=ErrorCode.BAD_REQUEST_ID,
            )
    victims = table.names.rows_of(ids)
    table.names.check_waiting_room([*admitted, *ids])
    return victims


def check_units(
    units: Sequence[int], bands: Sequence[BandGeometry], *, what: str, within_room: bool
) -> None:
    """Raise OperationError unless there is a count per band, of a size to calculate with.

    ``within_room`` bounds each by what the band could hold if it had the arena alone.
    """
    if len(units) != len(bands) or min(units, default=0) < 0:
        shown = f"{list(units[: len(bands)])!s:.120}"
        raise OperationError(
            f"{what} has {len(units)} counts, {shown}; {len(bands)} counts of 0 or more are "
            f"needed, one per band"
        )
    for band, count in zip(bands, units, strict=True):
        if within_room and count > band.room_units:
            raise OperationError(
                f"{what} asks {count} units of band {band.name}; the arena has room for "
                f"{band.room_units} of them"
            )
        if count > UNITS_MAX:
            raise OperationError(
                f"{what} asks {count} units of band {band.name}; 0 to {UNITS_MAX} is allowed"
            )


def check_tokens(tokens: int, *, what: str, tokens_min: int) -> None:
    """Raise OperationError for a token count that is too small, or past any sequence's length."""
    if not tokens_min <= tokens <= TOKENS_MAX:
        raise OperationError(f"{what} is {tokens}; {tokens_min} to {TOKENS_MAX} is allowed")


def read_request_ids(encoded: bytes, *, what: str) -> list[int]:
    """Return the request ids of an operation; raises OperationError for a ragged array."""
    if len(encoded) % REQUEST_BYTES or not encoded:
        raise OperationError(
            f"{what} of {len(encoded)} bytes is not a non-empty array of 8-byte request ids"
        )
    if len(encoded) > OPERATION_REQUESTS_MAX * REQUEST_BYTES:
        raise OperationError(
            f"{what} names {len(encoded) // REQUEST_BYTES} requests; at most "
            f"{OPERATION_REQUESTS_MAX} are allowed"
        )
    ids: list[int] = np.frombuffer(encoded, dtype="<i8").tolist()
    return ids


def read_numbers(encoded: bytes, *, what: str) -> list[int]:
    """Return the numbers of an operation; raises OperationError for a ragged or empty array."""
    numbers: list[int] = _read_int64(encoded, what=what, few_min=1).tolist()
    return numbers


def read_pages(encoded: bytes, *, what: str) -> Units:
    """Return virtual ids, at least one; raises OperationError for a ragged or empty array."""
    return _read_int64(encoded, what=what, few_min=1)


def read_virtual(encoded: Sequence[bytes], band_count: int, *, what: str) -> list[Units]:
    """Return virtual ids per band, at least one in all; raises OperationError otherwise."""
    if len(encoded) != band_count:
        raise OperationError(
            f"{what} has {len(encoded)} lists; {band_count} are needed, one per band"
        )
    virtual = [_read_int64(ids, what=what, few_min=0) for ids in encoded]
    if not any(ids.size for ids in virtual):
        raise OperationError(f"{what} names no unit at all")
    return virtual


def read_host_units(encoded: Sequence[bytes], counts: Sequence[int], *, what: str) -> list[Units]:
    """Return places in host pools, per band as many as units are copied, none twice.

    Raises OperationError otherwise. How large a pool is, only its rank knows.
    """
    if len(encoded) != len(counts):
        raise OperationError(
            f"{what} has {len(encoded)} lists; {len(counts)} are needed, one per band"
        )
    host: list[Units] = []
    for index, (units, count) in enumerate(zip(encoded, counts, strict=True)):
        if len(units) != count * HOST_UNIT_BYTES:
            raise OperationError(
                f"{what} has {len(units)} bytes for band {index}; {count} units need "
                f"{count * HOST_UNIT_BYTES}"
            )
        places = np.frombuffer(units, dtype="<i4").astype(np.int64)
        if count and int(places.min()) < 0:
            raise OperationError(f"{what} has {int(places.min())}; 0 or more is needed")
        if np.unique(places).size != count:
            raise OperationError(f"{what} names a unit of band {index}'s pool twice")
        host.append(places)
    return host


def _read_int64(encoded: bytes, *, what: str, few_min: int) -> Units:
    count, rest = divmod(len(encoded), REQUEST_BYTES)
    if rest or not few_min <= count <= OPERATION_PAGES_MAX:
        raise OperationError(
            f"{what} of {len(encoded)} bytes is not an array of {few_min} to "
            f"{OPERATION_PAGES_MAX} 8-byte numbers"
        )
    return np.frombuffer(encoded, dtype="<i8").astype(np.int64)


def read_tokens(encoded: bytes, *, count: int, what: str, tokens_min: int) -> NDArray[np.int64]:
    """Return token counts, one per request; raises OperationError naming the first bad one."""
    if len(encoded) != count * TOKEN_BYTES:
        raise OperationError(
            f"{what} has {len(encoded)} bytes, {count} requests need {count * TOKEN_BYTES}"
        )
    tokens = np.frombuffer(encoded, dtype="<i4").astype(np.int64)
    if count and int(tokens.min()) < tokens_min:
        raise OperationError(f"{what} has {int(tokens.min())}, at least {tokens_min} is needed")
    return tokens
