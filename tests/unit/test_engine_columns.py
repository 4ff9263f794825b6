"""Columns of outcomes."""

import numpy as np

from kvd.engine.columns import ColumnBuilder
from kvd_proto.outcomes import NO_COLUMN


def test_columns_are_laid_end_to_end_as_little_endian_int32() -> None:
    columns = ColumnBuilder()
    assert columns.add(np.array([1, 256])) == 0
    assert columns.add_if_any(np.array([], dtype=np.int64)) == NO_COLUMN
    assert columns.add(np.array([], dtype=np.int64)) == 1
    assert columns.add_if_any(np.array([(1 << 31) - 1])) == 2
    assert columns.lengths == (2, 0, 1)
    assert columns.encode().hex() == "0100000000010000ffffff7f"


def test_no_columns_are_no_bytes() -> None:
    assert (ColumnBuilder().lengths, ColumnBuilder().encode()) == ((), b"")
