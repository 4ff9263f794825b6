"""Vector clocks: which actions are known to be over when another one begins.

A clock has one number per stream: that many actions of the stream are over. Two actions are ordered
exactly if the clock of one of them covers the other's number.
"""

from typing import Final, NewType, TypeAlias

import numpy as np
import numpy.typing as npt

from kvd.errors import WorkloadError

StreamIndex = NewType("StreamIndex", int)
"""Place of a stream in every clock of its world; 0 is the host."""
ActionNumber = NewType("ActionNumber", int)
"""Counts the actions of one stream, from 1."""

Clock: TypeAlias = npt.NDArray[np.int64]

STREAMS_COUNT_MAX: Final = 128
"""Streams of one world: a few per rank, and the transfers that are on their way together."""
HOST: Final = StreamIndex(0)
"""The thread that fills the streams, seen as a stream."""


def new_clock() -> Clock:
    """Return the clock of what begins before anything is over."""
    return np.zeros(STREAMS_COUNT_MAX, dtype=np.int64)


def joined(one: Clock, other: Clock) -> Clock:
    """Return the clock of what begins behind both."""
    return np.maximum(one, other)


def check_stream_index(index: int) -> StreamIndex:
    """Return a stream's place; raises WorkloadError if clocks have no room for it."""
    if index >= STREAMS_COUNT_MAX:
        raise WorkloadError(
            f"a world has at most STREAMS_COUNT_MAX = {STREAMS_COUNT_MAX} streams at a time"
        )
    return StreamIndex(index)
