"""What a batch answered: handles of its operations and the values they give.

A handle costs next to nothing until it is called: ids stay in the reply's columns, and arrays are
cut from them on demand.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from kvd_client.device.columns import NO_COLUMNS, Columns
from kvd_client.errors import KvdClientError, OperationError, ReplyError, UsageError
from kvd_proto.errors import ErrorCode
from kvd_proto.outcomes import (
    NO_COLUMN,
    AdmitResult,
    AnyResult,
    Failed,
    NotRun,
    Pump,
    Refusal,
    Skipped,
    TakeResult,
)

__all__ = [
    "NO_COLUMNS",
    "Admitted",
    "Columns",
    "Handle",
    "Int32s",
    "Int64s",
    "Ragged",
    "ResolvedUnits",
    "StampedArray",
    "TableStamp",
    "Taken",
]

T = TypeVar("T")
Places = TypeVar("Places", bound=NDArray[np.signedinteger])
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

NONE: Int64s = np.zeros(0, dtype=np.int64)
NONE.flags.writeable = False


class TableStamp(NamedTuple):
    """When a table was made: it is true until an entry behind the position moves units."""

    position: int
    move_epoch: int


class StampedArray(np.ndarray[tuple[int, ...], np.dtype[np.signedinteger]]):
    """An array of places that knows when it was made, and so do the arrays cut from it."""

    made_at: TableStamp | None = None

    def __array_finalize__(self, source: object) -> None:
        if isinstance(source, StampedArray):
            self.made_at = source.made_at


class _Lists(NamedTuple):
    values: NDArray[np.signedinteger]
    indptr: Int32s


class Ragged(_Lists):
    """Lists of different lengths end to end: list i is ``values[indptr[i]:indptr[i + 1]]``."""

    made_at: TableStamp | None = None
    """When it was made from the tables."""


def stamped_lists(lists: Ragged, stamp: TableStamp) -> Ragged:
    """Return lists with the stamp on them; the same object."""
    lists.made_at = stamp
    return lists


def stamped(array: Places, stamp: TableStamp) -> Places:
    """Return an array with the stamp on it, over the same numbers."""
    marked = array.view(StampedArray)
    marked.made_at = stamp
    return cast("Places", marked)


def column(columns: Columns, index: int) -> Int64s:
    """Return a column by its place in the list; NO_COLUMN is the empty one."""
    if index == NO_COLUMN:
        return NONE
    if not 0 <= index < len(columns):
        raise ReplyError(f"column {index} of {len(columns)} does not exist")
    return columns[index]


@dataclass(frozen=True, slots=True)
class Taken:
    """Pages that a take granted; entry i of every array belongs to the same page.

    ``physical`` maps a band's name to its new units: pages of a token band, slots of a state band;
    an empty array if it got none.
    """

    rows: Int64s
    places: Int64s
    virtual: Int64s
    physical: Mapping[str, Int64s]
    retracted: Int64s = field(default_factory=lambda: NONE)
    """Ids of the victims that ended to make room."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Answer to an admit: one verdict (kvd_proto.outcomes.Verdict) and row per request asked.

    The row of a request that does not fit is 0, and ``refusals`` says why for each of those.
    ``new_tokens`` is what memory can ever grant beside the prompt, ``chunk_tokens`` the most that
    may be taken at once. ``retracted`` are the victims that ended to make room.
    """

    verdicts: Int64s
    rows: Int64s
    new_tokens: Int64s
    chunk_tokens: Int64s
    refusals: tuple[Refusal, ...]
    taken: Taken
    retracted: Int64s = field(default_factory=lambda: NONE)


@dataclass(frozen=True, slots=True)
class ResolvedUnits:
    """Where units lie, per band; whoever uses them behind a later move uses others' units.

    They may leave this process once every rank has run the effects up to this operation.
    """

    physical: Mapping[str, Int64s]
    """Units by the band's name, in the order in which their ids were named."""
    move_epoch: int


class Handle(Generic[T]):
    """Stands for the answer to one operation; call it after the batch.

    It gives the operation's value, a `Refusal` (an expected no that says why), `Skipped` (the
    operation names a request whose admission in the same batch was refused) or `Pump` (nothing was
    changed, these transfers have to end first: make them progress, and ask again).
    """

    __slots__ = ("_columns", "_error", "_read", "_result", "name")

    def __init__(self, name: str, read: Callable[[AnyResult, Columns], T]) -> None:
        self.name = name
        self._read = read
        self._result: AnyResult | None = None
        self._columns: Columns | None = None
        self._error: KvdClientError | None = None

    def settle(self, result: AnyResult, columns: Columns) -> None:
        """Take in the answer."""
        self._result = result
        self._columns = columns

    def fail(self, error: KvdClientError) -> None:
        """Take in that there will be no answer, and why."""
        self._error = error

    @property
    def settled(self) -> bool:
        """Tell whether calling the handle gives or raises the answer."""
        return self._result is not None or self._error is not None

    def __call__(self) -> T | Refusal | Skipped | Pump:
        """Return the answer; raises OperationError if it was wrong use or was not run.

        Raises the error that kept the answer away if there is none, and UsageError before the end
        of the batch.
        """
        if self._error is not None:
            raise self._error
        result = self._result
        if result is None or self._columns is None:
            raise UsageError(f"{self.name}: no answer yet; call the handle after the batch block")
        if isinstance(result, (Refusal, Skipped, Pump)):
            return result
        if isinstance(result, Failed):
            raise failure_of(result)
        if isinstance(result, NotRun):
            raise OperationError(f"{self.name}: not run, an earlier operation was wrong use")
        return self._read(result, self._columns)


def failure_of(result: Failed) -> OperationError:
    """Return the error that an operation's wrong use stands for."""
    known = result.code in ErrorCode.__members__
    return OperationError(
        result.message, code=ErrorCode(result.code) if known else ErrorCode.INTERNAL
    )


def granted(result: TakeResult | AdmitResult, columns: Columns, bands: tuple[str, ...]) -> Taken:
    """Return the pages named by a result; ``bands`` are the chain's names in order."""
    if len(result.physical) not in (0, len(bands)):
        raise ReplyError(f"a grant names {len(result.physical)} bands of {len(bands)}")
    physical = result.physical or (NO_COLUMN,) * len(bands)
    return Taken(
        rows=column(columns, result.page_rows),
        places=column(columns, result.page_places),
        virtual=column(columns, result.virtual),
        physical={
            name: column(columns, index) for name, index in zip(bands, physical, strict=True)
        },
    )
