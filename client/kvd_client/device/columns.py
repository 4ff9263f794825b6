"""Columns: the numbers of a reply, converted once, and what ranges they span."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kvd_client.device.port import IntArray, NumberLists
from kvd_client.device.recipes import Recipe
from kvd_client.errors import ReplyError
from kvd_proto.outcomes import Outcome

NOTHING: Final = np.zeros(0, dtype=np.int64)
"""An empty list of units or rows."""
ANY_NUMBER: Final = 1 << 62
"""Above every number of a column."""

_INT32: Final = np.dtype("<i4")
_NONE_GREATEST: Final = -1


class Columns:
    """The columns of one outcome by place, with the range that each one's numbers span.

    The ranges come from two passes over all columns together. Checking a column against a limit is
    then a comparison of plain integers, however many effects name it.
    """

    __slots__ = ("_arrays", "_greatest", "_least", "_lengths", "first_list", "lists", "whole")

    def __init__(self, flat: IntArray, lengths: Sequence[int]) -> None:
        """Cut ``flat`` into columns; raises ReplyError if the lengths do not fit."""
        starts: list[int] = []
        start = 0
        for length in lengths:
            if length < 0:
                raise ReplyError(f"a column cannot have {length} numbers")
            starts.append(start)
            start += length
        if start != len(flat):
            raise ReplyError(f"columns hold {len(flat)} numbers, their lengths say {start}")
        self.lists = NumberLists(flat, lengths, starts)
        """The columns of the whole reply, those of this outcome from ``first_list`` on."""
        self.first_list = 0
        self.whole = self
        """The columns of all outcomes of the reply together."""
        self._arrays = [
            flat[start : start + length] for start, length in zip(starts, lengths, strict=True)
        ]
        self._lengths = lengths
        filled = starts if all(lengths) else [starts[i] for i, n in enumerate(lengths) if n]
        self._least: list[int] = []
        self._greatest: list[int] = []
        if filled:
            self._least = np.minimum.reduceat(flat, filled).tolist()
            self._greatest = np.maximum.reduceat(flat, filled).tolist()
        if len(filled) < len(starts):
            # An empty column is within every limit.
            for index, length in enumerate(lengths):
                if not length:
                    self._least.insert(index, ANY_NUMBER)
                    self._greatest.insert(index, _NONE_GREATEST)

    def part(self, start: int, end: int) -> "Columns":
        """Return the columns ``[start, end)`` by themselves, counted from 0 again."""
        part = Columns.__new__(Columns)
        part.lists = self.lists
        part.whole = self.whole
        part.first_list = self.first_list + start
        part._arrays = self._arrays[start:end]
        part._lengths = self._lengths[start:end]
        part._least = self._least[start:end]
        part._greatest = self._greatest[start:end]
        return part

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, index: int) -> IntArray:
        return self._arrays[index]

    def fit(self, recipe: Recipe) -> bool:
        """Return whether the columns are what a recipe needs."""
        lengths, least, greatest = self._lengths, self._least, self._greatest
        if len(lengths) < recipe.column_end:
            return False
        for column, start, end, like in recipe.limits:
            if least[column] < start or greatest[column] >= end or lengths[column] != lengths[like]:
                return False
        return True

    def within(self, index: int, start: int, end: int, what: str) -> IntArray:
        """Return a column whose numbers all lie in ``[start, end)``; raises ReplyError naming one.

        ``what`` says in the error what the numbers are.
        """
        if not 0 <= index < len(self._arrays):
            raise ReplyError(f"an effect names column {index} of {len(self._arrays)}")
        if self._least[index] < start or self._greatest[index] >= end:
            wrong = next(int(n) for n in self._arrays[index] if not start <= n < end)
            raise ReplyError(f"{what} {wrong} is not within [{start}, {end})")
        return self._arrays[index]


NO_COLUMNS: Final = Columns(NOTHING, ())
"""The columns of an outcome that has none."""


def decode_columns(outcomes: Sequence[Outcome]) -> list[Columns]:
    """Return the columns of each outcome of a reply as 64-bit arrays, all converted in one pass.

    Raises ReplyError if bytes and lengths of one of them do not fit.
    """
    lengths: list[int] = []
    for outcome in outcomes:
        if len(outcome.columns) % 4:
            raise ReplyError(f"columns of {len(outcome.columns)} bytes are no int32 numbers")
        if outcome.lengths or outcome.columns:
            count = sum(outcome.lengths)
            if count * 4 != len(outcome.columns):
                raise ReplyError(
                    f"columns hold {len(outcome.columns) // 4} numbers, their lengths say {count}"
                )
            lengths += outcome.lengths
    if not lengths:
        return [NO_COLUMNS] * len(outcomes)
    encoded = b"".join([outcome.columns for outcome in outcomes])
    whole = Columns(np.frombuffer(encoded, dtype=_INT32).astype(np.int64), lengths)
    parts: list[Columns] = []
    start = 0
    for outcome in outcomes:
        end = start + len(outcome.lengths)
        parts.append(whole.part(start, end) if end > start else NO_COLUMNS)
        start = end
    return parts
